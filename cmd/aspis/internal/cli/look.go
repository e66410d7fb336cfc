package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"

	"github.com/aspis-dev/aspis/cmd/aspis/internal/render"
	"github.com/aspis-dev/aspis/host"
	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/container"
	"github.com/aspis-dev/aspis/sandbox/kernel"
)

func (a *app) statusCommand() *cobra.Command {
	var prometheus bool
	cmd := &cobra.Command{
		Use: "status", Short: "Show the host, its policy and its providers", Args: cobra.NoArgs,
		Long: `Show which policy is in force, which providers it needs, and whether each call-site
could allow a change now. Providers are started and greeted for it: what is shown
as ready was seen to be.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.status(cmd.Context(), prometheus) },
	}
	cmd.Flags().BoolVar(&prometheus, "prometheus", false, "print what the receipts show of each provider as Prometheus text")
	return cmd
}

func (a *app) status(ctx context.Context, prometheus bool) error {
	if err := a.checkFormat(); err != nil {
		return err
	}
	if prometheus {
		return a.prometheus(ctx)
	}
	why, done, err := a.enter(ctx)
	if err != nil || done {
		return err
	}
	b, err := a.openRepo(ctx)
	if err != nil {
		return err
	}
	place, tree, err := b.place(ctx)
	if err != nil {
		return err
	}
	base, err := b.repo.BaseTree(ctx)
	if err != nil {
		return err
	}
	if err := a.open(ctx, b, openOptions{whyNot: why, baseTree: base, candidate: tree}); err != nil {
		return err
	}
	st, err := b.host.Status(ctx, place)
	if err := errors.Join(err, b.close(ctx)); err != nil {
		return err
	}
	if a.format == "json" {
		return a.json(st)
	}
	return render.Status(a.out, st, a.style())
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Show what this machine can do, and what to change where it cannot", Args: cobra.NoArgs,
		Long: `Try what sandboxes need on this machine, then build one, hold it before it runs
anything, and show every wall that the kernel confirms. Each wall that is missing
comes with what can be done about it.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context()) },
	}
}

// doctorReport is what doctor prints as JSON.
type doctorReport struct {
	Mode    string           `json:"mode"`
	WhyNot  string           `json:"whyNot,omitzero"`
	Machine []kernel.Finding `json:"machine"`
	Walls   []sandbox.Wall   `json:"walls"`
}

func (a *app) doctor(ctx context.Context) error {
	if err := a.checkFormat(); err != nil {
		return err
	}
	state, err := stateDir()
	if err != nil {
		return err
	}
	var report doctorReport
	// The machine is looked at as the caller; a user namespace of ours would
	// hide what the caller may do.
	if who, err := container.CurrentIdentity(); err == nil && !who.UserNS {
		report.Machine = kernel.Probe(ctx, state)
		if a.format == "text" {
			if err := a.facts(report.Machine); err != nil {
				return err
			}
		}
	}
	why, done, err := a.enter(ctx)
	if err != nil || done {
		return err
	}
	report.Mode, report.WhyNot = "gated", why
	if why == "" {
		ev, err := probeSandbox(ctx, state)
		if err != nil {
			report.WhyNot = err.Error()
		} else {
			mode, _ := ev.Mode()
			report.Mode, report.Walls = mode.String(), ev.Walls
		}
	}
	if a.format == "json" {
		return a.json(report)
	}
	return a.doctorText(report)
}

func (a *app) facts(list []kernel.Finding) error {
	var rows []render.FactRow
	for _, f := range list {
		rows = append(rows, render.FactRow{Name: f.Name, OK: f.OK, Seen: f.Seen, Remedy: f.Fix})
	}
	if _, err := fmt.Fprintln(a.out, "this machine"); err != nil {
		return err
	}
	return render.Facts(a.out, rows, a.style())
}

func (a *app) doctorText(r doctorReport) error {
	if r.WhyNot != "" {
		_, err := fmt.Fprintf(a.out, "\nno sandbox can be built: %s\nproviders would run as %s: a gate that asks for more is indeterminate\n", render.Escape(r.WhyNot), r.Mode)
		return err
	}
	var rows []render.WallRow
	for _, w := range r.Walls {
		rows = append(rows, render.WallRow{Name: string(w.Name), Standing: w.Standing, Seen: w.Seen, Fix: w.Fix, Needed: w.Needed.String()})
	}
	if _, err := fmt.Fprintln(a.out, "\nwalls of a sandbox built just now, as the kernel shows them"); err != nil {
		return err
	}
	if err := render.Walls(a.out, rows, a.style()); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.out, "\na provider would run %s\n", r.Mode)
	return err
}

// probeSandbox builds a sandbox, takes its evidence and removes it; nothing
// runs in it but our own first stage.
func probeSandbox(ctx context.Context, state string) (ev sandbox.Evidence, err error) {
	space, err := container.NewSpace("")
	if err != nil {
		return ev, err
	}
	defer func() { err = errors.Join(err, space.Close()) }()
	rt, err := container.New(container.Options{StateDir: filepath.Join(state, "run"), Space: space})
	if err != nil {
		return ev, err
	}
	p, err := rt.Start(ctx, sandbox.Spec{Name: "doctor", Path: "/provider/none", Args: []string{"none"}, Dir: "/",
		Protect: []string{state},
		Limits:  sandbox.Limits{MemoryBytes: 64 << 20, Pids: 16, OpenFiles: 64, CPUPercent: 100, TmpBytes: 1 << 20, FileBytes: 1 << 20, WallClock: time.Minute}})
	if err != nil {
		return ev, err
	}
	ev = p.Evidence()
	return ev, p.Close(ctx)
}

func (a *app) receiptCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "receipt", Short: "Look at receipts"}
	var evidence bool
	show := &cobra.Command{
		Use: "show [id]", Short: "Show a receipt, by its id or the first digits of it; without one, the last",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := ""
			if len(args) > 0 {
				id = args[0]
			}
			return a.showReceipt(cmd.Context(), id, evidence)
		},
	}
	show.Flags().BoolVar(&evidence, "evidence", false, "show every wall that was seen instead")
	var n int
	list := &cobra.Command{
		Use: "list", Short: "List the last receipts, newest last", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.listReceipts(cmd.Context(), n) },
	}
	list.Flags().IntVarP(&n, "number", "n", 20, "how many")
	cmd.AddCommand(show, list)
	return cmd
}

func (a *app) showReceipt(ctx context.Context, id string, evidence bool) error {
	if err := a.checkFormat(); err != nil {
		return err
	}
	log, err := a.receipts()
	if err != nil {
		return err
	}
	rec, err := log.Find(ctx, id)
	if err != nil {
		return fmt.Errorf("%w; aspis receipt list shows what there is", err)
	}
	if !evidence {
		if a.format == "json" {
			return a.json(rec.Receipt)
		}
		return render.Receipt(a.out, &rec.Receipt, a.style())
	}
	raw, err := log.Evidence(rec.Receipt.ReceiptID)
	if err != nil {
		return err
	}
	var ev host.EvidenceRecord
	if err := json.Unmarshal(raw, &ev); err != nil {
		return fmt.Errorf("the evidence is damaged: %w", err)
	}
	if a.format == "json" {
		return a.json(ev)
	}
	for _, p := range ev.Providers {
		if _, err := fmt.Fprintf(a.out, "%s %s, %s, %s\n", render.Escape(p.ID), render.Escape(p.Version), p.Mode, p.State); err != nil {
			return err
		}
		if p.Walls == nil {
			continue
		}
		var rows []render.WallRow
		for _, w := range p.Walls.Walls {
			rows = append(rows, render.WallRow{Name: string(w.Name), Standing: w.Standing, Seen: w.Seen, Fix: w.Fix})
		}
		if err := render.Walls(a.out, rows, a.style()); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) listReceipts(ctx context.Context, n int) error {
	if err := a.checkFormat(); err != nil {
		return err
	}
	if n < 1 || n > 100_000 {
		return fmt.Errorf("-n is %d; use 1 to 100000", n)
	}
	log, err := a.receipts()
	if err != nil {
		return err
	}
	list, err := log.List(ctx, n)
	if err != nil {
		return err
	}
	for _, r := range list {
		if a.format == "json" {
			if err := a.json(r.Receipt); err != nil {
				return err
			}
			continue
		}
		word := string(r.Receipt.Kind)
		if r.Verdict != nil {
			word += " " + string(r.Verdict.Decision)
		}
		if _, err := fmt.Fprintf(a.out, "%s  %s  %-24s %s\n", r.Receipt.ReceiptID[:12], r.Receipt.IssuedAt.Format("2006-01-02 15:04:05"),
			render.Escape(word), render.Escape(string(r.Receipt.Assurance.Mode))); err != nil {
			return err
		}
	}
	return nil
}

// prometheus rebuilds the counts from the log, so that they outlive a process.
func (a *app) prometheus(ctx context.Context) error {
	log, err := a.receipts()
	if err != nil {
		return err
	}
	set, err := host.MetricsOf(ctx, log)
	if err != nil {
		return err
	}
	return set.WritePrometheus(a.out)
}
