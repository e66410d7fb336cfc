package overlay

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// Snapshot is an immutable tree on disk. It is safe for several goroutines.
// Its manifest is read when it is first asked for something.
type Snapshot struct {
	store *Store
	key   string
	layer string // its number
	tree  gitrepo.OID
	base  *Snapshot // nil for a baseline
	owns  bool      // base was opened for this one, and is closed with it
	lease *lease

	mu     sync.Mutex
	file   *os.File // of the manifest, once it is open
	m      *manifest
	closed bool
}

// ID names the snapshot in its store.
func (s *Snapshot) ID() string { return s.key }

// Tree is the git tree that the snapshot holds.
func (s *Snapshot) Tree() gitrepo.OID { return s.tree }

// Close lets the snapshot be collected; nothing can be asked of it any more.
// Views of it, and candidates over it, must be closed before.
func (s *Snapshot) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var err error
	if s.file != nil {
		err = s.file.Close()
		s.file = nil
	}
	err = errors.Join(err, s.lease.close())
	if s.owns {
		err = errors.Join(err, s.base.Close())
	}
	return err
}

func (s *Snapshot) manifest() (*manifest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("use the snapshot %s: %w", s.key, os.ErrClosed)
	}
	if s.m != nil {
		return s.m, nil
	}
	f, m, err := s.store.openManifest(s.layer)
	if err != nil {
		return nil, err
	}
	want := ""
	if s.base != nil {
		want = s.base.key
	}
	if m.base != want {
		f.Close()
		return nil, m.failed(errManifest)
	}
	s.file, s.m = f, m
	return m, nil
}

// root is the baseline at the bottom.
func (s *Snapshot) root() *Snapshot {
	for s.base != nil {
		s = s.base
	}
	return s
}

// depth is the number of layers.
func (s *Snapshot) depth() int {
	n := 1
	for at := s.base; at != nil; at = at.base {
		n++
	}
	return n
}

// short names the snapshot inside another's key: a baseline by its tree.
func (s *Snapshot) short() string {
	if s.base == nil {
		return string(s.tree)
	}
	sum := sha256.Sum256([]byte(s.key))
	return hex.EncodeToString(sum[:20])
}

// layers lists the directories of the snapshot's layers, the topmost first.
func (s *Snapshot) layers() []string {
	var out []string
	for at := s; at != nil; at = at.base {
		out = append(out, at.store.layerDir(at.layer))
	}
	return out
}

// Lookup finds a file by its path.
func (s *Snapshot) Lookup(path string) (File, bool, error) {
	m, err := s.manifest()
	if err != nil {
		return File{}, false, err
	}
	if f, ok, err := m.lookup(path); ok || err != nil {
		return f, ok, err
	}
	if s.base == nil || m.isGone(path) {
		return File{}, false, nil
	}
	return s.base.Lookup(path)
}

// Each calls fn for every file in path order until it returns an error, which
// Each returns.
func (s *Snapshot) Each(fn func(File) error) error { return s.EachFrom("", fn) }

// EachFrom is Each without the files whose path is less than from.
func (s *Snapshot) EachFrom(from string, fn func(File) error) error {
	c, err := s.cursor(from)
	if err != nil {
		return err
	}
	for {
		f, ok, err := c.next()
		if !ok || err != nil {
			return err
		}
		if err := fn(f); err != nil {
			return err
		}
	}
}

// holdsBelow reports whether any file but those that are gone lies below a
// directory.
func (s *Snapshot) holdsBelow(dir string, gone map[string]bool) (bool, error) {
	c, err := s.cursor(dir + "/")
	if err != nil {
		return false, err
	}
	for {
		f, ok, err := c.next()
		if !ok || err != nil || !strings.HasPrefix(f.Path, dir+"/") {
			return false, err
		}
		if !gone[f.Path] {
			return true, nil
		}
	}
}

// cursor goes through files in path order: its layer's own, and those of the
// snapshot below that they neither replace nor remove.
type cursor struct {
	m    *manifest
	at   int
	mine *File // the next of the layer's own, once it was read

	below    *cursor // nil for a baseline
	theirs   *File   // the next from below, once it was read
	belowEnd bool
}

func (s *Snapshot) cursor(from string) (*cursor, error) {
	m, err := s.manifest()
	if err != nil {
		return nil, err
	}
	c := &cursor{m: m}
	if c.at, err = m.seek(from); err != nil || s.base == nil {
		return c, err
	}
	c.below, err = s.base.cursor(from)
	return c, err
}

func (c *cursor) next() (f File, ok bool, err error) {
	if c.mine == nil && c.at < c.m.count {
		f, err := c.m.file(c.at)
		if err != nil {
			return File{}, false, err
		}
		c.at++
		c.mine = &f
	}
	for c.theirs == nil && c.below != nil && !c.belowEnd {
		f, ok, err := c.below.next()
		if err != nil {
			return File{}, false, err
		}
		if c.belowEnd = !ok; ok && !c.m.isGone(f.Path) {
			c.theirs = &f
		}
	}
	switch {
	case c.mine == nil && c.theirs == nil:
		return File{}, false, nil
	case c.theirs == nil || c.mine != nil && c.mine.Path <= c.theirs.Path:
		if c.theirs != nil && c.mine.Path == c.theirs.Path {
			c.theirs = nil
		}
		f, c.mine = *c.mine, nil
	default:
		f, c.theirs = *c.theirs, nil
	}
	return f, true, nil
}

// Paths returns every path at which the snapshot holds a blob.
func (s *Snapshot) Paths(ref schemas.BlobRef) ([]string, error) {
	m, err := s.manifest()
	if err != nil {
		return nil, err
	}
	files, err := m.holding(ref, 0)
	if err != nil {
		return nil, err
	}
	out := make([]string, 0, len(files))
	for _, f := range files {
		out = append(out, f.Path)
	}
	if s.base == nil {
		return out, nil
	}
	below, err := s.base.Paths(ref)
	for _, p := range below {
		if err != nil || m.isGone(p) {
			continue
		}
		var covered bool
		if _, covered, err = m.lookup(p); err == nil && !covered {
			out = append(out, p)
		}
	}
	return out, err
}
