package apply

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/aspis-dev/aspis/schemas"
)

// TextEdits applies edits to a file's content. Ranges count lines and UTF-16
// code units from 0 in the content as it is (asp-wire, TextEdit): a line ends
// after LF, CRLF or a lone CR. Each edit's rangeBasis must name the content.
// Edits may come in any order and touch, but not overlap.
func TextEdits(content []byte, edits []schemas.TextEdit) ([]byte, error) {
	if !utf8.Valid(content) {
		return nil, fmt.Errorf("the content is not UTF-8; replace the file as a whole")
	}
	basis := schemas.BlobRefOf(content)
	starts := lineStarts(content)
	type span struct {
		from, to int
		text     string
		at       int
	}
	spans := make([]span, 0, len(edits))
	for i, e := range edits {
		if e.RangeBasis != basis {
			return nil, fmt.Errorf("edit %d is on %s, the content is %s", i, e.RangeBasis, basis)
		}
		from, err := offset(content, starts, e.Range.Start)
		if err != nil {
			return nil, fmt.Errorf("edit %d starts %w", i, err)
		}
		to, err := offset(content, starts, e.Range.End)
		if err != nil {
			return nil, fmt.Errorf("edit %d ends %w", i, err)
		}
		if to < from {
			return nil, fmt.Errorf("edit %d ends before it starts", i)
		}
		if !utf8.ValidString(e.NewText) {
			return nil, fmt.Errorf("edit %d has new text that is not UTF-8", i)
		}
		spans = append(spans, span{from, to, e.NewText, i})
	}
	slices.SortStableFunc(spans, func(a, b span) int {
		if a.from != b.from {
			return a.from - b.from
		}
		return a.to - b.to
	})
	var out strings.Builder
	done := 0
	for i, s := range spans {
		if s.from < done || (i > 0 && s.from == spans[i-1].from && (s.to > s.from) == (spans[i-1].to > spans[i-1].from)) {
			return nil, fmt.Errorf("edits %d and %d overlap", spans[max(i-1, 0)].at, s.at)
		}
		out.Write(content[done:s.from])
		out.WriteString(s.text)
		done = s.to
	}
	out.Write(content[done:])
	return []byte(out.String()), nil
}

func lineStarts(content []byte) []int {
	starts := []int{0}
	for i := 0; i < len(content); i++ {
		switch content[i] {
		case '\r':
			if i+1 < len(content) && content[i+1] == '\n' {
				i++
			}
			starts = append(starts, i+1)
		case '\n':
			starts = append(starts, i+1)
		}
	}
	return starts
}

// offset turns a position into an offset in bytes. A position inside a line's
// end or in the middle of a surrogate pair is nowhere.
func offset(content []byte, starts []int, p schemas.Position) (int, error) {
	if p.Line < 0 || p.Line >= len(starts) {
		return 0, fmt.Errorf("on line %d of %d", p.Line, len(starts))
	}
	at := starts[p.Line]
	end := len(content)
	if p.Line+1 < len(starts) {
		end = starts[p.Line+1]
	}
	for units := 0; units < p.Char; {
		if at >= end || content[at] == '\n' || content[at] == '\r' {
			return 0, fmt.Errorf("behind the end of line %d", p.Line)
		}
		r, n := utf8.DecodeRune(content[at:])
		units++
		if r > 0xFFFF {
			units++
		}
		if units > p.Char {
			return 0, fmt.Errorf("in the middle of a character on line %d", p.Line)
		}
		at += n
	}
	return at, nil
}
