package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
)

// Candidate gives the snapshot of a tree as one layer over a baseline. What it
// costs depends on what differs, not on the size of the tree. The caller closes
// it, and base after it. A tree that does not differ gives base's own content.
//
// A candidate is not carried over a reboot: its files are not forced to disk.
func (s *Store) Candidate(ctx context.Context, src Source, base *Snapshot, tree gitrepo.OID) (*Snapshot, error) {
	boot, err := bootID()
	if err != nil {
		return nil, fmt.Errorf("name a candidate: %w", err)
	}
	key := fmt.Sprintf("%s%s/%s/%s", candidatePrefix, boot, base.tree, tree)
	l, err := s.hold(key)
	if err != nil {
		return nil, err
	}
	known, err := s.known(ctx, key)
	if err == nil && known {
		return s.snapshot(key, tree, base, nil, l), nil
	}
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	r, err := s.writeCandidate(ctx, src, base, tree, key)
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	return s.snapshot(key, tree, base, r, l), nil
}

func (s *Store) writeCandidate(ctx context.Context, src Source, base *Snapshot, tree gitrepo.OID, key string) (r *record, err error) {
	changes, err := src.DiffTrees(ctx, base.tree, tree)
	if err != nil {
		return nil, err
	}
	active, err := newActive()
	if err != nil {
		return nil, err
	}
	layer, err := s.prepare(ctx, active, base.key)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.discard(context.WithoutCancel(ctx), active, layer))
		}
	}()
	rec := record{layer: layer, base: base.key}
	var entries []gitrepo.TreeEntry
	for _, c := range changes {
		if c.Status == 'D' {
			rec.gone = append(rec.gone, c.Path)
			continue
		}
		if c.Status == 'R' {
			rec.gone = append(rec.gone, c.From)
		}
		entries = append(entries, gitrepo.TreeEntry{Path: c.Path, Mode: c.NewMode, OID: c.NewOID})
	}
	slices.Sort(rec.gone)
	if rec.files, err = s.writeFiles(ctx, src, layer, entries); err != nil {
		return nil, err
	}
	if err := s.whiteouts(layer, base, rec); err != nil {
		return nil, err
	}
	won, err := s.commit(ctx, key, active, rec)
	if err != nil || !won {
		return nil, err
	}
	return &rec, nil
}

// whiteouts marks what is gone. A directory of which nothing is left is marked
// as a whole, since git knows no empty directories.
func (s *Store) whiteouts(layer string, base *Snapshot, rec record) error {
	if len(rec.gone) == 0 {
		return nil
	}
	root, err := os.OpenRoot(filepath.Join(s.dir, layer))
	if err != nil {
		return fmt.Errorf("open a layer: %w", err)
	}
	defer root.Close()
	gone := make(map[string]bool, len(rec.gone))
	for _, p := range rec.gone {
		gone[p] = true
	}
	// above holds every directory of the new files: those are still needed.
	above := map[string]bool{}
	for _, f := range rec.files {
		for d := path.Dir(f.Path); d != "."; d = path.Dir(d) {
			above[d] = true
		}
	}
	marked := map[string]bool{}
	for _, p := range rec.gone {
		top := p
		for d := path.Dir(p); d != "."; d = path.Dir(d) {
			left := above[d]
			if !left {
				if left, err = base.holdsBelow(d, gone); err != nil {
					return err
				}
			}
			if left {
				break
			}
			top = d
		}
		if _, now := findFile(rec.files, top); marked[top] || now || above[top] {
			continue // already marked, or something new stands in its place
		}
		marked[top] = true
		if err := whiteout(root, top); err != nil {
			return err
		}
	}
	return nil
}

// whiteout makes the character device 0:0 that overlayfs takes for "not here"
// (Documentation/filesystems/overlayfs.rst, whiteouts and opaque directories).
// Making it needs no privilege since Linux 5.8.
func whiteout(root *os.Root, p string) error {
	if err := root.MkdirAll(path.Dir(p), 0o755); err != nil {
		return fmt.Errorf("mark what is gone: %w", err)
	}
	for d := path.Dir(p); d != "."; d = path.Dir(d) {
		if err := root.Chmod(d, 0o755); err != nil {
			return fmt.Errorf("mark what is gone: %w", err)
		}
	}
	dir, err := root.Open(path.Dir(p))
	if err != nil {
		return fmt.Errorf("mark what is gone: %w", err)
	}
	defer dir.Close()
	if err := unix.Mknodat(int(dir.Fd()), path.Base(p), unix.S_IFCHR, 0); err != nil {
		return fmt.Errorf("mark %q as gone: %w", p, err)
	}
	return nil
}
