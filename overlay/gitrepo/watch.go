package gitrepo

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// watch is a set of directories in which the kernel notes what happens.
type watch struct {
	fd   int
	root string
	dev  uint64 // of the file system; another one's changes may pass unseen
	// rules are the files outside that decide what is to be watched.
	rules outside
	// moved tells that directories or the rules of what is ignored changed.
	moved bool
}

// maxWatches bounds the directories; more than these are looked at instead.
const maxWatches = 200_000

// happens is everything that may change what a file holds, is or is called.
const happens = unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVE |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW

func newWatch(root string) (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	return &watch{fd: fd, root: root}, nil
}

func (w *watch) close() error { return os.NewSyscallError("close", unix.Close(w.fd)) }

func (w *watch) add(dir string) error {
	n, err := unix.InotifyAddWatch(w.fd, dir, happens)
	if err != nil {
		return &os.PathError{Op: "inotify_add_watch", Path: dir, Err: err}
	}
	if n > maxWatches {
		return errors.New("too many directories")
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if w.dev == 0 {
		w.dev = st.Dev
	}
	if st.Dev != w.dev {
		return fmt.Errorf("%q is another file system", dir)
	}
	return nil
}

// quiet reads what the kernel has noted since the last call and tells whether
// that is nothing.
func (w *watch) quiet() bool {
	quiet := true
	var buf [64 << 10]byte
	for {
		n, err := unix.Read(w.fd, buf[:])
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return quiet
		case err != nil || n <= 0:
			w.moved = true
			return false
		}
		quiet = false
		w.note(buf[:n])
	}
}

// note looks for what changes the set of directories. Each event is the fixed
// part of struct inotify_event, the last word of which is the length of the
// name that follows it.
func (w *watch) note(b []byte) {
	for len(b) >= unix.SizeofInotifyEvent {
		mask := binary.NativeEndian.Uint32(b[4:])
		size := int(binary.NativeEndian.Uint32(b[12:]))
		b = b[unix.SizeofInotifyEvent:]
		if size > len(b) {
			w.moved = true
			return
		}
		name := string(bytes.TrimRight(b[:size], "\x00"))
		b = b[size:]
		if mask&(unix.IN_ISDIR|unix.IN_Q_OVERFLOW|unix.IN_IGNORED|unix.IN_UNMOUNT|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0 ||
			name == ".gitignore" || name == ".git" {
			w.moved = true
		}
	}
}
