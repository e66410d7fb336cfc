package render

import (
	"fmt"
	"io"
	"strings"
)

// ProbeRow is one way out that was tried.
type ProbeRow struct {
	Name, Seen, Wall, State string
	Open                    bool
}

// Probe writes a table of ways, the open ones with the wall that should have
// been in the way.
func Probe(w io.Writer, rows []ProbeRow, o Options) error {
	var b strings.Builder
	for _, r := range rows {
		mark := o.Palette.green(fmt.Sprintf("%-14s", Escape(r.State)))
		if r.Open {
			mark = o.Palette.red(fmt.Sprintf("%-14s", Escape(r.State)))
		}
		fmt.Fprintf(&b, "  %s  %-28s %s\n", mark, Escape(r.Name), o.Palette.dim(prose(r.Seen, o, 47)))
		if r.Open {
			fmt.Fprintf(&b, "                  %s %s\n", o.Palette.yellow("the wall:"), Escape(r.Wall))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
