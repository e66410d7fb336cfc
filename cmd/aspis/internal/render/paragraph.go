package render

import (
	"io"
	"strings"
)

// Paragraphs writes sentences, each broken into lines and with an empty line
// before it.
func Paragraphs(w io.Writer, o Options, texts ...string) error {
	var b strings.Builder
	for _, t := range texts {
		b.WriteString("\n" + wrap(Escape(t), o.width(), 0) + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
