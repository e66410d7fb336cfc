package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"

	"github.com/aspis-dev/aspis/cmd/aspis/internal/render"
	"github.com/aspis-dev/aspis/host"
	"github.com/aspis-dev/aspis/schemas"
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
	if rec.Receipt.Kind == schemas.ReceiptApplyAttempt {
		var ev host.ApplyEvidence
		if err := json.Unmarshal(raw, &ev); err != nil {
			return fmt.Errorf("the evidence is damaged: %w", err)
		}
		return a.json(ev)
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
