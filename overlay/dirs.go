package overlay

import (
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// beneath makes a path mean what it says: it leads downwards, and through
// directories only (openat2(2)).
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

func openBeneath(dir int, p string, flags int, mode uint32) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW), Resolve: beneath}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode)
	}
	for {
		fd, err := unix.Openat2(dir, p, &how)
		// EAGAIN: something was renamed while the kernel looked.
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		return fd, err
	}
}

// makeDirAt makes a directory that everybody may read, whatever the umask.
func makeDirAt(parent int, name string) error {
	if err := unix.Mkdirat(parent, name, 0o755); err != nil {
		return err
	}
	return unix.Fchmodat(parent, name, 0o755, 0)
}

// maxOpenDirs bounds the directories of one path that are kept open. Below,
// they are opened anew for each directory.
const maxOpenDirs = 32

// dirs keeps the directories of the path that was written to last open.
type dirs struct {
	root  int
	names []string
	fds   []int // of the first maxOpenDirs names
	tail  int   // of the last name, where it is not among them; else 0
}

// enter opens a directory, "." for the root, and makes it where it is not.
// The descriptor is good until the next call.
func (d *dirs) enter(dir string) (int, error) {
	var names []string
	if dir != "." {
		names = strings.Split(dir, "/")
	}
	same := 0
	for same < min(len(names), len(d.names)) && names[same] == d.names[same] {
		same++
	}
	if same == len(names) && same == len(d.names) {
		return d.last(), nil
	}
	d.leave(min(same, len(d.fds)))
	for len(d.names) < len(names) {
		at := len(d.names)
		fd, err := descend(d.last(), names[at])
		if err != nil {
			return -1, notADirectory(path.Join(names[:at+1]...), err)
		}
		d.names = append(d.names, names[at])
		if len(d.fds) < maxOpenDirs {
			d.fds = append(d.fds, fd)
			continue
		}
		if d.tail != 0 {
			unix.Close(d.tail)
		}
		d.tail = fd
	}
	return d.last(), nil
}

func (d *dirs) last() int {
	switch {
	case d.tail != 0:
		return d.tail
	case len(d.fds) > 0:
		return d.fds[len(d.fds)-1]
	}
	return d.root
}

// leave closes all but the first n directories.
func (d *dirs) leave(n int) {
	if d.tail != 0 {
		unix.Close(d.tail)
		d.tail = 0
	}
	for _, fd := range d.fds[n:] {
		unix.Close(fd)
	}
	d.fds, d.names = d.fds[:n], d.names[:n]
}

func (d *dirs) close() { d.leave(0) }

func descend(parent int, name string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY
	fd, err := openBeneath(parent, name, flags, 0)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	// Another writer may make it at the same time.
	if err := makeDirAt(parent, name); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, os.NewSyscallError("mkdir", err)
	}
	return openBeneath(parent, name, flags, 0)
}

// notADirectory explains what only a crafted tree holds.
func notADirectory(p string, err error) error {
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return &TreeError{Path: p, Detail: "is both a file and a directory"}
	}
	return err
}
