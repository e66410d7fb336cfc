package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/aspis-dev/aspis/cmd/aspis/internal/render"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/policy"
	"github.com/aspis-dev/aspis/schemas"
)

func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "Look at, check and start a policy"}
	cmd.AddCommand(
		&cobra.Command{Use: "show", Short: "Show the policy in force for this workspace", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return a.policyShow(cmd.Context()) }},
		&cobra.Command{Use: "check [file...]", Short: "Check policy files: config.json, floor.json or asp.json",
			Long: `Check files for mistakes, with the place of each. Without arguments it checks the
files that would be in force here. The kind of a file is told from its version.`,
			RunE: func(cmd *cobra.Command, args []string) error { return a.policyCheck(cmd.Context(), args) }},
		&cobra.Command{Use: "diff", Short: "Show what the worktree's .asp/asp.json would change in meaning", Args: cobra.NoArgs,
			Long: `Compare .asp/asp.json in the worktree with the one at HEAD by what they mean. Lines
marked with ! weaken the policy: a change that carries them cannot be allowed by a
gate that it weakens.`,
			RunE: func(cmd *cobra.Command, _ []string) error { return a.policyDiff(cmd.Context()) }},
		&cobra.Command{Use: "init", Short: "Print a trusted configuration to start from", Args: cobra.NoArgs,
			Long: `Print a configuration that pins the provider that comes with aspis, requires it at
every call-site and grants it authority. Read it, change it, and keep it as
/etc/aspis/config.json or ~/.config/aspis/config.json, writable by nobody else.`,
			Example: `  aspis policy init > ~/.config/aspis/config.json`,
			RunE:    func(cmd *cobra.Command, _ []string) error { return a.policyInit(cmd.Context()) }},
	)
	return cmd
}

func (a *app) policyInit(ctx context.Context) error {
	s, err := a.shipped(ctx)()
	if err != nil {
		return err
	}
	c, err := policy.Builtin(s)
	if err != nil {
		return err
	}
	return a.json(c)
}

// effectiveHere loads the policy for the workspace as it lies.
func (a *app) effectiveHere(ctx context.Context) (*policy.Effective, *bench, error) {
	b, err := a.openRepo(ctx)
	if err != nil {
		return nil, nil, err
	}
	base, err := b.repo.BaseTree(ctx)
	if err != nil {
		return nil, nil, err
	}
	var candidate gitrepo.OID
	if b.repo.Root() != "" {
		if candidate, err = b.repo.WorktreeTree(ctx); err != nil {
			return nil, nil, err
		}
	}
	e, err := a.policy(ctx, b, openOptions{baseTree: base, candidate: candidate})
	return e, b, err
}

// shownPolicy is what policy show prints.
type shownPolicy struct {
	Source       string                         `json:"source"`
	PolicyDigest string                         `json:"policyDigest"`
	CallSites    map[schemas.CallSite]shownSite `json:"callSites"`
	Local        *schemas.LocalOverride         `json:"localOverride,omitzero"`
	Pending      []policy.Weakening             `json:"pendingWeakenings"`
}

type shownSite struct {
	BudgetMs int64              `json:"budgetMs"`
	Required []shownRequirement `json:"required"`
	Optional []shownRequirement `json:"optional"`
}

type shownRequirement struct {
	ID        string                `json:"id"`
	Least     schemas.AssuranceMode `json:"leastAssurance"`
	Providers []shownGrant          `json:"providers"`
}

type shownGrant struct {
	ID      string `json:"id"`
	Granted bool   `json:"granted"`
	Why     string `json:"why,omitzero"`
}

func (a *app) policyShow(ctx context.Context) error {
	if err := a.checkFormat(); err != nil {
		return err
	}
	e, _, err := a.effectiveHere(ctx)
	if err != nil {
		return err
	}
	weak, _ := e.Pending()
	out := shownPolicy{Source: e.Source(), PolicyDigest: e.Digest(), CallSites: map[schemas.CallSite]shownSite{}, Local: e.LocalOverride(), Pending: weak}
	for _, site := range schemas.CallSites {
		required, optional := e.Requirements(site)
		out.CallSites[site] = shownSite{BudgetMs: e.Budget(site).Milliseconds(), Required: showRequirements(e, required, site), Optional: showRequirements(e, optional, site)}
	}
	if a.format == "json" {
		return a.json(out)
	}
	fmt.Fprintf(a.out, "source  %s\ndigest  %s\n", render.Escape(out.Source), out.PolicyDigest)
	for _, site := range schemas.CallSites {
		s := out.CallSites[site]
		fmt.Fprintf(a.out, "\n%s (at most %d ms)\n", site, s.BudgetMs)
		for kind, list := range map[string][]shownRequirement{"requires": s.Required, "optional": s.Optional} {
			for _, r := range list {
				fmt.Fprintf(a.out, "  %s %s, at least %s\n", kind, render.Escape(r.ID), r.Least)
				for _, g := range r.Providers {
					word := "granted"
					if !g.Granted {
						word = "not granted: " + g.Why
					}
					fmt.Fprintf(a.out, "    %s, %s\n", render.Escape(g.ID), render.Escape(word))
				}
			}
		}
	}
	for _, w := range weak {
		fmt.Fprintf(a.out, "\npending: %s\n", render.Escape(w.Detail))
	}
	return nil
}

func showRequirements(e *policy.Effective, list []policy.Requirement, site schemas.CallSite) []shownRequirement {
	out := []shownRequirement{}
	for _, r := range list {
		s := shownRequirement{ID: r.ID, Least: r.Least(), Providers: []shownGrant{}}
		for _, p := range e.ProvidersFor(r, site) {
			g := e.Grant(r, site, p)
			s.Providers = append(s.Providers, shownGrant{ID: p.ID, Granted: g.Granted, Why: g.Why})
		}
		out = append(out, s)
	}
	return out
}

func (a *app) policyCheck(ctx context.Context, files []string) error {
	if len(files) == 0 {
		if _, _, err := a.effectiveHere(ctx); err != nil {
			return err
		}
		_, err := fmt.Fprintln(a.out, "the policy in force here is well formed")
		return err
	}
	var errs []error
	for _, name := range files {
		kind, err := checkFile(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Fprintf(a.out, "%s: a well-formed %s\n", render.Escape(name), kind)
	}
	return errors.Join(errs...)
}

func checkFile(name string) (kind string, err error) {
	raw, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	switch policy.KindOf(raw) {
	case policy.KindConfig:
		_, err = policy.ParseConfig(name, raw)
		return "trusted configuration", err
	case policy.KindFloor:
		_, err = policy.ParseFloor(name, raw)
		return "organisation floor", err
	}
	_, err = policy.ParseRepository(name, raw)
	return "repository policy", err
}

func (a *app) policyDiff(ctx context.Context) error {
	if err := a.checkFormat(); err != nil {
		return err
	}
	e, b, err := a.effectiveHere(ctx)
	if err != nil {
		return err
	}
	base, err := b.repo.BaseTree(ctx)
	if err != nil {
		return err
	}
	parse := func(where string, raw []byte, ok bool) (*schemas.RepositoryPolicy, error) {
		if !ok {
			return nil, nil
		}
		return policy.ParseRepository(where, raw)
	}
	raw, ok, err := b.repo.BlobAt(ctx, base, policy.RepositoryFile, maxPolicy)
	if err != nil {
		return err
	}
	old, err := parse(policy.RepositoryFile+" at HEAD", raw, ok)
	if err != nil {
		return err
	}
	raw, err = os.ReadFile(filepath.Join(b.repo.Root(), policy.RepositoryFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	now, err := parse(policy.RepositoryFile, raw, err == nil)
	if err != nil {
		return err
	}
	changes := policy.Compare(old, now, e)
	if a.format == "json" {
		if changes == nil {
			changes = []policy.Change{}
		}
		return a.json(changes)
	}
	for _, c := range changes {
		mark := " "
		if c.Weakens {
			mark = "!"
		}
		fmt.Fprintf(a.out, "%s %s: %s\n", mark, c.Kind, render.Escape(c.Detail))
	}
	if len(changes) == 0 {
		fmt.Fprintln(a.out, "no difference in meaning")
	}
	return nil
}
