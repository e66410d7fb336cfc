package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// marks are around the table in the document.
var marks = regexp.MustCompile(`(?s)<!-- machines -->\n.*<!-- /machines -->`)

// writeMarkdown puts the table into a document, between its marks.
func writeMarkdown(path string, results []result) error {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !marks.Match(text) {
		return fmt.Errorf("%s has no place for the table of machines", path)
	}
	var b strings.Builder
	b.WriteString("<!-- machines -->\n| machine | kernel | mode | memory is limited by | what is missing, and what to do |\n|---|---|---|---|---|\n")
	for _, r := range results {
		mode := r.Doctor.Mode
		if r.Doctor.WhyNot != "" {
			mode = "no sandbox"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.Cell.About, cell(r.Report.Kernel), cell(mode), cell(r.Doctor.memory()), cell(r.remedy()))
	}
	b.WriteString("<!-- /machines -->")
	return os.WriteFile(path, marks.ReplaceAllLiteral(text, []byte(b.String())), 0o644)
}

// memory says who holds the limit: the first that the evidence names.
func (d doctor) memory() string {
	for _, w := range d.Walls {
		switch {
		case w.Name != "memory-limit" || !w.Standing:
		case strings.HasPrefix(w.Seen, "control group:"):
			return "a control group"
		default:
			return "the host's watchdog"
		}
	}
	return ""
}

// remedy is what a person is told of a machine that gives less.
func (res *result) remedy() string {
	d := res.Doctor
	if d.WhyNot != "" {
		return d.WhyNot
	}
	var list []string
	for _, w := range d.Walls {
		if !w.Standing {
			list = append(list, "`"+w.Name+"`: "+w.Fix)
		}
	}
	if res.Cell.Want.NoSnapshots {
		for _, m := range d.Machine {
			if !m.OK {
				list = append(list, m.Name+": "+m.Fix)
			}
		}
	}
	return strings.Join(list, " ")
}

// cell is text that can stand in a table.
func cell(text string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ").Replace(text)
}
