// Package beneath opens files below a directory and nowhere else, whatever
// symlinks and renames somebody puts in the way meanwhile.
package beneath

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// beneath makes a path mean what it says: it leads downwards, and through
// directories only (openat2(2)).
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// Open opens a path below a directory. The descriptor closes on exec.
func Open(dir int, p string, flags int, mode uint32) (int, error) {
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

// MakeDir makes a directory that everybody may read, whatever the umask.
func MakeDir(parent int, name string) error {
	if err := unix.Mkdirat(parent, name, 0o755); err != nil {
		return err
	}
	return unix.Fchmodat(parent, name, 0o755, 0)
}

// maxOpenDirs bounds the directories of one path that are kept open. Below,
// they are opened anew for each directory.
const maxOpenDirs = 32

// Dirs keeps the directories of the path that was used last open: in path order
// each is opened once. It is for one goroutine; the zero value with a Root is
// ready.
type Dirs struct {
	Root int
	Keep bool // a directory that is not there is an error, not made

	names []string
	fds   []int // of the first maxOpenDirs names
	tail  int   // of the last name, where it is not among them; else 0
}

// Enter opens a directory, "." for the root, and makes it where it is not.
// The descriptor is good until the next call.
func (d *Dirs) Enter(dir string) (int, error) {
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
		fd, err := d.descend(d.last(), names[at])
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

func (d *Dirs) last() int {
	switch {
	case d.tail != 0:
		return d.tail
	case len(d.fds) > 0:
		return d.fds[len(d.fds)-1]
	}
	return d.Root
}

// leave closes all but the first n directories.
func (d *Dirs) leave(n int) {
	if d.tail != 0 {
		unix.Close(d.tail)
		d.tail = 0
	}
	for _, fd := range d.fds[n:] {
		unix.Close(fd)
	}
	d.fds, d.names = d.fds[:n], d.names[:n]
}

// Close closes the directories that are open, and not Root.
func (d *Dirs) Close() { d.leave(0) }

func (d *Dirs) descend(parent int, name string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY
	fd, err := Open(parent, name, flags, 0)
	if d.Keep || !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	// Another writer may make it at the same time.
	if err := MakeDir(parent, name); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, os.NewSyscallError("mkdir", err)
	}
	return Open(parent, name, flags, 0)
}

// NotADirectoryError says that a file or a symlink lies where a directory should.
type NotADirectoryError struct{ Path string }

func (e *NotADirectoryError) Error() string { return fmt.Sprintf("%q is not a directory", e.Path) }

func notADirectory(p string, err error) error {
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return &NotADirectoryError{Path: p}
	}
	return err
}
