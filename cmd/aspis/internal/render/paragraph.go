package render

import (
	"fmt"
	"io"
	"strings"
)

// Paragraphs writes sentences, each broken into lines and with an empty line
// before it.
func Paragraphs(w io.Writer, o Options, texts ...string) error {
	var b strings.Builder
	for _, t := range texts {
		b.WriteString("\n" + prose(t, o, 0) + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// longest is how much of one text is shown, in bytes. A message has no use for
// more, and a provider that sends a megabyte must not push its own finding off
// the screen.
const longest = 4000

// prose escapes untrusted text and breaks it into lines, the second and further
// ones behind indent columns.
func prose(s string, o Options, indent int) string {
	if len(s) > longest {
		s = fmt.Sprintf("%s… (%d bytes more)", strings.ToValidUTF8(s[:longest], ""), len(s)-longest)
	}
	return wrap(Escape(s), o.width(), indent)
}

// wrap breaks safe text at spaces so that no line is wider than width columns,
// the first of which begins behind indent. A word that is wider stays whole:
// it is a digest or a path, for somebody to copy.
func wrap(text string, width, indent int) string {
	room := max(width-indent, 20)
	var b strings.Builder
	used := 0
	for word := range strings.FieldsSeq(text) {
		n := columns(word)
		switch {
		case used == 0:
		case used+1+n > room:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			used = 0
		default:
			b.WriteByte(' ')
			used++
		}
		b.WriteString(word)
		used += n
	}
	return b.String()
}
