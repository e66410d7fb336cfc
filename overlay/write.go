package overlay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/overlay/internal/beneath"
	"github.com/aspis-dev/aspis/schemas"
)

const (
	// maxTarget bounds a symlink's target, in bytes (PATH_MAX of Linux).
	maxTarget = 4096

	// maxWriters bounds the git processes that one snapshot is written from.
	maxWriters = 8

	// A writer takes so many files in path order at a time: enough for a directory
	// to be opened once and not to be written by two, few enough for all to end
	// together.
	minBatch = 64
	maxBatch = 1024

	copyBuffer = 128 << 10
)

// writeFiles writes entries, which are in path order, into a layer, several at
// a time, and returns them with their digests. first is a reader to begin with,
// or nil; it is closed here.
func writeFiles(ctx context.Context, src Source, layer string, entries []gitrepo.TreeEntry, first *gitrepo.BlobReader) ([]File, error) {
	root, err := unix.Open(layer, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(&os.PathError{Op: "open", Path: layer, Err: err}, closeReader(first))
	}
	defer unix.Close(root)
	files := make([]File, len(entries))
	var next atomic.Int64
	batch := min(max(len(entries)/(16*runtime.GOMAXPROCS(0)), minBatch), maxBatch)
	g, ctx := errgroup.WithContext(ctx)
	for w := range min(runtime.GOMAXPROCS(0), (len(entries)+batch-1)/batch, maxWriters) {
		reader := first
		if w > 0 {
			reader = nil
		} else {
			first = nil
		}
		g.Go(func() (err error) {
			if reader == nil {
				if reader, err = src.Blobs(ctx); err != nil {
					return err
				}
			}
			wr := &writer{dirs: beneath.Dirs{Root: root}, blobs: reader, hash: sha256.New(), buf: make([]byte, copyBuffer)}
			defer wr.dirs.Close()
			defer func() { err = errors.Join(err, reader.Close()) }()
			for {
				from := int(next.Add(int64(batch))) - batch
				if from >= len(entries) {
					return nil
				}
				for part := range slices.Chunk(entries[from:min(from+batch, len(entries))], gitrepo.MaxAhead) {
					if err := wr.writeAll(ctx, part, files[from:]); err != nil {
						return err
					}
					from += len(part)
				}
			}
		})
	}
	if err := errors.Join(g.Wait(), closeReader(first)); err != nil {
		return nil, err
	}
	return files, nil
}

func closeReader(r *gitrepo.BlobReader) error {
	if r == nil {
		return nil
	}
	return r.Close()
}

// writer writes files one after another.
type writer struct {
	dirs  beneath.Dirs
	blobs *gitrepo.BlobReader
	hash  hash.Hash
	buf   []byte
}

// writeAll writes entries and puts what they are into files.
func (w *writer) writeAll(ctx context.Context, entries []gitrepo.TreeEntry, files []File) (err error) {
	if err := w.ask(entries); err != nil {
		return err
	}
	for i, e := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if files[i], err = w.write(e); err != nil {
			return fmt.Errorf("write %q: %w", e.Path, err)
		}
	}
	return nil
}

// ask tells git what comes next.
func (w *writer) ask(entries []gitrepo.TreeEntry) error {
	var oids []gitrepo.OID
	for _, e := range entries {
		switch e.Mode {
		case gitrepo.ModeFile, gitrepo.ModeExec, gitrepo.ModeSymlink:
			oids = append(oids, e.OID)
		}
	}
	return w.blobs.Ask(oids)
}

func (w *writer) write(e gitrepo.TreeEntry) (File, error) {
	f := File{Path: e.Path, Mode: e.Mode, OID: e.OID}
	if err := checkPath(e.Path); err != nil {
		return f, err
	}
	parent, err := w.dirs.Enter(path.Dir(e.Path))
	if err != nil {
		var not *beneath.NotADirectoryError
		if errors.As(err, &not) {
			err = &TreeError{Path: not.Path, Detail: "is both a file and a directory"}
		}
		return f, err
	}
	name := path.Base(e.Path)
	switch e.Mode {
	case gitrepo.ModeGitlink:
		// A submodule that is not checked out is an empty directory.
		content := gitrepo.GitlinkContent(e.OID)
		f.Blob, f.Size = schemas.BlobRefOf(content), int64(len(content))
		return f, taken(e.Path, beneath.MakeDir(parent, name))
	case gitrepo.ModeSymlink:
		f.Blob, f.Size, err = w.symlink(parent, name, e)
	case gitrepo.ModeFile:
		f.Blob, f.Size, err = w.file(parent, name, e, 0o644)
	case gitrepo.ModeExec:
		f.Blob, f.Size, err = w.file(parent, name, e, 0o755)
	default:
		err = &TreeError{Path: e.Path, Detail: fmt.Sprintf("has the mode %o, which is none of git's", e.Mode)}
	}
	return f, err
}

func (w *writer) symlink(parent int, name string, e gitrepo.TreeEntry) (schemas.BlobRef, int64, error) {
	var target strings.Builder
	if _, err := w.blobs.Read(e.OID, &target, maxTarget); err != nil {
		return "", 0, err
	}
	t := target.String()
	if t == "" || len(t) == maxTarget || strings.Contains(t, "\x00") {
		return "", 0, &TreeError{Path: e.Path, Detail: "is a symlink without a usable target"}
	}
	return schemas.BlobRefOf([]byte(t)), int64(len(t)), taken(e.Path, unix.Symlinkat(t, parent, name))
}

func (w *writer) file(parent int, name string, e gitrepo.TreeEntry, mode uint32) (ref schemas.BlobRef, size int64, err error) {
	fd, err := beneath.Open(parent, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, mode)
	if err != nil {
		return "", 0, taken(e.Path, err)
	}
	w.hash.Reset()
	size, err = w.blobs.Read(e.OID, &sink{fd: fd, hash: w.hash, buf: w.buf}, 0)
	if err == nil {
		err = setMode(fd, mode)
	}
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return "", 0, err
	}
	return schemas.BlobRef("blob:sha256:" + hex.EncodeToString(w.hash.Sum(nil))), size, nil
}

// setMode gives a new file its permissions: the process's umask must not decide
// what a provider may read. Looking costs far less than setting.
func setMode(fd int, mode uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("stat", err)
	}
	if st.Mode&0o7777 == mode {
		return nil
	}
	return os.NewSyscallError("chmod", unix.Fchmod(fd, mode))
}

// sink writes and hashes with a buffer that is used again for the next file.
type sink struct {
	fd   int
	hash hash.Hash
	buf  []byte
}

// ReadFrom is what io.Copy calls.
func (s *sink) ReadFrom(r io.Reader) (n int64, err error) {
	for {
		k := 0
		for k < len(s.buf) && err == nil {
			var got int
			got, err = r.Read(s.buf[k:])
			k += got
		}
		if k > 0 {
			if _, werr := s.Write(s.buf[:k]); werr != nil {
				return n, werr
			}
			n += int64(k)
		}
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

func (s *sink) Write(p []byte) (int, error) {
	s.hash.Write(p)
	for at := 0; at < len(p); {
		n, err := unix.Write(s.fd, p[at:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return at, err
		}
		at += n
	}
	return len(p), nil
}

// taken explains why a name that should be free is not.
func taken(p string, err error) error {
	if errors.Is(err, unix.EEXIST) {
		return &TreeError{Path: p, Detail: "is there twice, or its name is the same as another's on the state directory's file system, which folds case"}
	}
	return err
}

// checkPath refuses what git never has in a tree and what must not be written
// were it there.
func checkPath(p string) error {
	for name := range strings.SplitSeq(p, "/") {
		switch {
		case name == "" || name == "." || name == ".." || strings.Contains(name, "\x00"):
			return &TreeError{Path: p, Detail: "is no path of a file"}
		case len(name) > unix.NAME_MAX:
			return &TreeError{Path: p, Detail: fmt.Sprintf("has a name of more than %d bytes", unix.NAME_MAX)}
		case isDotGit(name):
			return &TreeError{Path: p, Detail: "would be seen as git's own directory"}
		}
	}
	return nil
}

// isDotGit knows .git in every spelling that a file system may fold to it:
// another case, or characters in between that it ignores (the list is that of
// git's core.protectHFS).
func isDotGit(name string) bool {
	if len(name) < 4 || name[0] != '.' && name[0] < 0x80 {
		return false
	}
	plain := strings.Map(func(r rune) rune {
		switch {
		case r >= 0x200c && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x206a && r <= 0x206f, r == 0xfeff:
			return -1
		}
		return r
	}, name)
	return strings.EqualFold(plain, ".git")
}
