package host

import (
	"context"
	"errors"
	"fmt"

	"github.com/aspis-dev/aspis/overlay"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// target is where an edit is published to, held from the first look to the end:
// the one that comes second sees what the first has made.
type target interface {
	// current is the baseline that edits are applied to, with its tree.
	current(ctx context.Context) (Place, gitrepo.OID, error)
	// moved tells during the checks whether that baseline is still the one.
	moved(at *attempt) func(context.Context) (string, error)
	// publish does it. A *refusal means that nothing was written.
	publish(ctx context.Context, at *attempt, todo []move, candidate gitrepo.OID, base *overlay.Snapshot) (*published, error)
	close() error
}

// target opens what an edit goes to.
func (s *Service) target(ctx context.Context, a Apply) (target, error) {
	if a.Person != nil && a.Person.Ref != "" {
		return &refTarget{s: s, ref: a.Person.Ref, message: a.Person.Message}, nil
	}
	if s.Repo.Root() == "" {
		return nil, errors.New("the repository has no worktree; publish to a ref")
	}
	t, err := openWorktree(ctx, s)
	if err != nil {
		return nil, err
	}
	if a.Person != nil && a.Person.WholeDir {
		return wholeDir{t}, nil
	}
	return t, nil
}

// refTarget makes a commit and moves a ref to it. Git's own compare and swap
// makes that one step.
type refTarget struct {
	s       *Service
	ref     string
	message string
	tip     gitrepo.OID // "" where there is no such ref yet
}

// current is the tree of the ref, or HEAD's where there is no such ref yet.
func (t *refTarget) current(ctx context.Context) (Place, gitrepo.OID, error) {
	tip, tree, err := t.s.Repo.RefTip(ctx, t.ref)
	if err != nil {
		return Place{}, "", err
	}
	t.tip = tip
	if tip == "" {
		if tree, err = t.s.Repo.BaseTree(ctx); err != nil {
			return Place{}, "", err
		}
	}
	b := schemas.Baseline{Rev: "git:tree:" + string(tree)}
	t.s.remember(b, tree)
	return Place{Root: t.s.Repo.CommonDir(), Baseline: b}, tree, nil
}

func (t *refTarget) moved(at *attempt) func(context.Context) (string, error) {
	was := t.tip
	return func(ctx context.Context) (string, error) {
		tip, _, err := t.s.Repo.RefTip(ctx, t.ref)
		if err != nil || tip == was {
			return "", err
		}
		return fmt.Sprintf("%s moved while the edit was judged", t.ref), nil
	}
}

func (t *refTarget) publish(ctx context.Context, at *attempt, _ []move, candidate gitrepo.OID, _ *overlay.Snapshot) (*published, error) {
	var parents []gitrepo.OID
	if t.tip != "" {
		parents = []gitrepo.OID{t.tip}
	} else if head, err := t.s.Repo.Head(ctx); err != nil {
		return nil, err
	} else if head != "" {
		parents = []gitrepo.OID{head}
	}
	message := t.message
	if message == "" {
		message = fmt.Sprintf("Apply %s by %s", at.a.Params.ProposalID, at.edit.Provider.ID)
	}
	commit, err := t.s.Repo.PublishTree(ctx, t.ref, t.tip, candidate, parents, gitrepo.Commit{Message: message, At: t.s.Host.now()})
	var moved *gitrepo.RefError
	if errors.As(err, &moved) {
		return nil, &refusal{reason: "conflict", detail: moved.Error(), conflicts: []schemas.ApplyConflict{}}
	}
	if err != nil {
		return nil, err
	}
	done := &published{undo: string(commit), guarantee: schemas.GuaranteeStagedSnapshot}
	at.notes = append(at.notes, fmt.Sprintf("%s is at the commit %s", t.ref, commit))
	// What is there now is compared with what was checked.
	if tip, tree, err := t.s.Repo.RefTip(ctx, t.ref); err != nil || tip != commit || tree != candidate {
		done.guarantee = schemas.GuaranteeWorkspaceTransactional
		done.limits = append(done.limits, "the ref was not found at the tree that was checked when it was read again")
	}
	done.after = schemas.Baseline{Rev: "git:tree:" + string(candidate)}
	tip := t.tip
	done.failed = func(ctx context.Context) error {
		return t.s.Repo.MoveRef(ctx, t.ref, commit, tip)
	}
	return done, nil
}

func (t *refTarget) close() error { return nil }
