package overlay

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/overlay/upper"
	"github.com/aspis-dev/aspis/schemas"
)

// WorkChange is one path of a work area that is not what it was when the work
// area was made.
type WorkChange struct {
	Dir  string // the directory of the work area that it lies in
	Path string // below Dir
	From string // where a renamed file was
	Kind schemas.ChangeKind
	// BeforeMode and AfterMode are as in struct stat, type and permissions; 0
	// where there is nothing.
	BeforeMode, AfterMode uint32
	// Before and After name the bytes of a file, or a symlink's target; "" for
	// directories and where there is nothing.
	Before, After schemas.BlobRef
	Size          int64 // of what is there now, or else of what was, in bytes
	// Metadata: the bytes are what they were, and only permissions differ.
	Metadata bool
}

// GitModes gives both modes as git has them, 0 where git has nothing: equal ones
// of a Metadata change mean that git sees none.
func (c WorkChange) GitModes() (before, after uint32) {
	return gitMode(c.BeforeMode), gitMode(c.AfterMode)
}

func gitMode(mode uint32) uint32 {
	switch mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return gitrepo.ModeSymlink
	case unix.S_IFREG:
		if mode&0o100 != 0 {
			return gitrepo.ModeExec
		}
		return gitrepo.ModeFile
	}
	return 0
}

// IsDir tells a directory that was made, removed, or given other permissions.
// What is beside it in a WorkDiff says the same of the files in it.
func (c WorkChange) IsDir() bool {
	return (c.AfterMode|c.BeforeMode)&unix.S_IFMT == unix.S_IFDIR
}

// WorkRefused is something in a work area that no change can be made of.
type WorkRefused struct{ Dir, Path, What string }

// WorkDiff is what was done in a work area, in the order of Dir and Path.
type WorkDiff struct {
	Changes []WorkChange
	Refused []WorkRefused
}

// ChangesOptions say what is looked at.
type ChangesOptions struct {
	// Prune leaves out a path, "/" between names, with all below; nil leaves out
	// nothing, and so shows what lies in .git.
	Prune func(dir, path string) bool
	// Keep puts the bytes that changed files held before and hold now into the
	// store. A blob that is in use otherwise than by a snapshot is for the caller
	// to take before it may be collected.
	Keep bool
	// MaxBytes bounds what is read, 0 for no bound; MaxChanges the paths, 0 for a
	// million.
	MaxBytes   int64
	MaxChanges int
}

// Changes compares the work area with what it was made over. It costs as much
// as was changed. The work area may be in use.
func (w *WorkArea) Changes(ctx context.Context, o ChangesOptions) (*WorkDiff, error) {
	d := &WorkDiff{}
	for i, part := range w.note.Parts {
		if err := w.partChanges(ctx, i, part, o, d); err != nil {
			return nil, fmt.Errorf("find what was changed in the work area %s: %w", w.note.ID, err)
		}
	}
	return d, nil
}

func (w *WorkArea) lower(part workPart) (*upper.Lower, error) {
	dirs := []string{part.Dir}
	if !part.Live {
		dirs = nil
		for _, id := range part.Layers {
			dirs = append(dirs, w.store.frozenDir(id, "fs"))
		}
	}
	return upper.OpenLower(dirs)
}

func (w *WorkArea) partChanges(ctx context.Context, i int, part workPart, o ChangesOptions, d *WorkDiff) error {
	lower, err := w.lower(part)
	if err != nil {
		return err
	}
	defer lower.Close()
	dir, err := unix.Open(w.upper(i), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	uo := upper.Options{Userxattr: w.note.Userxattr, Max: o.MaxChanges}
	if o.Prune != nil {
		uo.Prune = func(p string) bool { return o.Prune(part.Dir, p) }
	}
	found, err := upper.Read(ctx, dir, lower, uo)
	if err != nil {
		return err
	}
	for _, r := range found.Refused {
		d.Refused = append(d.Refused, WorkRefused{part.Dir, r.Path, r.What})
	}
	read := &changeReader{store: w.store, keep: o.Keep, max: o.MaxBytes}
	changes, err := read.all(ctx, found.Ops)
	if err != nil {
		return err
	}
	for _, c := range pairRenames(changes) {
		c.Dir = part.Dir
		d.Changes = append(d.Changes, c)
	}
	return nil
}

// changeReaders is how many files are read at once: where they are kept, most of
// the time goes into waiting for the disk, which takes many in one go.
const changeReaders = 16

// changeReader reads the bytes of both sides of changes.
type changeReader struct {
	store *Store
	keep  bool
	max   int64
	read  atomic.Int64
}

// all gives the changes of those that really are: a file may have been copied up
// and left as it was.
func (r *changeReader) all(ctx context.Context, ops []upper.Op) ([]WorkChange, error) {
	changes := make([]WorkChange, len(ops))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(changeReaders)
	for i, op := range ops {
		g.Go(func() (err error) {
			if changes[i], err = r.one(ctx, op); err != nil {
				return fmt.Errorf("read %q: %w", op.Path, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(changes, func(c WorkChange) bool { return c.Kind == "" }), nil
}

func (r *changeReader) one(ctx context.Context, op upper.Op) (c WorkChange, err error) {
	c = WorkChange{Path: op.Path}
	if op.Before != nil {
		c.BeforeMode, c.Size = op.Before.Mode, op.Before.Size
		if c.Before, err = r.content(ctx, *op.Before); err != nil {
			return c, err
		}
	}
	if op.After != nil {
		c.AfterMode, c.Size = op.After.Mode, op.After.Size
		if c.After, err = r.content(ctx, *op.After); errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) {
			return WorkChange{}, nil // changed again meanwhile
		}
		if err != nil {
			return c, err
		}
	}
	sameType := c.BeforeMode&unix.S_IFMT == c.AfterMode&unix.S_IFMT
	switch {
	case op.Before == nil:
		c.Kind = schemas.ChangeCreate
	case op.After == nil:
		c.Kind = schemas.ChangeDelete
	case sameType && c.Before == c.After && c.BeforeMode == c.AfterMode:
		return WorkChange{}, nil
	default:
		c.Kind = schemas.ChangeModify
		c.Metadata = sameType && c.Before == c.After
	}
	return c, nil
}

func (r *changeReader) content(ctx context.Context, s upper.State) (schemas.BlobRef, error) {
	switch {
	case s.Mode&unix.S_IFMT == unix.S_IFLNK:
		if r.keep {
			return r.store.PutBlob(ctx, strings.NewReader(s.Target), int64(len(s.Target)))
		}
		return schemas.BlobRefOf([]byte(s.Target)), nil
	case !s.Regular():
		return "", nil
	}
	f, err := s.Open()
	if err != nil {
		return "", err
	}
	defer f.Close()
	left := int64(1) << 62
	if r.max > 0 {
		left = r.max - r.read.Load()
	}
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(reader{ctx, f}, left+1))
	if err != nil {
		return "", err
	}
	if r.read.Add(n); n > left {
		return "", fmt.Errorf("the changes hold more than %d bytes", r.max)
	}
	ref := schemas.BlobRef("blob:sha256:" + hex.EncodeToString(h.Sum(nil)))
	if !r.keep || r.store.HasBlob(ref) {
		return ref, nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	// Named by what is stored: it may have changed since it was hashed.
	return r.store.PutBlob(ctx, f, left)
}

// pairRenames makes one change of a file that went and one that came with the
// same bytes. Of several that could be paired those with the same name are, and
// then in path order. Empty files are alike without having to do with each other.
func pairRenames(changes []WorkChange) []WorkChange {
	type content struct {
		ref  schemas.BlobRef
		kind uint32
	}
	gone := map[content][]int{}
	for i, c := range changes {
		if c.Kind == schemas.ChangeDelete && c.Before != "" && c.Size > 0 {
			k := content{c.Before, c.BeforeMode & unix.S_IFMT}
			gone[k] = append(gone[k], i)
		}
	}
	drop := map[int]bool{}
	pair := func(sameName bool) {
		for i := range changes {
			c := &changes[i]
			if c.Kind != schemas.ChangeCreate || c.After == "" || c.Size == 0 {
				continue
			}
			k := content{c.After, c.AfterMode & unix.S_IFMT}
			at := slices.IndexFunc(gone[k], func(j int) bool {
				return !sameName || path.Base(changes[j].Path) == path.Base(c.Path)
			})
			if at < 0 {
				continue
			}
			j := gone[k][at]
			gone[k] = slices.Delete(gone[k], at, at+1)
			drop[j] = true
			c.Kind, c.From, c.Before, c.BeforeMode = schemas.ChangeRename, changes[j].Path, changes[j].Before, changes[j].BeforeMode
		}
	}
	pair(true)
	pair(false)
	var out []WorkChange
	for i, c := range changes {
		if !drop[i] {
			out = append(out, c)
		}
	}
	slices.SortStableFunc(out, func(a, b WorkChange) int { return cmp.Compare(a.Path, b.Path) })
	return out
}
