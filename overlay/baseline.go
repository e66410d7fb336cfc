package overlay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

const (
	baselinePrefix  = "tree/"
	candidatePrefix = "cand/"
)

// maxTarget bounds a symlink's target, in bytes (PATH_MAX of Linux).
const maxTarget = 4096

// Baseline gives the snapshot of a tree, and writes it where the store has none
// yet. The caller closes it.
func (s *Store) Baseline(ctx context.Context, src Source, tree gitrepo.OID) (*Snapshot, error) {
	key := baselinePrefix + string(tree)
	l, err := s.hold(key)
	if err != nil {
		return nil, err
	}
	known, err := s.known(ctx, key)
	if err == nil && known {
		return s.snapshot(key, tree, nil, nil, l), nil
	}
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	r, err := s.writeBaseline(ctx, src, tree, key)
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	return s.snapshot(key, tree, nil, r, l), nil
}

// writeBaseline writes a layer with every file of a tree. r is nil when another
// process was first.
func (s *Store) writeBaseline(ctx context.Context, src Source, tree gitrepo.OID, key string) (r *record, err error) {
	active, err := newActive()
	if err != nil {
		return nil, err
	}
	layer, err := s.prepare(ctx, active, "")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.discard(context.WithoutCancel(ctx), active, layer))
		}
	}()
	var entries []gitrepo.TreeEntry
	if err := src.ListTree(ctx, tree, func(e gitrepo.TreeEntry) error {
		entries = append(entries, e)
		return nil
	}); err != nil {
		return nil, err
	}
	files, err := s.writeFiles(ctx, src, layer, entries)
	if err != nil {
		return nil, err
	}
	// The files must be on disk before the database says that they are.
	if err := s.syncLayer(layer); err != nil {
		return nil, err
	}
	rec := record{layer: layer, files: files}
	won, err := s.commit(ctx, key, active, rec)
	if err != nil || !won {
		return nil, err
	}
	return &rec, nil
}

func (s *Store) syncLayer(layer string) error {
	d, err := os.Open(filepath.Join(s.dir, layer))
	if err != nil {
		return fmt.Errorf("sync a layer: %w", err)
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("sync a layer: %w", err)
	}
	return nil
}

// writeFiles writes entries into a layer, several at a time, and returns them
// with their digests in path order.
func (s *Store) writeFiles(ctx context.Context, src Source, layer string, entries []gitrepo.TreeEntry) ([]File, error) {
	root, err := os.OpenRoot(filepath.Join(s.dir, layer))
	if err != nil {
		return nil, fmt.Errorf("open a layer: %w", err)
	}
	defer root.Close()
	if err := makeDirs(root, entries); err != nil {
		return nil, err
	}
	files := make([]File, len(entries))
	workers := min(runtime.GOMAXPROCS(0), max(1, len(entries)/64), 8)
	g, ctx := errgroup.WithContext(ctx)
	for w := range workers {
		g.Go(func() error {
			reader, err := src.Blobs(ctx)
			if err != nil {
				return err
			}
			defer reader.Close()
			for i := w; i < len(entries); i += workers {
				if err := ctx.Err(); err != nil {
					return context.Cause(ctx)
				}
				if files[i], err = writeFile(root, reader, entries[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	sortFiles(files)
	return files, nil
}

// makeDirs makes the directories that entries lie in. It refuses a tree in
// which a file is also a directory, which only a crafted one can hold: writing
// below it would go through a symlink.
func makeDirs(root *os.Root, entries []gitrepo.TreeEntry) error {
	leaf := make(map[string]bool, len(entries))
	for _, e := range entries {
		if leaf[e.Path] {
			return &gitrepo.DamagedError{Doing: "use a tree", Detail: fmt.Sprintf("it holds %q twice", e.Path)}
		}
		leaf[e.Path] = true
	}
	made := map[string]bool{".": true}
	var ensure func(dir string) error
	ensure = func(dir string) error {
		if made[dir] {
			return nil
		}
		if leaf[dir] {
			return &gitrepo.DamagedError{Doing: "use a tree", Detail: fmt.Sprintf("it holds %q as a file and as a directory", dir)}
		}
		if err := ensure(path.Dir(dir)); err != nil {
			return err
		}
		made[dir] = true
		if err := root.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("write a snapshot: %w", err)
		}
		// The process's umask must not decide what a provider may read.
		return root.Chmod(dir, 0o755)
	}
	for _, e := range entries {
		if err := ensure(path.Dir(e.Path)); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(root *os.Root, reader *gitrepo.BlobReader, e gitrepo.TreeEntry) (File, error) {
	f := File{Path: e.Path, Mode: e.Mode, OID: e.OID}
	switch e.Mode {
	case gitrepo.ModeGitlink:
		// A submodule that is not checked out is an empty directory.
		content := gitrepo.GitlinkContent(e.OID)
		f.Blob, f.Size = schemas.BlobRefOf(content), int64(len(content))
		if err := root.Mkdir(e.Path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return f, fmt.Errorf("write a snapshot: %w", err)
		}
		return f, nil
	case gitrepo.ModeSymlink:
		var target strings.Builder
		if _, err := reader.Read(e.OID, &target, maxTarget); err != nil {
			return f, err
		}
		f.Blob, f.Size = schemas.BlobRefOf([]byte(target.String())), int64(target.Len())
		if target.Len() == 0 || strings.Contains(target.String(), "\x00") {
			return f, &gitrepo.DamagedError{Doing: "use a tree", Detail: fmt.Sprintf("the symlink %q has no usable target", e.Path)}
		}
		if err := root.Symlink(target.String(), e.Path); err != nil {
			return f, fmt.Errorf("write a snapshot: %w", err)
		}
		return f, nil
	case gitrepo.ModeFile, gitrepo.ModeExec:
	default:
		return f, &gitrepo.DamagedError{Doing: "use a tree", Detail: fmt.Sprintf("%q has the mode %o", e.Path, e.Mode)}
	}
	perm := os.FileMode(0o644)
	if e.Mode == gitrepo.ModeExec {
		perm = 0o755
	}
	out, err := root.OpenFile(e.Path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm)
	if err != nil {
		return f, fmt.Errorf("write a snapshot: %w", err)
	}
	h := sha256.New()
	f.Size, err = reader.Read(e.OID, io.MultiWriter(out, h), 0)
	if err == nil {
		err = out.Chmod(perm)
	}
	if err := errors.Join(err, out.Close()); err != nil {
		return f, fmt.Errorf("write a snapshot: %w", err)
	}
	f.Blob = schemas.BlobRef("blob:sha256:" + hex.EncodeToString(h.Sum(nil)))
	return f, nil
}
