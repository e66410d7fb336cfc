package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/frozen"
	"github.com/aspis-dev/aspis/overlay/upper"
	"github.com/aspis-dev/aspis/schemas"
)

// Drift is a path of the project that is not what it was when the work area was
// made: somebody changed it outside.
type Drift struct {
	Dir, Path string
	Kind      schemas.ChangeKind // create, modify or delete
	// Seen: the change can show in the work area, since what it lies over there
	// is the file itself and no copy.
	Seen bool
}

// Drift lists what has changed in the project since the work area was made. It
// looks at every file's metadata, and reads only those that may have changed. A
// directory that went stands for all that was in it; one that came is told with
// each file. Over a live part a directory can also be told as modified: something
// in it came or went before it was noted what was there.
func (w *WorkArea) Drift(ctx context.Context) ([]Drift, error) {
	var out []Drift
	for i, part := range w.note.Parts {
		found, err := w.partDrift(ctx, i, part)
		if err != nil {
			return nil, fmt.Errorf("find what has changed below the work area %s: %w", w.note.ID, err)
		}
		out = append(out, found...)
	}
	return out, nil
}

func (w *WorkArea) partDrift(ctx context.Context, i int, part workPart) ([]Drift, error) {
	src, err := unix.Open(part.Dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return []Drift{{Dir: part.Dir, Path: ".", Kind: schemas.ChangeDelete, Seen: part.Live}}, nil
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: part.Dir, Err: err}
	}
	defer unix.Close(src)
	now, _, err := frozen.Scan(ctx, src, w.store.leave(part.Dir))
	if err != nil {
		return nil, err
	}
	then, err := w.record(i, part)
	if errors.Is(err, fs.ErrNotExist) {
		return w.driftByTime(now, part), nil
	}
	if err != nil {
		return nil, err
	}
	lower, err := w.lower(part)
	if err != nil {
		return nil, err
	}
	defer lower.Close()
	outside, err := upper.OpenLower([]string{part.Dir})
	if err != nil {
		return nil, err
	}
	defer outside.Close()
	c := &drifting{ctx: ctx, part: part, then: then, lower: lower, now: outside, since: w.note.Created}
	return c.compare(now)
}

// leave lists what is not looked at in a directory: the store itself.
func (s *Store) leave(dir string) []string {
	if in, err := filepath.Rel(dir, s.dir); err == nil && filepath.IsLocal(in) {
		return []string{in}
	}
	return nil
}

// record gives what a part was when the work area was made.
func (w *WorkArea) record(i int, part workPart) ([]frozen.Entry, error) {
	if !part.Live {
		return w.store.readRecord(part.Layers[0])
	}
	b, err := os.ReadFile(w.liveRecord(i))
	if err != nil {
		return nil, err
	}
	return frozen.Decode(b)
}

func (w *WorkArea) liveRecord(i int) string {
	return w.store.areaDir(w.note.ID, fmt.Sprint(i), "record")
}

// recordLive notes what live parts are, once, for Drift. The work has begun by
// then; what was changed since the work area was made shows by its ctime. When it
// is ended before it is done, it is for the next mount to do.
func (w *WorkArea) recordLive(ctx context.Context) error {
	for i, part := range w.note.Parts {
		if _, err := os.Lstat(w.liveRecord(i)); !part.Live || err == nil {
			continue
		}
		src, err := unix.Open(part.Dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: part.Dir, Err: err}
		}
		entries, _, err := frozen.Scan(ctx, src, w.store.leave(part.Dir))
		unix.Close(src)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("note what the work area lies over: %w", err)
		}
		tmp := w.liveRecord(i) + ".new"
		if err := os.WriteFile(tmp, frozen.Encode(entries), 0o600); err != nil {
			return fmt.Errorf("note what the work area lies over: %w", err)
		}
		if err := os.Rename(tmp, w.liveRecord(i)); err != nil {
			return fmt.Errorf("note what the work area lies over: %w", err)
		}
	}
	return nil
}

// driftByTime is for a live part of which nothing could be noted: files that
// went are known by their directory alone.
func (w *WorkArea) driftByTime(now []frozen.Entry, part workPart) []Drift {
	var out []Drift
	for _, e := range now {
		if e.Ctime >= w.note.Created.UnixNano() {
			out = append(out, Drift{Dir: part.Dir, Path: e.Path, Kind: schemas.ChangeModify, Seen: true})
		}
	}
	return out
}

type drifting struct {
	ctx   context.Context
	part  workPart
	then  []frozen.Entry
	lower *upper.Lower // what the work area lies over
	now   *upper.Lower // the project
	since time.Time
}

func (c *drifting) compare(now []frozen.Entry) ([]Drift, error) {
	d := frozen.Compare(c.then, now)
	var out []Drift
	add := func(p string, kind schemas.ChangeKind, seen bool) {
		out = append(out, Drift{Dir: c.part.Dir, Path: p, Kind: kind, Seen: seen || c.part.Live})
	}
	for _, e := range d.Put {
		if c.ctx.Err() != nil {
			return nil, context.Cause(c.ctx)
		}
		i, had := frozen.Find(c.then, e.Path)
		if !had {
			add(e.Path, schemas.ChangeCreate, false)
			continue
		}
		was := c.then[i]
		same, err := c.same(was, e)
		if err != nil {
			return nil, fmt.Errorf("read %q: %w", e.Path, err)
		}
		if !same {
			add(e.Path, schemas.ChangeModify, was.Linked && was.Ino == e.Ino)
		}
	}
	for _, p := range d.Gone {
		add(p, schemas.ChangeDelete, false)
	}
	if c.part.Live {
		out = append(out, c.beforeRecord(out)...)
	}
	return out, nil
}

// beforeRecord finds what was changed between the making of a live work area and
// the noting of what is there. What went from a directory shows by its time only.
func (c *drifting) beforeRecord(since []Drift) []Drift {
	told := make(map[string]bool, len(since))
	for _, d := range since {
		told[d.Path] = true
	}
	var out []Drift
	for _, e := range c.then {
		changed := e.Ctime
		if e.Dir() {
			changed = e.Mtime
		}
		if changed > c.since.UnixNano() && !told[e.Path] {
			out = append(out, Drift{Dir: c.part.Dir, Path: e.Path, Kind: schemas.ChangeModify, Seen: true})
		}
	}
	return out
}

// same tells whether an entry is still what it was. Times that moved are no
// change; where a copy was kept its bytes are compared.
func (c *drifting) same(was, is frozen.Entry) (bool, error) {
	if was.Mode != is.Mode || was.Target != is.Target || was.UID != is.UID || was.GID != is.GID {
		return false, nil
	}
	if !is.Regular() {
		return true, nil
	}
	if was.Size != is.Size {
		return false, nil
	}
	if c.part.Live {
		return was.Racy && was.Mtime == is.Mtime && was.Ctime == is.Ctime && was.Ino == is.Ino, nil
	}
	if was.Linked && was.Ino == is.Ino {
		return was.Mtime == is.Mtime, nil
	}
	kept, ok, err := c.lower.Lookup(is.Path)
	if err != nil || !ok {
		return false, err
	}
	there, ok, err := c.now.Lookup(is.Path)
	if err != nil || !ok || !there.Regular() || !kept.Regular() {
		return false, err
	}
	return sameBytes(kept, there)
}

func sameBytes(a, b upper.State) (bool, error) {
	x, err := a.Open()
	if err != nil {
		return false, err
	}
	defer x.Close()
	y, err := b.Open()
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESTALE) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer y.Close()
	return equal(x, y)
}

// equal compares what is left of two readers.
func equal(a, b io.Reader) (bool, error) {
	x, y := make([]byte, copyBuffer), make([]byte, copyBuffer)
	for {
		n, errA := io.ReadFull(a, x)
		m, errB := io.ReadFull(b, y)
		switch {
		case n != m || string(x[:n]) != string(y[:m]):
			return false, nil
		case ended(errA) && ended(errB):
			return true, nil
		case errA != nil:
			return false, errA
		case errB != nil:
			return false, errB
		}
	}
}

func ended(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }
