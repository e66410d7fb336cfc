package overlay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// trash moves something into the trash, from where it is removed when
// nothing is locked.
func (s *Store) trash(path string) error {
	err := os.Rename(path, s.path("trash", uuid.NewString()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// collectFrozen removes frozen states that no work area lies over, and what
// those who died have left unfinished. While one is being made nothing is
// removed.
func (s *Store) collectFrozen(ctx context.Context, before time.Time) (int, error) {
	lock, err := tryLock(s.path("work", "lock"), unix.LOCK_EX)
	if errors.Is(err, errHeld) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("lock the work areas: %w", err)
	}
	defer lock.Close()
	left, err := os.ReadDir(s.path("work", "tmp"))
	if err != nil {
		return 0, fmt.Errorf("look for what was left unfinished: %w", err)
	}
	for _, d := range left {
		if err := s.trash(s.path("work", "tmp", d.Name())); err != nil {
			return 0, fmt.Errorf("remove what was left unfinished: %w", err)
		}
	}
	keep, err := s.frozenInUse(before)
	if err != nil {
		return 0, err
	}
	layers, err := os.ReadDir(s.path("work", "layers"))
	if err != nil {
		return 0, fmt.Errorf("list the frozen states: %w", err)
	}
	removed := 0
	for _, d := range layers {
		if ctx.Err() != nil {
			return removed, context.Cause(ctx)
		}
		if keep[d.Name()] {
			continue
		}
		if err := s.trash(s.frozenDir(d.Name())); err != nil {
			return removed, fmt.Errorf("remove a frozen state: %w", err)
		}
		removed++
	}
	return removed, nil
}

// frozenInUse names the layers that work areas lie over, those that were used
// since, and those below them. A work area that cannot be read may lie over any:
// that is an error.
func (s *Store) frozenInUse(before time.Time) (map[string]bool, error) {
	keep := map[string]bool{}
	areas, err := s.WorkAreas()
	if err != nil {
		return nil, err
	}
	for _, w := range areas {
		for _, p := range w.note.Parts {
			for _, id := range p.Layers {
				keep[id] = true
			}
		}
	}
	layers, err := os.ReadDir(s.path("work", "layers"))
	if err != nil {
		return nil, fmt.Errorf("list the frozen states: %w", err)
	}
	for _, d := range layers {
		st, err := d.Info()
		if err != nil || st.ModTime().After(before) {
			keep[d.Name()] = true
		}
	}
	for id := range keep {
		for at := id; at != ""; {
			l, err := s.frozenLayer(at)
			if err != nil {
				break // nothing is below what cannot be read
			}
			at = l.note.Below
			if at == "" || keep[at] {
				break
			}
			keep[at] = true
		}
	}
	return keep, nil
}

// collectBlobs removes blobs that were not asked for since.
func (s *Store) collectBlobs(ctx context.Context, before time.Time) (int, error) {
	if limit := time.Now().Add(-staleBlob); before.After(limit) {
		before = limit
	}
	removed := 0
	err := filepath.WalkDir(s.path("blobs", "sha256"), func(p string, d fs.DirEntry, err error) error {
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil || d.IsDir() {
			return err
		}
		st, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) || err == nil && st.ModTime().After(before) {
			return nil
		}
		if err != nil {
			return err
		}
		return s.collectBlob(p, before, &removed)
	})
	if err != nil {
		return removed, fmt.Errorf("collect blobs: %w", err)
	}
	return removed, nil
}

// collectBlob looks once more when nobody can find the blob, and puts it back if
// somebody asked for it meanwhile.
func (s *Store) collectBlob(p string, before time.Time, removed *int) error {
	aside := s.path("trash", uuid.NewString())
	if err := os.Rename(p, aside); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	st, err := os.Lstat(aside)
	if err != nil {
		return err
	}
	if st.ModTime().After(before) {
		return os.Rename(aside, p)
	}
	*removed++
	return nil
}
