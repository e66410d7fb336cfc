package host

import (
	"context"
	"io"

	"github.com/aspis-dev/aspis/overlay"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// content is what one evaluation refers to: the baseline snapshot and the blobs
// that the changeset names. It is immutable and may be shared by providers.
type content struct {
	baseline schemas.Baseline
	base     *overlay.Snapshot
	open     blobOpener
	changed  map[schemas.BlobRef][]string
}

// blobOpener gives the verified bytes of a blob.
type blobOpener func(ctx context.Context, ref schemas.BlobRef) (io.ReadCloser, int64, error)

func newContent(cs schemas.ChangeSet, base *overlay.Snapshot, open blobOpener) *content {
	c := &content{baseline: cs.Baseline, base: base, open: open, changed: map[schemas.BlobRef][]string{}}
	refer := func(ref schemas.BlobRef, path string) {
		if ref != "" && path != "" {
			c.changed[ref] = append(c.changed[ref], path)
		}
	}
	for _, ch := range cs.Changes {
		refer(ch.After, ch.Path)
		refer(ch.Before, ch.Path)
		refer(ch.Before, ch.From)
	}
	return c
}

func (c *content) Baseline() schemas.Baseline { return c.baseline }

// Entries lists files and symlinks; a submodule has no content here.
func (c *content) Entries(ctx context.Context, fn func(schemas.TreeEntry) error) error {
	return c.base.Each(func(f overlay.File) error {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		e, ok := treeEntry(f)
		if !ok {
			return nil
		}
		return fn(e)
	})
}

func (c *content) Entry(_ context.Context, path string) (schemas.TreeEntry, bool, error) {
	f, ok, err := c.base.Lookup(path)
	if err != nil || !ok {
		return schemas.TreeEntry{}, false, err
	}
	e, ok := treeEntry(f)
	return e, ok, nil
}

// treeEntry is a file on the wire; a name that ASP cannot carry has none.
func treeEntry(f overlay.File) (schemas.TreeEntry, bool) {
	e := schemas.TreeEntry{Path: f.Path, BlobID: f.Blob, Kind: "file"}
	switch f.Mode {
	case gitrepo.ModeSymlink:
		e.Kind = "symlink"
	case gitrepo.ModeGitlink:
		return e, false
	}
	return e, schemas.ValidPath(f.Path) == nil
}

// Paths joins the change's references with the baseline's.
func (c *content) Paths(_ context.Context, ref schemas.BlobRef) ([]string, error) {
	below, err := c.base.Paths(ref)
	if err != nil {
		return nil, err
	}
	return append(below, c.changed[ref]...), nil
}

func (c *content) Open(ctx context.Context, ref schemas.BlobRef) (io.ReadCloser, int64, error) {
	return c.open(ctx, ref)
}
