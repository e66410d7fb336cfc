package hygiene

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/aspis-dev/aspis/schemas"
)

// hit is one finding on one side of a change.
type hit struct {
	rule  string
	path  string
	place place
	// severity overrides the rule's own; "" does not.
	severity schemas.Severity
	message  string
	// key makes it the same finding when lines move or a file is renamed. It
	// may hold a secret and never leaves the process.
	key string
	// mark is the same for the fingerprint, which is published; "" means key.
	mark string
}

// place is a range of a file; lines and UTF-16 units count from 0. The zero
// place is the whole file.
type place struct {
	known                bool
	line, start          int
	lastLine, lastColumn int
}

func (h hit) identity() string { return h.rule + "\x00" + h.key }

// both are the findings before and after a change.
type both struct{ before, after []hit }

// compared is a finding that is to be reported.
type compared struct {
	hit
	introduced bool
	occurrence int // among findings of one mark, from 1
}

// compare takes the sides as multisets: what is there once more after than
// before is introduced once, wherever it stands. Comparison all lists what is
// there after, resolved what was there before and is no more.
func compare(b both, comparison schemas.Comparison) []compared {
	list, other := b.after, b.before
	if comparison == schemas.Resolved {
		list, other = b.before, b.after
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(x, y hit) int {
		return cmp.Or(cmp.Compare(x.path, y.path), cmp.Compare(x.place.line, y.place.line), cmp.Compare(x.place.start, y.place.start), cmp.Compare(x.rule, y.rule))
	})
	// Where there are more than before, those in files that had them are the old
	// ones.
	left := map[string]int{}
	home := map[string]int{}
	for _, h := range other {
		left[h.identity()]++
		home[h.path+"\x00"+h.identity()]++
	}
	old := make([]bool, len(list))
	take := func(i int) {
		if id := list[i].identity(); !old[i] && left[id] > 0 {
			left[id]--
			old[i] = true
		}
	}
	for i, h := range list {
		if at := h.path + "\x00" + h.identity(); home[at] > 0 {
			home[at]--
			take(i)
		}
	}
	for i := range list {
		take(i)
	}
	seen := map[string]int{}
	var out []compared
	for i, h := range list {
		mark := h.rule + "\x00" + cmp.Or(h.mark, h.key)
		seen[mark]++
		if old[i] && comparison != schemas.All {
			continue
		}
		out = append(out, compared{hit: h, introduced: !old[i] && comparison != schemas.Resolved, occurrence: seen[mark]})
	}
	return out
}

// diagnostic puts a finding on the wire.
func (c compared) diagnostic(severities map[string]schemas.Severity) schemas.Diagnostic {
	def := rules[c.rule]
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d", c.rule, cmp.Or(c.mark, c.key), c.occurrence))
	d := schemas.Diagnostic{
		Code: Source + "/" + c.rule, Source: Source, Severity: cmp.Or(severities[c.rule], c.severity, def.severity),
		Message: c.message, Help: def.help, Location: schemas.Location{Path: c.path},
		Fingerprint: hex.EncodeToString(sum[:]), Introduced: &c.introduced,
	}
	if p := c.place; p.known {
		d.Location.Range = &schemas.Range{Start: schemas.Position{Line: p.line, Char: p.start}, End: schemas.Position{Line: p.lastLine, Char: p.lastColumn}}
	}
	return d
}
