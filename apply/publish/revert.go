package publish

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// revert takes op i back, however far it was carried out. Doing it again changes
// nothing more. It tells of a path that another program has written since.
func (t *tx) revert(ctx context.Context, c *cursor, i int) (restored bool, left *Left, err error) {
	o := t.j.Ops[i]
	outDir, outName, there, err := t.out(ctx, c, i)
	if err != nil {
		return false, nil, err
	}
	creates := o.Before.Mode == 0 && !o.Over
	if !there && !creates {
		return false, nil, nil
	}
	dir, name, err := c.at(o.Path)
	switch {
	case noDirectory(err) && creates:
		return false, nil, nil
	case noDirectory(err):
		left, err = t.setAside(outDir, outName, o, "lies in a directory that is gone")
		return false, left, err
	case err != nil:
		return false, nil, fmt.Errorf("open the directory of %q: %w", o.Path, err)
	}
	switch {
	case creates:
		return t.revertCreate(ctx, dir, name, i)
	case o.After.Mode == 0:
		_, err = place(outDir, outName, dir, name)
		if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTEMPTY) {
			left, err = t.setAside(outDir, outName, o, "was written anew by another program and stays as it is")
			return false, left, err
		}
		if err != nil {
			return false, nil, fmt.Errorf("put %q back: %w", o.Path, err)
		}
		return true, nil, nil
	}
	return t.revertChange(ctx, dir, name, outDir, outName, i)
}

// revertCreate takes a created file away, if it is still as it was created.
func (t *tx) revertCreate(ctx context.Context, dir int, name string, i int) (bool, *Left, error) {
	o := t.j.Ops[i]
	mine, err := inode(t.new, slot(i))
	if err != nil {
		return false, nil, fmt.Errorf("look at the staging area: %w", err)
	}
	if mine != 0 {
		// Not carried out, unless the crash came between a link and an unlink.
		if ino, err := inode(dir, name); err != nil || ino != o.Ino {
			return false, nil, err
		}
	}
	// It may have been taken away by a recovery that a crash ended.
	if ino, err := inode(t.old, slot(i)); err != nil {
		return false, nil, fmt.Errorf("look at the staging area: %w", err)
	} else if ino == 0 {
		err = unix.Renameat(dir, name, t.old, slot(i))
		if errors.Is(err, unix.ENOENT) {
			return false, nil, nil
		}
		if err != nil {
			return false, nil, fmt.Errorf("take %q away: %w", o.Path, err)
		}
		t.at("taken away")
	}
	s, err := t.look.once(ctx, t.old, slot(i))
	if err != nil {
		return false, nil, fmt.Errorf("look at %q: %w", o.Path, err)
	}
	if t.look.matches(s, o.After) && s.quiet != quietNo {
		return true, nil, nil
	}
	_, err = place(t.old, slot(i), dir, name)
	if errors.Is(err, unix.EEXIST) {
		left, err := t.setAside(t.old, slot(i), o, "was written by two other programs")
		return false, left, err
	}
	if err != nil {
		return false, nil, fmt.Errorf("put %q back: %w", o.Path, err)
	}
	return false, &Left{Path: o.Path, Detail: "was written by another program after it was created, and stays"}, nil
}

// maxTurns bounds how often a path is exchanged until what another program wrote
// last lies there.
const maxTurns = 32

// revertChange lets a path and what came out of it change places again. What
// comes out now is what had been placed there, unless another program wrote the
// path meanwhile: then that is newer, and goes back in its turn.
func (t *tx) revertChange(ctx context.Context, dir int, name string, outDir int, outName string, i int) (bool, *Left, error) {
	o := t.j.Ops[i]
	const foreign = "was written by another program after it was changed, and stays as that left it"
	placed := sight{state: o.After, st: unix.Stat_t{Ino: o.Ino}}
	for turn := 0; ; turn++ {
		mine, err := t.look.once(ctx, outDir, outName)
		if err != nil {
			return false, nil, fmt.Errorf("look at %q: %w", o.Path, err)
		}
		can, err := exchange(outDir, outName, dir, name)
		if !can {
			return t.swapBack(ctx, dir, name, outDir, outName, i)
		}
		if errors.Is(err, unix.ENOENT) { // somebody deleted it
			_, err = place(outDir, outName, dir, name)
			if errors.Is(err, unix.EEXIST) && turn < maxTurns {
				continue // and made it anew
			}
			if err != nil {
				return false, nil, fmt.Errorf("put %q back: %w", o.Path, err)
			}
			return turn == 0, nil, nil
		}
		if err != nil {
			return false, nil, fmt.Errorf("put %q back: %w", o.Path, err)
		}
		t.at("exchanged back")
		came, err := t.look.once(ctx, outDir, outName)
		if err != nil {
			return false, nil, fmt.Errorf("look at %q: %w", o.Path, err)
		}
		// In a copy of the workspace a staged file has another inode.
		same := (turn == 0 || came.st.Ino == placed.st.Ino) && t.look.matches(came, placed.state) && came.quiet != quietNo || came.dir && placed.dir
		if turn == 0 && same {
			return true, nil, nil
		}
		if same || turn == maxTurns {
			left, err := t.setAside(outDir, outName, o, foreign)
			return false, left, err
		}
		placed = mine
	}
}

// backPrefix begins the names in old/ of published files that were taken back.
const backPrefix = "back-"

// swapBack is revertChange without an exchange.
func (t *tx) swapBack(ctx context.Context, dir int, name string, outDir int, outName string, i int) (bool, *Left, error) {
	o := t.j.Ops[i]
	back := backPrefix + slot(i)
	ino, err := inode(t.old, back)
	if err != nil {
		return false, nil, fmt.Errorf("look at the staging area: %w", err)
	}
	if ino == 0 { // else a recovery that a crash ended took it away
		err := unix.Renameat(dir, name, t.old, back)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return false, nil, fmt.Errorf("take %q away: %w", o.Path, err)
		}
		if ino, err = inode(t.old, back); err != nil {
			return false, nil, fmt.Errorf("look at the staging area: %w", err)
		}
		t.at("taken away")
	}
	if ino != 0 {
		s, err := t.look.once(ctx, t.old, back)
		if err != nil {
			return false, nil, fmt.Errorf("look at %q: %w", o.Path, err)
		}
		if !t.look.matches(s, o.After) || s.quiet == quietNo {
			if _, err := place(t.old, back, dir, name); err != nil && !errors.Is(err, unix.EEXIST) {
				return false, nil, fmt.Errorf("put %q back: %w", o.Path, err)
			}
			left, err := t.setAside(outDir, outName, o, "was written by another program after it was changed, and stays as that left it")
			return false, left, err
		}
	}
	if _, err := place(outDir, outName, dir, name); errors.Is(err, unix.EEXIST) {
		left, err := t.setAside(outDir, outName, o, "was written anew by another program and stays as it is")
		return false, left, err
	} else if err != nil {
		return false, nil, fmt.Errorf("put %q back: %w", o.Path, err)
	}
	return true, nil, nil
}

// setAside moves a file that cannot go back where it was to where it is kept.
func (t *tx) setAside(dir int, name string, o op, detail string) (*Left, error) {
	file, err := t.ws.keep(dir, name, t.j.ID, o.Path)
	if err != nil {
		return nil, err
	}
	return &Left{Path: o.Path, Detail: detail, Kept: file}, nil
}

// keep moves a file from a publish's directory to kept/.
func (w *Workspace) keep(dir int, name, id, path string) (string, error) {
	if err := unix.Mkdirat(w.area.root, keptName, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return "", full("keep a file of another program", err)
	}
	kept, err := w.area.openDir(keptName)
	if err != nil {
		return "", fmt.Errorf("open the directory of kept files: %w", err)
	}
	defer unix.Close(kept)
	base := filepath.Base(path)
	for n := 0; ; n++ {
		target := fmt.Sprintf("%s-%d-%.100s", id, n, base)
		if _, err := place(dir, name, kept, target); errors.Is(err, unix.EEXIST) && n < maxOps {
			continue
		} else if err != nil {
			return "", fmt.Errorf("keep what came out of %q: %w", path, err)
		}
		if err := unix.Fsync(kept); err != nil {
			return "", os.NewSyscallError("fsync", err)
		}
		return filepath.Join(w.areaDir, keptName, target), nil
	}
}
