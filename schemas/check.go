package schemas

import (
	"fmt"
	"slices"
	"strings"
)

// checker collects the first thing that is wrong with a decoded value.
type checker struct{ err *DecodeError }

func (c *checker) fail(pointer, format string, args ...any) {
	if c.err == nil {
		c.err = &DecodeError{Pointer: pointer, Detail: fmt.Sprintf(format, args...), Offset: -1}
	}
}

// result keeps a typed nil from becoming a non-nil error.
func (c *checker) result() error {
	if c.err == nil {
		return nil
	}
	return c.err
}

func (c *checker) nonEmpty(pointer, s string) {
	if s == "" {
		c.fail(pointer, "is missing or empty")
	}
}

func oneOf[T ~string](c *checker, pointer string, v T, allowed ...T) {
	if !slices.Contains(allowed, v) {
		words := make([]string, len(allowed))
		for i, a := range allowed {
			words[i] = string(a)
		}
		c.fail(pointer, "is %.40q; use one of %s", string(v), strings.Join(words, ", "))
	}
}

func (c *checker) path(pointer, p string) {
	if err := ValidPath(p); err != nil {
		c.fail(pointer, "%v", err)
	}
}

func (c *checker) blob(pointer string, b BlobRef) {
	if _, ok := b.Hex(); !ok {
		c.fail(pointer, "is %.80q; use blob:sha256:<64 hex digits>", string(b))
	}
}

func (c *checker) blobs(pointer string, list []BlobRef) {
	if list == nil {
		c.fail(pointer, "is missing")
	}
	seen := make(map[BlobRef]bool, len(list))
	for i, b := range list {
		c.blob(fmt.Sprintf("%s/%d", pointer, i), b)
		if seen[b] {
			c.fail(fmt.Sprintf("%s/%d", pointer, i), "names a blob twice")
		}
		seen[b] = true
	}
}

func (c *checker) digest(pointer, d string) {
	h, ok := strings.CutPrefix(d, "sha256:")
	if !ok || len(h) != 64 || strings.Trim(h, "0123456789abcdef") != "" {
		c.fail(pointer, "is %.80q; use sha256:<64 hex digits>", d)
	}
}

func (c *checker) baseline(pointer string, b Baseline) { c.nonEmpty(pointer+"/rev", b.Rev) }

func atLeastOne[T any](c *checker, pointer string, list []T) {
	if len(list) == 0 {
		c.fail(pointer, "must have at least one entry")
	}
}

func unique[T comparable](c *checker, pointer string, list []T) {
	seen := make(map[T]bool, len(list))
	for i, v := range list {
		if seen[v] {
			c.fail(fmt.Sprintf("%s/%d", pointer, i), "is there twice")
		}
		seen[v] = true
	}
}

func (c *checker) rng(pointer string, r *Range) {
	if r == nil {
		return
	}
	if r.Start.Line < 0 || r.Start.Char < 0 || r.End.Line < 0 || r.End.Char < 0 {
		c.fail(pointer, "has a negative position; lines and characters count from 0")
	}
	if r.End.Line < r.Start.Line || (r.End.Line == r.Start.Line && r.End.Char < r.Start.Char) {
		c.fail(pointer, "ends before it starts")
	}
}
