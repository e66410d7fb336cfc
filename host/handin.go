package host

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/aspis-dev/aspis/host/receipt"
	"github.com/aspis-dev/aspis/overlay"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// emptyConfig is the digest of a configuration that says nothing.
const emptyConfig = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"

// HandIn makes a plan of a captured change, for somebody who hands it in as
// their own: every file as a whole, with its new content put into the store.
// Modes are what the plan cannot carry.
func HandIn(ctx context.Context, repo *gitrepo.Repo, store *overlay.Store, c *gitrepo.Capture, by, version string) (_ *schemas.EditPlan, modes map[string]uint32, err error) {
	plan := &schemas.EditPlan{
		ProposalID: "handed-in-" + receipt.NewID(), Status: schemas.StatusComplete, Baseline: c.Baseline,
		Provider:         schemas.EditProvider{ID: by, Version: version, CapabilityFamily: schemas.Edit, CapabilityVersion: "1", ConfigDigest: emptyConfig},
		ValidAsOf:        schemas.EditValidAsOf{Baseline: c.Baseline, Blobs: []schemas.BlobRef{}},
		TouchedResources: []schemas.Touched{},
		WorkspaceEdit:    &schemas.WorkspaceEdit{Baseline: c.Baseline, DocumentChanges: []schemas.DocChange{}},
	}
	modes = map[string]uint32{}
	blobs, err := repo.Blobs(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, blobs.Close()) }()
	for _, e := range c.Entries {
		d := schemas.DocChange{Path: e.Path, Kind: e.Kind, After: e.After, Precondition: schemas.Precondition{ExpectedDigest: e.Before}}
		switch e.Kind {
		case schemas.ChangeCreate:
			d.Precondition = schemas.Precondition{ExpectedAbsence: true}
		case schemas.ChangeRename:
			d.Path, d.To = e.From, e.Path
			if e.After == e.Before {
				d.After = ""
			}
		case schemas.ChangeDelete:
			d.After = ""
		}
		if e.AfterMode == gitrepo.ModeGitlink || e.BeforeMode == gitrepo.ModeGitlink {
			return nil, nil, fmt.Errorf("%q is a submodule, which no plan can change", e.Path)
		}
		if e.Kind != schemas.ChangeDelete && (e.AfterMode != e.BeforeMode || e.Kind == schemas.ChangeCreate) {
			modes[e.Path] = e.AfterMode
		}
		if d.After != "" && !store.HasBlob(d.After) {
			if err := copyBlob(ctx, blobs, store, e); err != nil {
				return nil, nil, fmt.Errorf("store the new content of %q: %w", e.Path, err)
			}
		}
		plan.WorkspaceEdit.DocumentChanges = append(plan.WorkspaceEdit.DocumentChanges, d)
		plan.TouchedResources = append(plan.TouchedResources, schemas.Touched{Path: d.Path, Kind: d.Kind, To: d.To, Precondition: d.Precondition})
	}
	return plan, modes, nil
}

// copyBlob puts an object of the repository into the store.
func copyBlob(ctx context.Context, blobs *gitrepo.BlobReader, store *overlay.Store, e gitrepo.Entry) error {
	r, w := io.Pipe()
	go func() {
		_, err := blobs.Read(e.AfterOID, w, e.Size)
		w.CloseWithError(err)
	}()
	ref, err := store.PutBlob(ctx, r, e.Size)
	r.CloseWithError(err)
	if err == nil && ref != e.After {
		err = fmt.Errorf("it is %s and not %s", ref, e.After)
	}
	return err
}
