package render

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/aspis-dev/aspis/schemas"
)

// excerpts shows source lines, for all findings of one verdict.
type excerpts struct {
	source  func(path string) ([]byte, bool)
	secrets map[string][]schemas.Range // ranges of each file that must not be read here
	room    int                        // columns of a line
	left    int                        // bytes that may still be looked at
}

// mostScanned bounds the work for all excerpts together, in bytes. A line is
// walked to find a column in it, and a provider may send any number of findings
// on a line of any length.
const mostScanned = 256 << 20

func newExcerpts(findings []schemas.Finding, o Options) *excerpts {
	e := &excerpts{source: o.Source, secrets: map[string][]schemas.Range{}, room: o.width() - 12, left: mostScanned}
	for _, f := range findings {
		if l := f.Diagnostic.Location; l.Range != nil && secret(f.Diagnostic.Code) {
			e.secrets[l.Path] = append(e.secrets[l.Path], *l.Range)
		}
	}
	return e
}

// secret tells by a rule's name that what it found must not be repeated: logs
// are read by more people than the repository.
func secret(code string) bool {
	code = strings.ToLower(code)
	return slices.ContainsFunc([]string{"secret", "credential", "password", "private-key", "api-key"}, func(word string) bool { return strings.Contains(code, word) })
}

// of gives the line of a finding and marks for below it, both safe to show. It
// hides not only what this finding is about but every secret that is known to
// lie on the line.
func (e *excerpts) of(d schemas.Diagnostic) (line, marks string, ok bool) {
	r := d.Location.Range
	if r == nil || e.source == nil || e.left <= 0 {
		return "", "", false
	}
	content, ok := e.source(d.Location.Path)
	if !ok {
		return "", "", false
	}
	raw, skipped, ok := lineOf(content, r.Start.Line)
	secrets := e.secrets[d.Location.Path]
	e.left -= skipped + len(raw) + 64*len(secrets)
	if !ok {
		return "", "", false
	}
	ranges := []schemas.Range{*r}
	for _, s := range secrets {
		if s.Start.Line <= r.Start.Line && (s.End.Line >= r.Start.Line || s.End.Line < s.Start.Line) {
			ranges = append(ranges, s)
		}
	}
	spans := spansOf(raw, r.Start.Line, ranges)
	b, m, a := fit(view(raw, spans[0], spans[1:], e.room), e.room)
	return join(b) + join(m) + join(a), strings.Repeat(" ", total(b)) + strings.Repeat("^", max(1, total(m))), true
}

// lineOf gives one line without its end, and how many bytes came before it.
func lineOf(content []byte, n int) (line string, skipped int, ok bool) {
	rest := content
	for range n {
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			return "", len(content), false
		}
		rest = rest[i+1:]
	}
	first, _, _ := bytes.Cut(rest, []byte{'\n'})
	return strings.TrimSuffix(string(first), "\r"), len(content) - len(rest), true
}

// span is a part of a line, in bytes.
type span struct{ from, to int }

// spansOf turns ranges, whose columns count UTF-16 code units, into parts of
// line number n, in one walk along it.
func spansOf(line string, n int, ranges []schemas.Range) []span {
	type want struct {
		units int
		into  *int
	}
	out := make([]span, len(ranges))
	var wanted []want
	for i, r := range ranges {
		out[i].to = len(line)
		if r.Start.Line == n {
			wanted = append(wanted, want{r.Start.Char, &out[i].from})
		}
		if r.End.Line == n && (r.Start.Line < n || r.End.Char >= r.Start.Char) {
			wanted = append(wanted, want{r.End.Char, &out[i].to})
		}
	}
	slices.SortFunc(wanted, func(a, b want) int { return cmp.Compare(a.units, b.units) })
	units := 0
	for i, r := range line {
		for len(wanted) > 0 && units >= wanted[0].units {
			*wanted[0].into = i
			wanted = wanted[1:]
		}
		if len(wanted) == 0 {
			break
		}
		units += max(utf16.RuneLen(r), 1)
	}
	for _, w := range wanted {
		*w.into = len(line)
	}
	return out
}

// parts are what lies before a range, in it and behind it.
type parts struct{ before, marked, after []cell }

// view takes of a line what can be shown at most, and covers its secrets.
func view(line string, marked span, secrets []span, room int) parts {
	// No character has less than one column, but accents are several characters.
	most := (room + 1) * (1 + mostMarks)
	from, to := marked.from, marked.to
	for n := 0; n < most && from > 0; n++ {
		_, size := utf8.DecodeLastRuneInString(line[:from])
		from -= size
	}
	end := marked.from
	for n := 0; n < most && end < to; n++ {
		_, size := utf8.DecodeRuneInString(line[end:])
		end += size
	}
	last := to
	for n := 0; n < most && last < len(line); n++ {
		_, size := utf8.DecodeRuneInString(line[last:])
		last += size
	}
	var hidden []span
	for _, s := range secrets {
		if s.to > from && s.from < last {
			hidden = append(hidden, span{s.from + hint(line[s.from:s.to]), s.to})
		}
	}
	return parts{covered(line, from, marked.from, hidden), covered(line, marked.from, end, hidden), covered(line, to, last, hidden)}
}

// hint is how many bytes of a secret are shown: a quarter of its characters and
// at most four, so little that it is of no use but can be told from others.
func hint(secret string) int {
	n := 0
	for range secret {
		if n++; n == 16 {
			break
		}
	}
	show := n / 4
	for i := range secret {
		if show == 0 {
			return i
		}
		show--
	}
	return 0
}

// covered gives a part of a line with what is hidden dotted out.
func covered(line string, from, to int, hidden []span) []cell {
	var out []cell
	for from < to {
		next, hide := to, false
		for _, s := range hidden {
			switch {
			case from < s.from:
				next = min(next, s.from)
			case from < s.to:
				next, hide = min(next, s.to), true
			}
		}
		if hide {
			for range utf8.RuneCountInString(line[from:next]) {
				out = append(out, cell{"•", 1})
			}
		} else {
			out = append(out, cells(line[from:next])...)
		}
		from = next
	}
	return out
}

// fit shortens the parts of a long line to what fits, around the range.
func fit(p parts, room int) (before, marked, after []cell) {
	more := cell{"…", 1}
	before, marked, after = p.before, p.marked, p.after
	if total(marked) > room*2/3 {
		marked = append(head(marked, room*2/3-1), more)
	}
	left := room - total(marked)
	if total(before) > left*2/3 {
		before = append([]cell{more}, end(before, left*2/3-1)...)
	}
	if left -= total(before); total(after) > left {
		after = append(head(after, left-1), more)
	}
	return before, marked, after
}

// head gives the first cells that have room, as a slice of its own.
func head(cs []cell, room int) []cell {
	n, used := 0, 0
	for n < len(cs) && used+cs[n].cols <= room {
		used += cs[n].cols
		n++
	}
	return slices.Clone(cs[:n])
}

func end(cs []cell, room int) []cell {
	n, used := len(cs), 0
	for n > 0 && used+cs[n-1].cols <= room {
		n--
		used += cs[n].cols
	}
	return cs[n:]
}

func join(cs []cell) string {
	var b strings.Builder
	for _, c := range cs {
		b.WriteString(c.text)
	}
	return b.String()
}
