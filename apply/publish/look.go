package publish

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

const (
	readBuffer = 128 << 10
	maxTarget  = 4096 // of a symlink, in bytes (PATH_MAX)

	// A program that has a file open for writing is given this long to close it.
	quietFor   = 100 * time.Millisecond
	quietAgain = 2 * time.Millisecond
)

// quiet is what a lease tells of a file: whether some program has it open for
// writing. fcntl(2): a read lease is granted only where none has.
type quiet int

const (
	quietUnknown quiet = iota // no lease to be had: another's file, or the file system knows none
	quietYes
	quietNo
)

// sight is what lies at a name.
type sight struct {
	state State
	dir   bool // a directory; its state is zero
	odd   bool // a device, a pipe, a socket
	quiet quiet
	st    unix.Stat_t
}

func (s sight) exists() bool { return s.st.Ino != 0 || s.state.Mode != 0 || s.dir || s.odd }

// looker reads files, one at a time.
type looker struct {
	buf        []byte
	ignoreExec bool
}

// matches compares what lies somewhere with what is expected.
func (l *looker) matches(found sight, want State) bool {
	if found.dir || found.odd {
		return false
	}
	got := found.state
	if l.ignoreExec && got.Mode == gitrepo.ModeExec && want.Mode == gitrepo.ModeFile || l.ignoreExec && got.Mode == gitrepo.ModeFile && want.Mode == gitrepo.ModeExec {
		got.Mode = want.Mode
	}
	return got == want
}

// look tells what lies at a name. A file that is open for writing is waited for
// a little.
func (l *looker) look(ctx context.Context, dir int, name string) (sight, error) {
	end := time.Now().Add(quietFor)
	for {
		s, err := l.once(ctx, dir, name)
		if err != nil || s.quiet != quietNo || time.Now().After(end) {
			return s, err
		}
		select {
		case <-ctx.Done():
			return s, context.Cause(ctx)
		case <-time.After(quietAgain):
		}
	}
}

func (l *looker) once(ctx context.Context, dir int, name string) (sight, error) {
	var s sight
	err := unix.Fstatat(dir, name, &s.st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return sight{}, nil
	}
	if err != nil {
		return s, os.NewSyscallError("stat", err)
	}
	switch s.st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		s.dir = true
		return s, nil
	case unix.S_IFLNK:
		return l.link(dir, name, s)
	case unix.S_IFREG:
		return l.file(ctx, dir, name)
	}
	s.odd = true
	return s, nil
}

func (l *looker) link(dir int, name string, s sight) (sight, error) {
	n, err := unix.Readlinkat(dir, name, l.space()[:maxTarget])
	if errors.Is(err, unix.ENOENT) {
		return sight{}, nil
	}
	if errors.Is(err, unix.EINVAL) { // it became a file just now
		return sight{st: s.st, odd: true}, nil
	}
	if err != nil {
		return s, os.NewSyscallError("readlink", err)
	}
	s.state = State{Mode: gitrepo.ModeSymlink, Blob: schemas.BlobRefOf(l.buf[:n])}
	return s, nil
}

func (l *looker) file(ctx context.Context, dir int, name string) (s sight, err error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return sight{}, nil
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO): // another kind of thing by now
		return sight{odd: true}, nil
	case err != nil:
		return s, os.NewSyscallError("open", err)
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &s.st); err != nil {
		return s, os.NewSyscallError("stat", err)
	}
	if s.st.Mode&unix.S_IFMT != unix.S_IFREG {
		s.odd = true
		return s, nil
	}
	s.state.Mode = gitrepo.ModeFile
	if s.st.Mode&unix.S_IXUSR != 0 {
		s.state.Mode = gitrepo.ModeExec
	}
	// While the lease stands whoever opens the file for writing waits, so that
	// the bytes that are read are those of one moment.
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
	switch {
	case err == nil:
		s.quiet = quietYes
	case errors.Is(err, unix.EAGAIN):
		s.quiet = quietNo
	}
	s.state.Blob, err = l.digest(ctx, fd)
	if s.quiet == quietYes {
		if now, err := unix.FcntlInt(uintptr(fd), unix.F_GETLEASE, 0); err != nil || now != unix.F_RDLCK {
			s.quiet = quietNo
		}
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return s, err
}

func (l *looker) digest(ctx context.Context, fd int) (schemas.BlobRef, error) {
	h := sha256.New()
	buf := l.space()
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return "", os.NewSyscallError("read", err)
		}
		if n == 0 {
			return schemas.BlobRef("blob:sha256:" + hex.EncodeToString(h.Sum(nil))), nil
		}
		h.Write(buf[:n])
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
	}
}

func (l *looker) space() []byte {
	if l.buf == nil {
		l.buf = make([]byte, readBuffer)
	}
	return l.buf
}

// describe says how what was found differs from what was expected.
func describe(found sight, want State) string {
	switch {
	case found.dir:
		return "is a directory with files in it"
	case found.odd:
		return "is neither a file nor a symlink"
	case found.state == want && found.quiet == quietNo:
		return "is open for writing in another program"
	case found.state.Mode == 0:
		return "is not there"
	case want.Mode == 0:
		return "is there already"
	case found.state.Blob == want.Blob:
		return fmt.Sprintf("has the mode %o instead of %o", found.state.Mode, want.Mode)
	}
	return "has other content"
}
