package overlay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// maxProblems bounds what Verify tells.
const maxProblems = 1000

// Report is what Verify has looked at and found. Problems name files quoted.
type Report struct {
	Snapshots, Files, Blobs int
	Frozen, WorkAreas       int
	Problems                []string
}

func (r *Report) problem(format string, args ...any) {
	if len(r.Problems) < maxProblems {
		r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
	}
}

// Verify reads everything in the store and compares it with what was written.
// The error is for what could not be looked at. What others use, write or
// remove meanwhile is not disturbed; what is removed is not looked at.
func (s *Store) Verify(ctx context.Context) (Report, error) {
	var r Report
	snaps, err := s.all(ctx, &r)
	defer func() {
		for _, sn := range snaps {
			sn.Close()
		}
	}()
	if err != nil {
		return r, fmt.Errorf("verify the snapshot store: %w", err)
	}
	for _, sn := range snaps {
		if err := verifySnapshot(ctx, sn, &r); err != nil {
			return r, fmt.Errorf("verify the snapshot %s: %w", sn.key, err)
		}
		r.Snapshots++
	}
	if err := s.verifyBlobs(ctx, &r); err != nil {
		return r, fmt.Errorf("verify the blobs: %w", err)
	}
	if err := s.verifyWork(ctx, &r); err != nil {
		return r, fmt.Errorf("verify the work areas: %w", err)
	}
	return r, nil
}

// all opens every snapshot that nobody is about to remove.
func (s *Store) all(ctx context.Context, r *Report) (map[string]*Snapshot, error) {
	snaps := map[string]*Snapshot{}
	parents := map[string]string{}
	err := s.locked(ctx, func(ctx context.Context, db database) error {
		err := db.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
			if info.Kind == snapshots.KindCommitted {
				parents[info.Name] = info.Parent
			}
			return nil
		})
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		for key := range parents {
			id, err := db.layerOf(ctx, key)
			if err != nil {
				return err
			}
			f, err := tryLock(s.leasePath(key), unix.LOCK_SH)
			if errors.Is(err, errHeld) {
				continue
			}
			if err != nil {
				return err
			}
			snaps[key] = &Snapshot{store: s, key: key, layer: id, lease: &lease{f}}
		}
		return nil
	})
	for key, sn := range snaps {
		if parent := parents[key]; parent != "" {
			if sn.base = snaps[parent]; sn.base == nil {
				r.problem("%s stands on %s, which is not there", key, parent)
			}
		}
	}
	return snaps, err
}

// layerCheck compares one layer's directory with its manifest.
type layerCheck struct {
	dir    string
	report *Report
	key    string
	want   map[string]File
	dirs   map[string]bool // those that must or may be there
	seen   map[string]bool
	marks  map[string]bool // whiteouts
}

func verifySnapshot(ctx context.Context, sn *Snapshot, r *Report) error {
	var damaged *DamagedError
	m, err := sn.manifest()
	if errors.As(err, &damaged) {
		r.problem("%s: %s", sn.key, damaged.Detail)
		return nil
	}
	if err != nil {
		return err
	}
	c := &layerCheck{dir: sn.store.layerDir(sn.layer), report: r, key: sn.key,
		want: map[string]File{}, dirs: map[string]bool{".": true}, seen: map[string]bool{}, marks: map[string]bool{}}
	if err := c.read(m); err != nil {
		if errors.As(err, &damaged) {
			r.problem("%s: %s", sn.key, damaged.Detail)
			return nil
		}
		return err
	}
	if err := filepath.WalkDir(c.dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(c.dir, p)
		if err != nil {
			return err
		}
		r.Files++
		return c.entry(rel, p, d)
	}); err != nil {
		return err
	}
	for p := range c.want {
		if !c.seen[p] {
			r.problem("%s: %q is missing", sn.key, p)
		}
	}
	return c.whiteouts(sn, m)
}

// read goes through the whole manifest, and sees that every file is found by
// its path and by its content.
func (c *layerCheck) read(m *manifest) error {
	above := func(p string) {
		for d := path.Dir(p); !c.dirs[d]; d = path.Dir(d) {
			c.dirs[d] = true
		}
	}
	files := make([]File, 0, m.count)
	for n := range m.count {
		f, err := m.file(n)
		if err != nil {
			return err
		}
		files = append(files, f)
		c.want[f.Path] = f
		above(f.Path)
	}
	for _, p := range m.gone {
		above(p)
	}
	rows, err := m.blobs()
	if err != nil {
		return m.failed(err)
	}
	again, err := blobRows(files)
	if err != nil || string(again) != string(rows) {
		return m.failed(errManifest)
	}
	return nil
}

func (c *layerCheck) entry(rel, p string, d fs.DirEntry) error {
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return &os.PathError{Op: "look at", Path: p, Err: err}
	}
	f, wanted := c.want[rel]
	c.seen[rel] = true
	switch kind := st.Mode & unix.S_IFMT; {
	case kind == unix.S_IFCHR && st.Rdev == 0 && !wanted:
		c.marks[rel] = true
	case kind == unix.S_IFDIR:
		if !c.dirs[rel] && f.Mode != gitrepo.ModeGitlink {
			c.report.problem("%s: the directory %q should not be there", c.key, rel)
		}
		if st.Mode&0o7777 != 0o755 {
			c.report.problem("%s: the directory %q has the mode %o", c.key, rel, st.Mode&0o7777)
		}
	case !wanted:
		c.report.problem("%s: %q should not be there", c.key, rel)
	default:
		return c.content(p, f, st)
	}
	return nil
}

func (c *layerCheck) content(p string, f File, st unix.Stat_t) error {
	mode := map[uint32]uint32{gitrepo.ModeFile: unix.S_IFREG | 0o644, gitrepo.ModeExec: unix.S_IFREG | 0o755, gitrepo.ModeSymlink: unix.S_IFLNK | 0o777}[f.Mode]
	if st.Mode != mode {
		c.report.problem("%s: %q has the mode %o", c.key, f.Path, st.Mode)
		return nil
	}
	var got schemas.BlobRef
	if f.Mode == gitrepo.ModeSymlink {
		target, err := os.Readlink(p)
		if err != nil {
			return err
		}
		got = schemas.BlobRefOf([]byte(target))
	} else {
		var err error
		if got, err = digestOf(p); err != nil {
			return err
		}
	}
	if got != f.Blob || st.Size != f.Size {
		c.report.problem("%s: %q has other bytes", c.key, f.Path)
	}
	return nil
}

func digestOf(p string) (schemas.BlobRef, error) {
	f, err := os.OpenFile(p, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return schemas.BlobRef("blob:sha256:" + hex.EncodeToString(h.Sum(nil))), nil
}

// whiteouts sees that they hide what is gone, and nothing else.
func (c *layerCheck) whiteouts(sn *Snapshot, m *manifest) error {
	for _, p := range m.gone {
		if !c.hidden(p) {
			c.report.problem("%s: %q is gone but can be seen", c.key, p)
		}
	}
	for mark := range c.marks {
		if sn.base == nil {
			c.report.problem("%s: the whiteout %q should not be there", c.key, mark)
			continue
		}
		err := sn.base.EachFrom(mark, func(f File) error {
			switch {
			case f.Path == mark || strings.HasPrefix(f.Path, mark+"/"):
				if !m.isGone(f.Path) {
					c.report.problem("%s: %q is hidden but not gone", c.key, f.Path)
				}
			case !strings.HasPrefix(f.Path, mark):
				return errStop
			}
			return nil
		})
		var damaged *DamagedError
		if err != nil && !errors.Is(err, errStop) && !errors.As(err, &damaged) {
			return err
		}
	}
	return nil
}

var errStop = errors.New("no more")

func (c *layerCheck) hidden(p string) bool {
	if c.marks[p] || c.dirs[p] && c.seen[p] {
		return true
	}
	for d := path.Dir(p); d != "."; d = path.Dir(d) {
		if f, ok := c.want[d]; c.marks[d] || ok && f.Mode != gitrepo.ModeGitlink {
			return true
		}
	}
	return false
}

func (s *Store) verifyBlobs(ctx context.Context, r *Report) error {
	root := s.path("blobs", "sha256")
	return filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		ref, err := digestOf(p)
		if err != nil {
			return err
		}
		r.Blobs++
		if h, _ := ref.Hex(); h[:2]+"/"+h[2:] != rel {
			r.problem("the blob %q has other bytes", rel)
		}
		return nil
	})
}
