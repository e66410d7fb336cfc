package overlay

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/frozen"
	"github.com/aspis-dev/aspis/overlay/upper"
)

// verifyWork compares frozen states with their records, and sees that every work
// area has what it lies over. Bytes are not compared: no digest was made of them.
func (s *Store) verifyWork(ctx context.Context, r *Report) error {
	lock, err := lockFile(ctx, s.path("work", "lock"), unix.LOCK_SH, storeWait)
	if err != nil {
		return err
	}
	defer lock.Close()
	layers, err := os.ReadDir(s.path("work", "layers"))
	if err != nil {
		return err
	}
	for _, d := range layers {
		if err := s.verifyFrozen(ctx, d.Name(), r); err != nil {
			return err
		}
		r.Frozen++
	}
	areas, err := os.ReadDir(s.path("work", "areas"))
	if err != nil {
		return err
	}
	for _, d := range areas {
		w, err := s.OpenWorkArea(d.Name())
		switch {
		case errors.Is(err, ErrNoWorkArea):
			continue
		case err != nil:
			r.problem("the work area %s: %v", d.Name(), err)
			continue
		}
		r.WorkAreas++
		if err := w.sound(); err != nil {
			r.problem("the work area %s: %v", w.ID(), err)
		}
		for i := range w.note.Parts {
			st, err := os.Lstat(w.upper(i))
			if _, gone := s.OpenWorkArea(w.ID()); errors.Is(gone, ErrNoWorkArea) {
				break // dropped meanwhile
			}
			if err != nil || !st.IsDir() {
				r.problem("the work area %s has lost what was written in it", w.ID())
			}
		}
	}
	return nil
}

func (s *Store) verifyFrozen(ctx context.Context, id string, r *Report) error {
	top, err := s.frozenLayer(id)
	var stack []frozenLayer
	if err == nil {
		stack, err = s.frozenStack(top)
	}
	var record []frozen.Entry
	if err == nil {
		record, err = s.readRecord(id)
	}
	if err != nil {
		r.problem("the frozen state %s: %v", id, err)
		return nil
	}
	var dirs []string
	for _, l := range stack {
		dirs = append(dirs, s.frozenDir(l.id, "fs"))
	}
	lower, err := upper.OpenLower(dirs)
	if err != nil {
		r.problem("the frozen state %s: %v", id, err)
		return nil
	}
	defer lower.Close()
	for _, e := range record {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.Files++
		is, ok, err := lower.Lookup(e.Path)
		switch {
		case err != nil:
			return err
		case !ok:
			r.problem("%s: %q is missing", id, e.Path)
		case e.Linked:
			// The project's own file, which its programs may have written.
		case is.Mode != e.Mode || is.Target != e.Target || is.Regular() && is.Size != e.Size:
			r.problem("%s: %q is not what was kept", id, e.Path)
		}
	}
	return nil
}
