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

// Change is a captured change with its snapshots, which are made when they are
// first needed. It is one evaluation's Workspace; Close must be called.
type Change struct {
	Repo    *gitrepo.Repo
	Store   *overlay.Store
	Space   overlay.Mounter // nil where nothing can be mounted
	Capture *gitrepo.Capture
	// Recheck captures the same selection again, to see whether it has moved;
	// nil for one that cannot, such as two fixed trees.
	Recheck func(ctx context.Context) (base, candidate gitrepo.OID, err error)

	mu        sync.Mutex
	base      *overlay.Snapshot
	candidate *overlay.Snapshot
}

var _ Workspace = (*Change)(nil)

// Content serves callbacks from the baseline snapshot and the change's blobs.
func (c *Change) Content(ctx context.Context) (supervise.Content, error) {
	base, err := c.baseline(ctx)
	if err != nil {
		return nil, err
	}
	return newContent(c.Capture.ChangeSet, base, c.openBlob), nil
}

func (c *Change) baseline(ctx context.Context) (*overlay.Snapshot, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base != nil {
		return c.base, nil
	}
	var err error
	c.base, err = c.Store.Baseline(ctx, c.Repo, c.Capture.BaseTree)
	return c.base, err
}

func (c *Change) candidateSnapshot(ctx context.Context) (*overlay.Snapshot, error) {
	base, err := c.baseline(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.candidate != nil {
		return c.candidate, nil
	}
	c.candidate, err = c.Store.Candidate(ctx, c.Repo, base, c.Capture.CandidateTree)
	return c.candidate, err
}

// openBlob finds bytes in the candidate, the baseline or the blob store.
func (c *Change) openBlob(ctx context.Context, ref schemas.BlobRef) (io.ReadCloser, int64, error) {
	candidate, err := c.candidateSnapshot(ctx)
	if err != nil {
		return nil, 0, err
	}
	r, n, err := candidate.OpenBlob(ref)
	if errors.Is(err, overlay.ErrNoBlob) {
		// What the change replaced is in the baseline only.
		r, n, err = c.base.OpenBlob(ref)
	}
	return r, n, err
}

// Mounts makes views of both snapshots.
func (c *Change) Mounts(ctx context.Context) (candidate, baseline string, release func() error, err error) {
	if c.Space == nil {
		return "", "", nil, errors.New("no mount namespace can be made on this machine")
	}
	cand, err := c.candidateSnapshot(ctx)
	if err != nil {
		return "", "", nil, err
	}
	cv, err := c.Store.View(ctx, c.Space, cand)
	if err != nil {
		return "", "", nil, err
	}
	bv, err := c.Store.View(ctx, c.Space, c.base)
	if err != nil {
		return "", "", nil, errors.Join(err, cv.Close())
	}
	return cv.Path(), bv.Path(), func() error { return errors.Join(cv.Close(), bv.Close()) }, nil
}

// Moved captures the selection again and compares.
func (c *Change) Moved(ctx context.Context) (string, error) {
	if c.Recheck == nil {
		return "", nil
	}
	base, cand, err := c.Recheck(ctx)
	switch {
	case err != nil:
		return "", err
	case base != c.Capture.BaseTree:
		return fmt.Sprintf("the baseline moved from %s to %s while the change was judged; run it again", c.Capture.BaseTree, base), nil
	case cand != c.Capture.CandidateTree:
		return fmt.Sprintf("the change moved from the tree %s to %s while it was judged; run it again", c.Capture.CandidateTree, cand), nil
	}
	return "", nil
}

// Close lets the snapshots be collected.
func (c *Change) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	if c.candidate != nil {
		errs = append(errs, c.candidate.Close())
	}
	if c.base != nil {
		errs = append(errs, c.base.Close())
	}
	c.base, c.candidate = nil, nil
	return errors.Join(errs...)
}
