package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// View is a read-only mount of a snapshot, seen inside its Mounter only.
type View struct {
	mnt  Mounter
	path string
	once sync.Once
	err  error
}

// Path is where the snapshot is mounted.
func (v *View) Path() string { return v.path }

// View mounts a snapshot read-only at a new place in the mounter. The snapshot
// must stay open until the view is closed.
func (s *Store) View(ctx context.Context, mnt Mounter, snap *Snapshot) (*View, error) {
	return s.viewAt(ctx, mnt, snap, filepath.Join(mnt.Dir(), "view-"+uuid.NewString()))
}

func (s *Store) viewAt(ctx context.Context, mnt Mounter, snap *Snapshot, at string) (*View, error) {
	v := &View{mnt: mnt, path: at}
	err := mnt.Do(func() error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := os.Mkdir(v.path, 0o755); err != nil {
			return err
		}
		if err := s.mount(snap.layers(), v.path); err != nil {
			return errors.Join(err, os.Remove(v.path))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("mount a view: %w", err)
	}
	return v, nil
}

// mount must run on the mounter: overlayfs and open_tree(2) take only what was
// opened in the mount namespace that they work in.
func (s *Store) mount(layers []string, at string) error {
	if len(layers) == 1 {
		return bindReadOnly(layers[0], at)
	}
	// Named by descriptors, so that a deep stack in a deep directory fits in the
	// page that mount(2) takes, no name needs escaping, and whoever reads the
	// mount table inside a sandbox does not learn where the state lies.
	named := make([]string, len(layers))
	for i, l := range layers {
		fd, err := unix.Open(l, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: l, Err: err}
		}
		defer unix.Close(fd)
		named[i] = fmt.Sprintf("/proc/self/fd/%d", fd)
	}
	options := "lowerdir=" + strings.Join(named, ":")
	if s.userns {
		options += ",userxattr"
	}
	err := unix.Mount("overlay", at, "overlay", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, options)
	return os.NewSyscallError("mount overlay", err)
}

// bindReadOnly sets the flags before the mount is attached, so that it is never
// there in a weaker form.
func bindReadOnly(layer, at string) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, layer, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return &os.PathError{Op: "open_tree", Path: layer, Err: err}
	}
	defer unix.Close(tree)
	set := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &set); err != nil {
		return os.NewSyscallError("mount_setattr", err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "move_mount", Path: at, Err: err}
	}
	return nil
}

// Close unmounts the view. A process that still uses it keeps what it sees.
// It may be called again, and on nil.
func (v *View) Close() error {
	if v == nil {
		return nil
	}
	v.once.Do(func() {
		v.err = v.mnt.Do(func() error {
			if err := unix.Unmount(v.path, unix.MNT_DETACH); err != nil {
				return os.NewSyscallError("unmount a view", err)
			}
			return os.Remove(v.path)
		})
	})
	return v.err
}
