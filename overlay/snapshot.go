package overlay

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// Snapshot is an immutable tree on disk. It is safe for several goroutines.
type Snapshot struct {
	store *Store
	key   string
	tree  gitrepo.OID
	base  *Snapshot // nil for a baseline
	lease *lease

	load  func() (record, error)
	blobs func() map[schemas.BlobRef][]string
}

func (s *Store) snapshot(key string, tree gitrepo.OID, base *Snapshot, known *record, l *lease) *Snapshot {
	sn := &Snapshot{store: s, key: key, tree: tree, base: base, lease: l}
	sn.load = sync.OnceValues(func() (record, error) {
		if known != nil {
			return *known, nil
		}
		return readRecord(s.manifestPath(key))
	})
	sn.blobs = sync.OnceValue(sn.index)
	return sn
}

// Tree is the git tree that the snapshot holds.
func (s *Snapshot) Tree() gitrepo.OID { return s.tree }

// Close lets the snapshot be collected. Views of it must be closed before.
func (s *Snapshot) Close() error { return s.lease.close() }

// Lookup finds a file by its path.
func (s *Snapshot) Lookup(path string) (File, bool, error) {
	r, err := s.load()
	if err != nil {
		return File{}, false, err
	}
	if f, ok := findFile(r.files, path); ok {
		return f, true, nil
	}
	if _, gone := slices.BinarySearch(r.gone, path); gone || s.base == nil {
		return File{}, false, nil
	}
	return s.base.Lookup(path)
}

// Each calls fn for every file in path order until it returns an error, which
// Each returns.
func (s *Snapshot) Each(fn func(File) error) error {
	r, err := s.load()
	if err != nil {
		return err
	}
	if s.base == nil {
		for _, f := range r.files {
			if err := fn(f); err != nil {
				return err
			}
		}
		return nil
	}
	mine := r.files
	err = s.base.Each(func(f File) error {
		for len(mine) > 0 && mine[0].Path < f.Path {
			if err := fn(mine[0]); err != nil {
				return err
			}
			mine = mine[1:]
		}
		if len(mine) > 0 && mine[0].Path == f.Path {
			f, mine = mine[0], mine[1:]
			return fn(f)
		}
		if _, gone := slices.BinarySearch(r.gone, f.Path); gone {
			return nil
		}
		return fn(f)
	})
	for _, f := range mine {
		if err != nil {
			return err
		}
		err = fn(f)
	}
	return err
}

// index maps the blobs of this layer to their paths.
func (s *Snapshot) index() map[schemas.BlobRef][]string {
	r, err := s.load()
	if err != nil {
		return nil
	}
	m := make(map[schemas.BlobRef][]string, len(r.files))
	for _, f := range r.files {
		m[f.Blob] = append(m[f.Blob], f.Path)
	}
	return m
}

// Paths returns every path at which the snapshot holds a blob.
func (s *Snapshot) Paths(ref schemas.BlobRef) ([]string, error) {
	r, err := s.load()
	if err != nil {
		return nil, err
	}
	out := slices.Clone(s.blobs()[ref])
	if s.base == nil {
		return out, nil
	}
	below, err := s.base.Paths(ref)
	for _, p := range below {
		_, gone := slices.BinarySearch(r.gone, p)
		_, covered := findFile(r.files, p)
		if !gone && !covered {
			out = append(out, p)
		}
	}
	return out, err
}

// locate returns the file on disk that holds a blob, or "".
func (s *Snapshot) locate(ref schemas.BlobRef) (path string, f File, err error) {
	r, err := s.load()
	if err != nil {
		return "", File{}, err
	}
	if paths := s.blobs()[ref]; len(paths) > 0 {
		f, _ := findFile(r.files, paths[0])
		return filepath.Join(s.store.dir, r.layer, paths[0]), f, nil
	}
	if s.base != nil {
		return s.base.locate(ref)
	}
	return "", File{}, nil
}

// layers lists the directories of the snapshot's layers, the topmost first.
func (s *Snapshot) layers() ([]string, error) {
	var out []string
	for at := s; at != nil; at = at.base {
		r, err := at.load()
		if err != nil {
			return nil, err
		}
		out = append(out, filepath.Join(s.store.dir, r.layer))
	}
	return out, nil
}

// holdsBelow reports whether any file lies below a directory.
func (s *Snapshot) holdsBelow(dir string, gone map[string]bool) (bool, error) {
	r, err := s.load()
	if err != nil {
		return false, err
	}
	prefix := dir + "/"
	i, _ := slices.BinarySearchFunc(r.files, prefix, func(f File, p string) int { return strings.Compare(f.Path, p) })
	for ; i < len(r.files) && strings.HasPrefix(r.files[i].Path, prefix); i++ {
		if !gone[r.files[i].Path] {
			return true, nil
		}
	}
	return false, nil
}
