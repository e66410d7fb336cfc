package frozen

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/internal/beneath"
)

// Entry is what lay at a path. Times are in nanoseconds since 1970, Size in
// bytes. The directory itself has the path ".".
type Entry struct {
	Path         string
	Mode         uint32 // as in struct stat: type and permissions
	UID, GID     uint32
	Size         int64
	Mtime, Ctime int64
	Ino          uint64
	Target       string // of a symlink
	// Racy: it was changed so shortly before it was looked at that another change
	// might not show in its times.
	Racy bool
	// Linked: its bytes are those of the original, under a second name.
	Linked bool
}

// Dir tells a directory.
func (e Entry) Dir() bool { return e.Mode&unix.S_IFMT == unix.S_IFDIR }

// Regular tells a file that holds bytes.
func (e Entry) Regular() bool { return e.Mode&unix.S_IFMT == unix.S_IFREG }

// Skipped is what lies in a directory and cannot be kept, with the reason.
type Skipped struct{ Path, Reason string }

// Bounds of what is kept. A directory of hostile contents is no reason to use
// up memory.
const (
	maxEntries = 1 << 23
	maxSkipped = 1000
	maxTarget  = 4096 // PATH_MAX
)

// Scan looks at everything below a directory without reading files. Entries are
// in path order, in which a directory comes before what lies in it and that
// before what lies beside it (Less). leave are paths that are left out, with all
// below. Other file systems that are mounted below are left out.
func Scan(ctx context.Context, dir int, leave []string) ([]Entry, []Skipped, error) {
	var root unix.Stat_t
	if err := unix.Fstat(dir, &root); err != nil {
		return nil, nil, os.NewSyscallError("stat", err)
	}
	var fsys unix.Statfs_t
	if err := unix.Fstatfs(dir, &fsys); err != nil {
		return nil, nil, os.NewSyscallError("statfs", err)
	}
	s := &scanner{root: dir, dev: root.Dev, slack: slack(int64(fsys.Type)), leave: map[string]bool{}}
	for _, p := range leave {
		s.leave[p] = true
	}
	top := &node{}
	s.queue = []*node{top}
	s.open = 1
	s.wake = sync.NewCond(&s.mu)
	stop := context.AfterFunc(ctx, func() { s.fail(context.Cause(ctx)) })
	defer stop()
	var g errgroup.Group
	for range min(runtime.GOMAXPROCS(0), maxWorkers) {
		g.Go(func() error { return s.work() })
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	entries := make([]Entry, 0, s.count+1)
	entries = top.flatten(append(entries, s.entry(".", root, time.Now().UnixNano())))
	slices.SortFunc(s.skipped, func(a, b Skipped) int { return strings.Compare(a.Path, b.Path) })
	return entries, s.skipped, nil
}

const maxWorkers = 8

// slack is how long, in nanoseconds, a file system's times may stand still while
// files change: the kernel's clock tick where times are fine, else seconds.
func slack(fsys int64) int64 {
	switch fsys {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC:
		return int64(50 * time.Millisecond)
	}
	return int64(2500 * time.Millisecond)
}

// node is a directory while its contents are being found. What it holds is
// written by one worker and read when all are done.
type node struct {
	path    string // "" for the root
	entries []Entry
	below   []*node // of those entries that are directories, in order
}

func (n *node) flatten(out []Entry) []Entry {
	dirs := n.below
	for _, e := range n.entries {
		out = append(out, e)
		if len(dirs) > 0 && dirs[0].path == e.Path {
			out = dirs[0].flatten(out)
			dirs = dirs[1:]
		}
	}
	return out
}

type scanner struct {
	root  int
	dev   uint64
	slack int64
	leave map[string]bool

	mu      sync.Mutex
	wake    *sync.Cond
	queue   []*node
	open    int // directories queued or being read
	count   int
	skipped []Skipped
	err     error
}

func (s *scanner) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.wake.Broadcast()
}

func (s *scanner) skip(path, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.skipped) < maxSkipped {
		s.skipped = append(s.skipped, Skipped{path, fmt.Sprintf(format, args...)})
	}
}

func (s *scanner) work() error {
	for {
		s.mu.Lock()
		for len(s.queue) == 0 && s.open > 0 && s.err == nil {
			s.wake.Wait()
		}
		if s.err != nil || s.open == 0 {
			err := s.err
			s.mu.Unlock()
			return err
		}
		n := s.queue[len(s.queue)-1]
		s.queue = s.queue[:len(s.queue)-1]
		s.mu.Unlock()
		err := s.read(n)
		s.mu.Lock()
		s.open += len(n.below) - 1
		s.count += len(n.entries)
		s.queue = append(s.queue, n.below...)
		if err == nil && s.count > maxEntries {
			err = fmt.Errorf("it holds more than %d files", maxEntries)
		}
		if err != nil && s.err == nil {
			s.err = err
		}
		s.wake.Broadcast()
		s.mu.Unlock()
	}
}

// read finds what lies in one directory. One that cannot be read, or is gone
// again, is no error: the caller is told of it.
func (s *scanner) read(n *node) error {
	at := n.path
	if at == "" {
		at = "."
	}
	fd, err := beneath.Open(s.root, at, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		if n.path == "" {
			return os.NewSyscallError("open", err)
		}
		s.skip(n.path, "cannot be read (%v)", err)
		return nil
	}
	d := os.NewFile(uintptr(fd), at)
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		s.skip(at, "cannot be read (%v)", err)
		return nil
	}
	slices.Sort(names)
	n.entries = make([]Entry, 0, len(names))
	for _, name := range names {
		p := name
		if n.path != "" {
			p = n.path + "/" + name
		}
		if s.leave[p] {
			continue
		}
		if err := s.look(n, fd, name, p); err != nil {
			return err
		}
	}
	return nil
}

func (s *scanner) look(n *node, dir int, name, p string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if !errors.Is(err, unix.ENOENT) {
			s.skip(p, "cannot be looked at (%v)", err)
		}
		return nil
	}
	e := s.entry(p, st, time.Now().UnixNano())
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		if st.Dev != s.dev {
			s.skip(p, "is another file system that is mounted there")
			break
		}
		n.below = append(n.below, &node{path: p})
	case unix.S_IFLNK:
		buf := make([]byte, maxTarget)
		k, err := unix.Readlinkat(dir, name, buf)
		if err != nil {
			s.skip(p, "cannot be read (%v)", err)
			return nil
		}
		e.Target = string(buf[:k])
	default:
		s.skip(p, "is a %s", KindOf(st.Mode))
		return nil
	}
	n.entries = append(n.entries, e)
	return nil
}

func (s *scanner) entry(p string, st unix.Stat_t, now int64) Entry {
	e := Entry{Path: p, Mode: st.Mode, UID: st.Uid, GID: st.Gid, Size: st.Size, Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano(), Ino: st.Ino}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		e.Size = 0 // the file system's own affair
	}
	// A clock that went back makes every file look as if from the future: racy.
	e.Racy = max(e.Mtime, e.Ctime) > now-s.slack
	return e
}

// KindOf names the type of a file in words.
func KindOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "file"
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFLNK:
		return "symlink"
	case unix.S_IFIFO:
		return "fifo"
	case unix.S_IFSOCK:
		return "socket"
	case unix.S_IFCHR:
		return "character device"
	case unix.S_IFBLK:
		return "block device"
	}
	return "file of an unknown kind"
}

// Less is path order: names are compared one by one, so that what lies below a
// directory is never parted by what lies beside it.
func Less(a, b string) bool { return compare(a, b) < 0 }

func compare(a, b string) int {
	if a == "." || b == "." {
		return strings.Compare(top(a), top(b))
	}
	for i := 0; i < len(a) && i < len(b); i++ {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		if x == '/' {
			return -1
		}
		if y == '/' || x > y {
			return 1
		}
		return -1
	}
	return len(a) - len(b)
}

// top maps the directory itself before all others.
func top(p string) string {
	if p == "." {
		return ""
	}
	return p
}

// Under tells whether a path lies below a directory.
func Under(p, dir string) bool {
	return dir == "." || strings.HasPrefix(p, dir) && len(p) > len(dir) && p[len(dir)] == '/'
}
