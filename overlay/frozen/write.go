package frozen

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/internal/beneath"
)

// Held counts files and their bytes by how they are held.
type Held struct {
	Cloned, Copied, Linked                int
	ClonedBytes, CopiedBytes, LinkedBytes int64
}

// Options say how a layer is written.
type Options struct {
	// Link tells for which files a second name will do. It is asked for files
	// that cannot be cloned; nil is for none.
	Link func(p string) bool
	// Over says that the layer lies over others, which it may have to hide.
	Over bool
	// MaxCopy bounds what is copied, in bytes; 0 is for no bound.
	MaxCopy int64
}

// TooLargeError says that more would have to be copied than was allowed.
type TooLargeError struct{ Bytes int64 }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("more than %d bytes would have to be copied", e.Bytes)
}

// Layer is what Write has written.
type Layer struct {
	// Entries are those of the scan as they are now: files that changed while
	// they were copied are noted as they were copied, those that went are left
	// out.
	Entries []Entry
	Held    Held
	Skipped []Skipped
}

// Write puts a delta into the empty directory dst, from the directory src of
// which it was made, whose whole scan after is. It syncs nothing. Nothing below
// src is followed or changed, but for the link count where a file is linked.
func Write(ctx context.Context, src, dst int, after []Entry, d Delta, o Options) (Layer, error) {
	var fsys unix.Statfs_t
	if err := unix.Fstatfs(src, &fsys); err != nil {
		return Layer{}, os.NewSyscallError("statfs", err)
	}
	w := &layerWriter{src: src, slack: slack(int64(fsys.Type)), dst: dst, put: d.Put, o: o, uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}
	if err := w.makeDirs(ctx); err != nil {
		return Layer{}, err
	}
	if err := w.hide(d.Gone); err != nil {
		return Layer{}, err
	}
	if err := w.files(ctx); err != nil {
		return Layer{}, err
	}
	if err := w.finishDirs(); err != nil {
		return Layer{}, err
	}
	return Layer{Entries: w.merge(after), Held: w.held, Skipped: w.skipped}, nil
}

type layerWriter struct {
	src, dst int
	put      []Entry
	o        Options
	uid, gid uint32
	slack    int64

	noClone atomic.Bool
	copied  atomic.Int64

	mu      sync.Mutex
	held    Held
	skipped []Skipped
}

// makeDirs makes the directories so that files can be put into them; what they
// are to be like in the end is set when they are full.
func (w *layerWriter) makeDirs(ctx context.Context) error {
	at := beneath.Dirs{Root: w.dst, Keep: true}
	defer at.Close()
	for _, e := range w.put {
		if !e.Dir() || e.Path == "." {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		parent, err := at.Enter(path.Dir(e.Path))
		if err == nil {
			err = unix.Mkdirat(parent, path.Base(e.Path), 0o700)
		}
		if err != nil {
			return fmt.Errorf("make the directory %q: %w", e.Path, err)
		}
	}
	return nil
}

func (w *layerWriter) finishDirs() error {
	at := beneath.Dirs{Root: w.dst, Keep: true}
	defer at.Close()
	for i := len(w.put) - 1; i >= 0; i-- {
		e := w.put[i]
		if !e.Dir() {
			continue
		}
		fd, err := at.Enter(e.Path)
		if err == nil {
			err = w.dress(fd, e)
		}
		if err != nil {
			return fmt.Errorf("finish the directory %q: %w", e.Path, err)
		}
	}
	return nil
}

// dress gives an open file owner, mode and time.
func (w *layerWriter) dress(fd int, e Entry) error {
	if e.UID != w.uid || e.GID != w.gid {
		// Only root can give files away, and only to whom its namespace knows.
		if err := unix.Fchown(fd, int(e.UID), int(e.GID)); err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
			return os.NewSyscallError("chown", err)
		}
	}
	if err := unix.Fchmod(fd, e.Mode&0o7777); err != nil {
		return os.NewSyscallError("chmod", err)
	}
	ts := []unix.Timespec{unix.NsecToTimespec(e.Mtime), unix.NsecToTimespec(e.Mtime)}
	return os.NewSyscallError("utimensat", unix.UtimesNanoAt(fd, "", ts, unix.AT_EMPTY_PATH))
}

// hide marks what is gone, as overlayfs has it
// (Documentation/filesystems/overlayfs.rst, whiteouts and opaque directories).
func (w *layerWriter) hide(gone []string) error {
	if !w.o.Over || len(gone) == 0 {
		return nil
	}
	at := beneath.Dirs{Root: w.dst, Keep: true}
	defer at.Close()
	for _, p := range gone {
		if err := whiteout(&at, p); err != nil {
			return fmt.Errorf("mark %q as gone: %w", p, err)
		}
	}
	return nil
}

func whiteout(at *beneath.Dirs, p string) error {
	parent, err := at.Enter(path.Dir(p))
	if err != nil {
		return err
	}
	return os.NewSyscallError("mknod", unix.Mknodat(parent, path.Base(p), unix.S_IFCHR, 0))
}

// batch is how many files in path order one worker takes at a time.
const batch = 64

func (w *layerWriter) files(ctx context.Context) error {
	var todo []int
	for i, e := range w.put {
		if !e.Dir() {
			todo = append(todo, i)
		}
	}
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range min(runtime.GOMAXPROCS(0), (len(todo)+batch-1)/batch, maxWorkers) {
		g.Go(func() error {
			f := &fileWriter{layerWriter: w,
				from: beneath.Dirs{Root: w.src, Keep: true}, to: beneath.Dirs{Root: w.dst, Keep: true}, buf: make([]byte, 256<<10)}
			defer f.from.Close()
			defer f.to.Close()
			for {
				at := int(next.Add(batch)) - batch
				if at >= len(todo) {
					return nil
				}
				for _, i := range todo[at:min(at+batch, len(todo))] {
					if ctx.Err() != nil {
						return context.Cause(ctx)
					}
					if err := f.keep(&w.put[i]); err != nil {
						return fmt.Errorf("keep %q: %w", w.put[i].Path, err)
					}
				}
			}
		})
	}
	return g.Wait()
}

func (w *layerWriter) skip(p, reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.skipped) < maxSkipped {
		w.skipped = append(w.skipped, Skipped{p, reason})
	}
}

func (w *layerWriter) count(fn func(*Held)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fn(&w.held)
}

// merge takes what was put over from the scan. An entry of no type is one that
// was left out.
func (w *layerWriter) merge(after []Entry) []Entry {
	out := make([]Entry, 0, len(after))
	j := 0
	for _, e := range after {
		if j < len(w.put) && w.put[j].Path == e.Path {
			e = w.put[j]
			j++
		}
		if e.Mode != 0 {
			out = append(out, e)
		}
	}
	return out
}
