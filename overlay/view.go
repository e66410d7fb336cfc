package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// View is a read-only mount of a snapshot, seen inside its Mounter only.
type View struct {
	mnt  Mounter
	path string
}

// Path is where the snapshot is mounted.
func (v *View) Path() string { return v.path }

// View mounts a snapshot read-only at a new place in the mounter.
func (s *Store) View(_ context.Context, mnt Mounter, snap *Snapshot) (*View, error) {
	layers, err := snap.layers()
	if err != nil {
		return nil, err
	}
	v := &View{mnt: mnt, path: filepath.Join(mnt.Dir(), "view-"+uuid.NewString())}
	err = mnt.Do(func() error {
		if err := os.Mkdir(v.path, 0o755); err != nil {
			return err
		}
		if err := s.mount(layers, v.path); err != nil {
			return errors.Join(err, os.Remove(v.path))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("mount a view: %w", err)
	}
	return v, nil
}

// readOnly are the flags of every view.
const readOnly = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV

func (s *Store) mount(layers []string, at string) error {
	if len(layers) == 1 {
		if err := unix.Mount(layers[0], at, "", unix.MS_BIND, ""); err != nil {
			return os.NewSyscallError("bind", err)
		}
		if err := unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|readOnly, ""); err != nil {
			return errors.Join(os.NewSyscallError("remount read-only", err), unix.Unmount(at, unix.MNT_DETACH))
		}
		return nil
	}
	escaped := make([]string, len(layers))
	for i, l := range layers {
		// The option is a list, in a list of options.
		escaped[i] = strings.NewReplacer(`\`, `\\`, ":", `\:`, ",", `\,`).Replace(l)
	}
	options := "lowerdir=" + strings.Join(escaped, ":")
	if s.userns {
		options += ",userxattr"
	}
	if len(options) >= os.Getpagesize() {
		return fmt.Errorf("the mount options have %d bytes; use a shorter state directory", len(options))
	}
	return os.NewSyscallError("mount overlay", unix.Mount("overlay", at, "overlay", readOnly, options))
}

// Close unmounts the view. A process that still uses it keeps what it sees.
func (v *View) Close() error {
	if v == nil || v.mnt == nil {
		return nil
	}
	mnt := v.mnt
	v.mnt = nil
	return mnt.Do(func() error {
		if err := unix.Unmount(v.path, unix.MNT_DETACH); err != nil {
			return os.NewSyscallError("unmount a view", err)
		}
		return os.Remove(v.path)
	})
}
