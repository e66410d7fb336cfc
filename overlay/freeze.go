package overlay

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/frozen"
)

const (
	// maxFrozen bounds the layers of a frozen directory.
	maxFrozen = 6

	// linkAbove is how much may have to be copied, in bytes, before hard links
	// are thought of: below it exactness costs little.
	linkAbove = 64 << 20
)

// frozenNote is what is noted of a frozen layer, in note.json beside it.
type frozenNote struct {
	Version int              `json:"version"`
	Dir     string           `json:"dir"`
	Below   string           `json:"below,omitzero"` // the layer that it lies over
	Boot    string           `json:"boot"`
	Held    frozen.Held      `json:"held"`
	Skip    []frozen.Skipped `json:"skip,omitzero"`
}

// frozenLayer is a layer with the record of the whole state that it completes.
type frozenLayer struct {
	id   string
	note frozenNote
}

func (s *Store) frozenDir(id string, elem ...string) string {
	return s.path(append([]string{"work", "layers", id}, elem...)...)
}

// frozenKey begins the names of the layers of one directory.
func frozenKey(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:8])
}

// freeze keeps a directory as it is now: as the layer that an earlier freeze has
// made, where nothing changed since, else as a new one over it, or over none
// where most has changed.
func (s *Store) freeze(ctx context.Context, dir string, ignored func(context.Context) ([]string, error), maxCopy int64) (workPart, error) {
	// Of several that want the same one writes.
	lock, err := lockFile(ctx, s.path("work", "locks", frozenKey(dir)), unix.LOCK_EX, writeWait)
	if err != nil {
		return workPart{}, fmt.Errorf("wait for another that freezes %q: %w", dir, err)
	}
	defer lock.Close()
	src, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return workPart{}, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(src)
	now, skipped, err := frozen.Scan(ctx, src, s.leave(dir))
	if err != nil {
		return workPart{}, fmt.Errorf("look through %q: %w", dir, err)
	}
	below, delta, err := s.nearest(dir, now)
	if err != nil {
		return workPart{}, err
	}
	if below.id != "" && delta.Changed == 0 {
		return s.frozenPart(dir, below, skipped)
	}
	link, err := linkable(ctx, delta, ignored)
	if err != nil {
		return workPart{}, fmt.Errorf("tell what is ignored in %q: %w", dir, err)
	}
	layer, err := s.writeFrozen(ctx, src, dir, below, now, delta, frozen.Options{Link: link, Over: below.id != "", MaxCopy: maxCopy})
	if err != nil {
		return workPart{}, fmt.Errorf("freeze %q: %w", dir, err)
	}
	return s.frozenPart(dir, layer, append(skipped, layer.note.Skip...))
}

func (s *Store) frozenPart(dir string, top frozenLayer, skipped []frozen.Skipped) (workPart, error) {
	stack, err := s.frozenStack(top)
	part := workPart{Dir: dir, Held: top.note.Held, Skip: skipped}
	for _, l := range stack {
		part.Layers = append(part.Layers, l.id)
	}
	// The time of the last use, for the collector.
	t := time.Now()
	return part, errors.Join(err, os.Chtimes(s.frozenDir(top.id), t, t))
}

// frozenStack lists a layer and those below it.
func (s *Store) frozenStack(top frozenLayer) ([]frozenLayer, error) {
	out := []frozenLayer{top}
	for at := top; at.note.Below != ""; {
		var err error
		if at, err = s.frozenLayer(at.note.Below); err != nil {
			return nil, err
		}
		out = append(out, at)
		if len(out) > maxFrozen {
			return nil, &DamagedError{Dir: s.dir, Detail: fmt.Sprintf("the frozen layer %s stands on too many", top.id)}
		}
	}
	return out, nil
}

func (s *Store) frozenLayer(id string) (frozenLayer, error) {
	l := frozenLayer{id: id}
	if err := readJSON(s.frozenDir(id, "note.json"), &l.note); err != nil {
		return l, &DamagedError{Dir: s.dir, Detail: fmt.Sprintf("the frozen layer %s cannot be read (%v)", id, err)}
	}
	return l, nil
}

func (s *Store) readRecord(id string) ([]frozen.Entry, error) {
	b, err := os.ReadFile(s.frozenDir(id, "record"))
	if err != nil {
		return nil, fmt.Errorf("read the record of a frozen layer: %w", err)
	}
	return frozen.Decode(b)
}

// nearest finds the layer to write over, with what differs from it: the newest,
// or what that stands on where there are enough layers. A layer that cannot be
// read is not used.
func (s *Store) nearest(dir string, now []frozen.Entry) (frozenLayer, frozen.Delta, error) {
	names, err := os.ReadDir(s.path("work", "layers"))
	if err != nil {
		return frozenLayer{}, frozen.Delta{}, err
	}
	for _, n := range slices.Backward(names) {
		if !strings.HasPrefix(n.Name(), frozenKey(dir)+"-") {
			continue
		}
		top, err := s.frozenLayer(n.Name())
		if err != nil || top.note.Dir != dir || !s.onDisk(top) {
			continue
		}
		stack, err := s.frozenStack(top)
		if err != nil {
			continue
		}
		for _, l := range []frozenLayer{top, stack[len(stack)-1]} {
			record, err := s.readRecord(l.id)
			if err != nil {
				break
			}
			d := frozen.Compare(record, now)
			if d.Changed == 0 {
				return l, d, nil
			}
			if (l.id != top.id || len(stack) < maxFrozen) && d.Changed < len(now)/2+1 {
				return l, d, nil
			}
		}
		break
	}
	return frozenLayer{}, frozen.Compare(nil, now), nil
}

// onDisk tells whether a layer is what was written: it was forced to disk, or
// the machine has run on since.
func (s *Store) onDisk(l frozenLayer) bool {
	if _, err := os.Lstat(s.frozenDir(l.id, "synced")); err == nil {
		return true
	}
	boot, err := bootID()
	return err == nil && boot == l.note.Boot
}

func (s *Store) writeFrozen(ctx context.Context, src int, dir string, below frozenLayer, now []frozen.Entry, d frozen.Delta, o frozen.Options) (l frozenLayer, err error) {
	boot, err := bootID()
	if err != nil {
		return l, err
	}
	if o.MaxCopy == 0 {
		var st unix.Statfs_t
		if err := unix.Statfs(s.dir, &st); err != nil {
			return l, os.NewSyscallError("statfs", err)
		}
		o.MaxCopy = int64(st.Bavail) / 2 * st.Bsize
	}
	tmp, err := os.MkdirTemp(s.path("work", "tmp"), "frozen-")
	if err != nil {
		return l, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	files := filepath.Join(tmp, "fs")
	if err := os.Mkdir(files, 0o700); err != nil {
		return l, err
	}
	dst, err := unix.Open(files, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return l, &os.PathError{Op: "open", Path: files, Err: err}
	}
	defer unix.Close(dst)
	written, err := frozen.Write(ctx, src, dst, now, d, o)
	if err != nil {
		return l, err
	}
	l.note = frozenNote{Version: workVersion, Dir: dir, Below: below.id, Boot: boot, Held: written.Held, Skip: written.Skipped}
	if err := os.WriteFile(filepath.Join(tmp, "record"), frozen.Encode(written.Entries), 0o600); err != nil {
		return l, err
	}
	if err := writeJSON(filepath.Join(tmp, "note.json"), l.note); err != nil {
		return l, err
	}
	var tail [4]byte
	_, _ = rand.Read(tail[:]) // crypto/rand.Read never fails
	// Names in the order of time, so that the newest is found by its name.
	l.id = fmt.Sprintf("%s-%016x-%x", frozenKey(dir), time.Now().UnixNano(), tail)
	return l, os.Rename(tmp, s.frozenDir(l.id))
}

// gitObject is a file that git names by its content: it is replaced or removed,
// and never written. The user's git loses nothing by a link, since it does not
// go by the ctime of objects.
var gitObject = regexp.MustCompile(`(^|/)objects/(([0-9a-f]{2}/([0-9a-f]{38}|[0-9a-f]{62}))|pack/pack-[0-9a-f]{40,64}\.[a-z]+)$`)

// linkable tells which files may be kept by hard links; nil is for none.
func linkable(ctx context.Context, d frozen.Delta, ignored func(context.Context) ([]string, error)) (func(string) bool, error) {
	var bytes, plain int64
	for _, e := range d.Put {
		if e.Regular() {
			bytes += e.Size
			if !gitObject.MatchString(e.Path) {
				plain += e.Size
			}
		}
	}
	if bytes <= linkAbove {
		return nil, nil
	}
	if plain <= linkAbove || ignored == nil {
		return gitObject.MatchString, nil
	}
	list, err := ignored(ctx)
	if err != nil {
		return nil, err
	}
	set := make(map[string]bool, len(list))
	for _, p := range list {
		set[strings.TrimSuffix(p, "/")] = true
	}
	return func(p string) bool {
		if gitObject.MatchString(p) {
			return true
		}
		for at := p; at != "."; at = path.Dir(at) {
			if set[at] {
				return true
			}
		}
		return false
	}, nil
}

// settleLater forces the layers of the work area to disk, unless they are there,
// while the work goes on. If the process ends before, the next to mount it tries
// again; until it is done they are believed by this boot of the machine alone.
func (w *WorkArea) settleLater() {
	s := w.store
	var todo []string
	for _, p := range w.note.Parts {
		for _, id := range p.Layers {
			if _, err := os.Lstat(s.frozenDir(id, "synced")); errors.Is(err, fs.ErrNotExist) {
				todo = append(todo, id)
			}
		}
	}
	if len(todo) == 0 {
		return
	}
	s.settlers.Go(func() {
		s.settling.Lock()
		defer s.settling.Unlock()
		if syncAround(s.path("work", "layers")) != nil {
			return
		}
		for _, id := range todo {
			// Where it cannot be noted it is done again by the next.
			_ = os.WriteFile(s.frozenDir(id, "synced"), nil, 0o600)
		}
	})
}

// sound tells of a frozen layer that the machine's end has come upon.
func (w *WorkArea) sound() error {
	for _, p := range w.note.Parts {
		for _, id := range p.Layers {
			l, err := w.store.frozenLayer(id)
			if err != nil {
				return err
			}
			if !w.store.onDisk(l) {
				return &DamagedError{Dir: w.store.dir, Detail: fmt.Sprintf("the machine went down before the state that the work area %s lies over was on disk", w.note.ID)}
			}
		}
	}
	return nil
}
