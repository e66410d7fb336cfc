package publish

import (
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// beneath makes a path mean what it says: it leads downwards, through
// directories only, and stays on one mount (openat2(2)).
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// tree opens directories below a root and nowhere else.
type tree struct {
	root int  // of the directory
	walk bool // openat2 is missing: descend name by name
	dev  uint64
}

// newTree opens a directory and finds out how to stay below it.
func newTree(dir string) (tree, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return tree{}, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return tree{}, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	t := tree{root: fd, dev: st.Dev}
	probe, err := unix.Openat2(fd, ".", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: beneath})
	if err != nil {
		// Kernels before 5.6, and sandboxes whose filter does not know it.
		t.walk = true
		return t, nil
	}
	return t, unix.Close(probe)
}

func (t tree) close() { unix.Close(t.root) }

// openDir opens a directory of the tree, "." for its root. The caller closes it.
func (t tree) openDir(dir string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW
	if !t.walk {
		for {
			fd, err := unix.Openat2(t.root, dir, &unix.OpenHow{Flags: flags, Resolve: beneath})
			// EAGAIN: something was renamed while the kernel looked.
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
				continue
			}
			return fd, err
		}
	}
	at, err := unix.Openat(t.root, ".", flags, 0)
	if err != nil || dir == "." {
		return at, err
	}
	for name := range strings.SplitSeq(dir, "/") {
		next, err := unix.Openat(at, name, flags, 0)
		unix.Close(at)
		if err != nil {
			return -1, err
		}
		var st unix.Stat_t
		if err := unix.Fstat(next, &st); err != nil || st.Dev != t.dev {
			unix.Close(next)
			if err == nil {
				err = unix.EXDEV
			}
			return -1, err
		}
		at = next
	}
	return at, nil
}

// cursor keeps the directory that was used last open: in path order each is
// opened once. It is for one goroutine.
type cursor struct {
	tree tree
	dir  string
	fd   int
	open bool
}

// at gives the directory that a path lies in, and its name there. The descriptor
// is good until the next call.
func (c *cursor) at(p string) (dir int, name string, err error) {
	d := path.Dir(p)
	if !c.open || c.dir != d {
		c.close()
		if c.fd, err = c.tree.openDir(d); err != nil {
			return -1, "", err
		}
		c.dir, c.open = d, true
	}
	return c.fd, path.Base(p), nil
}

func (c *cursor) close() {
	if c.open {
		unix.Close(c.fd)
		c.open = false
	}
}

// noDirectory tells that a path leads through something that is missing or no
// directory.
func noDirectory(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}
