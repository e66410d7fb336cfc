package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
)

// maxLayers bounds the layers of a snapshot. overlayfs takes 500, but looks for
// a name in each; a candidate over more is written over the lowest alone.
const maxLayers = 8

// Candidate gives the snapshot of a tree as one layer over a baseline or over
// another candidate. What it costs depends on what differs, not on the size of
// the tree. The caller closes it, and base after it.
//
// A candidate is not carried over a reboot: its files are not forced to disk,
// and its key names the boot.
func (s *Store) Candidate(ctx context.Context, src Source, base *Snapshot, tree gitrepo.OID) (*Snapshot, error) {
	if base.depth() >= maxLayers {
		base = base.root()
	}
	snap, err := s.candidate(ctx, src, base, tree, nil)
	if err != nil {
		return nil, fmt.Errorf("make the snapshot of the tree %s: %w", tree, s.advise(err))
	}
	snap.tree = tree
	return snap, nil
}

// candidate takes what differs, where that is known already; else nil.
func (s *Store) candidate(ctx context.Context, src Source, base *Snapshot, tree gitrepo.OID, changes []gitrepo.RawChange) (*Snapshot, error) {
	if tree == base.tree {
		return s.again(ctx, base)
	}
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	key := fmt.Sprintf("%s%s/%s/%s", candidatePrefix, boot, base.short(), tree)
	snap, err := s.findOrWrite(ctx, key, func(active string) error { return s.writeCandidate(ctx, src, base, tree, key, active, changes) })
	if err == nil {
		snap.base = base
	}
	return snap, err
}

// again opens an open snapshot once more: the two are closed apart.
func (s *Store) again(ctx context.Context, snap *Snapshot) (*Snapshot, error) {
	l, err := s.hold(ctx, snap.key)
	if err != nil {
		return nil, err
	}
	out := &Snapshot{store: s, key: snap.key, layer: snap.layer, tree: snap.tree, lease: l}
	if snap.base != nil {
		if out.base, err = s.again(ctx, snap.base); err != nil {
			return nil, errors.Join(err, l.close())
		}
		out.owns = true
	}
	return out, nil
}

func (s *Store) writeCandidate(ctx context.Context, src Source, base *Snapshot, tree gitrepo.OID, key, active string, changes []gitrepo.RawChange) (err error) {
	// Git takes a moment to start, and the database to note the new layer.
	var blobs *gitrepo.BlobReader
	var id string
	var g errgroup.Group
	if changes == nil {
		g.Go(func() (err error) { changes, err = src.DiffTrees(ctx, base.tree, tree); return err })
	}
	g.Go(func() (err error) { blobs, err = src.Blobs(ctx); return err })
	g.Go(func() (err error) { id, err = s.prepare(ctx, active, base.key); return err })
	err = g.Wait()
	defer func() {
		if err != nil && id != "" {
			err = errors.Join(err, s.discard(context.WithoutCancel(ctx), active, id))
		}
	}()
	if err != nil {
		return errors.Join(err, closeReader(blobs))
	}
	entries, gone, err := split(changes)
	if err != nil {
		return errors.Join(err, closeReader(blobs))
	}
	d := delta{base: base.key, gone: gone}
	if d.files, err = writeFiles(ctx, src, s.layerDir(id), entries, blobs); err != nil {
		return err
	}
	if err := writeWhiteouts(s.layerDir(id), base, d); err != nil {
		return err
	}
	if err := s.finish(id, d); err != nil {
		return err
	}
	return s.commit(ctx, key, active, sizeOf(d.files), int64(len(d.files)))
}

// split tells what is to be written from what is gone, both in path order.
func split(changes []gitrepo.RawChange) (entries []gitrepo.TreeEntry, gone []string, err error) {
	written := make(map[string]bool, len(changes))
	for _, c := range changes {
		switch c.Status {
		case 'A', 'M', 'T', 'R':
			entries = append(entries, gitrepo.TreeEntry{Path: c.Path, Mode: c.NewMode, OID: c.NewOID})
			written[c.Path] = true
		case 'D':
		default:
			return nil, nil, fmt.Errorf("git reports the odd status %q of %q", c.Status, c.Path)
		}
	}
	for _, c := range changes {
		p := c.Path
		switch c.Status {
		case 'D':
		case 'R':
			p = c.From
		default:
			continue
		}
		if err := checkPath(p); err != nil {
			return nil, nil, err
		}
		// Renamed away, and something else put in its place.
		if !written[p] {
			gone = append(gone, p)
		}
	}
	sortEntries(entries)
	slices.Sort(gone)
	return entries, slices.Compact(gone), nil
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("tell which boot this is: %w", err)
	}
	return strings.ReplaceAll(strings.TrimSpace(string(b)), "-", ""), nil
}
