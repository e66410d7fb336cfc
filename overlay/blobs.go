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
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// ErrNoBlob says that neither the snapshot nor the store has a blob.
var ErrNoBlob = errors.New("the blob is not in the store")

func (s *Store) blobPath(ref schemas.BlobRef) (string, error) {
	h, ok := ref.Hex()
	if !ok {
		return "", fmt.Errorf("%q is not a blob ref", ref)
	}
	return filepath.Join(s.dir, "blobs", h[:2], h[2:]), nil
}

// PutBlob stores bytes, of which there may be at most limit, under their digest.
func (s *Store) PutBlob(_ context.Context, r io.Reader, limit int64) (schemas.BlobRef, error) {
	tmp, err := os.CreateTemp(filepath.Join(s.dir, "blobs"), "new-")
	if err != nil {
		return "", fmt.Errorf("store a blob: %w", err)
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(tmp, h), io.LimitReader(r, limit+1))
	if err != nil {
		return "", fmt.Errorf("store a blob: %w", err)
	}
	if n > limit {
		return "", fmt.Errorf("store a blob: it has more than %d bytes", limit)
	}
	ref := schemas.BlobRef("blob:sha256:" + hex.EncodeToString(h.Sum(nil)))
	path, err := s.blobPath(ref)
	if err != nil {
		return "", err
	}
	// On disk before it has its name: a blob is whole or not there.
	if err := tmp.Sync(); err != nil {
		return "", fmt.Errorf("store a blob: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", fmt.Errorf("store a blob: %w", err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return "", fmt.Errorf("store a blob: %w", err)
	}
	return ref, nil
}

// HasBlob reports whether PutBlob has stored a blob.
func (s *Store) HasBlob(ref schemas.BlobRef) bool {
	path, err := s.blobPath(ref)
	if err != nil {
		return false
	}
	_, err = os.Stat(path)
	return err == nil
}

// OpenBlob gives a blob that PutBlob stored.
func (s *Store) OpenBlob(ref schemas.BlobRef) (io.ReadCloser, int64, error) {
	path, err := s.blobPath(ref)
	if err != nil {
		return nil, 0, err
	}
	return openVerified(path, ref)
}

// OpenBlob gives the bytes of a blob of the snapshot: a file's content, or what
// stands for a symlink or a submodule.
func (s *Snapshot) OpenBlob(ref schemas.BlobRef) (io.ReadCloser, int64, error) {
	path, f, err := s.locate(ref)
	switch {
	case err != nil:
		return nil, 0, err
	case path == "":
		return nil, 0, ErrNoBlob
	case f.Mode == gitrepo.ModeGitlink:
		return verified(gitrepo.GitlinkContent(f.OID), ref)
	case f.Mode == gitrepo.ModeSymlink:
		target, err := os.Readlink(path)
		if err != nil {
			return nil, 0, fmt.Errorf("read a blob: %w", err)
		}
		return verified([]byte(target), ref)
	}
	return openVerified(path, ref)
}

func verified(b []byte, ref schemas.BlobRef) (io.ReadCloser, int64, error) {
	if schemas.BlobRefOf(b) != ref {
		return nil, 0, fmt.Errorf("the store's copy of %s is damaged", ref)
	}
	return io.NopCloser(bytes.NewReader(b)), int64(len(b)), nil
}

// openVerified opens a file whose bytes are checked as they are read: instead
// of io.EOF the reader ends with an error when they are not what ref names.
func openVerified(path string, ref schemas.BlobRef) (io.ReadCloser, int64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, ErrNoBlob
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read a blob: %w", err)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%q is not a regular file", path)
	}
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("read a blob: %w", err), f.Close())
	}
	return &verifier{f: f, h: sha256.New(), ref: ref}, st.Size(), nil
}

type verifier struct {
	f   *os.File
	h   hash.Hash
	ref schemas.BlobRef
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.f.Read(p)
	v.h.Write(p[:n])
	if errors.Is(err, io.EOF) {
		if want, _ := v.ref.Hex(); hex.EncodeToString(v.h.Sum(nil)) != want {
			return n, fmt.Errorf("the store's copy of %s is damaged; remove the state directory to have it made again", v.ref)
		}
	}
	return n, err
}

func (v *verifier) Close() error { return v.f.Close() }
