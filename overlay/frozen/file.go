package frozen

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/internal/beneath"
)

// fileWriter keeps files one after another.
type fileWriter struct {
	*layerWriter
	from, to beneath.Dirs
	buf      []byte
}

// tries is how often a file that is being written is copied anew, before the
// copy is kept as it is and told of.
const tries = 4

// keep writes one file or symlink. The entry is changed to what was kept; one
// that could not be has no mode afterwards.
func (f *fileWriter) keep(e *Entry) error {
	to, err := f.to.Enter(path.Dir(e.Path))
	if err != nil {
		return err
	}
	name := path.Base(e.Path)
	if !e.Regular() {
		if err := unix.Symlinkat(e.Target, to, name); err != nil {
			return os.NewSyscallError("symlink", err)
		}
		return f.dressLink(to, name, *e)
	}
	from, err := f.from.Enter(path.Dir(e.Path))
	if err != nil {
		return f.leave(to, e, err)
	}
	fd, err := unix.Openat(from, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return f.leave(to, e, err)
	}
	defer unix.Close(fd)
	st, err := f.stat(fd)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return f.leave(to, e, unix.ESTALE)
	}
	note(e, st)
	mayLink := f.o.Link != nil && f.o.Link(e.Path)
	if mayLink && f.noClone.Load() && f.link(from, to, name, st, e) {
		f.count(func(h *Held) { h.Linked++; h.LinkedBytes += st.Size })
		return nil
	}
	out, err := unix.Openat(to, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return os.NewSyscallError("create", err)
	}
	defer unix.Close(out)
	knew := f.noClone.Load()
	switch {
	case f.clone(out, fd):
		f.count(func(h *Held) { h.Cloned++; h.ClonedBytes += st.Size })
	case mayLink && !knew:
		// Only now is it known that there is no cloning here.
		if err := unix.Unlinkat(to, name, 0); err != nil {
			return os.NewSyscallError("unlink", err)
		}
		return f.keep(e)
	default:
		if err := f.copy(out, fd, e); err != nil {
			return err
		}
	}
	if err := copyAttributes(out, fd, f.buf); err != nil {
		return err
	}
	// What was cloned or copied is as recent as the last look at it.
	e.Racy = max(e.Mtime, e.Ctime) > time.Now().UnixNano()-f.slack
	return f.dress(out, *e)
}

func (f *fileWriter) dressLink(to int, name string, e Entry) error {
	if e.UID != f.uid || e.GID != f.gid {
		if err := unix.Fchownat(to, name, int(e.UID), int(e.GID), unix.AT_SYMLINK_NOFOLLOW); err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
			return os.NewSyscallError("chown", err)
		}
	}
	ts := []unix.Timespec{unix.NsecToTimespec(e.Mtime), unix.NsecToTimespec(e.Mtime)}
	return os.NewSyscallError("utimensat", unix.UtimesNanoAt(to, name, ts, unix.AT_SYMLINK_NOFOLLOW))
}

// leave leaves a file out: it went meanwhile, which is none of our business, or
// it cannot be read, which is told.
func (f *fileWriter) leave(to int, e *Entry, err error) error {
	if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.ESTALE) {
		f.skip(e.Path, fmt.Sprintf("cannot be read (%v)", err))
	}
	e.Mode = 0
	if f.o.Over {
		return os.NewSyscallError("mknod", unix.Mknodat(to, path.Base(e.Path), unix.S_IFCHR, 0))
	}
	return nil
}

func (f *fileWriter) stat(fd int) (st unix.Stat_t, err error) {
	return st, os.NewSyscallError("stat", unix.Fstat(fd, &st))
}

func note(e *Entry, st unix.Stat_t) {
	e.Mode, e.UID, e.GID, e.Size, e.Mtime, e.Ctime, e.Ino = st.Mode, st.Uid, st.Gid, st.Size, st.Mtim.Nano(), st.Ctim.Nano(), st.Ino
}

// clone shares the bytes where the file system can (ioctl_ficlone(2)); where it
// once could not it is not asked again.
func (f *fileWriter) clone(out, in int) bool {
	if f.noClone.Load() {
		return false
	}
	if err := unix.IoctlFileClone(out, in); err != nil {
		f.noClone.Store(true)
		return false
	}
	return true
}

// link gives the original a second name, if it is still what was looked at.
func (f *fileWriter) link(from, to int, name string, was unix.Stat_t, e *Entry) bool {
	if unix.Linkat(from, name, to, name, 0) != nil {
		return false // another file system or owner, or too many links
	}
	var st unix.Stat_t
	if unix.Fstatat(to, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Ino != was.Ino || st.Dev != was.Dev {
		_ = unix.Unlinkat(to, name, 0) // if it stays, making the copy says so
		return false
	}
	note(e, st)
	e.Linked, e.Racy = true, false
	return true
}

// copy copies until the file stood still meanwhile.
func (f *fileWriter) copy(out, in int, e *Entry) error {
	if total := f.copied.Add(e.Size); f.o.MaxCopy > 0 && total > f.o.MaxCopy {
		return &TooLargeError{Bytes: f.o.MaxCopy}
	}
	for try := 0; ; try++ {
		before := *e
		if err := f.copyBytes(out, in, e.Size); err != nil {
			return err
		}
		st, err := f.stat(in)
		if err != nil {
			return err
		}
		note(e, st)
		if !differs(Entry{Mode: before.Mode, UID: before.UID, GID: before.GID, Size: before.Size, Mtime: before.Mtime, Ctime: before.Ctime, Ino: before.Ino, Target: e.Target}, *e) {
			break
		}
		if try == tries {
			f.skip(e.Path, "was being written: what is kept of it may be of several moments")
			break
		}
		if err := unix.Ftruncate(out, 0); err != nil {
			return os.NewSyscallError("truncate", err)
		}
	}
	f.count(func(h *Held) { h.Copied++; h.CopiedBytes += e.Size })
	return nil
}

// copyBytes copies up to size bytes from the beginning, and leaves holes where
// the original has some.
func (f *fileWriter) copyBytes(out, in int, size int64) error {
	var st unix.Stat_t
	if err := unix.Fstat(in, &st); err != nil {
		return os.NewSyscallError("stat", err)
	}
	if st.Blocks*512 >= size {
		return f.copyRange(out, in, 0, size)
	}
	for at := int64(0); at < size; {
		data, err := unix.Seek(in, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return f.copyRange(out, in, at, size)
		}
		hole, err := unix.Seek(in, data, unix.SEEK_HOLE)
		if err != nil {
			return os.NewSyscallError("lseek", err)
		}
		if err := f.copyRange(out, in, data, min(hole, size)); err != nil {
			return err
		}
		at = hole
	}
	return os.NewSyscallError("truncate", unix.Ftruncate(out, size))
}

func (f *fileWriter) copyRange(out, in int, at, end int64) error {
	for at < end {
		n, err := unix.Pread(in, f.buf[:min(int64(len(f.buf)), end-at)], at)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("read", err)
		}
		if n == 0 {
			return nil // it became shorter, which is seen afterwards
		}
		for b, to := f.buf[:n], at; len(b) > 0; {
			k, err := unix.Pwrite(out, b, to)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return os.NewSyscallError("write", err)
			}
			if k == 0 {
				return io.ErrShortWrite
			}
			b, to = b[k:], to+int64(k)
		}
		at += int64(n)
	}
	return nil
}

// copyAttributes copies what users have noted beside a file. overlayfs's own
// names are not users' to give.
func copyAttributes(out, in int, buf []byte) error {
	n, err := unix.Flistxattr(in, buf)
	if err != nil || n == 0 {
		return nil // there are none here, or more than can matter
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		if !strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "user.overlay.") {
			continue
		}
		n, err := unix.Fgetxattr(in, name, buf)
		if err != nil {
			continue // removed meanwhile
		}
		err = unix.Fsetxattr(out, name, buf[:n], 0)
		if err != nil && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.EPERM) {
			return os.NewSyscallError("setxattr", err)
		}
	}
	return nil
}
