package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/aspis-dev/aspis/cmd/aspis/internal/render"
	"github.com/aspis-dev/aspis/host"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

type checkFlags struct {
	base, rng, tree  string
	staged, worktree bool
	callSite         string
	all              bool
	timeout          time.Duration
}

func (a *app) checkCommand() *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Judge a change",
		Long: `Judge a change: every provider that the policy requires looks at it from inside a
container, over a read-only snapshot. Nothing in the worktree is read or written
by a provider.

Choose the change with one of --base, --range, --staged, --worktree, --tree.
Without any of them it is --worktree: what lies uncommitted.`,
		Example: `  aspis check --base origin/main         what this branch adds
  aspis check --range v1.0..v1.1         from one commit to another
  aspis check --staged                   what would be committed
  aspis check --format json              the verdict, exactly as ASP defines it`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.check(cmd.Context(), f) },
	}
	f.on(cmd)
	cmd.Flags().StringVar(&f.callSite, "call-site", "gate", "gate, interactive or sweep")
	cmd.Flags().BoolVar(&f.all, "all", false, "report what was there before the change as well")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "lower the policy's budget to `duration`")
	cmd.Flags().StringSliceVar(&a.without, "without-wall", nil, "leave a wall out of the containers, to see the claim fall")
	if err := cmd.Flags().MarkHidden("without-wall"); err != nil {
		panic(err) // the flag is defined two lines above
	}
	return cmd
}

// on adds the flags that choose the change.
func (f *checkFlags) on(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.base, "base", "", "judge from the merge base of `rev` and HEAD to HEAD")
	cmd.Flags().StringVar(&f.rng, "range", "", "judge `A..B` (A...B: from their merge base)")
	cmd.Flags().BoolVar(&f.staged, "staged", false, "judge the index against HEAD")
	cmd.Flags().BoolVar(&f.worktree, "worktree", false, "judge the worktree against HEAD, untracked files included")
	cmd.Flags().StringVar(&f.tree, "tree", "", "judge `tree` against HEAD")
	cmd.MarkFlagsMutuallyExclusive("base", "range", "staged", "worktree", "tree")
}

func (f checkFlags) selection() (gitrepo.Selection, error) {
	switch {
	case f.base != "":
		return gitrepo.Selection{Kind: gitrepo.KindBase, A: f.base}, nil
	case f.rng != "":
		if from, to, ok := strings.Cut(f.rng, "..."); ok {
			return gitrepo.Selection{Kind: gitrepo.KindRange, A: orHead(from), B: orHead(to), Merge: true}, nil
		}
		from, to, ok := strings.Cut(f.rng, "..")
		if !ok {
			return gitrepo.Selection{}, fmt.Errorf("--range is %q; give two revisions as A..B", f.rng)
		}
		return gitrepo.Selection{Kind: gitrepo.KindRange, A: orHead(from), B: orHead(to)}, nil
	case f.staged:
		return gitrepo.Selection{Kind: gitrepo.KindStaged}, nil
	case f.tree != "":
		return gitrepo.Selection{Kind: gitrepo.KindTree, A: f.tree}, nil
	}
	return gitrepo.Selection{Kind: gitrepo.KindWorktree}, nil
}

func orHead(rev string) string {
	if rev == "" {
		return "HEAD"
	}
	return rev
}

func (a *app) check(ctx context.Context, f checkFlags) error {
	if err := a.checkFormat(); err != nil {
		return err
	}
	if _, _, err := f.question(); err != nil {
		return err
	}
	why, done, err := a.enter(ctx)
	if err != nil || done {
		return err
	}
	return a.judge(ctx, why, f)
}

// question reads what the flags ask.
func (f checkFlags) question() (schemas.CallSite, gitrepo.Selection, error) {
	site := schemas.CallSite(f.callSite)
	if site != schemas.Gate && site != schemas.Interactive && site != schemas.Sweep {
		return "", gitrepo.Selection{}, fmt.Errorf("--call-site is %q; use gate, interactive or sweep", f.callSite)
	}
	sel, err := f.selection()
	return site, sel, err
}

// judge does the work of a check once sandboxes can be built, or why says why
// they cannot.
func (a *app) judge(ctx context.Context, why string, f checkFlags) error {
	site, sel, err := f.question()
	if err != nil {
		return err
	}
	b, err := a.openRepo(ctx)
	if err != nil {
		return err
	}
	b.prepare(why)
	capture, err := b.repo.Capture(ctx, sel)
	if err != nil {
		return errors.Join(err, b.close(ctx))
	}
	if err := a.open(ctx, b, openOptions{whyNot: why, baseTree: capture.BaseTree, candidate: capture.CandidateTree}); err != nil {
		return err
	}
	v, err := a.evaluate(ctx, b, capture, sel, site, f)
	if err := errors.Join(err, b.close(ctx)); err != nil {
		return err
	}
	a.code = map[schemas.Decision]int{schemas.Allow: ExitAllow, schemas.Deny: ExitDeny}[v.Decision]
	if v.Decision != schemas.Allow && v.Decision != schemas.Deny {
		a.code = ExitIndeterminate
	}
	if a.format == "json" {
		return a.json(v)
	}
	o := a.style()
	o.Source = sourceOf(ctx, b.repo, capture.CandidateTree)
	return render.Verdict(a.out, v, o)
}

func (a *app) evaluate(ctx context.Context, b *bench, capture *gitrepo.Capture, sel gitrepo.Selection, site schemas.CallSite, f checkFlags) (v *schemas.Verdict, err error) {
	change := &host.Change{Repo: b.repo, Store: b.store, Capture: capture,
		Recheck: func(ctx context.Context) (gitrepo.OID, gitrepo.OID, error) { return b.repo.Trees(ctx, sel) }}
	if b.space != nil {
		change.Space = b.space
	}
	defer func() { err = errors.Join(err, change.Close()) }()
	comparison := schemas.Introduced
	if f.all {
		comparison = schemas.All
	}
	digest, err := schemas.Digest(schemas.EvaluateParams{CallSite: site, ChangeSet: capture.ChangeSet, Comparison: comparison})
	if err != nil {
		return nil, fmt.Errorf("digest of the request: %w", err)
	}
	return b.host.Evaluate(ctx, host.Evaluation{CallSite: site, ChangeSet: capture.ChangeSet, Comparison: comparison,
		Timeout: f.timeout, RequestDigest: digest, Workspace: change})
}

// maxShown bounds the files of which a line is shown, in bytes.
const maxShown = 8 << 20

// sourceOf reads files of the candidate for display.
func sourceOf(ctx context.Context, repo *gitrepo.Repo, tree gitrepo.OID) func(string) ([]byte, bool) {
	cache := map[string][]byte{}
	return func(path string) ([]byte, bool) {
		if b, ok := cache[path]; ok {
			return b, b != nil
		}
		b, ok, err := repo.BlobAt(ctx, tree, path, maxShown)
		if err != nil || !ok {
			b = nil
		}
		cache[path] = b
		return b, b != nil
	}
}
