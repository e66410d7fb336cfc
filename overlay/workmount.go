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

// WorkMount is a mounted work area, seen inside its Mounter only. While it is
// there no other process can mount the work area.
type WorkMount struct {
	// Path is where the project is mounted, writable.
	Path string
	// Parts are all directories of the work area, the project's first: where each
	// lies in reality, and where it is mounted.
	Parts []WorkMountPart

	mnt  Mounter
	lock *os.File
	stop context.CancelFunc // ends the noting of what live parts are
	rest chan error         // when that has ended
	once sync.Once
	err  error
}

// WorkMountPart is one mounted directory.
type WorkMountPart struct{ Dir, Path string }

// Mount mounts the work area at new places in the mounter. Close unmounts it;
// what was done in it stays.
func (w *WorkArea) Mount(ctx context.Context, mnt Mounter) (*WorkMount, error) {
	return w.mount(ctx, mnt, nil)
}

// MountAs mounts it as Mount does, with the files of one owner shown as another's
// and the other way round: what that one writes belongs to the first. It is an
// ErrNoMapping where that cannot be had.
func (w *WorkArea) MountAs(ctx context.Context, mnt Mounter, from, to Owner) (_ *WorkMount, err error) {
	if w.store.userns {
		return nil, fmt.Errorf("mount the work area %s: %w: a user namespace may not", w.note.ID, ErrNoMapping)
	}
	ns, err := mapping(from, to)
	if err != nil {
		return nil, fmt.Errorf("mount the work area %s: %w", w.note.ID, err)
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	return w.mount(ctx, mnt, ns)
}

func (w *WorkArea) mount(ctx context.Context, mnt Mounter, ns *os.File) (_ *WorkMount, err error) {
	if w.note.Userxattr != w.store.userns {
		return nil, fmt.Errorf("mount the work area %s: it was made %s, whose marks mean nothing here; use it as the same user", w.note.ID, map[bool]string{true: "in a user namespace", false: "by the machine's root"}[w.note.Userxattr])
	}
	if err := w.sound(); err != nil {
		return nil, err
	}
	lock, err := w.take()
	if err != nil {
		return nil, err
	}
	m := &WorkMount{mnt: mnt, lock: lock, rest: make(chan error, 1)}
	err = mnt.Do(func() error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for i := range w.note.Parts {
			if err := w.mountPart(m, i, ns); err != nil {
				return errors.Join(err, m.unmount())
			}
		}
		return nil
	})
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("mount the work area %s: %w", w.note.ID, w.explain(err))
	}
	m.Path = m.Parts[0].Path
	// The work begins meanwhile, and may end before.
	noting, stop := context.WithCancel(context.WithoutCancel(ctx))
	m.stop = stop
	go func() { m.rest <- w.recordLive(noting) }()
	w.settleLater()
	return m, nil
}

// mountPart must run on the mounter.
func (w *WorkArea) mountPart(m *WorkMount, i int, ns *os.File) error {
	part := w.note.Parts[i]
	at := filepath.Join(m.mnt.Dir(), "work-"+uuid.NewString())
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	lower := []string{part.Dir}
	if !part.Live {
		lower = nil
		for _, id := range part.Layers {
			lower = append(lower, w.store.frozenDir(id, "fs"))
		}
	}
	err := mountWritable(lower, w.upper(i), w.store.areaDir(w.note.ID, fmt.Sprint(i), "work"), at, w.store.userns, ns)
	if err != nil {
		return errors.Join(err, os.Remove(at))
	}
	m.Parts = append(m.Parts, WorkMountPart{Dir: part.Dir, Path: at})
	return nil
}

// mountWritable names directories by descriptors, for the reasons of mount.
func mountWritable(lower []string, upper, work, at string, userns bool, ns *os.File) (err error) {
	var named []string
	if ns != nil {
		var release func() error
		if named, release, err = mappedLayers(lower, upper, work, ns); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, release()) }()
		lower, upper, work = nil, "", ""
	}
	for _, d := range append([]string{upper, work}, lower...) {
		if d == "" {
			continue
		}
		fd, err := unix.Open(d, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: d, Err: err}
		}
		defer unix.Close(fd)
		named = append(named, fmt.Sprintf("/proc/self/fd/%d", fd))
	}
	options := fmt.Sprintf("upperdir=%s,workdir=%s,lowerdir=%s", named[0], named[1], strings.Join(named[2:], ":"))
	if userns {
		// There rename(2) of a directory from below gives EXDEV, which mv and
		// others answer by copying: redirect_dir is not to be had.
		options += ",userxattr"
	} else {
		// metacopy would leave files in the upper directory that hold no bytes;
		// an index would tie it to this very lower directory.
		options += ",index=off,metacopy=off,redirect_dir=on"
	}
	return os.NewSyscallError("mount overlay", unix.Mount("overlay", at, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options))
}

// explain says what may be the matter with a mount that the kernel refused,
// which tells no more than a number.
func (w *WorkArea) explain(err error) error {
	var st unix.Statfs_t
	if serr := unix.Statfs(w.store.dir, &st); serr != nil {
		return err
	}
	kinds := map[int64]string{unix.OVERLAYFS_SUPER_MAGIC: "overlayfs", unix.NFS_SUPER_MAGIC: "NFS", unix.FUSE_SUPER_MAGIC: "FUSE",
		unix.SMB2_SUPER_MAGIC: "SMB", unix.MSDOS_SUPER_MAGIC: "FAT", 0x01021997: "9p"}
	if kind, odd := kinds[int64(st.Type)]; odd && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)) {
		return &UnfitError{Dir: w.store.dir, Detail: fmt.Sprintf("it lies on %s, which cannot hold the writable layer of an overlay (%v)", kind, err)}
	}
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: this user may not mount overlays here; inside a container give it CAP_SYS_ADMIN, or allow user namespaces", err)
	}
	return err
}

// unmount must run on the mounter.
func (m *WorkMount) unmount() error {
	var errs []error
	for _, p := range m.Parts {
		if err := unix.Unmount(p.Path, unix.MNT_DETACH); err != nil {
			errs = append(errs, os.NewSyscallError("unmount a work area", err))
			continue
		}
		errs = append(errs, os.Remove(p.Path))
	}
	m.Parts = nil
	return errors.Join(errs...)
}

// Close unmounts the work area. No process may work in it any more. It may be
// called again, and on nil.
func (m *WorkMount) Close() error {
	if m == nil {
		return nil
	}
	m.once.Do(func() {
		m.stop()
		m.err = errors.Join(m.mnt.Do(m.unmount), <-m.rest, m.lock.Close())
	})
	return m.err
}
