package render

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode/utf16"

	"github.com/aspis-dev/aspis/schemas"
)

// Options say how to write.
type Options struct {
	Palette Palette
	Width   int // columns; 0 means 100
	// Source gives the content of a file of the candidate, to show the line of a
	// finding; nil or false means that none is shown.
	Source func(path string) ([]byte, bool)
}

func (o Options) width() int {
	if o.Width <= 0 {
		return 100
	}
	return max(o.Width, 40)
}

// Verdict writes a decision for a person: findings with their source lines,
// what is missing of the coverage, and one last line with the gist.
func Verdict(w io.Writer, v *schemas.Verdict, o Options) error {
	var b strings.Builder
	p := o.Palette
	for _, f := range v.Findings {
		finding(&b, f, o)
	}
	for _, d := range v.Coverage.Degraded {
		if d.Reason == schemas.ReasonBlockingDiagnostic {
			continue // the findings above say it better
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

func short(id string) string {
	id = Escape(id)
	if len(id) > 8 {
		return id[:8]
	}
	return id
}

func finding(b *strings.Builder, f schemas.Finding, o Options) {
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
	fmt.Fprintf(b, "  %s\n", wrap(Escape(d.Message), o.width(), 2))
	source(b, d, o)
	if f.SeverityNote != "" {
		fmt.Fprintf(b, "  %s\n", p.dim(wrap("note: "+Escape(f.SeverityNote), o.width(), 2)))
	}
	if f.NextStep != "" {
		fmt.Fprintf(b, "  %s %s\n", p.dim("next:"), wrap(Escape(f.NextStep), o.width(), 8))
	}
}

// source shows the line of a finding with marks under the range.
func source(b *strings.Builder, d schemas.Diagnostic, o Options) {
	r := d.Location.Range
	if r == nil || o.Source == nil {
		return
	}
	content, ok := o.Source(d.Location.Path)
	if !ok {
		return
	}
	line, ok := lineOf(content, r.Start.Line)
	if !ok {
		return
	}
	end := r.End.Char
	if r.End.Line != r.Start.Line {
		end = 1 << 30
	}
	before, marked, after := cut(line, r.Start.Char, end)
	if strings.Contains(d.Code, "secret") {
		marked = mask(marked) // logs are read by more people than the repository
	}
	room := o.width() - 12
	before, marked, after = fit(before, marked, after, room)
	gutter := fmt.Sprintf("%5d | ", r.Start.Line+1)
	fmt.Fprintf(b, "%s%s\n", o.Palette.dim(gutter), before+marked+after)
	fmt.Fprintf(b, "%s%s%s\n", o.Palette.dim("      | "), strings.Repeat(" ", columns(before)), o.Palette.red(strings.Repeat("^", max(1, columns(marked)))))
}

// mask leaves so little of a secret that it is of no use.
func mask(s string) string {
	r := []rune(s)
	for i := min(4, len(r)/4); i < len(r); i++ {
		r[i] = '•'
	}
	return string(r)
}

func lineOf(content []byte, n int) (string, bool) {
	for range n {
		i := bytes.IndexByte(content, '\n')
		if i < 0 {
			return "", false
		}
		content = content[i+1:]
	}
	line, _, _ := bytes.Cut(content, []byte{'\n'})
	const most = 64 << 10
	return strings.TrimSuffix(string(line[:min(len(line), most)]), "\r"), true
}

// cut splits a line at two offsets in UTF-16 code units and escapes the parts.
func cut(line string, start, end int) (before, marked, after string) {
	at := func(units int) int {
		n := 0
		for i, r := range line {
			if n >= units {
				return i
			}
			n += max(utf16.RuneLen(r), 1)
		}
		return len(line)
	}
	i, j := at(start), at(max(end, start))
	return Escape(line[:i]), Escape(line[i:j]), Escape(line[j:])
}

// fit shortens the parts of a long line to what fits, around the mark.
func fit(before, marked, after string, room int) (string, string, string) {
	b, m, a := []rune(before), []rune(marked), []rune(after)
	if len(m) > room*2/3 {
		m = append(m[:room*2/3-1], '…')
	}
	left := room - len(m)
	if len(b) > left*2/3 {
		b = append([]rune{'…'}, b[len(b)-max(left*2/3-1, 0):]...)
	}
	if left = max(room-len(m)-len(b), 0); len(a) > left {
		a = append(a[:max(left-1, 0)], '…')
	}
	return string(b), string(m), string(a)
}

// columns counts how many columns text takes; wide East Asian characters two.
func columns(s string) int {
	n := 0
	for _, r := range s {
		n++
		if r >= 0x1100 && (r <= 0x115F || (r >= 0x2E80 && r <= 0xA4CF) || (r >= 0xAC00 && r <= 0xD7A3) || (r >= 0xF900 && r <= 0xFAFF) ||
			(r >= 0xFE30 && r <= 0xFE6F) || (r >= 0xFF00 && r <= 0xFF60) || (r >= 0xFFE0 && r <= 0xFFE6) || (r >= 0x1F300 && r <= 0x1F64F) || (r >= 0x1F900 && r <= 0x1F9FF) || (r >= 0x20000 && r <= 0x3FFFD)) {
			n++
		}
	}
	return n
}

func degradation(b *strings.Builder, d schemas.Degradation, o Options) {
	p := o.Palette
	head := Escape(string(d.Reason))
	if d.Source != "" {
		head += " " + p.dim("("+Escape(d.Source)+")")
	}
	fmt.Fprintf(b, "%s %s\n", p.yellow("degraded:"), head)
	if d.Detail != "" {
		fmt.Fprintf(b, "  %s\n", wrap(Escape(d.Detail), o.width(), 2))
	}
}
