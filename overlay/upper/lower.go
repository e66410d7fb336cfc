package upper

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/internal/beneath"
)

// Lower is the stack of directories that an overlay lies over. It is safe for
// several goroutines.
type Lower struct{ layers []int }

// OpenLower opens the directories, the topmost first. They hold whiteouts and no
// other marks of overlayfs.
func OpenLower(dirs []string) (*Lower, error) {
	l := &Lower{}
	for _, d := range dirs {
		fd, err := unix.Open(d, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, errors.Join(&os.PathError{Op: "open", Path: d, Err: err}, l.Close())
		}
		l.layers = append(l.layers, fd)
	}
	return l, nil
}

// Close closes the directories.
func (l *Lower) Close() error {
	var errs []error
	for _, fd := range l.layers {
		errs = append(errs, unix.Close(fd))
	}
	l.layers = nil
	return errors.Join(errs...)
}

// State is a file as it is, or was, seen through the mount.
type State struct {
	Mode     uint32 // as in struct stat: type and permissions
	UID, GID uint32
	Size     int64 // in bytes
	Mtime    int64 // in nanoseconds since 1970
	Target   string
	from     place
}

// Dir tells a directory.
func (s State) Dir() bool { return s.Mode&unix.S_IFMT == unix.S_IFDIR }

// Regular tells a file that holds bytes.
func (s State) Regular() bool { return s.Mode&unix.S_IFMT == unix.S_IFREG }

// place is where a file's bytes lie.
type place struct {
	root int // a directory that stays open as long as what gave it
	path string
}

// Open opens a regular file for reading. What was a file and is one no more is
// an error.
func (s State) Open() (*os.File, error) {
	if s.from.path == "" {
		return nil, fmt.Errorf("open a file that has no place: %w", os.ErrInvalid)
	}
	fd, err := beneath.Open(s.from.root, s.from.path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: s.from.path, Err: err}
	}
	f := os.NewFile(uintptr(fd), s.from.path)
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = &os.PathError{Op: "read", Path: s.from.path, Err: unix.ESTALE}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func stateOf(root int, p string, st unix.Stat_t) State {
	return State{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Size: st.Size, Mtime: st.Mtim.Nano(), from: place{root, p}}
}

func isWhiteout(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 }

// find gives the topmost thing at a path, and its layer, -1 where there is
// nothing. It begins at the layer from.
func (l *Lower) find(p string, from int) (layer int, st unix.Stat_t, err error) {
	for i := from; i < len(l.layers); i++ {
		fd, err := beneath.Open(l.layers[i], p, unix.O_PATH, 0)
		switch {
		case errors.Is(err, unix.ENOENT):
			continue
		case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENAMETOOLONG):
			return -1, st, nil // a file or a whiteout lies where one of the directories above would
		case err != nil:
			return -1, st, &os.PathError{Op: "look at", Path: p, Err: err}
		}
		err = unix.Fstat(fd, &st)
		unix.Close(fd)
		if err != nil {
			return -1, st, &os.PathError{Op: "look at", Path: p, Err: err}
		}
		if isWhiteout(st) {
			return -1, st, nil
		}
		return i, st, nil
	}
	return -1, st, nil
}

// Lookup tells what lies at a path, "." for the root.
func (l *Lower) Lookup(p string) (State, bool, error) {
	i, st, err := l.find(p, 0)
	if err != nil || i < 0 {
		return State{}, false, err
	}
	s := stateOf(l.layers[i], p, st)
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		if s.Target, err = readlink(l.layers[i], p); err != nil {
			return State{}, false, err
		}
	}
	return s, true, nil
}

// maxTarget bounds a symlink's target, in bytes (PATH_MAX).
const maxTarget = 4096

func readlink(root int, p string) (string, error) {
	parent, err := beneath.Open(root, path.Dir(p), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", &os.PathError{Op: "readlink", Path: p, Err: err}
	}
	defer unix.Close(parent)
	buf := make([]byte, maxTarget)
	n, err := unix.Readlinkat(parent, path.Base(p), buf)
	if err != nil {
		return "", &os.PathError{Op: "readlink", Path: p, Err: err}
	}
	return string(buf[:n]), nil
}

// names lists a directory as the layers show it together, sorted.
func (l *Lower) names(p string) ([]string, error) {
	var out []string
	hidden := map[string]bool{}
	for from := 0; from < len(l.layers); {
		i, st, err := l.find(p, from)
		if err != nil {
			return nil, err
		}
		if i < 0 || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			break
		}
		names, err := readNames(l.layers[i], p)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if hidden[name] {
				continue
			}
			hidden[name] = true
			at, _, err := l.find(path.Join(p, name), i)
			if err != nil {
				return nil, err
			}
			if at >= 0 {
				out = append(out, name)
			}
		}
		from = i + 1
	}
	slices.Sort(out)
	return out, nil
}

func readNames(root int, p string) ([]string, error) {
	fd, err := beneath.Open(root, p, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: p, Err: err}
	}
	d := os.NewFile(uintptr(fd), p)
	defer d.Close()
	names, err := d.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}
