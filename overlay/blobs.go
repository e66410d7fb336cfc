package overlay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/overlay/internal/beneath"
	"github.com/aspis-dev/aspis/schemas"
)

const (
	// newBlob begins the names of blobs that are not whole yet.
	newBlob = "new-"

	// wholeBlob is the size in bytes up to which a blob is read and verified
	// before any of it is handed out.
	wholeBlob = 1 << 20
)

func (s *Store) blobPath(ref schemas.BlobRef) (string, error) {
	h, ok := ref.Hex()
	if !ok {
		return "", fmt.Errorf("%q is not a blob ref", ref)
	}
	return s.path("blobs", "sha256", h[:2], h[2:]), nil
}

// PutBlob stores bytes, of which there may be at most limit, under their
// digest. A blob is whole or not there, also after a crash.
func (s *Store) PutBlob(ctx context.Context, r io.Reader, limit int64) (schemas.BlobRef, error) {
	ref, err := s.putBlob(ctx, r, limit)
	if err != nil {
		return "", s.advise(fmt.Errorf("store a blob: %w", err))
	}
	return ref, nil
}

func (s *Store) putBlob(ctx context.Context, r io.Reader, limit int64) (schemas.BlobRef, error) {
	tmp, err := os.CreateTemp(s.path("blobs"), newBlob)
	if err != nil {
		return "", err
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(tmp, h), io.LimitReader(reader{ctx, r}, limit+1))
	if err != nil {
		return "", err
	}
	if n > limit {
		return "", fmt.Errorf("it has more than %d bytes", limit)
	}
	ref := schemas.BlobRef("blob:sha256:" + hex.EncodeToString(h.Sum(nil)))
	at, err := s.blobPath(ref)
	if err != nil {
		return "", err
	}
	// On disk before it has its name.
	if err := tmp.Sync(); err != nil {
		return "", err
	}
	if err := makeDir(filepath.Dir(at)); err != nil {
		return "", err
	}
	return ref, os.Rename(tmp.Name(), at)
}

// reader ends when its context does.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}

// HasBlob reports whether PutBlob has stored a blob.
func (s *Store) HasBlob(ref schemas.BlobRef) bool {
	at, err := s.blobPath(ref)
	if err != nil {
		return false
	}
	st, err := os.Lstat(at)
	if err != nil || !st.Mode().IsRegular() {
		return false
	}
	return s.touchBlob(at, st.ModTime()) == nil
}

// touchBlob notes that a blob is of use still, so that it is not collected.
func (s *Store) touchBlob(at string, last time.Time) error {
	now := time.Now()
	if now.Sub(last) < staleBlob/2 {
		return nil
	}
	return os.Chtimes(at, now, now)
}

// OpenBlob gives a blob that PutBlob stored, and its size in bytes. Up to
// 1 MiB it has been verified; a larger one is while it is read, and then the
// reader ends with an error instead of io.EOF if it is not what ref names.
func (s *Store) OpenBlob(ref schemas.BlobRef) (io.ReadCloser, int64, error) {
	at, err := s.blobPath(ref)
	if err != nil {
		return nil, 0, err
	}
	fd, err := unix.Open(at, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, 0, ErrNoBlob
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read a blob: %w", &os.PathError{Op: "open", Path: at, Err: err})
	}
	f := os.NewFile(uintptr(fd), at)
	if st, err := f.Stat(); err == nil {
		// Where it cannot be noted, as on a read-only file system, nothing is
		// collected either.
		_ = s.touchBlob(at, st.ModTime())
	}
	return s.openVerified(f, ref, -1)
}

// OpenBlob gives the bytes of a blob of the snapshot, verified like those of
// Store.OpenBlob: a file's content, or what stands for a symlink or a submodule.
func (s *Snapshot) OpenBlob(ref schemas.BlobRef) (io.ReadCloser, int64, error) {
	at, f, err := s.locate(ref)
	if err != nil {
		return nil, 0, err
	}
	if f.Mode == gitrepo.ModeGitlink {
		return s.store.verified(gitrepo.GitlinkContent(f.OID), ref)
	}
	layer, err := unix.Open(s.store.layerDir(at.layer), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, s.store.unread(f.Path, err)
	}
	defer unix.Close(layer)
	if f.Mode == gitrepo.ModeSymlink {
		target, err := readlinkBeneath(layer, f.Path)
		if err != nil {
			return nil, 0, s.store.unread(f.Path, err)
		}
		return s.store.verified([]byte(target), ref)
	}
	fd, err := beneath.Open(layer, f.Path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, s.store.unread(f.Path, err)
	}
	return s.store.openVerified(os.NewFile(uintptr(fd), f.Path), ref, f.Size)
}

// locate finds the layer and the file that hold a blob.
func (s *Snapshot) locate(ref schemas.BlobRef) (*Snapshot, File, error) {
	for at := s; at != nil; at = at.base {
		m, err := at.manifest()
		if err != nil {
			return nil, File{}, err
		}
		if files, err := m.holding(ref, 1); err != nil || len(files) > 0 {
			if err != nil {
				return nil, File{}, err
			}
			return at, files[0], nil
		}
	}
	return nil, File{}, ErrNoBlob
}

func (s *Store) unread(p string, err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EINVAL) {
		return &DamagedError{Dir: s.dir, Detail: fmt.Sprintf("the file %q of a snapshot is not there", p)}
	}
	return fmt.Errorf("read the file %q of a snapshot: %w", p, err)
}

func readlinkBeneath(layer int, p string) (string, error) {
	parent, err := beneath.Open(layer, path.Dir(p), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(parent)
	buf := make([]byte, maxTarget)
	n, err := unix.Readlinkat(parent, path.Base(p), buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func (s *Store) notWhatItWas(ref schemas.BlobRef) error {
	return &DamagedError{Dir: s.dir, Detail: fmt.Sprintf("its copy of %s has other bytes", ref)}
}

func (s *Store) verified(b []byte, ref schemas.BlobRef) (io.ReadCloser, int64, error) {
	if schemas.BlobRefOf(b) != ref {
		return nil, 0, s.notWhatItWas(ref)
	}
	return io.NopCloser(bytes.NewReader(b)), int64(len(b)), nil
}

// openVerified takes over an open file. want is the size that it must have; -1
// for any.
func (s *Store) openVerified(f *os.File, ref schemas.BlobRef, want int64) (_ io.ReadCloser, _ int64, err error) {
	keep := false
	defer func() {
		if !keep {
			f.Close()
		}
	}()
	st, err := f.Stat()
	if err != nil {
		return nil, 0, fmt.Errorf("read a blob: %w", err)
	}
	if !st.Mode().IsRegular() || want >= 0 && st.Size() != want {
		return nil, 0, s.notWhatItWas(ref)
	}
	if st.Size() <= wholeBlob {
		b := make([]byte, st.Size())
		if _, err := io.ReadFull(f, b); err != nil {
			return nil, 0, fmt.Errorf("read a blob: %w", err)
		}
		return s.verified(b, ref)
	}
	keep = true
	return &verifier{store: s, f: f, h: sha256.New(), ref: ref}, st.Size(), nil
}

type verifier struct {
	store *Store
	f     *os.File
	h     hash.Hash
	ref   schemas.BlobRef
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.f.Read(p)
	v.h.Write(p[:n])
	if errors.Is(err, io.EOF) {
		if want, _ := v.ref.Hex(); hex.EncodeToString(v.h.Sum(nil)) != want {
			return n, v.store.notWhatItWas(v.ref)
		}
	}
	return n, err
}

func (v *verifier) Close() error { return v.f.Close() }
