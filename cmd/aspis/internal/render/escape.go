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
)

// Escape makes untrusted text safe to show on one line: control characters,
// escapes, bidirectional and zero-width characters and bytes that are not UTF-8
// are written out.
func Escape(s string) string {
	if plain(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n <= 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\t':
			b.WriteString("    ")
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, r)
		case hidden(r):
			fmt.Fprintf(&b, `\u{%x}`, r)
		default:
			b.WriteRune(r)
		}
		i += n
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

// hidden reports characters that show nothing or change how others show.
func hidden(r rune) bool {
	return !unicode.IsPrint(r) || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Mn, r) || unicode.Is(unicode.Me, r) ||
		(r >= 0xE0000 && r <= 0xE0FFF) || r == 0x3164 || r == 0xFFA0 || r == 0x115F || r == 0x1160
}

// Palette holds the few colours in use; the zero Palette has none.
type Palette struct{ on bool }

// Colours gives a palette that colours, or not.
func Colours(on bool) Palette { return Palette{on} }

func (p Palette) paint(code, s string) string {
	if !p.on || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p Palette) red(s string) string    { return p.paint("31;1", s) }
func (p Palette) yellow(s string) string { return p.paint("33", s) }
func (p Palette) green(s string) string  { return p.paint("32;1", s) }
func (p Palette) dim(s string) string    { return p.paint("2", s) }
func (p Palette) bold(s string) string   { return p.paint("1", s) }

// wrap breaks text at spaces so that no line is wider than width columns, the
// first of which begins behind indent.
func wrap(text string, width, indent int) string {
	room := max(width-indent, 20)
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > room {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	lines = append(lines, line)
	return strings.Join(lines, "\n"+strings.Repeat(" ", indent))
}
