package overlay

import (
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/overlay/internal/beneath"
)

// hiding decides what a layer must hold for that which is gone not to be seen.
type hiding struct {
	base  *Snapshot
	gone  map[string]bool
	files []File          // the layer's own, by path
	above map[string]bool // directories that one of them lies in
	left  map[string]bool // directories looked at: does anything else stay in it?
}

func newHiding(base *Snapshot, d delta) *hiding {
	h := &hiding{base: base, files: d.files, gone: make(map[string]bool, len(d.gone)), above: map[string]bool{}, left: map[string]bool{}}
	for _, p := range d.gone {
		h.gone[p] = true
	}
	for _, f := range d.files {
		for d := path.Dir(f.Path); d != "." && !h.above[d]; d = path.Dir(d) {
			h.above[d] = true
		}
	}
	return h
}

// mark gives the path at which a whiteout hides one that is gone, or "" where
// something of the layer's own hides it already. Git knows no empty directory,
// so that one of which nothing stays is hidden as a whole.
func (h *hiding) mark(gone string) (string, error) {
	if h.above[gone] {
		return "", nil // a directory in a file's place
	}
	top := gone
	for d := path.Dir(gone); d != "."; d = path.Dir(d) {
		if f, ok := findFile(h.files, d); ok {
			if f.Mode != gitrepo.ModeGitlink {
				return "", nil // a file in the directory's place
			}
			// A submodule is an empty directory, through which overlayfs would
			// show what is below: that goes piece by piece.
			return top, nil
		}
		if h.above[d] {
			return top, nil
		}
		stays, err := h.stays(d)
		if err != nil {
			return "", err
		}
		if stays {
			return top, nil
		}
		top = d
	}
	return top, nil
}

func (h *hiding) stays(dir string) (stays bool, err error) {
	stays, known := h.left[dir]
	if !known {
		stays, err = h.base.holdsBelow(dir, h.gone)
		h.left[dir] = stays
	}
	return stays, err
}

// writeWhiteouts marks in a layer what is gone from the snapshot below.
func writeWhiteouts(layer string, base *Snapshot, d delta) error {
	if len(d.gone) == 0 {
		return nil
	}
	root, err := unix.Open(layer, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: layer, Err: err}
	}
	defer unix.Close(root)
	at := &beneath.Dirs{Root: root}
	defer at.Close()
	h := newHiding(base, d)
	marked := map[string]bool{}
	for _, p := range d.gone {
		top, err := h.mark(p)
		if err != nil {
			return err
		}
		if top == "" || marked[top] {
			continue
		}
		marked[top] = true
		if err := whiteout(at, top); err != nil {
			return fmt.Errorf("mark %q as gone: %w", top, err)
		}
	}
	return nil
}

// whiteout makes the character device 0:0 that overlayfs takes for "not here"
// (Documentation/filesystems/overlayfs.rst, whiteouts and opaque directories).
// Making it needs no privilege since Linux 5.8.
func whiteout(at *beneath.Dirs, p string) error {
	parent, err := at.Enter(path.Dir(p))
	if err != nil {
		return err
	}
	err = unix.Mknodat(parent, path.Base(p), unix.S_IFCHR, 0)
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: whiteouts cannot be made here, which needs Linux 5.8 and a state directory on a local disk or tmpfs", err)
	}
	return err
}
