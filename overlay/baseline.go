package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
)

const (
	baselinePrefix  = "tree/"
	candidatePrefix = "cand/"
)

// Baseline gives the snapshot of a tree, and makes it where the store has none
// yet: as a layer over an earlier baseline of the same repository where little
// differs, else written whole. The caller closes it.
func (s *Store) Baseline(ctx context.Context, src Source, tree gitrepo.OID) (*Snapshot, error) {
	snap, err := s.baseline(ctx, src, tree)
	if err != nil {
		return nil, fmt.Errorf("make the snapshot of the tree %s: %w", tree, s.advise(err))
	}
	snap.tree = tree
	return snap, nil
}

func (s *Store) baseline(ctx context.Context, src Source, tree gitrepo.OID) (*Snapshot, error) {
	key := baselinePrefix + string(tree)
	recent := s.recent(src)
	if snap, err := s.find(ctx, key); err != nil || snap != nil {
		if len(recent) == 0 || recent[0] != tree {
			s.noteRecent(src, tree, recent)
		}
		return snap, err
	}
	if snap, err := s.nearBaseline(ctx, src, tree, recent); err != nil || snap != nil {
		return snap, err
	}
	snap, err := s.findOrWrite(ctx, key, func(active string) error { return s.writeBaseline(ctx, src, tree, key, active) })
	if err == nil {
		s.noteRecent(src, tree, recent)
	}
	return snap, err
}

// find gives the snapshot of a key, or nil.
func (s *Store) find(ctx context.Context, key string) (*Snapshot, error) {
	if _, err := os.Lstat(s.leasePath(key)); errors.Is(err, os.ErrNotExist) {
		return nil, nil // nobody has held it, so that it was not written
	}
	l, err := s.hold(ctx, key)
	if err != nil {
		return nil, err
	}
	id, err := s.lookup(ctx, key)
	if err != nil || id == "" {
		return nil, errors.Join(err, l.close())
	}
	return &Snapshot{store: s, key: key, layer: id, lease: l}, nil
}

// findOrWrite gives the snapshot of a key. write is called where there is none;
// it must commit one. Of several that want the same one writes, and the others
// wait for it.
func (s *Store) findOrWrite(ctx context.Context, key string, write func(active string) error) (_ *Snapshot, err error) {
	l, err := s.hold(ctx, key)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	id, err := s.lookup(ctx, key)
	if err == nil && id == "" {
		id, err = s.writeOnce(ctx, key, write)
	}
	if err != nil {
		return nil, err
	}
	return &Snapshot{store: s, key: key, layer: id, lease: l}, nil
}

func (s *Store) writeOnce(ctx context.Context, key string, write func(active string) error) (id string, err error) {
	release, err := s.writing(ctx, key)
	if err != nil {
		return "", err
	}
	defer release()
	if id, err := s.lookup(ctx, key); err != nil || id != "" {
		return id, err
	}
	if err := write(activePrefix + key); err != nil {
		return "", err
	}
	if id, err = s.lookup(ctx, key); err == nil && id == "" {
		err = &DamagedError{Dir: s.dir, Detail: fmt.Sprintf("%s is not there although it was written", key)}
	}
	return id, err
}

// writeBaseline writes a layer with every file of a tree.
func (s *Store) writeBaseline(ctx context.Context, src Source, tree gitrepo.OID, key, active string) (err error) {
	id, err := s.prepare(ctx, active, "")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.discard(context.WithoutCancel(ctx), active, id))
		}
	}()
	var entries []gitrepo.TreeEntry
	if err := src.ListTree(ctx, tree, func(e gitrepo.TreeEntry) error {
		entries = append(entries, e)
		return nil
	}); err != nil {
		return err
	}
	sortEntries(entries)
	files, err := writeFiles(ctx, src, s.layerDir(id), entries, nil)
	if err != nil {
		return err
	}
	if err := s.finish(id, delta{files: files}); err != nil {
		return err
	}
	if err := s.onDiskSoon(id, files); err != nil {
		return err
	}
	return s.commit(ctx, key, active, sizeOf(files), int64(len(files)))
}

// finish adds the manifest to a layer whose files are written.
func (s *Store) finish(id string, d delta) error {
	for i := 1; i < len(d.files); i++ {
		if d.files[i-1].Path == d.files[i].Path {
			return &TreeError{Path: d.files[i].Path, Detail: "is there twice"}
		}
	}
	return writeManifest(s.manifestPath(id), d)
}

// sortEntries puts entries in path order, which is git's own for a whole tree.
func sortEntries(entries []gitrepo.TreeEntry) {
	order := func(a, b gitrepo.TreeEntry) int { return strings.Compare(a.Path, b.Path) }
	if !slices.IsSortedFunc(entries, order) {
		slices.SortFunc(entries, order)
	}
}

// sizeOf is what files take on disk, in bytes: whole blocks, and about as much
// as one for what else the file system notes of each.
func sizeOf(files []File) (n int64) {
	const block = 4096
	for _, f := range files {
		n += (f.Size+block-1)/block*block + block/8
	}
	return n
}
