package kernel

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Bounds on what is read. Each is many times what a sandbox's files have; a
// machine's own mount table is the longest.
const (
	maxText    = 256 << 10
	maxMounts  = 4 << 20
	maxThreads = 256
	maxFiles   = 4096
)

// errTooLong is given for a file that has more than anybody needs.
var errTooLong = errors.New("longer than any that is expected")

// process is one entry of /proc, held open: everything read through it is of
// the same process, and reads fail when that has ended, even if its number is
// used again.
type process struct {
	fd  int
	buf []byte
}

func openProcess(pid int) (*process, error) {
	path := "/proc/" + strconv.Itoa(pid)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return &process{fd: fd, buf: make([]byte, 32<<10)}, nil
}

func (p *process) close() { _ = unix.Close(p.fd) }

// text reads a whole file below the entry.
func (p *process) text(name string, limit int) (string, error) {
	s, err := readAt(p.fd, name, limit, p.buf)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", name, err)
	}
	return s, nil
}

// readAt reads a file relative to a directory, with buf for small ones.
func readAt(dir int, name string, limit int, buf []byte) (string, error) {
	fd, err := retry(func() (int, error) {
		return unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	})
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	used := 0
	for {
		if used == len(buf) {
			buf = append(buf, make([]byte, len(buf)+4096)...)
		}
		n, err := retry(func() (int, error) { return unix.Read(fd, buf[used:]) })
		if err != nil {
			return "", err
		}
		if n == 0 {
			return string(buf[:used]), nil
		}
		if used += n; used > limit {
			return "", errTooLong
		}
	}
}

// retry repeats a system call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// link reads a symbolic link below the entry.
func (p *process) link(name string) (string, error) {
	n, err := unix.Readlinkat(p.fd, name, p.buf)
	if err != nil {
		return "", fmt.Errorf("read link %s: %w", name, err)
	}
	if n == len(p.buf) {
		return "", fmt.Errorf("read link %s: %w", name, errTooLong)
	}
	return string(p.buf[:n]), nil
}

// fileID identifies a file, directory, pipe or namespace.
type fileID struct{ dev, ino uint64 }

// idAt follows links, the kernel's own among them, to what name stands for.
func idAt(dir int, name string) (fileID, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, 0); err != nil {
		return fileID{}, fmt.Errorf("look at %s: %w", name, err)
	}
	return fileID{st.Dev, st.Ino}, nil
}

// names lists a directory below the entry, sorted, without "." and "..".
func (p *process) names(name string, limit int) ([]string, error) {
	fd, err := unix.Openat(p.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", name, err)
	}
	defer unix.Close(fd)
	list, err := listFd(fd, limit, p.buf)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", name, err)
	}
	return list, nil
}

func listFd(fd, limit int, buf []byte) ([]string, error) {
	var list []string
	for {
		n, err := retry(func() (int, error) { return unix.Getdents(fd, buf) })
		if err != nil {
			return nil, err
		}
		if n == 0 {
			slices.Sort(list)
			return list, nil
		}
		_, _, list = unix.ParseDirent(buf[:n], -1, list)
		if len(list) > limit {
			return nil, errTooLong
		}
	}
}

// files gives what each open descriptor of the process stands for.
func (p *process) files() ([]OpenFile, error) {
	list, err := p.names("fd", maxFiles)
	if err != nil {
		return nil, err
	}
	open := make([]OpenFile, 0, len(list))
	for _, name := range list {
		n, err := strconv.Atoi(name)
		if err != nil {
			return nil, fmt.Errorf("list fd: %q is not a number", name)
		}
		target, err := p.link("fd/" + name)
		if errors.Is(err, unix.ENOENT) {
			continue // closed meanwhile, or our own view of the directory
		}
		if err != nil {
			return nil, err
		}
		open = append(open, OpenFile{FD: n, Target: target})
	}
	slices.SortFunc(open, func(a, b OpenFile) int { return a.FD - b.FD })
	return open, nil
}

// OpenFile is one open descriptor of a process.
type OpenFile struct {
	FD     int
	Target string // as the kernel names it: a path, or "pipe:[123]"
}

// Pipe gives the inode number of a pipe.
func (f OpenFile) Pipe() (ino uint64, ok bool) {
	s, ok := strings.CutPrefix(f.Target, "pipe:[")
	if !ok {
		return 0, false
	}
	s, ok = strings.CutSuffix(s, "]")
	if !ok {
		return 0, false
	}
	ino, err := strconv.ParseUint(s, 10, 64)
	return ino, err == nil
}

// readText is for files that are no process's own.
func readText(path string, limit int) (string, error) {
	s, err := readAt(unix.AT_FDCWD, path, limit, make([]byte, 4096))
	if err != nil {
		return "", &os.PathError{Op: "read", Path: path, Err: err}
	}
	return s, nil
}
