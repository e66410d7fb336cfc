package overlay

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/frozen"
)

// WorkSource is what a work area lies over.
type WorkSource struct {
	// Dir is the top of the project, an absolute path. It may be any directory.
	Dir string
	// Also are directories outside of it that belong to it and are put under
	// copy-on-write with it: the git directory of a linked worktree, for example.
	Also []string
	// Ignored lists paths below Dir, "/" at the end of directories, that version
	// control ignores: dependencies and what was built. Where bytes cannot be
	// shared otherwise, these may be kept by hard links. It is asked when there
	// is much to copy; nil is for none.
	Ignored func(context.Context) ([]string, error)
}

// WorkOptions say what is wanted of a work area.
type WorkOptions struct {
	// Live lays the work area over the project itself instead of over a frozen
	// copy. That takes no time, but what changes in the project meanwhile may
	// show in the work area; Drift tells what did.
	Live bool
	// MaxCopy bounds what is copied to freeze the project, in bytes, where bytes
	// can be shared neither by cloning nor by links. More than that makes the
	// work area live. 0 is for half of the free space.
	MaxCopy int64
}

// WorkArea is a writable tree over a project, which never notices. It lasts
// until it is dropped, over reboots too.
type WorkArea struct {
	store *Store
	note  workNote
}

// workNote is what is noted of a work area, in area.json.
type workNote struct {
	Version   int        `json:"version"`
	ID        string     `json:"id"`
	Created   time.Time  `json:"created"`
	Userxattr bool       `json:"userxattr"`
	Parts     []workPart `json:"parts"`
}

// workPart is one directory of a work area.
type workPart struct {
	Dir string `json:"dir"`
	// Layers are the frozen state that it lies over, the topmost first; none
	// where it lies over Dir itself.
	Layers []string         `json:"layers,omitzero"`
	Live   bool             `json:"live,omitzero"`
	Why    string           `json:"why,omitzero"` // it is live though it was to be frozen
	Skip   []frozen.Skipped `json:"skip,omitzero"`
	Held   frozen.Held      `json:"held,omitzero"`
}

const workVersion = 1

// ID names the work area in its store.
func (w *WorkArea) ID() string { return w.note.ID }

// Dir is the project that it lies over.
func (w *WorkArea) Dir() string { return w.note.Parts[0].Dir }

// Created tells when it was made.
func (w *WorkArea) Created() time.Time { return w.note.Created }

// WorkPart tells what a directory of a work area lies over.
type WorkPart struct {
	Dir  string
	Live bool
	Why  string // why it is live, where it was to be frozen
	// Skipped lies in Dir but not in the work area.
	Skipped []frozen.Skipped
	Held    frozen.Held // how the newest of its frozen layers is held
}

// Parts lists the project and what was put beside it.
func (w *WorkArea) Parts() []WorkPart {
	out := make([]WorkPart, 0, len(w.note.Parts))
	for _, p := range w.note.Parts {
		out = append(out, WorkPart{Dir: p.Dir, Live: p.Live, Why: p.Why, Skipped: p.Skip, Held: p.Held})
	}
	return out
}

func (s *Store) areaDir(id string, elem ...string) string {
	return s.path(append([]string{"work", "areas", id}, elem...)...)
}

func (w *WorkArea) upper(part int) string {
	return w.store.areaDir(w.note.ID, fmt.Sprint(part), "upper")
}

// CreateWorkArea makes a work area over a project as it stands now.
func (s *Store) CreateWorkArea(ctx context.Context, src WorkSource, o WorkOptions) (*WorkArea, error) {
	w, err := s.createWorkArea(ctx, src, o)
	if err != nil {
		return nil, s.advise(fmt.Errorf("make a work area over %q: %w", src.Dir, err))
	}
	return w, nil
}

func (s *Store) createWorkArea(ctx context.Context, src WorkSource, o WorkOptions) (_ *WorkArea, err error) {
	// No layer is collected between its making and its being noted.
	using, err := lockFile(ctx, s.path("work", "lock"), unix.LOCK_SH, writeWait)
	if err != nil {
		return nil, fmt.Errorf("wait for the store: %w", err)
	}
	defer using.Close()
	var id [5]byte
	_, _ = rand.Read(id[:]) // crypto/rand.Read never fails
	w := &WorkArea{store: s, note: workNote{Version: workVersion, ID: hex.EncodeToString(id[:]), Userxattr: s.userns}}
	tmp, err := os.MkdirTemp(s.path("work", "tmp"), "area-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	w.note.Created = time.Now().UTC()
	for i, dir := range append([]string{src.Dir}, src.Also...) {
		part, err := s.makePart(ctx, src, dir, i, o)
		if err != nil {
			return nil, err
		}
		if err := makeUpper(filepath.Join(tmp, fmt.Sprint(i)), part.Dir); err != nil {
			return nil, err
		}
		w.note.Parts = append(w.note.Parts, part)
	}
	if err := writeJSON(filepath.Join(tmp, "area.json"), w.note); err != nil {
		return nil, err
	}
	return w, os.Rename(tmp, s.areaDir(w.note.ID))
}

// makePart freezes one directory, or notes that it stays live.
func (s *Store) makePart(ctx context.Context, src WorkSource, dir string, i int, o WorkOptions) (workPart, error) {
	if !filepath.IsAbs(dir) {
		return workPart{}, fmt.Errorf("%q is no absolute path", dir)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return workPart{}, err
	}
	part := workPart{Dir: real, Live: o.Live}
	if !o.Live {
		ignored := src.Ignored
		if i > 0 {
			ignored = nil
		}
		part, err = s.freeze(ctx, real, ignored, o.MaxCopy)
		var large *frozen.TooLargeError
		switch {
		case err == nil:
			return part, nil
		case errors.As(err, &large), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
			part = workPart{Dir: real, Live: true, Why: fmt.Sprintf("there is no room to freeze it: %v", err)}
		default:
			return part, err
		}
	}
	if in, err := filepath.Rel(real, s.dir); err == nil && filepath.IsLocal(in) {
		return part, &UnfitError{Dir: s.dir, Detail: fmt.Sprintf("it lies inside of %q, which it is to be laid over", real)}
	}
	return part, nil
}

// makeUpper makes the two directories that overlayfs needs. The upper one is
// what the root of the work area is seen as, so that it is like the project's.
func makeUpper(at, like string) error {
	var st unix.Stat_t
	if err := unix.Stat(like, &st); err != nil {
		return &os.PathError{Op: "stat", Path: like, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return &os.PathError{Op: "use", Path: like, Err: unix.ENOTDIR}
	}
	upper := filepath.Join(at, "upper")
	for _, d := range []string{at, upper, filepath.Join(at, "work")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return err
		}
	}
	if err := os.Chown(upper, int(st.Uid), int(st.Gid)); err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	if err := unix.Chmod(upper, st.Mode&0o7777); err != nil {
		return &os.PathError{Op: "chmod", Path: upper, Err: err}
	}
	mtime := time.Unix(0, st.Mtim.Nano())
	return os.Chtimes(upper, mtime, mtime)
}

// writeJSON writes a new file and forces it to disk.
func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// maxNote bounds what is read of a note, in bytes: its lists are bounded.
const maxNote = 16 << 20

func readJSON(path string, v any) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if st.Size() > maxNote {
		return fmt.Errorf("%q is too large", path)
	}
	b := make([]byte, st.Size())
	if _, err := f.ReadAt(b, 0); err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// ErrNoWorkArea says that there is no work area of that id.
var ErrNoWorkArea = errors.New("there is no such work area")

// OpenWorkArea finds a work area by its id.
func (s *Store) OpenWorkArea(id string) (*WorkArea, error) {
	if id == "" || strings.Trim(id, "0123456789abcdef") != "" {
		return nil, fmt.Errorf("open the work area %q: %w", id, ErrNoWorkArea)
	}
	w := &WorkArea{store: s}
	err := readJSON(s.areaDir(id, "area.json"), &w.note)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("open the work area %q: %w", id, ErrNoWorkArea)
	case err != nil:
		return nil, fmt.Errorf("open the work area %q: %w", id, err)
	case w.note.Version != workVersion || w.note.ID != id || len(w.note.Parts) == 0:
		return nil, &DamagedError{Dir: s.dir, Detail: fmt.Sprintf("the work area %s is not noted as it should be", id)}
	}
	return w, nil
}

// WorkAreas lists the work areas, the oldest first. One that cannot be read is
// left out and told of in the error, beside the others.
func (s *Store) WorkAreas() ([]*WorkArea, error) {
	names, err := os.ReadDir(s.path("work", "areas"))
	if err != nil {
		return nil, fmt.Errorf("list the work areas: %w", err)
	}
	var out []*WorkArea
	var errs []error
	for _, n := range names {
		w, err := s.OpenWorkArea(n.Name())
		if errors.Is(err, ErrNoWorkArea) {
			continue // dropped meanwhile
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b *WorkArea) int { return a.note.Created.Compare(b.note.Created) })
	return out, errors.Join(errs...)
}

// Drop removes the work area and all that was done in it. One that is mounted
// is not dropped.
func (w *WorkArea) Drop(ctx context.Context) error {
	lock, err := w.take()
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := os.Rename(w.store.areaDir(w.note.ID), w.store.path("trash", "area-"+w.note.ID)); err != nil {
		return fmt.Errorf("drop the work area %s: %w", w.note.ID, err)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx) // it is gone; its files go with the next collection
	}
	return w.store.emptyTrash()
}

// take makes this the only user of the work area's files.
func (w *WorkArea) take() (*os.File, error) {
	lock, err := tryLock(w.store.areaDir(w.note.ID, "lock"), unix.LOCK_EX)
	switch {
	case errors.Is(err, errHeld):
		return nil, &BusyError{Dir: w.store.dir, What: "the work area " + w.note.ID + " in use"}
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("use the work area %q: %w", w.note.ID, ErrNoWorkArea)
	case err != nil:
		return nil, w.store.advise(fmt.Errorf("use the work area %s: %w", w.note.ID, err))
	}
	return lock, nil
}
