// Package render turns answers of the host into text for people. It does no
// I/O of its own, and every word that came from a repository, a provider or a
// file is escaped before it is written: nothing that reaches a terminal can
// move its cursor, change its colours or hide what follows.
package render

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// Escape makes untrusted text safe to show on one line: control characters,
// escapes, bidirectional and zero-width characters and bytes that are not UTF-8
// are written out.
func Escape(s string) string {
	if plain(s) {
		return s
	}
	var b strings.Builder
	for _, c := range cells(s) {
		b.WriteString(c.text)
	}
	return b.String()
}

func plain(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// cell is one character as it is shown, never to be cut in two: with the accents
// on it, or written out.
type cell struct {
	text string
	cols int
}

// mostMarks is how many accents a letter may carry. Scripts need two or three;
// towers of them cover the lines above.
const mostMarks = 3

// cells escapes text character by character.
func cells(s string) []cell {
	out := make([]cell, 0, len(s))
	letter, marks := false, 0
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if unicode.Is(unicode.Mn, r) && !ignorable(r) && letter && marks < mostMarks {
			out[len(out)-1].text += s[i : i+n]
			marks++
		} else {
			out = append(out, one(r, s[i:i+n]))
			letter, marks = unicode.IsLetter(r) && !ignorable(r), 0
		}
		i += n
	}
	return out
}

// one escapes a character that stands by itself; raw are its bytes.
func one(r rune, raw string) cell {
	var text string
	switch {
	case r == utf8.RuneError && len(raw) == 1:
		text = fmt.Sprintf(`\x%02x`, raw[0])
	case r == '\t':
		text = "    "
	case r == '\n':
		text = `\n`
	case r == '\r':
		text = `\r`
	case r < 0x20 || r == 0x7f:
		text = fmt.Sprintf(`\x%02x`, r)
	case !unicode.IsPrint(r) || unicode.In(r, unicode.Cf, unicode.Mn, unicode.Me) || ignorable(r):
		text = fmt.Sprintf(`\u{%x}`, r)
	default:
		if k := width.LookupRune(r).Kind(); k == width.EastAsianWide || k == width.EastAsianFullwidth {
			return cell{raw, 2}
		}
		return cell{raw, 1}
	}
	return cell{text, len(text)}
}

// ignorable reports characters that Unicode lets a display leave out.
func ignorable(r rune) bool {
	return unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) || (r >= 0xE0000 && r <= 0xE0FFF)
}

// columns counts how many columns text takes that is safe already.
func columns(s string) int {
	if plain(s) {
		return len(s)
	}
	return total(cells(s))
}

func total(cs []cell) int {
	n := 0
	for _, c := range cs {
		n += c.cols
	}
	return n
}
