// Package artifact makes sure that what is launched is what was pinned: it
// computes digests of installed provider artifacts and, just before a launch,
// yields a directory whose content has exactly the pinned digest. It knows
// nothing of policy, processes or ASP.
package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/schemas"
)

// Bounds of an artifact directory; more is an error, never a partial digest.
const (
	maxFiles = 200_000
	maxBytes = 8 << 30
)

// MissingError says that an artifact is not there or cannot be read.
type MissingError struct {
	Path string
	Err  error
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("the provider's artifact %q cannot be used: %v", e.Path, e.Err)
}
func (e *MissingError) Unwrap() error { return e.Err }

// MismatchError says that an artifact has another digest than the pinned one.
type MismatchError struct{ Path, Want, Got string }

func (e *MismatchError) Error() string {
	return fmt.Sprintf("the provider's artifact %q has the digest %s, but %s is pinned; if you changed it on purpose, pin the new digest in trusted configuration", e.Path, e.Got, e.Want)
}

// Verified is an artifact whose content has been checked.
type Verified struct {
	Dir    string // to be mounted as the provider's own directory
	Exe    string // the executable, relative to Dir
	Digest string
}

// Digest returns sha256:<hex>: of the executable's bytes when dir is empty,
// else of the canonical JSON list of dir's files with their executable bits and
// link targets, in path order.
func Digest(ctx context.Context, exe, dir string) (string, error) {
	if dir == "" {
		f, err := openExecutable(exe)
		if err != nil {
			return "", err
		}
		defer f.Close()
		return hashReader(ctx, f)
	}
	return hashTree(ctx, dir)
}

// Verify checks an artifact against its pin. A single executable is copied once
// into cache, and it is the copy that is hashed at every launch and then run,
// so that nobody can swap the file between check and use. A directory is
// checked where it lies; it may be writable by root and the caller only.
func Verify(ctx context.Context, cache, exe, dir, pin string) (Verified, error) {
	want, ok := strings.CutPrefix(pin, "sha256:")
	if !ok || len(want) != 64 || strings.Trim(want, "0123456789abcdef") != "" {
		return Verified{}, fmt.Errorf("the pinned digest %q is not sha256:<64 hex digits>", pin)
	}
	if dir != "" {
		return verifyDir(ctx, exe, dir, pin)
	}
	return verifyFile(ctx, cache, exe, want)
}

func verifyDir(ctx context.Context, exe, dir, pin string) (Verified, error) {
	rel, err := filepath.Rel(dir, exe)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return Verified{}, fmt.Errorf("the executable %q is not inside the artifact directory %q", exe, dir)
	}
	got, err := hashTree(ctx, dir)
	if err != nil {
		return Verified{}, err
	}
	if got != pin {
		return Verified{}, &MismatchError{Path: dir, Want: pin, Got: got}
	}
	return Verified{Dir: dir, Exe: rel, Digest: got}, nil
}

// origin remembers which file a copy was made from. An unchanged inode with an
// unchanged change time has unchanged bytes: nobody but root can set ctime.
type origin struct {
	Dev, Ino   uint64
	Size       int64
	Mtim, Ctim int64
}

func originOf(f *os.File) (origin, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return origin{}, err
	}
	return origin{Dev: st.Dev, Ino: st.Ino, Size: st.Size, Mtim: st.Mtim.Nano(), Ctim: st.Ctim.Nano()}, nil
}

func verifyFile(ctx context.Context, cache, exe, want string) (Verified, error) {
	src, err := openExecutable(exe)
	if err != nil {
		return Verified{}, err
	}
	defer src.Close()
	now, err := originOf(src)
	if err != nil {
		return Verified{}, &MissingError{exe, err}
	}
	v := Verified{Dir: filepath.Join(cache, want), Exe: "provider", Digest: "sha256:" + want}
	copyPath := filepath.Join(v.Dir, v.Exe)
	if remembered(v.Dir) == now {
		if got, err := hashFile(ctx, copyPath); err == nil && got == v.Digest {
			return v, nil
		}
	}
	if err := os.MkdirAll(v.Dir, 0o755); err != nil {
		return Verified{}, fmt.Errorf("make the artifact cache: %w", err)
	}
	// The caller's umask must not decide what the provider, under ids of its
	// own, may read.
	if err := os.Chmod(v.Dir, 0o755); err != nil {
		return Verified{}, fmt.Errorf("make the artifact cache: %w", err)
	}
	out, err := renameio.NewPendingFile(copyPath, renameio.WithPermissions(0o755), renameio.WithExistingPermissions())
	if err != nil {
		return Verified{}, fmt.Errorf("copy the provider's executable: %w", err)
	}
	defer func() { _ = out.Cleanup() }()
	got, err := hashReader(ctx, io.TeeReader(src, out))
	if err != nil {
		return Verified{}, fmt.Errorf("copy the provider's executable: %w", err)
	}
	if got != v.Digest {
		return Verified{}, &MismatchError{Path: exe, Want: v.Digest, Got: got}
	}
	if err := out.Chmod(0o755); err != nil {
		return Verified{}, fmt.Errorf("copy the provider's executable: %w", err)
	}
	if err := out.CloseAtomicallyReplace(); err != nil {
		return Verified{}, fmt.Errorf("copy the provider's executable: %w", err)
	}
	return v, remember(v.Dir, now)
}

const originFile = ".origin"

func remembered(dir string) origin {
	var o origin
	b, err := os.ReadFile(dir + originFile)
	if err != nil || json.Unmarshal(b, &o) != nil {
		return origin{}
	}
	return o
}

func remember(dir string, o origin) error {
	b, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode origin: %w", err)
	}
	if err := renameio.WriteFile(dir+originFile, b, 0o600); err != nil {
		return fmt.Errorf("remember the provider's origin: %w", err)
	}
	return nil
}

func openExecutable(path string) (*os.File, error) {
	if !filepath.IsAbs(path) {
		return nil, &MissingError{path, errors.New("the path is not absolute")}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &MissingError{path, err}
	}
	st, err := f.Stat()
	switch {
	case err != nil:
	case !st.Mode().IsRegular():
		err = errors.New("it is not a regular file")
	case st.Mode().Perm()&0o111 == 0:
		err = errors.New("it is not executable")
	}
	if err != nil {
		f.Close()
		return nil, &MissingError{path, err}
	}
	return f, nil
}

func hashFile(ctx context.Context, path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return hashReader(ctx, f)
}

func hashReader(ctx context.Context, r io.Reader) (string, error) {
	h := sha256.New()
	buf := make([]byte, 1<<20)
	for {
		if err := ctx.Err(); err != nil {
			return "", context.Cause(ctx)
		}
		n, err := r.Read(buf)
		h.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
		}
		if err != nil {
			return "", err
		}
	}
}

type treeFile struct {
	Path   string `json:"path"`
	Exec   bool   `json:"exec,omitzero"`
	SHA256 string `json:"sha256,omitzero"`
	Link   string `json:"link,omitzero"`
}

func hashTree(ctx context.Context, dir string) (string, error) {
	if !filepath.IsAbs(dir) {
		return "", &MissingError{dir, errors.New("the path is not absolute")}
	}
	files := []treeFile{}
	var total int64
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if err := onlyOurs(info); err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f := treeFile{Path: rel, Exec: info.Mode().Perm()&0o111 != 0}
		switch info.Mode().Type() {
		case fs.ModeDir:
			return nil
		case fs.ModeSymlink:
			f.Exec = false
			if f.Link, err = os.Readlink(path); err != nil {
				return err
			}
		case 0:
			if f.SHA256, err = hashFile(ctx, path); err != nil {
				return err
			}
			total += info.Size()
		default:
			return fmt.Errorf("%q is neither a file, a directory nor a symbolic link", path)
		}
		if files = append(files, f); len(files) > maxFiles || total > maxBytes {
			return fmt.Errorf("it has more than %d files or %d bytes", maxFiles, int64(maxBytes))
		}
		return nil
	})
	if err != nil {
		return "", &MissingError{dir, err}
	}
	if len(files) == 0 {
		return "", &MissingError{dir, errors.New("it is empty")}
	}
	digest, err := schemas.Digest(files)
	if err != nil {
		return "", fmt.Errorf("digest of %q: %w", dir, err)
	}
	return digest, nil
}
