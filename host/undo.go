package host

import (
	"context"
	"errors"
	"fmt"

	"github.com/aspis-dev/aspis/apply/publish"
	"github.com/aspis-dev/aspis/schemas"
)

// Undone is what came of taking the last apply back.
type Undone struct {
	ID        string                       `json:"id"`      // of the publish that was taken back
	Changed   []string                     `json:"changed"` // paths
	Guarantee schemas.TransactionGuarantee `json:"transactionGuarantee"`
	Limits    []string                     `json:"limits,omitzero"`
	Receipt   schemas.Receipt              `json:"receipt"`
}

// Undo puts back what the last apply to the worktree replaced, if nothing has
// touched those files since: a *publish.ConflictError tells what has, a
// *publish.NothingToUndoError that there is none. No check runs, for nothing new
// comes of it; that it happened is in a receipt.
func (s *Service) Undo(ctx context.Context) (_ *Undone, err error) {
	started := s.Host.now()
	if s.Repo.Root() == "" {
		return nil, errors.New("the repository has no worktree, and so nothing was applied to one")
	}
	t, err := openWorktree(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	place, _, err := t.current(ctx)
	if err != nil {
		return nil, err
	}
	ws, err := publish.Open(ctx, s.Repo.Root(), s.Host.opt.StateDir)
	if err != nil {
		return nil, fmt.Errorf("take the workspace: %w", err)
	}
	defer func() { err = errors.Join(err, ws.Close()) }()
	id, _, err := ws.Last()
	if err != nil {
		return nil, err
	}
	res, err := ws.Undo(ctx, id, publish.Options{})
	if err != nil {
		return nil, err
	}
	after, _, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	u := &Undone{ID: id, Changed: res.Changed, Guarantee: res.Guarantee, Limits: res.Limits}
	digest, err := schemas.Digest(struct {
		Undo string `json:"undo"`
	}{id})
	if err != nil {
		return nil, fmt.Errorf("digest of the request: %w", err)
	}
	u.Receipt = s.Host.draft(outline{kind: schemas.ReceiptApplyAttempt, family: schemas.Edit, site: schemas.Gate, request: digest,
		policy: s.Host.opt.Policy.Digest(), baseline: place.Baseline, coverage: emptyCoverage(), started: started,
		assurance: schemas.Assurance{Mode: schemas.Gated, TransactionGuarantee: res.Guarantee, Detail: "the apply " + id + " was taken back"}})
	u.Receipt.ProposalID, u.Receipt.ValidAsOf = "undo-"+id, schemas.ValidAsOf{Rev: after.Baseline.Rev}
	return u, s.Host.keep(ctx, u.Receipt)
}
