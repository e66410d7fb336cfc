package overlay

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/schemas"
)

func (p *plain) sound() Report {
	p.t.Helper()
	r, err := p.store.Verify(context.Background())
	if err != nil || len(r.Problems) > 0 {
		p.t.Fatalf("%v\n%s", err, strings.Join(r.Problems, "\n"))
	}
	return r
}

func TestCollectKeepsWhatWorkAreasLieOver(t *testing.T) {
	p := newPlain(t)
	for i := range 50 {
		p.write(fmt.Sprintf("d/f%d", i), fmt.Sprint(i))
	}
	p.settle()
	one := p.area(WorkOptions{})
	want := p.project()
	p.write("d/f1", "changed")
	two := p.area(WorkOptions{})
	later := time.Now().Add(time.Hour)
	if n, err := p.store.Collect(context.Background(), later); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if got := p.seen(one); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatal("the first work area changed")
	}
	p.must(one.Drop(context.Background()))
	// The second lies over the first one's state.
	if n, err := p.store.Collect(context.Background(), later); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if got := p.seen(two)["d/f1"]; got != "-rw-r--r-- changed" {
		t.Fatal(got)
	}
	r := p.sound()
	if r.Frozen != 2 || r.WorkAreas != 1 {
		t.Fatalf("%+v", r)
	}
	p.must(two.Drop(context.Background()))
	if n, err := p.store.Collect(context.Background(), time.Now().Add(-time.Hour)); n != 0 || err != nil {
		t.Fatal("what was used of late has gone", n, err)
	}
	if n, err := p.store.Collect(context.Background(), later); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	for _, d := range []string{"work/layers", "work/areas", "work/tmp", "trash"} {
		if left, err := os.ReadDir(p.store.path(d)); err != nil || len(left) > 0 {
			t.Fatal(d, left, err)
		}
	}
}

// TestCollectNothingWhileInDoubt: an unreadable work area may lie over anything.
func TestCollectNothingWhileInDoubt(t *testing.T) {
	p := newPlain(t)
	p.write("a", "1")
	w := p.area(WorkOptions{})
	note := p.store.areaDir(w.ID(), "area.json")
	p.must(os.Truncate(note, 10))
	if n, err := p.store.Collect(context.Background(), time.Now().Add(time.Hour)); n != 0 || err == nil {
		t.Fatal(n, err)
	}
	if r, err := p.store.Verify(context.Background()); err != nil || len(r.Problems) == 0 {
		t.Fatal(r, err)
	}
}

func TestShrinkTakesTheLongestUnusedFirst(t *testing.T) {
	f := newFixture(t)
	big := strings.Repeat("x", 100_000)
	var snaps []*Snapshot
	for i := range 6 {
		tree := f.made(map[string]leaf{fmt.Sprint("f", i): {"100644", big + fmt.Sprint(i)}, fmt.Sprint("g", i): {"100644", "y"}})
		// Each in a repository of its own, so that none is made from another.
		s, err := f.store.Baseline(context.Background(), apart{f.repo, fmt.Sprint(i)}, tree)
		if err != nil {
			t.Fatal(err)
		}
		snaps = append(snaps, s)
		at := time.Now().Add(time.Duration(i-10) * time.Hour)
		if err := os.Chtimes(f.store.leasePath(s.key), at, at); err != nil {
			t.Fatal(err)
		}
	}
	blob, err := f.store.PutBlob(context.Background(), strings.NewReader(big), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range snaps {
		if i != 1 { // which stays in use
			s.Close()
		}
	}
	n, freed, err := f.store.Shrink(context.Background(), 450_000)
	if err != nil || n != 3 || freed < 300_000 {
		t.Fatal(n, freed, err)
	}
	items, err := f.store.List(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{}
	for _, it := range items {
		left[it.ID] = true
	}
	for i, s := range snaps {
		if want := i == 1 || i > 3; left[s.key] != want {
			t.Errorf("%d: there %v", i, left[s.key])
		}
	}
	// A fresh blob stays whatever the limit; one that nobody asked for goes.
	if _, _, err := f.store.Shrink(context.Background(), 0); err != nil || !f.store.HasBlob(blob) {
		t.Fatal(err)
	}
	at, _ := f.store.blobPath(blob)
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(at, old, old); err != nil {
		t.Fatal(err)
	}
	if r, _, err := f.store.OpenBlob(blob); err != nil {
		t.Fatal(err)
	} else {
		r.Close()
	}
	if _, _, err := f.store.Shrink(context.Background(), 0); err != nil || !f.store.HasBlob(blob) {
		t.Fatal("a blob that was just asked for has gone", err)
	}
	if err := os.Chtimes(at, old, old); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.store.Shrink(context.Background(), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(at); err == nil {
		t.Fatal("the blob is still there")
	}
	if got, _, err := content(snaps[1].OpenBlob(schemas.BlobRefOf([]byte(big + "1")))); err != nil || got != big+"1" {
		t.Fatal(err)
	}
	f.sound()
}

// TestTidyOnASmallFileSystem: a quarter of it is what the store keeps by itself.
func TestTidyOnASmallFileSystem(t *testing.T) {
	f := newFixture(t)
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("needs: tmpfs mount (%v)", err)
	}
	defer unix.Unmount(small, unix.MNT_DETACH)
	store, err := Open(small + "/overlay")
	if err != nil {
		t.Fatal(err)
	}
	f.store = store
	var last *Snapshot
	for i := range 5 {
		tree := f.made(map[string]leaf{fmt.Sprint("f", i): {"100644", strings.Repeat(fmt.Sprint(i), 700_000)}})
		if last, err = store.Baseline(context.Background(), apart{f.repo, fmt.Sprint(i)}, tree); err != nil {
			t.Fatal(err)
		}
		if err := last.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := store.Tidy(context.Background()); err != nil {
			t.Fatal(err)
		}
		items, err := store.List(context.Background())
		if err != nil || len(items) != 2 || items[1].ID != last.key {
			t.Fatalf("%v\n%+v", err, items)
		}
	}
	// It is not looked again at once.
	tree := f.made(map[string]leaf{"more": {"100644", strings.Repeat("m", 700_000)}})
	more, err := store.Baseline(context.Background(), apart{f.repo, "more"}, tree)
	if err != nil {
		t.Fatal(err)
	}
	if err := more.Close(); err != nil {
		t.Fatal(err)
	}
	if err := store.Tidy(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := f.layersOnDisk(); n != 3 {
		t.Fatalf("%d layers", n)
	}
	f.sound()
}

// TestOtherBootsLeaveNothing: candidates of another boot are dropped by the next
// process that writes.
func TestOtherBootsLeaveNothing(t *testing.T) {
	f := newFixture(t)
	f.write("a", "1")
	one := f.tree()
	base := f.baseline(one)
	f.write("a", "2")
	two := f.tree()
	cand := f.candidate(base, two)
	f.write("a", "3")
	top := f.candidate(cand, f.tree())
	for _, s := range []*Snapshot{top, cand, base} {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// As if they had been written by another boot.
	if err := f.store.locked(context.Background(), func(ctx context.Context, db database) error {
		return db.meta.WithTransaction(ctx, true, func(ctx context.Context) error {
			for i, s := range []*Snapshot{cand, top} {
				key := fmt.Sprint(candidatePrefix, "anotherboot/", i)
				parent := []string{base.key, candidatePrefix + "anotherboot/0"}[i]
				if _, err := storage.CreateSnapshot(ctx, snapshots.KindActive, "active/x", parent); err != nil {
					return err
				}
				if _, err := storage.CommitActive(ctx, "active/x", key, snapshots.Usage{}); err != nil {
					return fmt.Errorf("%s: %w", s.key, err)
				}
			}
			return nil
		})
	}); err != nil {
		t.Fatal(err)
	}
	again, err := Open(f.store.dir)
	if err != nil {
		t.Fatal(err)
	}
	f.store = again
	f.write("a", "4")
	f.candidate(f.baseline(one), f.tree())
	items, err := again.List(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, it := range items {
		if strings.Contains(it.ID, "anotherboot") {
			t.Errorf("%s is still there", it.ID)
		}
	}
	if len(items) != 4 {
		t.Errorf("%+v", items)
	}
	f.sound()
}

type apart struct {
	Source
	id string
}

func (a apart) ID() string { return a.id }
