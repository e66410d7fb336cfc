package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ExchangeDir lets a whole directory and one that was staged beside it change
// places in one step: whoever looks sees all of the old or all of the new, and
// after a crash one of the two is there. What was in root lies at staged then,
// files that git ignores included; exchanging again puts it back. A program whose
// current directory it was stays in the old one.
//
// The staged directory is made durable first and takes over owner and mode of
// root, and a .git file as a linked worktree has it. check, where not nil, is
// called after the exchange with the directory that came out; when it fails the
// two are exchanged back. Nothing says what programs do that still have files in
// there open.
//
// Errors: *InvalidError where root has its git directory inside, which would
// change places too, or where the two cannot be exchanged; *BusyError; *FullError;
// check's.
func ExchangeDir(ctx context.Context, root, staged, stateDir string, check func(displaced string) error) (err error) {
	var paths [2]string
	var trees [2]tree
	for i, p := range []string{root, staged} {
		if paths[i], err = filepath.Abs(p); err == nil {
			paths[i], err = filepath.EvalSymlinks(paths[i])
		}
		if err != nil {
			return fmt.Errorf("find the directories to exchange: %w", err)
		}
		if trees[i], err = newTree(paths[i]); err != nil {
			return err
		}
		defer trees[i].close()
	}
	root, staged = paths[0], paths[1]
	if within(root, staged) || within(staged, root) {
		return &InvalidError{Path: staged, Detail: fmt.Sprintf("and %q lie one in the other", root)}
	}
	var st unix.Stat_t
	if err := unix.Fstat(trees[0].root, &st); err != nil {
		return fmt.Errorf("look at %q: %w", root, err)
	}
	// The lock goes by the path alone: which directory lies there is to change.
	lock, err := lockWorkspace(ctx, root, stateDir, &unix.Stat_t{})
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := dressDir(root, staged, trees[1].root, &st); err != nil {
		return err
	}
	if err := syncAll(trees[1].root); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("exchange directories: %w", context.Cause(ctx))
	}
	if err := swapDirs(root, staged); err != nil {
		return err
	}
	if check == nil {
		return nil
	}
	if err := check(staged); err != nil {
		return errors.Join(err, swapDirs(staged, root))
	}
	return nil
}

// within tells whether a path is dir or lies in it.
func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// dressDir gives the staged directory what belongs to the place.
func dressDir(root, staged string, fd int, st *unix.Stat_t) error {
	dot, err := os.Lstat(filepath.Join(root, ".git"))
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return fmt.Errorf("look for a git directory: %w", err)
	case !dot.Mode().IsRegular():
		return &InvalidError{Path: root, Detail: "has its git directory inside, which would be exchanged too; publish file by file, or use a linked worktree"}
	case dot.Size() > maxTarget:
		return &InvalidError{Path: root, Detail: fmt.Sprintf("has a .git file of more than %d bytes", maxTarget)}
	default:
		if err := copyGitFile(root, staged); err != nil {
			return err
		}
	}
	if err := unix.Fchown(fd, int(st.Uid), int(st.Gid)); err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("give %q its owner: %w", staged, err)
	}
	if err := unix.Fchmod(fd, st.Mode&0o7777); err != nil {
		return fmt.Errorf("give %q its mode: %w", staged, err)
	}
	return nil
}

func copyGitFile(root, staged string) error {
	b, err := os.ReadFile(filepath.Join(root, ".git"))
	if err != nil {
		return fmt.Errorf("read the .git file: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(staged, ".git"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, os.ErrExist) {
		if own, err := os.ReadFile(filepath.Join(staged, ".git")); err == nil && bytes.Equal(own, b) {
			return nil // from a try before
		}
		return &InvalidError{Path: staged, Detail: "has a .git of its own"}
	}
	if err != nil {
		return full("copy the .git file", err)
	}
	_, err = f.Write(b)
	return full("copy the .git file", errors.Join(err, f.Close()))
}

// swapDirs exchanges two directories durably.
func swapDirs(place, other string) error {
	can, err := exchange(unix.AT_FDCWD, other, unix.AT_FDCWD, place)
	if !can {
		return &InvalidError{Path: place, Detail: "lies on a file system that cannot exchange two directories"}
	}
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EBUSY) {
		return &InvalidError{Path: place, Detail: fmt.Sprintf("and %q cannot be exchanged, as they lie on different mounts or are mounts themselves", other)}
	}
	if err != nil {
		return full("exchange directories", err)
	}
	for _, p := range []string{filepath.Dir(place), filepath.Dir(other)} {
		d, err := os.Open(p)
		if err != nil {
			return fmt.Errorf("make the exchange durable: %w", err)
		}
		err = errors.Join(d.Sync(), d.Close())
		if err != nil {
			return full("make the exchange durable", err)
		}
	}
	return nil
}
