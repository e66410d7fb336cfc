package hygiene

import (
	"bytes"
	"sort"
	"unicode/utf8"
)

// layout finds lines and columns in a text. It is made once a file, when there
// is something to place.
type layout struct {
	text   []byte
	starts []int // byte offset of each line
}

func newLayout(text []byte) *layout {
	l := &layout{text: text, starts: []int{0}}
	for at := 0; ; {
		n := bytes.IndexByte(text[at:], '\n')
		if n < 0 {
			return l
		}
		at += n + 1
		l.starts = append(l.starts, at)
	}
}

// lineOf returns the line that a byte offset lies in, counted from 0.
func (l *layout) lineOf(offset int) int {
	return sort.SearchInts(l.starts, offset+1) - 1
}

// line returns a line without its end.
func (l *layout) line(n int) []byte {
	end := len(l.text)
	if n+1 < len(l.starts) {
		end = l.starts[n+1]
	}
	return bytes.TrimRight(l.text[l.starts[n]:end], "\r\n")
}

// span is the range from one byte offset to another.
func (l *layout) span(from, to int) place {
	a, b := l.lineOf(from), l.lineOf(to)
	return place{known: true, line: a, start: utf16Len(l.text[l.starts[a]:from]), lastLine: b, lastColumn: utf16Len(l.text[l.starts[b]:to])}
}

// whole is the range of a line; a number out of bounds takes the nearest.
func (l *layout) whole(n int) place {
	n = max(0, min(n, len(l.starts)-1))
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
