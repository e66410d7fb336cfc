package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/aspis-dev/aspis/host/supervise"
	"github.com/aspis-dev/aspis/overlay"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// hypothetical is the workspace of a changeset that a harness sent: a baseline
// overlaid with blobs that were handed over. The candidate snapshot is made
// only when a provider is to see it.
type hypothetical struct {
	s     *Service
	cs    schemas.ChangeSet
	base  *overlay.Snapshot
	moved func(ctx context.Context) (string, error)
	// modes are git modes by path, where the change's author could say them.
	modes map[string]uint32

	mu     sync.Mutex
	change *Change // with the candidate, once it is needed
}

// hypothetical checks a changeset against its baseline: what it says was there
// must be there, and every after-blob must have been handed over.
func (s *Service) hypothetical(ctx context.Context, cs schemas.ChangeSet, tree gitrepo.OID) (*hypothetical, error) {
	base, err := s.snapshot(ctx, tree)
	if err != nil {
		return nil, err
	}
	w := &hypothetical{s: s, cs: cs, base: base}
	for i, ch := range cs.Changes {
		if err := w.fits(ch); err != nil {
			return nil, inputError("the changeset does not fit its baseline", fmt.Errorf("/changeset/changes/%d: %w", i, err))
		}
		if ch.After == "" {
			continue
		}
		if s.Store.HasBlob(ch.After) {
			continue
		}
		if paths, err := base.Paths(ch.After); err != nil || len(paths) == 0 {
			return nil, &schemas.Error{Code: schemas.CodeBlobUnavailable, Message: "an after-blob is not in the store",
				Data: &schemas.ErrorData{FailClass: schemas.FailHealth, Detail: fmt.Sprintf("/changeset/changes/%d/after: %s; hand it over with `aspis blob put` or aspis/putBlob", i, ch.After)}}
		}
	}
	return w, nil
}

func (w *hypothetical) fits(ch schemas.Change) error {
	at := ch.Path
	if ch.Kind == schemas.ChangeRename {
		at = ch.From
	}
	f, there, err := w.base.Lookup(at)
	switch {
	case err != nil:
		return err
	case ch.Kind == schemas.ChangeCreate && there:
		return fmt.Errorf("%q is created, but the baseline has it", at)
	case ch.Kind == schemas.ChangeCreate:
		return nil
	case !there:
		return fmt.Errorf("%q is not in the baseline", at)
	case f.Blob != ch.Before:
		return fmt.Errorf("%q is %s in the baseline, not %s", at, f.Blob, ch.Before)
	case f.Mode == gitrepo.ModeGitlink:
		return fmt.Errorf("%q is a submodule, whose content cannot be changed here", at)
	}
	return nil
}

// opener finds bytes in the store or the baseline.
func (s *Service) opener(base *overlay.Snapshot) blobOpener {
	return func(_ context.Context, ref schemas.BlobRef) (io.ReadCloser, int64, error) {
		r, n, err := s.Store.OpenBlob(ref)
		if errors.Is(err, overlay.ErrNoBlob) {
			return base.OpenBlob(ref)
		}
		return r, n, err
	}
}

func (w *hypothetical) Content(context.Context) (supervise.Content, error) {
	return newContent(w.cs, w.base, w.s.opener(w.base)), nil
}

func (w *hypothetical) Moved(ctx context.Context) (string, error) { return w.moved(ctx) }

// Mounts makes the candidate's tree and its views.
func (w *hypothetical) Mounts(ctx context.Context) (candidate, baseline string, release func() error, err error) {
	change, err := w.captured(ctx)
	if err != nil {
		return "", "", nil, err
	}
	return change.Mounts(ctx)
}

// captured makes the candidate once, whoever asks first.
func (w *hypothetical) captured(ctx context.Context) (*Change, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.change != nil {
		return w.change, nil
	}
	tree, err := w.tree(ctx)
	if err != nil {
		return nil, err
	}
	w.change = &Change{Repo: w.s.Repo, Store: w.s.Store, Space: w.s.Space,
		Capture: &gitrepo.Capture{BaseTree: w.base.Tree(), CandidateTree: tree, ChangeSet: w.cs}}
	return w.change, nil
}

// tree writes the hypothetical tree into the shadow repository. The wire has no
// modes: what is modified or renamed keeps its own, what is new is a plain file.
func (w *hypothetical) tree(ctx context.Context) (gitrepo.OID, error) {
	open := w.s.opener(w.base)
	var edits []gitrepo.TreeEdit
	for _, ch := range w.cs.Changes {
		var edit gitrepo.TreeEdit
		old := ch.Path
		if ch.From != "" {
			old = ch.From
			edits = append(edits, gitrepo.TreeEdit{Path: ch.From})
		}
		f, there, err := w.base.Lookup(old)
		if err != nil {
			return "", err
		}
		edit = gitrepo.TreeEdit{Path: ch.Path, Mode: gitrepo.ModeFile}
		if there && ch.Kind != schemas.ChangeCreate {
			edit.Mode = f.Mode
			edit.OID = f.OID
		}
		if mode, ok := w.modes[ch.Path]; ok {
			edit.Mode = mode
		}
		switch {
		case ch.Kind == schemas.ChangeDelete:
			edit.OID = ""
		case ch.After != "":
			r, _, err := open(ctx, ch.After)
			if err != nil {
				return "", err
			}
			edit.OID, err = w.s.Repo.PutBlob(ctx, r)
			if err := errors.Join(err, r.Close()); err != nil {
				return "", err
			}
		}
		edits = append(edits, edit)
	}
	return w.s.Repo.WriteTree(ctx, w.base.Tree(), edits)
}

func (w *hypothetical) close() error {
	if w.change == nil {
		return nil
	}
	return w.change.Close()
}
