package render

import (
	"fmt"
	"io"
	"strings"

	"github.com/aspis-dev/aspis/schemas"
)

// Options say how to write.
type Options struct {
	Palette Palette
	Width   int // columns; 0 means 80, fewer than 40 count as 40
	// Source gives the content of a file of the candidate, to show the line of a
	// finding; nil or false means that none is shown.
	Source func(path string) ([]byte, bool)
}

func (o Options) width() int {
	if o.Width <= 0 {
		return 80
	}
	return max(o.Width, 40)
}

// Verdict writes a decision for a person: findings with their source lines,
// what is missing of the coverage, and one last line with the gist.
func Verdict(w io.Writer, v *schemas.Verdict, o Options) error {
	var b strings.Builder
	p := o.Palette
	lines := newExcerpts(v.Findings, o)
	for i, file := range byFile(v.Findings) {
		if i > 0 {
			b.WriteByte('\n')
		}
		for _, f := range file {
			finding(&b, f, lines, o)
		}
	}
	between := b.Len() > 0
	for _, d := range v.Coverage.Degraded {
		if d.Reason == schemas.ReasonBlockingDiagnostic {
			continue // the findings above say it better
		}
		if between {
			b.WriteByte('\n')
			between = false
		}
		degradation(&b, d, o)
	}
	if b.Len() > 0 {
		b.WriteByte('\n')
	}
	word := map[schemas.Decision]string{schemas.Allow: p.green("allow"), schemas.Deny: p.red("deny")}[v.Decision]
	if word == "" {
		word = p.yellow(Escape(string(v.Decision)))
	}
	gating, advisory := 0, 0
	for _, f := range v.Findings {
		if f.Disposition == schemas.DispositionGating {
			gating++
		} else {
			advisory++
		}
	}
	parts := []string{word}
	switch {
	case gating > 0 && advisory > 0:
		parts = append(parts, fmt.Sprintf("%d blocking, %d advisory", gating, advisory))
	case gating > 0:
		parts = append(parts, fmt.Sprintf("%d blocking", gating))
	case advisory > 0:
		parts = append(parts, fmt.Sprintf("%d advisory", advisory))
	}
	parts = append(parts, Escape(string(v.Assurance.Mode)),
		fmt.Sprintf("coverage %d/%d", len(v.Coverage.Ran), len(v.Coverage.Required)),
		fmt.Sprintf("%.0f ms", v.Receipt.Timing.ElapsedMs), "receipt "+short(v.Receipt.ReceiptID))
	b.WriteString(strings.Join(parts, p.dim(" · ")) + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// byFile keeps the order of the findings, but those of one file together.
func byFile(all []schemas.Finding) [][]schemas.Finding {
	var files [][]schemas.Finding
	index := map[string]int{}
	for _, f := range all {
		path := f.Diagnostic.Location.Path
		i, ok := index[path]
		if !ok {
			i = len(files)
			index[path] = i
			files = append(files, nil)
		}
		files[i] = append(files[i], f)
	}
	return files
}

// short is as much of an id as people need to find it again.
func short(id string) string { return join(head(cells(id), 8)) }

func finding(b *strings.Builder, f schemas.Finding, lines *excerpts, o Options) {
	p, d := o.Palette, f.Diagnostic
	where := Escape(d.Location.Path)
	if r := d.Location.Range; r != nil {
		where = fmt.Sprintf("%s:%d:%d", where, r.Start.Line+1, r.Start.Char+1)
	}
	mark := p.yellow(Escape(string(d.Severity)))
	if f.Disposition == schemas.DispositionGating {
		mark = p.red("blocking")
	}
	fmt.Fprintf(b, "%s %s %s\n", p.bold(where), mark, p.dim(Escape(d.Code)))
	fmt.Fprintf(b, "  %s\n", prose(d.Message, o, 2))
	if line, marks, ok := lines.of(d); ok {
		fmt.Fprintf(b, "%s%s\n", p.dim(fmt.Sprintf("%5d | ", d.Location.Range.Start.Line+1)), line)
		// Blanks before the marks stay outside of the colour.
		n := strings.IndexByte(marks, '^')
		fmt.Fprintf(b, "%s%s%s\n", p.dim("      | "), marks[:n], p.red(marks[n:]))
	}
	said := func(name, text string) {
		if text != "" {
			fmt.Fprintf(b, "  %s %s\n", p.dim(name), prose(text, o, 3+len(name)))
		}
	}
	said("note:", f.SeverityNote)
	if d.Help != f.NextStep {
		said("help:", d.Help)
	}
	said("next:", f.NextStep)
}

func degradation(b *strings.Builder, d schemas.Degradation, o Options) {
	p := o.Palette
	head := Escape(string(d.Reason))
	if d.Source != "" {
		head += " " + p.dim("("+Escape(d.Source)+")")
	}
	fmt.Fprintf(b, "%s %s\n", p.yellow("degraded:"), head)
	if d.Detail != "" {
		fmt.Fprintf(b, "  %s\n", prose(d.Detail, o, 2))
	}
	if do := remedy(d.Reason); do != "" {
		fmt.Fprintf(b, "  %s %s\n", p.dim("to do:"), wrap(do, o.width(), 9))
	}
}
