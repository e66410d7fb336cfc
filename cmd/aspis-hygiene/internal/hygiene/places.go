package hygiene

import (
	"bytes"
	"sort"
	"unicode/utf8"
)

// layout finds lines and columns in a text. The lines are counted when there is
// something to place, which is rare.
type layout struct {
	text   []byte
	starts []int32 // byte offset of each line
}

// newLayout takes a text of less than 2 GiB.
func newLayout(text []byte) *layout { return &layout{text: text} }

func (l *layout) lines() []int32 {
	if l.starts != nil {
		return l.starts
	}
	l.starts = make([]int32, 1, 1+bytes.Count(l.text, []byte("\n")))
	for at := 0; ; {
		n := bytes.IndexByte(l.text[at:], '\n')
		if n < 0 {
			return l.starts
		}
		at += n + 1
		l.starts = append(l.starts, int32(at))
	}
}

// lineOf returns the line that a byte offset lies in, counted from 0.
func (l *layout) lineOf(offset int) int {
	starts := l.lines()
	return sort.Search(len(starts), func(i int) bool { return int(starts[i]) > offset }) - 1
}

// start is the byte offset of a line.
func (l *layout) start(n int) int { return int(l.lines()[n]) }

// line returns a line without its end.
func (l *layout) line(n int) []byte {
	end := len(l.text)
	if n+1 < len(l.lines()) {
		end = l.start(n + 1)
	}
	return bytes.TrimRight(l.text[l.start(n):end], "\r\n")
}

// span is the range from one byte offset to another.
func (l *layout) span(from, to int) place {
	a, b := l.lineOf(from), l.lineOf(to)
	return place{known: true, line: a, start: utf16Len(l.text[l.start(a):from]), lastLine: b, lastColumn: utf16Len(l.text[l.start(b):to])}
}

// whole is the range of a line; a number out of bounds takes the nearest.
func (l *layout) whole(n int) place {
	n = max(0, min(n, len(l.lines())-1))
	return place{known: true, line: n, lastLine: n, lastColumn: utf16Len(l.line(n))}
}

// utf16Len counts UTF-16 code units, as editors do; a byte that is not UTF-8
// counts one.
func utf16Len(b []byte) int {
	n := 0
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		b = b[size:]
		n++
		if r > 0xFFFF {
			n++
		}
	}
	return n
}
