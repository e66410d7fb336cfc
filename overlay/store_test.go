package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

func TestSecondBaselineWritesNothing(t *testing.T) {
	f := newFixture(t)
	for i := range 50 {
		f.write(fmt.Sprintf("d%d/f%d", i%5, i), fmt.Sprint(i))
	}
	tree := f.tree()
	f.baseline(tree)
	before, err := listing(f.store.path("layers", "snapshots"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := f.store.Baseline(context.Background(), noSource{f.repo}, tree)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	after, err := listing(f.store.path("layers", "snapshots"))
	if err != nil {
		t.Fatal(err)
	}
	same(t, "snapshots", after, before)
}

// noSource fails the test's call when anything is read from git.
type noSource struct{ Source }

func (noSource) Blobs(context.Context) (*gitrepo.BlobReader, error) {
	return nil, errors.New("blobs were read")
}
func (noSource) ListTree(context.Context, gitrepo.OID, func(gitrepo.TreeEntry) error) error {
	return errors.New("a tree was listed")
}

func TestManifestAnswers(t *testing.T) {
	f := newFixture(t)
	f.write("a", "same\n")
	f.write("b", "same\n")
	f.write("c", "other\n")
	base := f.baseline(f.tree())
	f.remove("b")
	f.write("c", "same\n")
	f.write("d", "new\n")
	cand := f.candidate(base, f.tree())
	ref := schemas.BlobRefOf([]byte("same\n"))
	paths, err := cand.Paths(ref)
	slices.Sort(paths)
	if err != nil || !slices.Equal(paths, []string{"a", "c"}) {
		t.Fatal(paths, err)
	}
	if _, ok, _ := cand.Lookup("b"); ok {
		t.Fatal("b is gone")
	}
	var all []string
	if err := cand.Each(func(x File) error { all = append(all, x.Path); return nil }); err != nil || !slices.Equal(all, []string{"a", "c", "d"}) {
		t.Fatal(all, err)
	}
	all = nil
	if err := cand.EachFrom("b", func(x File) error { all = append(all, x.Path); return nil }); err != nil || !slices.Equal(all, []string{"c", "d"}) {
		t.Fatal(all, err)
	}
	stop := errors.New("stop")
	if err := cand.Each(func(File) error { return stop }); !errors.Is(err, stop) {
		t.Fatal(err)
	}
	for text, s := range map[string]*Snapshot{"other\n": base, "new\n": cand, "same\n": cand} {
		if got, n, err := content(s.OpenBlob(schemas.BlobRefOf([]byte(text)))); err != nil || got != text || n != int64(len(text)) {
			t.Fatal(got, n, err)
		}
	}
	if _, _, err := base.OpenBlob(schemas.BlobRefOf([]byte("new\n"))); !errors.Is(err, ErrNoBlob) {
		t.Fatal(err)
	}
	if _, _, err := base.OpenBlob("blob:sha256:no"); err == nil || errors.Is(err, ErrNoBlob) {
		t.Fatal(err)
	}
	cand.Close()
	if _, _, err := cand.Lookup("a"); !errors.Is(err, os.ErrClosed) {
		t.Fatal(err)
	}
}

func content(r io.ReadCloser, n int64, err error) (string, int64, error) {
	if err != nil {
		return "", 0, err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	return string(b), n, err
}

func TestBlobsOfLinksAndSubmodules(t *testing.T) {
	f := newFixture(t)
	base := f.baseline(f.made(map[string]leaf{"d/l": {"120000", "../x"}, "s": {"160000", ""}, "big": {"100644", strings.Repeat("big", wholeBlob)}}))
	for _, p := range []string{"d/l", "s", "big"} {
		x, ok, err := base.Lookup(p)
		if err != nil || !ok {
			t.Fatal(p, ok, err)
		}
		got, n, err := content(base.OpenBlob(x.Blob))
		if err != nil || n != x.Size || schemas.BlobRefOf([]byte(got)) != x.Blob {
			t.Fatalf("%s: %d bytes of %d: %v", p, len(got), n, err)
		}
	}
}

// TestManyFiles has several blocks and many files of the same content.
func TestManyFiles(t *testing.T) {
	f := newFixture(t)
	leaves := map[string]leaf{}
	for i := range 1000 {
		leaves[fmt.Sprintf("d%d/f%04d", i%7, i)] = leaf{"100644", fmt.Sprint(i % 5)}
	}
	base := f.baseline(f.made(leaves))
	for p, l := range leaves {
		x, ok, err := base.Lookup(p)
		if err != nil || !ok || x.Blob != schemas.BlobRefOf([]byte(l.text)) || x.Path != p {
			t.Fatal(p, x, ok, err)
		}
		for _, near := range []string{p + "x", p[:len(p)-1], p[:2]} {
			if _, ok, err := base.Lookup(near); ok || err != nil {
				t.Fatal(near, ok, err)
			}
		}
	}
	paths, err := base.Paths(schemas.BlobRefOf([]byte("3")))
	if err != nil || len(paths) != 200 || !slices.IsSorted(paths) {
		t.Fatal(len(paths), err)
	}
	f.sound()
}

func TestPutBlob(t *testing.T) {
	f := newFixture(t)
	ref, err := f.store.PutBlob(context.Background(), strings.NewReader("hello"), 5)
	if err != nil || ref != schemas.BlobRefOf([]byte("hello")) || !f.store.HasBlob(ref) {
		t.Fatal(ref, err)
	}
	if _, err := f.store.PutBlob(context.Background(), strings.NewReader("hello!"), 5); err == nil {
		t.Fatal("over the limit")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := f.store.PutBlob(ctx, strings.NewReader("hello!"), 50); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if got, n, err := content(f.store.OpenBlob(ref)); err != nil || n != 5 || got != "hello" {
		t.Fatal(got, n, err)
	}
	if _, _, err := f.store.OpenBlob(schemas.BlobRefOf([]byte("none"))); !errors.Is(err, ErrNoBlob) {
		t.Fatal(err)
	}
	if r := f.sound(); r.Blobs != 1 {
		t.Fatal(r)
	}
	left, err := filepath.Glob(globQuote(f.store.path("blobs")) + "/*")
	if err != nil || len(left) != 1 {
		t.Fatal(left, err)
	}
}

func TestCollectLeavesWhatIsHeld(t *testing.T) {
	f := newFixture(t)
	f.write("a", "1")
	base := f.baseline(f.tree())
	f.write("a", "2")
	cand := f.candidate(base, f.tree())
	f.write("a", "3")
	top := f.candidate(cand, f.tree())
	late := time.Now().Add(time.Hour)
	collect := func(before time.Time, want int) {
		t.Helper()
		if n, err := f.store.Collect(context.Background(), before); n != want || err != nil {
			t.Fatal(n, err)
		}
	}
	collect(late, 0)
	cand.Close()
	collect(late, 0) // another stands on it
	top.Close()
	collect(time.Now().Add(-time.Hour), 0)
	collect(late, 2)
	same(t, "baseline", f.seen(base), f.checkedOut(base.Tree()))
	f.sound()
	base.Close()
	collect(late, 1)
	for _, d := range []string{"layers/snapshots", "leases", "trash"} {
		if left, err := os.ReadDir(f.store.path(d)); err != nil || len(left) > 0 {
			t.Fatal(left, err)
		}
	}
}

// TestHoldAfterCollect: a lock on a lease that was removed meanwhile holds
// nothing.
func TestHoldAfterCollect(t *testing.T) {
	f := newFixture(t)
	f.write("a", "1")
	tree := f.tree()
	f.baseline(tree).Close()
	stop := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		other, err := Open(f.store.dir)
		for err == nil {
			select {
			case <-stop:
				done <- nil
				return
			default:
				_, err = other.Collect(context.Background(), time.Now().Add(time.Hour))
			}
		}
		done <- err
	}()
	for range 200 {
		s, err := f.store.Baseline(context.Background(), f.repo, tree)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := content(s.OpenBlob(schemas.BlobRefOf([]byte("1")))); err != nil || got != "1" {
			t.Fatal(got, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestCraftedTreesAreRefused(t *testing.T) {
	f := newFixture(t)
	good := string(f.made(map[string]leaf{"x": {"100644", "1"}}))
	blob := f.run(f.command("1", "hash-object", "-w", "--stdin"))
	link := f.run(f.command("/tmp", "hash-object", "-w", "--stdin"))
	for name, entries := range map[string][]gitrepo.TreeEntry{
		"dot git":            {{Path: ".git/config", Mode: gitrepo.ModeFile}},
		"dot git folded":     {{Path: "a/.GiT", Mode: gitrepo.ModeFile}},
		"dot git ignorables": {{Path: ".g\u200cit/hooks/x", Mode: gitrepo.ModeFile}},
		"up":                 {{Path: "../x", Mode: gitrepo.ModeFile}},
		"rooted":             {{Path: "/x", Mode: gitrepo.ModeFile}},
		"empty name":         {{Path: "a//x", Mode: gitrepo.ModeFile}},
		"odd mode":           {{Path: "x", Mode: 0o100600}},
		"long name":          {{Path: strings.Repeat("n", 256), Mode: gitrepo.ModeFile}},
		"twice":              {{Path: "x", Mode: gitrepo.ModeFile}, {Path: "x", Mode: gitrepo.ModeFile}},
		"file and directory": {{Path: "x", Mode: gitrepo.ModeFile}, {Path: "x/y", Mode: gitrepo.ModeFile}},
		"through a symlink":  {{Path: "x", Mode: gitrepo.ModeSymlink, OID: gitrepo.OID(link)}, {Path: "x/y", Mode: gitrepo.ModeFile}},
		"submodule with files": {
			{Path: "x", Mode: gitrepo.ModeGitlink}, {Path: "x", Mode: gitrepo.ModeGitlink}},
	} {
		for i := range entries {
			if entries[i].OID == "" {
				entries[i].OID = gitrepo.OID(blob)
			}
		}
		_, err := f.store.Baseline(context.Background(), crafted{f.repo, entries}, gitrepo.OID(good))
		var bad *TreeError
		if !errors.As(err, &bad) {
			t.Errorf("%s: %v", name, err)
		}
		if n := f.layersOnDisk(); n != 0 {
			t.Errorf("%s: %d layers are left", name, n)
		}
	}
	if _, err := os.Lstat("/tmp/y"); err == nil {
		t.Fatal("a file was written through a symlink")
	}
	f.sound()
}

// crafted lists a tree that git would not.
type crafted struct {
	Source
	entries []gitrepo.TreeEntry
}

func (c crafted) ListTree(_ context.Context, _ gitrepo.OID, fn func(gitrepo.TreeEntry) error) error {
	for _, e := range c.entries {
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

func FuzzManifest(f *testing.F) {
	add := func(d delta) {
		var b strings.Builder
		if err := encode(&b, d); err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(b.String()))
	}
	file := File{Path: "a\nb", Mode: 0o100644, OID: "12", Blob: schemas.BlobRefOf(nil)}
	add(delta{})
	add(delta{base: "x", files: []File{file}, gone: []string{"z"}})
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := readIndex(strings.NewReader(string(data)), int64(len(data)))
		if err != nil {
			return
		}
		var d delta
		d.base, d.gone = m.base, m.gone
		for n := range m.count {
			x, err := m.file(n)
			if err != nil {
				return
			}
			d.files = append(d.files, x)
		}
		if _, err := m.holding(file.Blob, 0); err != nil {
			return
		}
		var again strings.Builder
		if err := encode(&again, d); err != nil || again.Len() == 0 {
			t.Fatalf("%v: %+v", err, d)
		}
	})
}
