package overlay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/google/uuid"
)

const narrowPrefix = "narrow/"

// Narrow gives what of a snapshot lies at paths that allowed accepts: the rest
// is not there. rule names what allowed accepts, since the answer is kept for
// the next who asks with the same words. The first answer takes time by the size
// of the snapshot. The caller closes it, and snap after it.
//
// What is left is no tree of git: Tree of it is "", and no candidate can be laid
// over it.
func (s *Store) Narrow(ctx context.Context, snap *Snapshot, rule string, allowed func(path string) bool) (*Snapshot, error) {
	out, err := s.narrow(ctx, snap, rule, allowed)
	if err != nil {
		return nil, fmt.Errorf("narrow the snapshot %s: %w", snap.key, s.advise(err))
	}
	return out, nil
}

func (s *Store) narrow(ctx context.Context, snap *Snapshot, rule string, allowed func(string) bool) (*Snapshot, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(rule))
	key := fmt.Sprintf("%s%s/%s/%s", narrowPrefix, boot, snap.short(), hex.EncodeToString(sum[:20]))
	out, err := s.findOrWrite(ctx, key, func(active string) error { return s.writeNarrow(ctx, snap, key, active, allowed) })
	if err == nil {
		out.base = snap
	}
	return out, err
}

func (s *Store) writeNarrow(ctx context.Context, snap *Snapshot, key, active string, allowed func(string) bool) (err error) {
	d := delta{base: snap.key}
	if err := snap.Each(func(f File) error {
		if !allowed(f.Path) {
			d.gone = append(d.gone, f.Path)
		}
		return ctx.Err()
	}); err != nil {
		return err
	}
	id, err := s.prepare(ctx, active, snap.key)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.discard(context.WithoutCancel(ctx), active, id))
		}
	}()
	if err := writeWhiteouts(s.layerDir(id), snap, d); err != nil {
		return err
	}
	if err := s.finish(id, d); err != nil {
		return err
	}
	return s.commit(ctx, key, active, 0, 0)
}

// Pair is two views below one directory, for whoever compares them.
type Pair struct {
	path          string
	mnt           Mounter
	before, after *View
	once          sync.Once
	err           error
}

// Path is the directory that holds "before" and "after".
func (p *Pair) Path() string { return p.path }

// Pair mounts two snapshots side by side, as "before" and "after" in a new
// directory of the mounter. Both must stay open until the pair is closed.
func (s *Store) Pair(ctx context.Context, mnt Mounter, before, after *Snapshot) (*Pair, error) {
	p := &Pair{mnt: mnt, path: filepath.Join(mnt.Dir(), "pair-"+uuid.NewString())}
	err := mnt.Do(func() error { return os.Mkdir(p.path, 0o755) })
	if err == nil {
		p.before, err = s.viewAt(ctx, mnt, before, filepath.Join(p.path, "before"))
	}
	if err == nil {
		p.after, err = s.viewAt(ctx, mnt, after, filepath.Join(p.path, "after"))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mount two views: %w", err), p.Close())
	}
	return p, nil
}

// Close unmounts both. It may be called again, and on nil.
func (p *Pair) Close() error {
	if p == nil {
		return nil
	}
	p.once.Do(func() {
		p.err = errors.Join(p.after.Close(), p.before.Close(), p.mnt.Do(func() error {
			err := os.Remove(p.path)
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			return err
		}))
	})
	return p.err
}
