package match

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sort"
	"unicode/utf16"
	"unicode/utf8"
)

// Text is a file cut into lines and tokens. Tokens leave out what formatters
// change: white space, commas and semicolons; and quotes are all the same.
type Text struct {
	content []byte
	lines   []int // where each line begins
	tokens  []token
	names   map[[2]int]string // of ranges of tokens that were asked for
	hashed  int               // tokens that went into names
	whole   []byte            // the digest of content, once it was needed
}

type token struct{ start, end int }

// NewText cuts a file. The content must not change afterwards.
func NewText(content []byte) *Text {
	t := &Text{content: content, lines: []int{0}}
	for i := 0; i < len(content); {
		c := content[i]
		switch {
		case c == '\n':
			i++
			t.lines = append(t.lines, i)
		case c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v' || c == ',' || c == ';':
			i++
		case wordByte(c):
			start := i
			for i < len(content) && wordByte(content[i]) {
				i++
			}
			t.tokens = append(t.tokens, token{start, i})
		default:
			t.tokens = append(t.tokens, token{i, i + 1})
			i++
		}
	}
	return t
}

func wordByte(c byte) bool {
	return c == '_' || c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
}

// word is a token's text as it is compared.
func (t *Text) word(i int) string {
	w := string(t.content[t.tokens[i].start:t.tokens[i].end])
	if w == "'" || w == "`" {
		return `"`
	}
	return w
}

// Lines is how many lines there are; a file that ends in a newline has an empty
// one more.
func (t *Text) Lines() int { return len(t.lines) }

// line gives a line's range in bytes, without its end.
func (t *Text) line(n int) (start, end int) {
	start = t.lines[n]
	end = len(t.content)
	if n+1 < len(t.lines) {
		end = t.lines[n+1] - 1
	}
	if end > start && t.content[end-1] == '\r' {
		end--
	}
	return start, end
}

// Unit is what a tool counts in a line.
type Unit int

// What tools count columns in.
const (
	Runes Unit = iota
	Bytes
	UTF16
)

// at gives the byte at a column of a line, counted from 0; past the line's end it
// is the end.
func (t *Text) at(line, column int, unit Unit) int {
	start, end := t.line(line)
	if unit == Bytes {
		return min(start+column, end)
	}
	i := start
	for column > 0 && i < end {
		r, size := utf8.DecodeRune(t.content[i:end])
		if unit == UTF16 {
			column -= max(utf16.RuneLen(r), 1)
		} else {
			column--
		}
		i += size
	}
	return i
}

// Place is where in a file a finding is. The zero Place is the whole file.
type Place struct {
	Known      bool
	Start, End int // bytes
	// Exact is true where the tool told columns of both ends.
	Exact bool
}

// Locate makes a place of lines and columns that count from 0, where -1 is not
// known. A line that the file does not have gives the whole file and false.
func (t *Text) Locate(line, column, endLine, endColumn int, unit Unit) (Place, bool) {
	if line < 0 {
		return Place{}, true
	}
	if line >= len(t.lines) {
		return Place{}, false
	}
	start, end := t.line(line)
	p := Place{Known: true, Start: start, End: end}
	if column >= 0 {
		p.Start = t.at(line, column, unit)
	}
	if endLine < line {
		endLine = line
	}
	endLine = min(endLine, len(t.lines)-1)
	if endColumn >= 0 {
		p.End = t.at(endLine, endColumn, unit)
	} else {
		_, p.End = t.line(endLine)
	}
	p.End = max(p.Start, p.End)
	p.Exact = column >= 0 && endColumn >= 0 && p.End > p.Start
	return p, true
}

// LocateOffsets makes a place of byte offsets.
func (t *Text) LocateOffsets(start, end int) (Place, bool) {
	if start < 0 || start > len(t.content) {
		return Place{}, false
	}
	if end < start || end > len(t.content) {
		_, end = t.line(t.lineOf(start))
		end = max(start, end)
	}
	return Place{Known: true, Start: start, End: end, Exact: end > start}, true
}

func (t *Text) lineOf(offset int) int {
	return sort.Search(len(t.lines), func(i int) bool { return t.lines[i] > offset }) - 1
}

// Position gives the line and the UTF-16 column of a byte, from 0.
func (t *Text) Position(offset int) (line, column int) {
	line = t.lineOf(offset)
	for i := t.lines[line]; i < offset; {
		r, size := utf8.DecodeRune(t.content[i:])
		column += max(utf16.RuneLen(r), 1)
		i += size
	}
	return line, column
}

// core gives the tokens that a finding is about: those of its range where both
// ends are known, else those of its lines. From what is between tokens it gives
// an empty range.
func (t *Text) core(p Place) (from, to int) {
	start, end := p.Start, p.End
	if !p.Exact {
		start, _ = t.line(t.lineOf(p.Start))
		_, end = t.line(t.lineOf(p.End))
	}
	from = sort.Search(len(t.tokens), func(i int) bool { return t.tokens[i].end > start })
	to = sort.Search(len(t.tokens), func(i int) bool { return t.tokens[i].start >= end })
	return from, max(from, to)
}

// maxNamed bounds the tokens that are hashed of a file: a tool may report large
// ranges of it many times.
const maxNamed = 2_000_000

// name names the tokens of a range: ranges with the same tokens have the same
// name. An empty range is named by its neighbours.
func (t *Text) name(from, to int) string {
	key := [2]int{from, to}
	if n, ok := t.names[key]; ok {
		return n
	}
	h := sha256.New()
	add := func(from, to int) {
		for i := from; i < to; i++ {
			h.Write([]byte(t.word(i)))
			h.Write([]byte{0})
		}
	}
	switch n := to - from; {
	case n == 0:
		h.Write([]byte("between"))
		add(max(from-1, 0), min(to+1, len(t.tokens)))
	case t.hashed+n > maxNamed:
		// The same only in the very same file. What was aligned is not asked.
		if t.whole == nil {
			sum := sha256.Sum256(t.content)
			t.whole = sum[:]
		}
		h.Write(fmt.Appendf(slices.Clip(t.whole), "%d-%d", from, to))
	default:
		t.hashed += n
		add(from, to)
	}
	if t.names == nil {
		t.names = map[[2]int]string{}
	}
	t.names[key] = hex.EncodeToString(h.Sum(nil))
	return t.names[key]
}
