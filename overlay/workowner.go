package overlay

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Owner is whose files are shown as whose in a mounted work area.
type Owner struct{ User, Group int }

// ErrNoMapping says that this kernel or file system cannot show files under
// another owner (mount_setattr(2), MOUNT_ATTR_IDMAP), or this user may not.
var ErrNoMapping = errors.New("files cannot be shown under another owner here")

// lastID is the highest id that can be mapped: the one above means none.
const lastID = 1<<32 - 2

// swapped maps every id to itself but two, which change places.
func swapped(a, b int) []syscall.SysProcIDMap {
	if a == b {
		return []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: lastID + 1}}
	}
	lo, hi := min(a, b), max(a, b)
	m := []syscall.SysProcIDMap{{ContainerID: lo, HostID: hi, Size: 1}, {ContainerID: hi, HostID: lo, Size: 1}}
	for _, r := range [][2]int{{0, lo}, {lo + 1, hi}, {hi + 1, lastID + 1}} {
		if r[0] < r[1] {
			m = append(m, syscall.SysProcIDMap{ContainerID: r[0], HostID: r[0], Size: r[1] - r[0]})
		}
	}
	return m
}

// mapping gives a user namespace by which one owner's files are shown as
// another's, and the other way round. What belongs to others stays theirs. The
// caller closes it.
func mapping(from, to Owner) (*os.File, error) {
	self, err := exec.LookPath("cat")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoMapping, err)
	}
	// It only has to live until its namespace is held.
	cmd := exec.Command(self)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, Pdeathsig: syscall.SIGKILL,
		UidMappings: swapped(from.User, to.User), GidMappings: swapped(from.Group, to.Group)}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrNoMapping, err), in.Close())
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	err = errors.Join(err, in.Close(), cmd.Wait())
	if err != nil && ns != nil {
		err = errors.Join(err, ns.Close())
	}
	return ns, err
}

// mapped gives a directory as a mount of its own, on which owners are shown by
// a mapping.
func mapped(dir string, ns *os.File) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return -1, &os.PathError{Op: "open_tree", Path: dir, Err: err}
	}
	set := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &set); err != nil {
		return -1, errors.Join(fmt.Errorf("%w: %w", ErrNoMapping, &os.PathError{Op: "mount_setattr", Path: dir, Err: err}), unix.Close(fd))
	}
	return fd, nil
}

// mappedLayers names the layers of an overlay, each shown by the mapping. upper
// and work must lie in one directory: the kernel wants them on one mount.
func mappedLayers(lower []string, upper, work string, ns *os.File) (names []string, release func() error, err error) {
	var fds []int
	release = func() error {
		var errs []error
		for _, fd := range fds {
			errs = append(errs, unix.Close(fd))
		}
		return errors.Join(errs...)
	}
	area, err := mapped(filepath.Dir(upper), ns)
	if err != nil {
		return nil, nil, err
	}
	fds = append(fds, area)
	names = []string{fmt.Sprintf("/proc/self/fd/%d/%s", area, filepath.Base(upper)), fmt.Sprintf("/proc/self/fd/%d/%s", area, filepath.Base(work))}
	for _, d := range lower {
		fd, err := mapped(d, ns)
		if err != nil {
			return nil, nil, errors.Join(err, release())
		}
		fds = append(fds, fd)
		names = append(names, fmt.Sprintf("/proc/self/fd/%d", fd))
	}
	return names, release, nil
}
