package cli

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/spf13/cobra"

	"github.com/aspis-dev/aspis/cmd/aspis/internal/render"
	"github.com/aspis-dev/aspis/host"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

type fixFlags struct {
	applyFlags
	codes []string
}

func (a *app) fixCommand() *cobra.Command {
	var f fixFlags
	cmd := &cobra.Command{
		Use: "fix", Short: "Make the fixes that the checks propose", Args: cobra.NoArgs,
		Long: `Judge what lies uncommitted in the worktree, take the fixes that findings carry, and
publish them as aspis apply does: the result is checked before anything is written.
Fixes that an edit provider has to make (editRef) are asked for one by one.

Exit codes are those of aspis apply; 0 also when there was nothing to fix.`,
		Example: `  aspis fix --dry-run
  aspis fix --code 'test/*'`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.fix(cmd.Context(), f) },
	}
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "check the fixes, and publish nothing")
	cmd.Flags().StringSliceVar(&f.codes, "code", nil, "only the fixes of findings whose code matches `glob`")
	cmd.Flags().StringSliceVar(&f.protected, "allow-protected", nil, "let protected files that match `glob` be written")
	cmd.Flags().StringVar(&f.callSite, "call-site", "gate", "gate, interactive or sweep: whose requirements hold")
	f.to = "worktree"
	return cmd
}

func (a *app) fix(ctx context.Context, f fixFlags) error {
	if err := a.checkFormat(); err != nil {
		return err
	}
	site, err := callSiteOf(f.callSite)
	if err != nil {
		return err
	}
	for _, g := range f.codes {
		if _, err := path.Match(g, ""); err != nil {
			return fmt.Errorf("--code %q is no glob", g)
		}
	}
	person, err := f.person()
	if err != nil {
		return err
	}
	why, done, err := a.enter(ctx)
	if err != nil || done {
		return err
	}
	return a.withService(ctx, why, func(b *bench, s *host.Service) error {
		sel := gitrepo.Selection{Kind: gitrepo.KindWorktree}
		capture, err := b.repo.Capture(ctx, sel)
		if err != nil {
			return err
		}
		v, err := a.evaluate(ctx, b, capture, sel, site, checkFlags{all: true})
		if err != nil {
			return err
		}
		return a.makeFixes(ctx, s, selected(v.Findings, f.codes), person, site)
	})
}

// selected keeps the findings whose code matches, all of them without globs.
func selected(findings []schemas.Finding, globs []string) []schemas.Finding {
	if len(globs) == 0 {
		return findings
	}
	var out []schemas.Finding
	for _, f := range findings {
		for _, g := range globs {
			if ok, err := path.Match(g, f.Diagnostic.Code); ok && err == nil {
				out = append(out, f)
				break
			}
		}
	}
	return out
}

// makeFixes publishes the inline fixes as one edit, and then those that have to
// be asked for, each on what the one before has made.
func (a *app) makeFixes(ctx context.Context, s *host.Service, findings []schemas.Finding, person *host.Person, site schemas.CallSite) error {
	inline := &host.Fixes{Findings: findings, Version: a.version}
	person.Make = func(ctx context.Context, place host.Place, tree gitrepo.OID) (*schemas.EditPlan, map[string]uint32, error) {
		return inline.Make(ctx, s, place, tree)
	}
	_, err := a.publish(ctx, s, host.Apply{Params: schemas.ApplyParams{CallSite: site, Intent: "user"}, Person: person})
	nothing := errors.Is(err, host.ErrNoFix)
	if err != nil && !nothing {
		return err
	}
	for _, left := range inline.Left {
		if _, err := fmt.Fprintln(a.err, render.Escape(left)); err != nil {
			return err
		}
	}
	person.Make = nil
	asked, worst := 0, a.code
	for _, f := range findings {
		fix := f.Diagnostic.Fix
		if fix == nil || (fix.EditRef == "" && fix.ActRef == "") {
			continue
		}
		if asked++; asked > maxAsked {
			if _, err := fmt.Fprintf(a.err, "more than %d fixes have to be asked for; run aspis fix again\n", maxAsked); err != nil {
				return err
			}
			break
		}
		if err := a.askForFix(ctx, s, f, person, site); err != nil {
			return err
		}
		worst = max(worst, a.code)
	}
	a.code = worst
	if nothing && asked == 0 && a.format != "json" {
		_, err := fmt.Fprintln(a.out, "nothing to fix")
		return err
	}
	return nil
}

// maxAsked bounds the fixes that are asked for in one run.
const maxAsked = 50

// askForFix has an edit provider make a fix, and publishes it.
func (a *app) askForFix(ctx context.Context, s *host.Service, f schemas.Finding, person *host.Person, site schemas.CallSite) error {
	place, err := s.Place(ctx)
	if err != nil {
		return err
	}
	operation := f.Diagnostic.Fix.EditRef
	if operation == "" {
		operation = f.Diagnostic.Fix.ActRef
	}
	req := schemas.RequestEditPlanParams{CallSite: site, Operation: operation, Baseline: place.Baseline, Args: f.Diagnostic.Fix.Args,
		Scope: &schemas.EditScope{Paths: []string{f.Diagnostic.Location.Path}}}
	raw, err := schemas.Marshal(req)
	if err != nil {
		return err
	}
	got, err := s.RequestEditPlan(ctx, &req, raw)
	var typed *schemas.Error
	if errors.As(err, &typed) {
		a.code = ExitIndeterminate
		_, err := fmt.Fprintf(a.err, "no plan for %s in %s: %s\n", render.Escape(operation), render.Escape(f.Diagnostic.Location.Path), render.Escape(typed.Message))
		return err
	}
	if err != nil {
		return err
	}
	_, err = a.publish(ctx, s, host.Apply{Params: schemas.ApplyParams{CallSite: site, ProposalID: got.Proposal.ProposalID, Intent: "user", Proposal: &got.Proposal}, Person: person})
	return err
}
