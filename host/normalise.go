package host

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/aspis-dev/aspis/apply"
	"github.com/aspis-dev/aspis/overlay"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// maxEdited bounds a file that text edits make, in bytes.
const maxEdited = 128 << 20

// normalise turns a checked plan into the change that it makes of its baseline.
// Text edits become blobs, which are put into the store.
func (s *Service) normalise(ctx context.Context, plan *schemas.EditPlan, base *overlay.Snapshot) (schemas.ChangeSet, error) {
	cs := schemas.ChangeSet{Baseline: plan.Baseline, Changes: []schemas.Change{}}
	for _, d := range plan.WorkspaceEdit.DocumentChanges {
		ch := schemas.Change{Path: d.Path, Kind: d.Kind, Before: d.Precondition.ExpectedDigest, After: d.After}
		if len(d.Edits) > 0 {
			var err error
			if ch.After, err = s.edited(ctx, d, base); err != nil {
				return cs, err
			}
		}
		switch d.Kind {
		case schemas.ChangeRename, schemas.ChangeMove:
			ch.Kind, ch.Path, ch.From = schemas.ChangeRename, d.To, d.Path
			if ch.After == "" {
				ch.After = ch.Before
			}
		case schemas.ChangeDelete:
			ch.After = ""
		}
		cs.Changes = append(cs.Changes, ch)
	}
	return cs, nil
}

// edited applies text edits and stores what comes of it.
func (s *Service) edited(ctx context.Context, d schemas.DocChange, base *overlay.Snapshot) (schemas.BlobRef, error) {
	content, err := s.read(ctx, base, d.Precondition.ExpectedDigest)
	if err != nil {
		return "", fmt.Errorf("read %q: %w", d.Path, err)
	}
	after, err := apply.TextEdits(content, d.Edits)
	if err != nil {
		return "", &apply.Problem{Path: d.Path, Detail: err.Error()}
	}
	return s.Store.PutBlob(ctx, bytes.NewReader(after), maxEdited)
}

// read gives a blob's bytes, at most maxEdited.
func (s *Service) read(ctx context.Context, base *overlay.Snapshot, ref schemas.BlobRef) (b []byte, err error) {
	r, size, err := s.opener(base)(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if size > maxEdited {
		return nil, fmt.Errorf("it has %d bytes; text of at most %d is edited or merged", size, int64(maxEdited))
	}
	return io.ReadAll(r)
}

// state is what a path holds, or is to hold: a zero mode means nothing.
type state struct {
	mode uint32
	blob schemas.BlobRef
}

// move is what becomes of one path.
type move struct {
	path          string
	before, after state
}

// moves lists path by path what a change does to its baseline, with the modes
// that the wire does not carry: what is changed or renamed keeps its own, what
// is new is a plain file, unless modes says otherwise.
func moves(cs schemas.ChangeSet, modes map[string]uint32, base *overlay.Snapshot) ([]move, error) {
	var out []move
	for _, ch := range cs.Changes {
		at := ch.Path
		if ch.From != "" {
			at = ch.From
		}
		f, there, err := base.Lookup(at)
		if err != nil {
			return nil, err
		}
		var before state
		mode := uint32(gitrepo.ModeFile)
		if there && ch.Kind != schemas.ChangeCreate {
			before, mode = state{mode: f.Mode, blob: f.Blob}, f.Mode
		}
		if m, ok := modes[ch.Path]; ok {
			mode = m
		}
		m := move{path: ch.Path, before: before}
		if ch.Kind != schemas.ChangeDelete {
			m.after = state{mode: mode, blob: ch.After}
		}
		if ch.From != "" {
			out = append(out, move{path: ch.From, before: before})
			m.before = state{}
		}
		out = append(out, m)
	}
	return out, nil
}
