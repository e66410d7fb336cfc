package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// Last tells which publish Undo would take back: its id, and what it changed.
// A *NothingToUndoError says that there is none.
func (w *Workspace) Last() (id string, changed []string, err error) {
	t, err := w.openLast()
	if err != nil {
		return "", nil, err
	}
	defer t.close()
	for _, o := range t.j.Ops {
		changed = append(changed, o.Path)
	}
	slices.Sort(changed)
	return t.j.ID, changed, nil
}

func (w *Workspace) openLast() (*tx, error) {
	t, err := w.openTx(lastName)
	if errors.Is(err, unix.ENOENT) {
		return nil, &NothingToUndoError{Detail: "no publish to this workspace is remembered"}
	}
	if err != nil {
		return nil, err
	}
	j, committed, err := readJournal(t.dir)
	if err == nil && !committed {
		err = errors.New("it was never committed")
	}
	if err != nil {
		t.close()
		return nil, &NothingToUndoError{Detail: err.Error()}
	}
	t.j, t.look.ignoreExec = j, j.Exec
	return t, nil
}

// Undo takes the last publish back, if nothing has touched its paths since: the
// very files that came out go back, with their times and owners. id names the
// publish that is meant; "" means the last one, whichever that is. The undoing is
// a publish itself, which can be undone.
//
// Errors: those of Publish, *NothingToUndoError.
func (w *Workspace) Undo(ctx context.Context, id string, opt Options) (Result, error) {
	last, err := w.openLast()
	if err != nil {
		return Result{}, err
	}
	defer last.close()
	if id != "" && id != last.j.ID {
		return Result{}, &NothingToUndoError{Detail: fmt.Sprintf("the last publish was %s and not %.80q", last.j.ID, id)}
	}
	at := map[string]int{}
	changes := make([]Change, 0, len(last.j.Ops))
	for i, o := range last.j.Ops {
		at[o.Path] = i
		changes = append(changes, Change{Path: o.Path, Before: o.After, After: o.Before})
	}
	opt.IgnoreExec = last.j.Exec
	return w.publish(ctx, changes, opt, func(t *tx, o *op, i int, _ sight, _ *notes) error {
		return t.stageOriginal(ctx, o, i, last, at[o.Path])
	})
}

// stageOriginal stages what came out for op k of another publish.
func (t *tx) stageOriginal(ctx context.Context, o *op, i int, last *tx, k int) error {
	dir, ino, err := last.new, uint64(0), error(nil)
	if ino, err = inode(last.old, slot(k)); err != nil {
		return fmt.Errorf("find the original of %q: %w", o.Path, err)
	}
	if ino != 0 {
		dir = last.old
	}
	l := &looker{ignoreExec: t.look.ignoreExec}
	s, err := l.look(ctx, dir, slot(k))
	if err != nil {
		return fmt.Errorf("look at the original of %q: %w", o.Path, err)
	}
	if !l.matches(s, o.After) {
		return &NothingToUndoError{Detail: fmt.Sprintf("the original of %q is no longer what it was", o.Path)}
	}
	if err := unix.Linkat(dir, slot(k), t.new, slot(i), 0); err == nil {
		o.Ino = s.st.Ino
		return nil
	}
	// No hard links here, so a copy has to do.
	if s.state.Mode == gitrepo.ModeSymlink {
		return t.stageLink(o, i, originals{last, dir, k})
	}
	var n notes
	return t.stageFile(o, i, originals{last, dir, k}, s, &n)
}

// originals is the Content of one original.
type originals struct {
	t   *tx
	dir int
	k   int
}

// OpenBlob opens the original, whatever it is asked for: whoever copies it
// compares digests.
func (c originals) OpenBlob(schemas.BlobRef) (io.ReadCloser, int64, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(c.dir, slot(c.k), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, 0, fmt.Errorf("look at an original: %w", err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		buf := make([]byte, maxTarget)
		n, err := unix.Readlinkat(c.dir, slot(c.k), buf)
		if err != nil {
			return nil, 0, fmt.Errorf("read an original: %w", err)
		}
		return io.NopCloser(bytes.NewReader(buf[:n])), int64(n), nil
	}
	fd, err := unix.Openat(c.dir, slot(c.k), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("open an original: %w", err)
	}
	return os.NewFile(uintptr(fd), "original"), st.Size, nil
}
