package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
)

// attach mounts what mounts names inside a sandbox that is there already. Each
// is made and sealed in the MountSpace, where its source is, and hung up by a
// thread inside the sandbox's mount namespace; that thread does nothing else and
// ends. replace puts each below what is at its place and takes that away, so
// that the place is never empty (MOVE_MOUNT_BENEATH, from Linux 6.5 on; before, it
// is empty for a moment).
func (p *process) attach(mounts []sandbox.Mount, replace bool) (err error) {
	trees := make([]int, 0, len(mounts))
	defer func() {
		for _, fd := range trees {
			_ = unix.Close(fd)
		}
	}()
	err = p.space.Do(func() error {
		for _, m := range mounts {
			if !filepath.IsAbs(m.Target) || filepath.Clean(m.Target) != m.Target || m.Target == "/" {
				return fmt.Errorf("mount target %q is not a clean absolute path", m.Target)
			}
			fd, err := sealedTree(m.Source, p.without[sandbox.WallSnapshotReadOnly])
			if err != nil {
				return err
			}
			trees = append(trees, fd)
		}
		return nil
	})
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: see openRelay
		done <- hang(p.pid, trees, mounts, replace)
	}()
	return <-done
}

// sealedTree is a read-only copy of a tree of mounts that is mounted nowhere.
func sealedTree(source string, writable bool) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, &os.PathError{Op: "open_tree", Path: source, Err: err}
	}
	set := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if writable {
		set.Attr_set &^= unix.MOUNT_ATTR_RDONLY
		set.Attr_clr = unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &set); err != nil {
		return -1, errors.Join(&os.PathError{Op: "mount_setattr", Path: source, Err: err}, unix.Close(fd))
	}
	return fd, nil
}

// hang moves this thread into a process's mount namespace.
func hang(pid int, trees []int, mounts []sandbox.Mount, replace bool) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("enter the sandbox's mount namespace", err)
	}
	for i, m := range mounts {
		there := false
		if replace {
			err := unix.MoveMount(trees[i], "", unix.AT_FDCWD, m.Target, unix.MOVE_MOUNT_F_EMPTY_PATH|moveMountBeneath)
			if err != nil && !errors.Is(err, unix.EINVAL) { // which an older kernel gives for the flag
				return &os.PathError{Op: "move_mount", Path: m.Target, Err: err}
			}
			there = err == nil
			if err := unix.Unmount(m.Target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				return &os.PathError{Op: "unmount", Path: m.Target, Err: err}
			}
		}
		if there {
			continue
		}
		if err := unix.MoveMount(trees[i], "", unix.AT_FDCWD, m.Target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return &os.PathError{Op: "move_mount", Path: m.Target, Err: err}
		}
	}
	return nil
}

// moveMountBeneath is MOVE_MOUNT_BENEATH of linux/mount.h.
const moveMountBeneath = 0x200

// Exchange shows other sources at the places of the Spec's Mounts, in a program
// that runs, and reads the evidence anew: what is mounted, and that every thread
// is confined as before. The program may still have files of the old sources
// open; they stay as read-only as they were. It must name the same targets.
// After an error the sandbox is in no known state and is to be closed.
func (p *process) Exchange(ctx context.Context, mounts []sandbox.Mount) (sandbox.Evidence, error) {
	if err := ctx.Err(); err != nil {
		return sandbox.Evidence{}, context.Cause(ctx)
	}
	p.exchanging.Lock()
	defer p.exchanging.Unlock()
	if len(mounts) != len(p.spec.Mounts) {
		return sandbox.Evidence{}, fmt.Errorf("exchange %d mounts for %d", len(p.spec.Mounts), len(mounts))
	}
	for i, m := range mounts {
		if m.Target != p.spec.Mounts[i].Target {
			return sandbox.Evidence{}, fmt.Errorf("exchange at %q: the place is %q", m.Target, p.spec.Mounts[i].Target)
		}
	}
	// What a sandbox is born with is locked in its place by the kernel, since its
	// user namespace has fewer powers than the one that mounted it
	// (mount_namespaces(7)). What is hung up later is not; under it is nothing.
	if !p.spec.Exchangeable {
		return sandbox.Evidence{}, errors.New("exchange: the sandbox was not started for it")
	}
	if err := p.attach(mounts, true); err != nil {
		return sandbox.Evidence{}, fmt.Errorf("exchange: %w", err)
	}
	p.spec.Mounts = mounts
	if err := p.inspectAgain(true); err != nil {
		return sandbox.Evidence{}, fmt.Errorf("exchange: %w", err)
	}
	return p.evidence, nil
}
