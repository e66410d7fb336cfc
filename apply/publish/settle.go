package publish

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
)

// rollBack takes every op back and removes the publish.
func (t *tx) rollBack(ctx context.Context) (restored []string, left []Left, err error) {
	ctx = context.WithoutCancel(ctx)
	c := &cursor{tree: t.ws.tree}
	defer c.close()
	revert := func(i int) error {
		t.at("back " + slot(i))
		done, l, err := t.revert(ctx, c, i)
		if done {
			restored = append(restored, t.j.Ops[i].Path)
		}
		if l != nil {
			left = append(left, *l)
		}
		return err
	}
	first := t.deletes()
	for i := len(t.j.Ops) - 1; i >= first; i-- {
		if err := revert(i); err != nil {
			return nil, nil, err
		}
	}
	for _, d := range slices.Backward(t.j.Dirs) {
		dir, name, err := c.at(d)
		if noDirectory(err) {
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("open the directory of %q: %w", d, err)
		}
		// One that others put files into stays.
		if err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); err != nil && !noDirectory(err) && !errors.Is(err, unix.ENOTEMPTY) {
			return nil, nil, fmt.Errorf("remove %q: %w", d, err)
		}
	}
	// What was deleted may have lain where a directory was made since.
	c.close()
	for i := first - 1; i >= 0; i-- {
		if err := revert(i); err != nil {
			return nil, nil, err
		}
	}
	t.at("restored")
	if err := t.syncNames(); err != nil {
		return nil, nil, err
	}
	slices.Sort(restored)
	aside, err := t.discard(ctx)
	return restored, append(left, aside...), err
}

// deletes is how many ops delete; they come first.
func (t *tx) deletes() int {
	for i, o := range t.j.Ops {
		if o.After.Mode != 0 {
			return i
		}
	}
	return len(t.j.Ops)
}

// discard removes a publish that was taken back. The journal goes first:
// without it nothing is ever taken back again.
func (t *tx) discard(ctx context.Context) (aside []Left, err error) {
	for i, o := range t.j.Ops {
		for _, at := range []struct {
			dir  int
			name string
		}{{t.new, slot(i)}, {t.old, slot(i)}, {t.old, backPrefix + slot(i)}} {
			if at.dir < 0 {
				continue
			}
			s, err := t.look.once(ctx, at.dir, at.name)
			if err != nil {
				return nil, fmt.Errorf("look at the staging area: %w", err)
			}
			// Others may have written into a file of ours while it was published.
			if s.exists() && (!t.look.matches(s, o.After) || s.quiet == quietNo) {
				l, err := t.setAside(at.dir, at.name, o, "was written by another program while it was published; what that wrote is kept")
				if err != nil {
					return nil, err
				}
				aside = append(aside, *l)
			}
		}
	}
	if err := unix.Unlinkat(t.dir, journalName, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("remove the journal: %w", err)
	}
	if err := unix.Fsync(t.dir); err != nil {
		return nil, fmt.Errorf("remove the journal: %w", err)
	}
	t.at("journal removed")
	return aside, t.ws.remove(t.name)
}

// settle ends a publish that was committed, and makes it the last one. It tells
// which files of the one before had been written since.
func (t *tx) settle(ctx context.Context) ([]Kept, error) {
	ctx = context.WithoutCancel(ctx)
	if err := t.removeEmptied(); err != nil {
		return nil, err
	}
	t.at("emptied")
	w := t.ws
	drop := dropPrefix + newID()
	err := unix.Renameat(w.area.root, lastName, w.area.root, drop)
	had := err == nil
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("drop the publish before: %w", err)
	}
	t.at("between")
	if err := unix.Renameat(w.area.root, t.name, w.area.root, lastName); err != nil {
		return nil, fmt.Errorf("keep the originals: %w", err)
	}
	t.name = lastName
	t.at("last")
	if !had {
		return nil, nil
	}
	return w.drop(ctx, drop)
}

// removeEmptied removes directories that the deletions emptied, as git does.
func (t *tx) removeEmptied() error {
	dirs := map[string]bool{}
	for _, o := range t.j.Ops {
		if o.After.Mode == 0 {
			if d := path.Dir(o.Path); d != "." {
				dirs[d] = true
			}
		}
	}
	list := make([]string, 0, len(dirs))
	for d := range dirs {
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	c := &cursor{tree: t.ws.tree}
	defer c.close()
	for _, d := range list {
		for ; d != "."; d = path.Dir(d) {
			dir, name, err := c.at(d)
			if err == nil {
				err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
			}
			if noDirectory(err) {
				continue // removed before, or the next one up tells
			}
			if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EBUSY) {
				return fmt.Errorf("remove the empty directory %q: %w", d, err)
			}
			if err != nil {
				break
			}
			c.close()
		}
	}
	return nil
}

// drop removes a publish whose originals nobody needs any more. An original that
// was written since it came out, or of which that cannot be known, is kept.
func (w *Workspace) drop(ctx context.Context, name string) (kept []Kept, err error) {
	t, err := w.openTx(name)
	if err != nil {
		return nil, err
	}
	defer t.close()
	j, _, err := readJournal(t.dir)
	if errors.Is(err, errTorn) {
		return nil, w.remove(name)
	}
	if err != nil {
		return nil, &DamagedError{Dir: filepath.Join(w.areaDir, name), Detail: err.Error()}
	}
	t.j, t.look.ignoreExec = j, j.Exec
	for i, o := range j.Ops {
		if o.Before.Mode == 0 {
			continue
		}
		for _, dir := range []int{t.new, t.old} {
			if dir < 0 {
				continue
			}
			s, err := t.look.once(ctx, dir, slot(i))
			if err != nil {
				return nil, fmt.Errorf("look at the originals: %w", err)
			}
			if !s.exists() || s.dir || t.look.matches(s, o.Before) && (s.quiet == quietYes || s.state.Mode == gitrepo.ModeSymlink) {
				continue
			}
			file, err := w.keep(dir, slot(i), j.ID, o.Path)
			if err != nil {
				return nil, err
			}
			kept = append(kept, Kept{Path: o.Path, File: file, Until: time.Now().Add(keepFor)})
		}
	}
	return kept, w.remove(name)
}
