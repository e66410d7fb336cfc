package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/spf13/cobra"

	"github.com/aspis-dev/aspis/cmd/aspis/internal/render"
	"github.com/aspis-dev/aspis/host"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/policy"
	"github.com/aspis-dev/aspis/schemas"
)

type applyFlags struct {
	to        string
	merge     bool
	dryRun    bool
	protected []string
	callSite  string
	message   string
}

func (a *app) applyCommand() *cobra.Command {
	var f applyFlags
	cmd := &cobra.Command{
		Use: "apply <plan.json|patch|->", Short: "Check an edit and publish it, all or nothing", Args: cobra.ExactArgs(1),
		Long: `Publish an edit: an ASP EditPlan (JSON), or a patch as git diff and diff -u write
it. The edit is first made as a tree of its own, on which the checks that policy
requires run inside containers. Only if they allow it is it published: every file
or none, also if the machine stops in the middle, and never over a file that
something else has changed meanwhile.

Files that make machines run code by being there (CI workflows, hooks, editor and
agent settings) are refused unless policy or --allow-protected names them.

Exit codes: 0 published, 1 denied by a check, 2 not published for another reason,
3 usage or set-up error.`,
		Example: `  git diff main..agent | aspis apply -
  aspis apply --dry-run fix.patch            what would happen
  aspis apply --to ref:refs/heads/agent fix.patch
  aspis undo                                 take the last one back`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.apply(cmd.Context(), f, args[0]) },
	}
	cmd.Flags().StringVar(&f.to, "to", "worktree", "publish to the `worktree`, to it as a whole with dir-exchange, or as a commit to ref:NAME")
	cmd.Flags().BoolVar(&f.merge, "merge", false, "merge with what has changed since the plan was made, where that is clean")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "check the edit, and publish nothing")
	cmd.Flags().StringSliceVar(&f.protected, "allow-protected", nil, "let protected files that match `glob` be written")
	cmd.Flags().StringVar(&f.callSite, "call-site", "gate", "gate, interactive or sweep: whose requirements hold")
	cmd.Flags().StringVarP(&f.message, "message", "m", "", "the commit's `text`, with --to ref:NAME")
	return cmd
}

// maxPlan bounds a plan or a patch, in bytes.
const maxPlan = 256 << 20

func (a *app) apply(ctx context.Context, f applyFlags, from string) error {
	if err := a.checkFormat(); err != nil {
		return err
	}
	site, err := callSiteOf(f.callSite)
	if err != nil {
		return err
	}
	person, err := f.person()
	if err != nil {
		return err
	}
	why, done, err := a.enter(ctx)
	if err != nil || done {
		return err
	}
	text, err := a.readInput(from)
	if err != nil {
		return err
	}
	return a.withService(ctx, why, func(b *bench, s *host.Service) error {
		params := schemas.ApplyParams{CallSite: site, Intent: "user"}
		if bytes.TrimLeft(text, " \t\r\n")[0] == '{' {
			plan, err := readPlan(text)
			if err != nil {
				return err
			}
			params.ProposalID, params.Proposal = plan.ProposalID, plan
		} else {
			person.Make = func(ctx context.Context, place host.Place, tree gitrepo.OID) (*schemas.EditPlan, map[string]uint32, error) {
				return a.planOf(ctx, b, place, tree, text)
			}
		}
		_, err := a.publish(ctx, s, host.Apply{Params: params, Person: person})
		return err
	})
}

func callSiteOf(name string) (schemas.CallSite, error) {
	site := schemas.CallSite(name)
	if site != schemas.Gate && site != schemas.Interactive && site != schemas.Sweep {
		return "", fmt.Errorf("--call-site is %q; use gate, interactive or sweep", name)
	}
	return site, nil
}

// person is who runs this command, with what the flags say.
func (f applyFlags) person() (*host.Person, error) {
	p := &host.Person{Name: "uid " + fmt.Sprint(os.Getuid()), DryRun: f.dryRun, Protected: f.protected, Message: f.message}
	if u, err := user.Current(); err == nil {
		p.Name = u.Username
	}
	for _, g := range f.protected {
		if !doublestar.ValidatePattern(g) {
			return nil, fmt.Errorf("--allow-protected %q is no glob", g)
		}
	}
	if f.merge {
		p.OnDrift = policy.DriftMerge
	}
	ref, isRef := strings.CutPrefix(f.to, "ref:")
	switch {
	case isRef && !strings.HasPrefix(ref, "refs/"):
		return nil, fmt.Errorf("--to %q: give the whole name of the ref, such as ref:refs/heads/agent", f.to)
	case isRef:
		p.Ref = ref
	case f.to == "dir-exchange":
		p.WholeDir = true
	case f.to != "worktree":
		return nil, fmt.Errorf("--to is %q; use worktree, dir-exchange or ref:NAME", f.to)
	case f.message != "":
		return nil, errors.New("--message is for --to ref:NAME: a worktree gets no commit")
	}
	return p, nil
}

// readInput reads a file or standard input whole.
func (a *app) readInput(name string) ([]byte, error) {
	in := a.in
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxPlan+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %q: %w", name, err)
	case len(text) > maxPlan:
		return nil, fmt.Errorf("%q has more than %d bytes", name, maxPlan)
	case len(bytes.TrimSpace(text)) == 0:
		return nil, fmt.Errorf("%q is empty; give an EditPlan or a patch", name)
	}
	return text, nil
}

// withService opens the workspace as a host that publishes.
func (a *app) withService(ctx context.Context, why string, do func(*bench, *host.Service) error) error {
	b, err := a.openRepo(ctx)
	if err != nil {
		return err
	}
	base, err := b.repo.BaseTree(ctx)
	if err != nil {
		return errors.Join(err, b.close(ctx))
	}
	if err := a.open(ctx, b, openOptions{whyNot: why, baseTree: base}); err != nil {
		return err
	}
	s := b.service(base)
	err = do(b, s)
	return errors.Join(err, s.Close(), b.close(ctx))
}

// service binds the host to the workspace.
func (b *bench) service(policyTree gitrepo.OID) *host.Service {
	s := &host.Service{Host: b.host, Repo: b.repo, Store: b.store, Root: b.repo.Root(), PolicyTree: policyTree}
	if b.space != nil {
		s.Space = b.space
	}
	return s
}

// planOf makes a plan of a patch, on the workspace as it is.
func (a *app) planOf(ctx context.Context, b *bench, place host.Place, tree gitrepo.OID, patch []byte) (*schemas.EditPlan, map[string]uint32, error) {
	after, err := b.repo.ApplyPatch(ctx, tree, bytes.NewReader(patch))
	if err != nil {
		return nil, nil, err
	}
	capture, err := b.repo.Compare(ctx, tree, after)
	if err != nil {
		return nil, nil, err
	}
	if len(capture.Entries) == 0 {
		return nil, nil, errors.New("the patch changes nothing")
	}
	capture.Baseline = place.Baseline
	return host.HandIn(ctx, b.repo, b.store, capture, "aspis-apply", a.version)
}

// readPlan takes an EditPlan, or the answer to host/requestEditPlan around one.
func readPlan(text []byte) (*schemas.EditPlan, error) {
	var outer struct {
		Proposal *schemas.EditPlan `json:"proposal"`
		Receipt  *schemas.Receipt  `json:"receipt"`
	}
	wrapped := text
	if err := schemas.Decode(text, &outer, schemas.Limits{MaxBytes: maxPlan}); err != nil || outer.Proposal == nil {
		wrapped = append(append([]byte(`{"proposal":`), text...), '}')
	} else if outer.Receipt != nil {
		var err error
		if wrapped, err = schemas.Marshal(schemas.ProposeResult{Proposal: *outer.Proposal}); err != nil {
			return nil, err
		}
	}
	res, err := schemas.DecodeProposeResult(wrapped, schemas.Limits{MaxBytes: maxPlan + 64})
	if err != nil {
		return nil, fmt.Errorf("this is no EditPlan: %w", err)
	}
	return &res.Proposal, nil
}

// publish applies a plan and tells what came of it.
func (a *app) publish(ctx context.Context, s *host.Service, ask host.Apply) (*schemas.ApplyResult, error) {
	plan := ask.Params.Proposal
	if make := ask.Person.Make; make != nil {
		ask.Person.Make = func(ctx context.Context, place host.Place, tree gitrepo.OID) (_ *schemas.EditPlan, modes map[string]uint32, err error) {
			plan, modes, err = make(ctx, place, tree)
			return plan, modes, err
		}
	}
	res, err := s.Apply(ctx, ask)
	if err != nil {
		return nil, err
	}
	rehearsed := res.Refusal != nil && strings.HasPrefix(res.Refusal.Detail, host.DryRun)
	switch {
	case res.Applied, rehearsed:
		a.code = ExitAllow
	case res.Refusal.Reason == "validation-denied":
		a.code = ExitDeny
	default:
		a.code = ExitIndeterminate
	}
	if a.format == "json" {
		return res, a.json(res)
	}
	return res, render.Applied(a.out, plan, res, rehearsed, a.style())
}
