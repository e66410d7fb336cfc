package policy

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

// Error says which file is wrong, where in it, and why.
type Error struct {
	File         string
	Line, Column int // from 1; 0 when the place is not known
	Pointer      string
	Detail       string
}

func (e *Error) Error() string {
	where := e.File
	if e.Line > 0 {
		where = fmt.Sprintf("%s:%d:%d", e.File, e.Line, e.Column)
	}
	if e.Pointer != "" {
		return fmt.Sprintf("%s: %s %s", where, e.Pointer, e.Detail)
	}
	return fmt.Sprintf("%s: %s", where, e.Detail)
}

// maxFile bounds a policy file, in bytes.
const maxFile = 1 << 20

func parse(name string, raw []byte, v any) error {
	err := schemas.DecodeRequired(raw, v, schemas.Limits{MaxBytes: maxFile, MaxDepth: 32, MaxElements: 100_000})
	if err == nil {
		return nil
	}
	var d *schemas.DecodeError
	if !errors.As(err, &d) {
		return &Error{File: name, Detail: err.Error()}
	}
	e := &Error{File: name, Pointer: d.Pointer, Detail: d.Detail}
	if d.Offset >= 0 && d.Offset <= int64(len(raw)) {
		e.Line, e.Column = position(raw, int(d.Offset))
	}
	return e
}

// errorAt makes an error about the value at a JSON pointer.
func errorAt(name string, raw []byte, pointer, detail string) *Error {
	e := &Error{File: name, Pointer: pointer, Detail: detail}
	if off, ok := locate(raw, pointer); ok {
		e.Line, e.Column = position(raw, off)
	}
	return e
}

// position counts lines and columns, both from 1; columns in bytes.
func position(raw []byte, off int) (line, column int) {
	before := raw[:min(off, len(raw))]
	line = 1 + bytes.Count(before, []byte{'\n'})
	return line, len(before) - (bytes.LastIndexByte(before, '\n') + 1) + 1
}

// locate finds where the value at a pointer begins, or else its nearest parent.
func locate(raw []byte, pointer string) (int, bool) {
	d := jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true))
	best, found := 0, false
	longest := -1
	for {
		off := int(d.InputOffset())
		if _, err := d.ReadToken(); err != nil {
			return best, found
		}
		at := string(d.StackPointer())
		if len(at) > longest && (at == pointer || strings.HasPrefix(pointer, at+"/")) {
			best, found, longest = skipSpace(raw, off), true, len(at)
		}
		if at == pointer {
			return best, true
		}
	}
}

func skipSpace(raw []byte, off int) int {
	for off < len(raw) && strings.ContainsRune(" \t\r\n,:", rune(raw[off])) {
		off++
	}
	return off
}

// memberNamed looks for a member of one of the names at any depth.
func memberNamed(raw []byte, names []string) (pointer string, found bool) {
	d := jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true))
	for {
		tok, err := d.ReadToken()
		if err != nil {
			return "", false
		}
		kind, n := d.StackIndex(d.StackDepth())
		if tok.Kind() == '"' && kind == '{' && n%2 == 1 && slices.Contains(names, tok.String()) {
			return string(d.StackPointer()), true
		}
	}
}

// checks collects the first rule that a file breaks.
type checks struct{ pointer, detail string }

func (k *checks) require(pointer string, ok bool, format string, args ...any) {
	if !ok && k.detail == "" {
		k.pointer, k.detail = pointer, fmt.Sprintf(format, args...)
	}
}

func (k *checks) result(name string, raw []byte) error {
	if k.detail == "" {
		return nil
	}
	return errorAt(name, raw, k.pointer, k.detail)
}
