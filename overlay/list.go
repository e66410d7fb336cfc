package overlay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Kinds of what a store holds.
const (
	KindBaseline  = "baseline"
	KindCandidate = "candidate"
	KindNarrowed  = "narrowed"
	KindFrozen    = "frozen"
	KindWorkArea  = "work area"
	KindBlobs     = "blobs"
)

// Item is one thing that a store holds. Blobs are one together.
type Item struct {
	Kind     string
	ID       string
	Of       string // the directory that a frozen state or a work area belongs to
	Bytes    int64  // on disk, as far as it is not shared with the project
	Files    int
	LastUsed time.Time
	InUse    bool // or something stands on it
}

// List tells what the store holds, what was used longest ago first.
func (s *Store) List(ctx context.Context) ([]Item, error) {
	items, err := s.listSnapshots(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the snapshots: %w", err)
	}
	work, err := s.listWork()
	if err != nil {
		return nil, err
	}
	items = append(items, work...)
	blobs, err := s.listBlobs()
	if err != nil {
		return nil, fmt.Errorf("list the blobs: %w", err)
	}
	if blobs.Files > 0 {
		items = append(items, blobs)
	}
	slices.SortFunc(items, func(a, b Item) int { return a.LastUsed.Compare(b.LastUsed) })
	return items, nil
}

func (s *Store) listSnapshots(ctx context.Context) (items []Item, err error) {
	parents := map[string]bool{}
	err = s.locked(ctx, func(ctx context.Context, db database) error {
		err := db.Walk(ctx, func(ctx context.Context, info snapshots.Info) error {
			if info.Kind != snapshots.KindCommitted {
				return nil
			}
			parents[info.Parent] = true
			usage, err := db.Usage(ctx, info.Name)
			if err != nil {
				return err
			}
			it := Item{ID: info.Name, Bytes: usage.Size, Files: int(usage.Inodes), LastUsed: info.Created}
			switch {
			case strings.HasPrefix(info.Name, baselinePrefix):
				it.Kind = KindBaseline
			case strings.HasPrefix(info.Name, narrowPrefix):
				it.Kind = KindNarrowed
			default:
				it.Kind = KindCandidate
			}
			items = append(items, it)
			return nil
		})
		if errdefs.IsNotFound(err) {
			return nil
		}
		return err
	})
	for i := range items {
		it := &items[i]
		if st, err := os.Lstat(s.leasePath(it.ID)); err == nil {
			it.LastUsed = st.ModTime()
		}
		f, err := tryLock(s.leasePath(it.ID), unix.LOCK_EX)
		it.InUse = parents[it.ID] || errors.Is(err, errHeld)
		if err == nil {
			f.Close()
		}
	}
	return items, err
}

func (s *Store) listWork() ([]Item, error) {
	areas, err := s.WorkAreas()
	if err != nil {
		return nil, err
	}
	var items []Item
	used := map[string]bool{}
	for _, w := range areas {
		bytes, files, err := w.Usage()
		if err != nil {
			return nil, err
		}
		it := Item{Kind: KindWorkArea, ID: w.ID(), Of: w.Dir(), Bytes: bytes, Files: files, LastUsed: w.Created(), InUse: true}
		if st, err := os.Lstat(s.areaDir(w.ID(), "lock")); err == nil && st.ModTime().After(it.LastUsed) {
			it.LastUsed = st.ModTime()
		}
		items = append(items, it)
		for _, p := range w.note.Parts {
			for _, id := range p.Layers {
				used[id] = true
			}
		}
	}
	layers, err := os.ReadDir(s.path("work", "layers"))
	if err != nil {
		return nil, fmt.Errorf("list the frozen states: %w", err)
	}
	for _, d := range layers {
		st, err := d.Info()
		if err != nil {
			continue // collected meanwhile
		}
		it := Item{Kind: KindFrozen, ID: d.Name(), LastUsed: st.ModTime(), InUse: used[d.Name()]}
		if l, err := s.frozenLayer(d.Name()); err == nil {
			h := l.note.Held
			it.Of, it.Bytes, it.Files = l.note.Dir, h.CopiedBytes, h.Copied+h.Cloned+h.Linked
			if l.note.Below != "" {
				used[l.note.Below] = true
			}
		}
		items = append(items, it)
	}
	for i := range items {
		items[i].InUse = items[i].InUse || used[items[i].ID]
	}
	return items, nil
}

func (s *Store) listBlobs() (Item, error) {
	it := Item{Kind: KindBlobs, ID: "sha256"}
	err := filepath.WalkDir(s.path("blobs", "sha256"), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		st, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		it.Files++
		it.Bytes += st.Size()
		if it.LastUsed.IsZero() || st.ModTime().Before(it.LastUsed) {
			it.LastUsed = st.ModTime()
		}
		return nil
	})
	return it, err
}

// Usage tells what was written in the work area, in bytes on disk and in files.
func (w *WorkArea) Usage() (bytes int64, files int, err error) {
	for i := range w.note.Parts {
		err := filepath.WalkDir(w.upper(i), func(p string, d fs.DirEntry, err error) error {
			var st unix.Stat_t
			if err == nil {
				err = unix.Lstat(p, &st)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil // work goes on meanwhile
			}
			if err != nil {
				return err
			}
			bytes += st.Blocks * 512
			files++
			return nil
		})
		if err != nil {
			return bytes, files, fmt.Errorf("count what the work area %s holds: %w", w.note.ID, err)
		}
	}
	return bytes, files, nil
}

// Shrink removes what was used longest ago until the store holds at most limit
// bytes, or nothing else can go. Work areas do not count: only their owners can
// say that they may go. It returns how many things went and how many bytes.
func (s *Store) Shrink(ctx context.Context, limit int64) (removed int, freed int64, err error) {
	var had int64
	var tried time.Time
	for first := true; ; first = false {
		items, err := s.List(ctx)
		if err != nil {
			return removed, freed, err
		}
		holds := countable(items)
		if first {
			had = holds
		}
		freed = had - holds
		before, some := cutoff(items, holds-limit, tried)
		if holds <= limit || !some {
			return removed, freed, nil
		}
		tried = before
		n, err := s.Collect(ctx, before)
		removed += n
		if err != nil {
			return removed, freed, err
		}
		if n > 0 {
			tried = time.Time{} // what they stood on may go now
		}
	}
}

func countable(items []Item) (n int64) {
	for _, it := range items {
		if it.Kind != KindWorkArea {
			n += it.Bytes
		}
	}
	return n
}

// cutoff is a time later than tried such that what is not in use and was last
// used until then holds at least so many bytes, or all of it. items are in the
// order of time.
func cutoff(items []Item, bytes int64, tried time.Time) (at time.Time, some bool) {
	for _, it := range items {
		if it.InUse {
			continue
		}
		if bytes -= it.Bytes; it.LastUsed.Before(tried) {
			continue
		}
		at, some = it.LastUsed.Add(time.Nanosecond), true
		if bytes <= 0 {
			break
		}
	}
	return at, some
}

const (
	// tidyEvery is how often the store looks whether it has grown too large.
	tidyEvery = time.Hour

	// By itself the store takes at most so many bytes, or this part of the file
	// system that it lies on where that is less.
	ownLimit = 20 << 30
	ownPart  = 4
)

// Tidy shrinks the store to what it may take by itself: 20 GiB, or a quarter of
// the file system where that is less. It does so once an hour, whoever asks, and
// else returns at once. What is in use stays.
func (s *Store) Tidy(ctx context.Context) error {
	mark := s.path("tidied")
	if st, err := os.Lstat(mark); err == nil && time.Since(st.ModTime()).Abs() < tidyEvery {
		return nil
	}
	// Before, so that of many who end at once one does it.
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return s.advise(fmt.Errorf("tidy the store: %w", err))
	}
	now := time.Now()
	if err := os.Chtimes(mark, now, now); err != nil {
		return s.advise(fmt.Errorf("tidy the store: %w", err))
	}
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return fmt.Errorf("tidy the store: %w", os.NewSyscallError("statfs", err))
	}
	_, _, err := s.Shrink(ctx, min(ownLimit, int64(st.Blocks)*st.Bsize/ownPart))
	return err
}
