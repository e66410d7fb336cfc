package render

import (
	"fmt"
	"io"
	"strings"

	"github.com/aspis-dev/aspis/schemas"
)

// Applied writes what came of an edit: its files, what the checks said, and one
// last line with the gist. rehearsed means that nothing was to be written.
func Applied(w io.Writer, plan *schemas.EditPlan, res *schemas.ApplyResult, rehearsed bool, o Options) error {
	var b strings.Builder
	p := o.Palette
	if plan.WorkspaceEdit != nil {
		planned(&b, plan.WorkspaceEdit.DocumentChanges, o)
	}
	if v := res.Decision; v != nil && v.Decision != schemas.Allow {
		b.WriteByte('\n')
		if err := Verdict(&b, v, o); err != nil {
			return err
		}
	}
	if r := res.Refusal; r != nil && !rehearsed {
		b.WriteByte('\n')
		for _, c := range r.Conflicts {
			fmt.Fprintf(&b, "  %s: %s\n", p.bold(Escape(c.Path)), prose(c.Detail, o, 4))
		}
		if len(r.Conflicts) > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s\n\n", prose(r.Detail, o, 0))
	}
	if res.Applied || rehearsed {
		fmt.Fprintf(&b, "\n%s\n\n", p.dim(prose(res.Assurance.Detail, o, 0)))
	}
	b.WriteString(strings.Join(gist(res, rehearsed, p), p.dim(" · ")) + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// gist is the last line, in parts.
func gist(res *schemas.ApplyResult, rehearsed bool, p Palette) []string {
	var parts []string
	switch {
	case res.Applied:
		parts = append(parts, p.green("published"), Escape(string(res.Assurance.TransactionGuarantee)))
	case rehearsed:
		parts = append(parts, p.green("would be published"), "nothing was written")
	case res.Refusal.Reason == "validation-denied":
		parts = append(parts, p.red("denied"), "nothing was written")
	default:
		parts = append(parts, p.yellow("not published"), Escape(res.Refusal.Reason), "nothing was written")
	}
	return append(parts, Escape(string(res.Assurance.Mode)), fmt.Sprintf("%.0f ms", res.Receipt.Timing.ElapsedMs), "receipt "+short(res.Receipt.ReceiptID))
}

// maxPlanned is how many files of a plan are listed.
const maxPlanned = 40

func planned(b *strings.Builder, changes []schemas.DocChange, o Options) {
	for i, c := range changes {
		if i == maxPlanned {
			fmt.Fprintf(b, "  and %d more\n", len(changes)-i)
			return
		}
		word := map[schemas.ChangeKind]string{schemas.ChangeCreate: o.Palette.green("create"), schemas.ChangeModify: o.Palette.yellow("modify"),
			schemas.ChangeDelete: o.Palette.red("delete")}[c.Kind]
		if word == "" {
			word = o.Palette.yellow("rename")
		}
		fmt.Fprintf(b, "  %s  %s", word, Escape(c.Path))
		if c.To != "" {
			fmt.Fprintf(b, " -> %s", Escape(c.To))
		}
		b.WriteByte('\n')
	}
}
