package publish

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
)

// tx is a publish in its directory in the area: the journal; new/N, the staged
// file of op N and, after an exchange, what came out; old/N, what was taken away
// without an exchange.
type tx struct {
	ws   *Workspace
	name string // in the area
	dir  int
	new  int
	old  int
	j    journal

	look  looker
	weak  bool // a name was taken though it could only be asked beforehand whether it was free
	gap   bool // a path was missing for a moment
	fault func(string)
}

func (t *tx) at(point string) {
	if t.fault != nil {
		t.fault(point)
	}
}

// openTx opens the directory of a publish.
func (w *Workspace) openTx(name string) (*tx, error) {
	t := &tx{ws: w, name: name, dir: -1, new: -1, old: -1}
	for _, d := range []struct {
		fd   *int
		path string
	}{{&t.dir, name}, {&t.new, name + "/new"}, {&t.old, name + "/old"}} {
		fd, err := w.area.openDir(d.path)
		if errors.Is(err, unix.ENOENT) && d.fd != &t.dir {
			continue // a crash came before it was made, or after it was removed
		}
		if err != nil {
			t.close()
			return nil, fmt.Errorf("open the publish %q: %w", name, err)
		}
		*d.fd = fd
	}
	return t, nil
}

// makeTx makes the directory of a new publish.
func (w *Workspace) makeTx(id string) (*tx, error) {
	name := txPrefix + id
	for _, d := range []string{name, name + "/new", name + "/old"} {
		if err := unix.Mkdirat(w.area.root, d, 0o700); err != nil {
			return nil, full("stage the change", err)
		}
	}
	return w.openTx(name)
}

func (t *tx) close() {
	for _, fd := range []int{t.dir, t.new, t.old} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

func slot(i int) string { return strconv.Itoa(i) }

// forward carries out one op and looks at what came out. A conflict says that it
// was not what was expected; what was done then is for revert to undo.
func (t *tx) forward(ctx context.Context, c *cursor, i int) (*Conflict, error) {
	o := t.j.Ops[i]
	dir, name, err := c.at(o.Path)
	if noDirectory(err) {
		return &Conflict{Path: o.Path, Expected: o.Before, Detail: "lies in a directory that is gone"}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the directory of %q: %w", o.Path, err)
	}
	switch {
	case o.After.Mode == 0:
		err = unix.Renameat(dir, name, t.old, slot(i))
	case o.Before.Mode == 0 && !o.Over:
		var sure bool
		sure, err = place(t.new, slot(i), dir, name)
		t.weak = t.weak || !sure
	default:
		var can bool
		if can, err = exchange(t.new, slot(i), dir, name); !can {
			return t.swap(ctx, dir, name, i)
		}
	}
	if c := gone(o, err); c != nil {
		return c, nil
	}
	if err != nil {
		return nil, full(fmt.Sprintf("publish %q", o.Path), err)
	}
	return t.cameOut(ctx, i)
}

// gone makes a conflict of an error that says that a name is free or taken.
func gone(o op, err error) *Conflict {
	switch {
	case errors.Is(err, unix.ENOENT):
		return &Conflict{Path: o.Path, Expected: o.Before, Detail: "is not there"}
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOTDIR):
		return &Conflict{Path: o.Path, Expected: o.Before, Detail: "is there already"}
	}
	return nil
}

// swap is an exchange where the file system has none: the old goes away, is
// looked at, and the new takes its place. For a moment nothing is there.
func (t *tx) swap(ctx context.Context, dir int, name string, i int) (*Conflict, error) {
	o := t.j.Ops[i]
	t.gap = true
	err := unix.Renameat(dir, name, t.old, slot(i))
	if c := gone(o, err); c != nil {
		return c, nil
	}
	if err != nil {
		return nil, full(fmt.Sprintf("publish %q", o.Path), err)
	}
	t.at("away")
	if c, err := t.cameOut(ctx, i); c != nil || err != nil {
		return c, err
	}
	sure, err := place(t.new, slot(i), dir, name)
	t.weak = t.weak || !sure
	if c := gone(o, err); c != nil {
		return c, nil
	}
	return nil, full(fmt.Sprintf("publish %q", o.Path), err)
}

// out finds what came out of the worktree for an op: its directory and name, and
// false where nothing did. Which of two files is the staged one its inode tells;
// where neither has it, as in a copy of the workspace, the content does.
func (t *tx) out(ctx context.Context, c *cursor, i int) (dir int, name string, there bool, err error) {
	o := t.j.Ops[i]
	name = slot(i)
	if t.old >= 0 {
		if ino, err := inode(t.old, name); err != nil || ino != 0 {
			return t.old, name, ino != 0, err
		}
	}
	if t.new < 0 {
		return -1, "", false, nil
	}
	ino, err := inode(t.new, name)
	if err != nil || ino == 0 || ino == o.Ino {
		return t.new, name, false, err
	}
	if d, n, err := c.at(o.Path); err == nil {
		if here, err := inode(d, n); err == nil && here == o.Ino {
			return t.new, name, true, nil
		}
	}
	s, err := t.look.once(ctx, t.new, name)
	if err != nil {
		return t.new, name, false, fmt.Errorf("look at what came out of %q: %w", o.Path, err)
	}
	return t.new, name, !t.look.matches(s, o.After), nil
}

// cameOut compares what came out for op i with what was expected. It is called
// when something must have come out, or the op creates.
func (t *tx) cameOut(ctx context.Context, i int) (*Conflict, error) {
	c, _, err := t.judgeOut(ctx, &t.look, i)
	return c, err
}

func (t *tx) judgeOut(ctx context.Context, l *looker, i int) (*Conflict, quiet, error) {
	o := t.j.Ops[i]
	if o.Before.Mode == 0 && !o.Over {
		return nil, quietYes, nil
	}
	dir := t.new
	if ino, err := inode(t.old, slot(i)); err != nil || ino != 0 {
		dir = t.old
	}
	s, err := l.once(ctx, dir, slot(i))
	if err != nil {
		return nil, 0, fmt.Errorf("look at what came out of %q: %w", o.Path, err)
	}
	if o.Over {
		empty, err := emptyDir(dir, slot(i))
		if err != nil || empty {
			return nil, quietYes, err
		}
		return &Conflict{Path: o.Path, Found: s.state, Detail: describe(s, o.Before)}, 0, nil
	}
	if !l.matches(s, o.Before) || s.quiet == quietNo {
		return &Conflict{Path: o.Path, Expected: o.Before, Found: s.state, Detail: describe(s, o.Before)}, s.quiet, nil
	}
	if s.state.Mode == gitrepo.ModeSymlink {
		return nil, quietYes, nil
	}
	return nil, s.quiet, nil
}

// emptyDir tells whether a directory holds nothing but empty directories.
func emptyDir(dir int, name string) (bool, error) { return emptyBelow(dir, name, 0) }

func emptyBelow(dir int, name string, depth int) (bool, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if noDirectory(err) || depth > maxDepth {
		return false, nil
	}
	if err != nil {
		return false, os.NewSyscallError("open", err)
	}
	return eachEntry(fd, func(dir int, name string, isDir bool) (bool, error) {
		if !isDir {
			return false, nil
		}
		return emptyBelow(dir, name, depth+1)
	})
}

// maxDepth bounds how deep directories are looked into.
const maxDepth = 200

// eachEntry asks fn about each entry of a directory, which it closes, until one
// answer is no.
func eachEntry(fd int, fn func(dir int, name string, isDir bool) (bool, error)) (bool, error) {
	f := os.NewFile(uintptr(fd), "directory")
	defer f.Close()
	for {
		entries, err := f.ReadDir(256)
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		for _, e := range entries {
			if ok, err := fn(fd, e.Name(), e.IsDir()); err != nil || !ok {
				return false, err
			}
		}
	}
}
