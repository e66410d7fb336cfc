package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/aspis-dev/aspis/overlay"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/policy"
	"github.com/aspis-dev/aspis/schemas"
)

// storeBase is a baseline together with every blob in the store: where a plan's
// bytes come from does not matter once they are there, as a plan names them by
// their digest.
type storeBase struct {
	s       *Service
	content *content
}

func (b storeBase) Blob(ctx context.Context, path string) (schemas.BlobRef, bool, error) {
	e, ok, err := b.content.Entry(ctx, path)
	return e.BlobID, ok, err
}

func (b storeBase) Open(ctx context.Context, ref schemas.BlobRef) (io.ReadCloser, bool, error) {
	r, _, err := b.content.Open(ctx, ref)
	if errors.Is(err, overlay.ErrNoBlob) {
		return nil, false, nil
	}
	return r, err == nil, err
}

// drifted deals with a plan on another baseline than the workspace's.
func (at *attempt) drifted(ctx context.Context) (cs schemas.ChangeSet, again bool, err error) {
	tree, known := at.s.treeOf(at.edit.Baseline)
	if !known && at.prop != nil {
		tree, known = gitrepo.OID(at.prop.Tree), true
	}
	if !known {
		return cs, false, &refusal{reason: "stale-baseline", detail: fmt.Sprintf("the plan is on the baseline %.80q, which this host never issued; the workspace is at %s", at.edit.Baseline.Rev, at.place.Baseline.Rev)}
	}
	old, err := at.s.snapshotOf(ctx, tree)
	if err != nil {
		return cs, false, err
	}
	defer func() { err = errors.Join(err, old.Close()) }()
	now, err := at.s.snapshot(ctx, at.tree)
	if err != nil {
		return cs, false, err
	}
	was, err := at.fit(ctx, old)
	if err != nil {
		return cs, false, err
	}
	re := rebase{s: at.s, old: old, now: now, merge: at.driftRule() != policy.DriftRefuse}
	cs, conflicts, err := re.changes(ctx, was, at.place.Baseline)
	if err != nil {
		return cs, false, err
	}
	if !re.merge {
		return cs, false, &refusal{reason: "stale-baseline", conflicts: conflicts,
			detail: fmt.Sprintf("the workspace has moved since the plan was made: %d of the files that it touches are not what they were; ask for a new plan", len(conflicts))}
	}
	if len(conflicts) > 0 {
		if again, err := at.proposeAgain(ctx); again || err != nil {
			return cs, again, err
		}
		return cs, false, &refusal{reason: "conflict", conflicts: conflicts,
			detail: fmt.Sprintf("the workspace has moved since the plan was made, and %d of the files that it touches cannot be merged", len(conflicts))}
	}
	if len(cs.Changes) == 0 {
		return cs, false, &refusal{reason: "precondition-failed", detail: "the workspace holds already what the plan would make"}
	}
	at.notes = append(at.notes, fmt.Sprintf("the workspace had moved since the plan was made: %d files were merged, the others are as they were", re.merged))
	return cs, false, nil
}

// snapshotOf gives the snapshot of any tree; the caller closes it.
func (s *Service) snapshotOf(ctx context.Context, tree gitrepo.OID) (*overlay.Snapshot, error) {
	return s.Store.Baseline(ctx, s.Repo, tree)
}

// rebase carries a change from one baseline to another.
type rebase struct {
	s        *Service
	old, now *overlay.Snapshot
	merge    bool
	merged   int
}

// changes gives what is left to do on the new baseline, and what cannot be
// carried over.
func (re *rebase) changes(ctx context.Context, was schemas.ChangeSet, baseline schemas.Baseline) (schemas.ChangeSet, []schemas.ApplyConflict, error) {
	out := schemas.ChangeSet{Baseline: baseline, Changes: []schemas.Change{}}
	conflicts := []schemas.ApplyConflict{}
	for _, ch := range was.Changes {
		next, why, err := re.change(ctx, ch)
		switch {
		case err != nil:
			return out, nil, err
		case why != "":
			conflicts = append(conflicts, schemas.ApplyConflict{Path: ch.Path, Detail: why})
		case next != nil:
			out.Changes = append(out.Changes, *next)
		}
	}
	return out, conflicts, nil
}

// change carries one change over; why tells in a sentence why it cannot be, and
// nil that nothing is left to do.
func (re *rebase) change(ctx context.Context, ch schemas.Change) (next *schemas.Change, why string, err error) {
	source := ch.Path
	if ch.From != "" {
		source = ch.From
		if _, taken, err := re.now.Lookup(ch.Path); err != nil || taken {
			return nil, "a file of this name has been made meanwhile", err
		}
	}
	is, there, err := re.now.Lookup(source)
	if err != nil {
		return nil, "", err
	}
	switch {
	case ch.Kind == schemas.ChangeCreate && !there:
		return &ch, "", nil
	case ch.Kind == schemas.ChangeCreate && is.Blob == ch.After:
		return nil, "", nil
	case ch.Kind == schemas.ChangeCreate:
		return nil, "another file of this name has been made meanwhile", nil
	case !there && ch.Kind == schemas.ChangeDelete:
		return nil, "", nil
	case !there:
		return nil, "it has been removed meanwhile", nil
	}
	was, _, err := re.old.Lookup(source)
	if err != nil {
		return nil, "", err
	}
	if is.Blob == ch.Before && is.Mode == was.Mode {
		return &ch, "", nil
	}
	if ch.Kind == schemas.ChangeDelete || is.Mode != was.Mode || !re.merge {
		return nil, "it has been changed meanwhile", nil
	}
	if is.Blob == ch.After && ch.From == "" {
		return nil, "", nil
	}
	after, why, err := re.threeWay(ctx, ch, is.Blob)
	if err != nil || why != "" {
		return nil, why, err
	}
	re.merged++
	ch.Before, ch.After = is.Blob, after
	return &ch, "", nil
}

// threeWay merges the plan's content with the workspace's.
func (re *rebase) threeWay(ctx context.Context, ch schemas.Change, now schemas.BlobRef) (schemas.BlobRef, string, error) {
	var texts [3][]byte
	for i, ref := range []schemas.BlobRef{ch.Before, now, ch.After} {
		base := re.old
		if i == 1 {
			base = re.now
		}
		var err error
		if texts[i], err = re.s.read(ctx, base, ref); err != nil {
			return "", "", fmt.Errorf("read %q for a merge: %w", ch.Path, err)
		}
		if !utf8.Valid(texts[i]) || bytes.IndexByte(texts[i], 0) >= 0 {
			return "", "it has been changed meanwhile, and it is no text that could be merged", nil
		}
	}
	merged, clean, err := re.s.Repo.MergeFile(ctx, texts[0], texts[1], texts[2])
	if err != nil {
		return "", "", fmt.Errorf("merge %q: %w", ch.Path, err)
	}
	if !clean {
		return "", "it has been changed meanwhile in the same places", nil
	}
	ref, err := re.s.Store.PutBlob(ctx, bytes.NewReader(merged), maxEdited)
	return ref, "", err
}
