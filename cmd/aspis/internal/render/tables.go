package render

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/aspis-dev/aspis/schemas"
)

// WallRow is one wall, as evidence or as a probe of the machine shows it.
type WallRow struct {
	Name, Seen, Fix, Needed string
	Standing                bool
}

// FactRow is one fact about the machine.
type FactRow struct {
	Name, Seen, Remedy string
	OK                 bool
}

// Walls writes a table of walls, the missing ones with what can be done.
func Walls(w io.Writer, rows []WallRow, o Options) error {
	var b strings.Builder
	for _, r := range rows {
		mark := o.Palette.green("stands ")
		if !r.Standing {
			mark = o.Palette.red("missing")
		}
		fmt.Fprintf(&b, "  %s  %-24s %s\n", mark, Escape(r.Name), o.Palette.dim(prose(r.Seen, o, 36)))
		if !r.Standing && r.Fix != "" {
			fmt.Fprintf(&b, "           %s %s\n", o.Palette.yellow("to do:"), prose(r.Fix, o, 18))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Facts writes a table of facts, those that are not well with their remedy.
func Facts(w io.Writer, rows []FactRow, o Options) error {
	var b strings.Builder
	for _, r := range rows {
		mark := o.Palette.green("ok")
		if !r.OK {
			mark = o.Palette.yellow("no")
		}
		fmt.Fprintf(&b, "  %s  %-26s %s\n", mark, Escape(r.Name), o.Palette.dim(prose(r.Seen, o, 33)))
		if !r.OK && r.Remedy != "" {
			fmt.Fprintf(&b, "      %s %s\n", o.Palette.yellow("to do:"), prose(r.Remedy, o, 13))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Status writes host/status for a person.
func Status(w io.Writer, s *schemas.HostStatus, o Options) error {
	var b strings.Builder
	p := o.Palette
	state := p.yellow(Escape(s.Host.State))
	if s.Host.State == "ready" {
		state = p.green("ready")
	}
	fmt.Fprintf(&b, "host       %s %s, %s\n", Escape(s.Host.Name), Escape(s.Host.Version), state)
	dirty := ""
	if s.Workspace.Baseline.Dirty != "" {
		dirty = " with uncommitted changes"
	}
	fmt.Fprintf(&b, "workspace  %s at %s%s\n", Escape(s.Workspace.Root), Escape(s.Workspace.Baseline.Rev), dirty)
	fmt.Fprintf(&b, "policy     %s (%s, %s)\n", Escape(s.Policy.Source), Escape(s.Policy.Activation), Escape(s.Policy.PolicyDigest))
	if n := len(s.AssuranceCapabilities); n > 0 {
		fmt.Fprintf(&b, "assurance  up to %s\n", Escape(string(s.AssuranceCapabilities[n-1])))
	}
	b.WriteString("\nproviders\n")
	for _, v := range s.Servers {
		st := p.yellow(Escape(v.State))
		if v.State == "ready" {
			st = p.green("ready")
		}
		fmt.Fprintf(&b, "  %-24s %s, %s, %s\n", Escape(v.ID), st, Escape(v.Role), Escape(string(v.AuthorityEvidence.Isolation)))
		if v.Detail != "" {
			fmt.Fprintf(&b, "    %s\n", prose(v.Detail, o, 4))
		}
	}
	if len(s.Servers) == 0 {
		b.WriteString("  none is installed\n")
	}
	b.WriteString("\ncall-sites\n")
	for _, g := range []struct {
		name string
		g    schemas.GateState
	}{{"interactive", s.Gates.Interactive}, {"gate", s.Gates.Gate}, {"sweep", s.Gates.Sweep}} {
		word := p.green("available")
		if !g.g.Available {
			word = p.yellow("degraded")
		}
		fmt.Fprintf(&b, "  %-12s %s, needs %s\n", g.name, word, prose(cmp.Or(strings.Join(g.g.RequiredProviders, ", "), "nothing"), o, 15))
		for _, d := range g.g.Degraded {
			fmt.Fprintf(&b, "    %s %s\n", Escape(string(d.Reason)), prose(d.Detail, o, 4))
		}
	}
	b.WriteString("\ncapabilities\n")
	for _, c := range []struct {
		name string
		c    schemas.Cap
	}{{"inspect", s.Capabilities.Inspect}, {"check", s.Capabilities.Check}, {"edit", s.Capabilities.Edit}} {
		word := p.green("available")
		switch {
		case !c.c.Available && len(c.c.Providers) == 0:
			word = p.dim("no provider has it")
		case !c.c.Available:
			word = p.yellow("not available")
		}
		if len(c.c.Providers) > 0 {
			word += ", from " + prose(strings.Join(c.c.Providers, ", "), o, 15)
		}
		fmt.Fprintf(&b, "  %-12s %s\n", c.name, word)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Receipt writes a receipt for a person.
func Receipt(w io.Writer, r *schemas.Receipt, o Options) error {
	var b strings.Builder
	row := func(name, value string) { fmt.Fprintf(&b, "%-14s %s\n", name, prose(value, o, 15)) }
	row("receipt", r.ReceiptID)
	row("kind", string(r.Kind))
	row("issued", r.IssuedAt.Format("2006-01-02 15:04:05 MST"))
	row("host", r.Host.Name+" "+r.Host.Version)
	if r.CallSite != "" {
		row("call-site", string(r.CallSite))
	}
	row("baseline", r.Baseline.Rev)
	if r.ChangesetDigest != "" {
		row("changeset", r.ChangesetDigest)
	}
	row("policy", r.PolicyDigest)
	row("assurance", string(r.Assurance.Mode)+", "+string(r.Assurance.TransactionGuarantee))
	if r.Assurance.Detail != "" {
		row("", r.Assurance.Detail)
	}
	row("coverage", fmt.Sprintf("%d of %d required ran", len(r.Coverage.Ran), len(r.Coverage.Required)))
	for _, p := range r.ProviderProvenance {
		row("provider", p.Provider+" "+p.Integrity)
	}
	for _, f := range r.Failures {
		row("failure", string(f.Reason)+" ("+f.Source+"): "+f.Detail)
	}
	row("took", fmt.Sprintf("%.1f ms", r.Timing.ElapsedMs))
	_, err := io.WriteString(w, b.String())
	return err
}
