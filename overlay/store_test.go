package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// space is a private mount namespace on a thread of its own.
type space struct {
	dir   string
	calls chan func()
}

func newSpace(t testing.TB) *space {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs: root (to make a mount namespace)")
	}
	s := &space{dir: t.TempDir(), calls: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		ready <- err
		for f := range s.calls {
			f()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(s.calls) })
	return s
}

func (s *space) Dir() string { return s.dir }

func (s *space) Do(fn func() error) (err error) {
	done := make(chan struct{})
	s.calls <- func() { err = fn(); close(done) }
	<-done
	return err
}

type fixture struct {
	t     testing.TB
	dir   string
	store *Store
	repo  *gitrepo.Repo
	space *space
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{t: t, dir: t.TempDir(), space: newSpace(t)}
	f.git("init", "-q", "-b", "main")
	f.open(filepath.Join(t.TempDir(), "state, with: odd\\name"))
	return f
}

func (f *fixture) open(state string) {
	f.t.Helper()
	var err error
	if f.repo, err = gitrepo.Open(context.Background(), f.dir, gitrepo.Options{StateDir: state + "/git"}); err != nil {
		f.t.Fatal(err)
	}
	if f.store, err = Open(state + "/overlay"); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) git(args ...string) string {
	f.t.Helper()
	cmd := exec.Command("git", append([]string{"-C", f.dir, "-c", "user.name=t", "-c", "user.email=t@example.org"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		f.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (f *fixture) write(path, text string) {
	f.t.Helper()
	full := filepath.Join(f.dir, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) tree() gitrepo.OID {
	f.t.Helper()
	tree, err := f.repo.WorktreeTree(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	return tree
}

func (f *fixture) baseline(tree gitrepo.OID) *Snapshot {
	f.t.Helper()
	s, err := f.store.Baseline(context.Background(), f.repo, tree)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { s.Close() })
	return s
}

func (f *fixture) candidate(base *Snapshot, tree gitrepo.OID) *Snapshot {
	f.t.Helper()
	s, err := f.store.Candidate(context.Background(), f.repo, base, tree)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { s.Close() })
	return s
}

// seen lists a mounted view: path, kind, executable bit, content.
func (f *fixture) seen(s *Snapshot) []string {
	f.t.Helper()
	v, err := f.store.View(context.Background(), f.space, s)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() {
		if err := v.Close(); err != nil {
			f.t.Error(err)
		}
	}()
	var out []string
	if err := f.space.Do(func() (err error) { out, err = listing(v.Path()); return err }); err != nil {
		f.t.Fatal(err)
	}
	return out
}

func listing(dir string) ([]string, error) {
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch d.Type() {
		case fs.ModeDir:
			if rel == ".git" {
				return fs.SkipDir
			}
			out = append(out, fmt.Sprintf("%q dir", rel))
		case fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			out = append(out, fmt.Sprintf("%q -> %q", rel, target))
		default:
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			out = append(out, fmt.Sprintf("%q %v %x", rel, info.Mode().Perm(), b))
		}
		return nil
	})
	return out, err
}

// checkedOut lists what git itself makes of a tree.
func (f *fixture) checkedOut(tree gitrepo.OID) []string {
	f.t.Helper()
	dir := f.t.TempDir()
	index := filepath.Join(f.t.TempDir(), "index")
	shadow := filepath.Join(filepath.Dir(f.store.dir), "git", f.repo.ID())
	for _, args := range [][]string{{"read-tree", string(tree)}, {"checkout-index", "-a", "--prefix=" + dir + "/"}} {
		cmd := exec.Command("git", append([]string{"--git-dir=" + shadow, "--work-tree=" + dir}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_INDEX_FILE="+index)
		if out, err := cmd.CombinedOutput(); err != nil {
			f.t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	out, err := listing(dir)
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

func same(t interface{ Fatalf(string, ...any) }, what string, got, want []string) {
	if !slices.Equal(got, want) {
		t.Fatalf("%s:\ngot\n  %s\nwant\n  %s", what, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestViewEqualsCheckout(t *testing.T) {
	f := newFixture(t)
	f.write("a", "1\n")
	f.write("d/e/f", "2\n")
	f.write("d/e/g", "3\n")
	f.write("x", "#!/bin/sh\n")
	os.Chmod(filepath.Join(f.dir, "x"), 0o755)
	os.Symlink("d/e", filepath.Join(f.dir, "link"))
	f.write("sp ace\nnew", "")
	one := f.tree()
	base := f.baseline(one)
	same(t, "baseline", f.seen(base), f.checkedOut(one))

	f.write("a", "changed\n")
	os.RemoveAll(filepath.Join(f.dir, "d"))
	f.write("d", "a file now\n")
	os.Remove(filepath.Join(f.dir, "link"))
	f.write("link/below", "a directory now\n")
	os.Chmod(filepath.Join(f.dir, "x"), 0o644)
	two := f.tree()
	cand := f.candidate(base, two)
	same(t, "candidate", f.seen(cand), f.checkedOut(two))
	same(t, "baseline afterwards", f.seen(base), f.checkedOut(one))
}

func TestViewCannotBeWritten(t *testing.T) {
	f := newFixture(t)
	f.write("a", "1\n")
	base := f.baseline(f.tree())
	f.write("b", "2\n")
	cand := f.candidate(base, f.tree())
	for _, s := range []*Snapshot{base, cand} {
		v, err := f.store.View(context.Background(), f.space, s)
		if err != nil {
			t.Fatal(err)
		}
		err = f.space.Do(func() error {
			for _, p := range []string{"a", "new"} {
				if err := os.WriteFile(filepath.Join(v.Path(), p), []byte("x"), 0o644); !errors.Is(err, unix.EROFS) {
					return fmt.Errorf("write %s: got %w", p, errors.Join(errors.New("no EROFS"), err))
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		v.Close()
	}
}

func TestSecondBaselineWritesNothing(t *testing.T) {
	f := newFixture(t)
	for i := range 50 {
		f.write(fmt.Sprintf("d%d/f%d", i%5, i), fmt.Sprint(i))
	}
	tree := f.tree()
	f.baseline(tree)
	before, err := listing(f.store.dir + "/snap/snapshots")
	if err != nil {
		t.Fatal(err)
	}
	s, err := f.store.Baseline(context.Background(), noSource{f.repo}, tree)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	after, err := listing(f.store.dir + "/snap/snapshots")
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
	os.Remove(filepath.Join(f.dir, "b"))
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
	for text, s := range map[string]*Snapshot{"other\n": base, "new\n": cand, "same\n": cand} {
		r, n, err := s.OpenBlob(schemas.BlobRefOf([]byte(text)))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		r.Close()
		if err != nil || string(b) != text || n != int64(len(text)) {
			t.Fatal(string(b), n, err)
		}
	}
	if _, _, err := base.OpenBlob(schemas.BlobRefOf([]byte("new\n"))); !errors.Is(err, ErrNoBlob) {
		t.Fatal(err)
	}
}

func TestDamagedCopyIsNotServed(t *testing.T) {
	f := newFixture(t)
	f.write("a", "one\n")
	base := f.baseline(f.tree())
	path, _, err := base.locate(schemas.BlobRefOf([]byte("one\n")))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("two\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r, _, err := base.OpenBlob(schemas.BlobRefOf([]byte("one\n")))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.ReadAll(r); err == nil {
		t.Fatal("damaged bytes were served")
	}
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
	r, n, err := f.store.OpenBlob(ref)
	if err != nil || n != 5 {
		t.Fatal(n, err)
	}
	r.Close()
}

func TestCollectLeavesWhatIsHeld(t *testing.T) {
	f := newFixture(t)
	f.write("a", "1")
	base := f.baseline(f.tree())
	f.write("a", "2")
	cand := f.candidate(base, f.tree())
	late := time.Now().Add(time.Hour)
	if n, err := f.store.Collect(context.Background(), late); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	cand.Close()
	if n, err := f.store.Collect(context.Background(), late); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	same(t, "baseline", f.seen(base), f.checkedOut(base.Tree()))
	base.Close()
	if n, err := f.store.Collect(context.Background(), late); n != 1 || err != nil {
		t.Fatal(n, err)
	}
}

func TestWritersAtOnce(t *testing.T) {
	f := newFixture(t)
	for i := range 200 {
		f.write(fmt.Sprintf("f%d", i), fmt.Sprint(i))
	}
	one := f.tree()
	f.write("f0", "changed")
	two := f.tree()
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			store, err := Open(f.store.dir)
			if err != nil {
				errs[i] = err
				return
			}
			b, err := store.Baseline(context.Background(), f.repo, one)
			if err != nil {
				errs[i] = err
				return
			}
			defer b.Close()
			c, err := store.Candidate(context.Background(), f.repo, b, two)
			if err != nil {
				errs[i] = err
				return
			}
			errs[i] = c.Close()
		}()
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	base := f.baseline(one)
	same(t, "candidate", f.seen(f.candidate(base, two)), f.checkedOut(two))
}

// TestKilledWriterLeavesAStoreThatWorks kills a process while it writes.
func TestKilledWriterLeavesAStoreThatWorks(t *testing.T) {
	if dir := os.Getenv("OVERLAY_TEST_WRITER"); dir != "" {
		repo, err := gitrepo.Open(context.Background(), dir, gitrepo.Options{StateDir: os.Getenv("OVERLAY_TEST_STATE") + "/git"})
		if err != nil {
			t.Fatal(err)
		}
		store, err := Open(os.Getenv("OVERLAY_TEST_STATE") + "/overlay")
		if err != nil {
			t.Fatal(err)
		}
		tree, err := repo.WorktreeTree(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("writing")
		if _, err := store.Baseline(context.Background(), repo, tree); err != nil {
			t.Fatal(err)
		}
		return
	}
	f := newFixture(t)
	for i := range 3000 {
		f.write(fmt.Sprintf("d%d/f%d", i%40, i), strings.Repeat(fmt.Sprint(i), 50))
	}
	state := filepath.Dir(f.store.dir)
	for i := range 4 {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestKilledWriterLeavesAStoreThatWorks$")
		cmd.Env = append(os.Environ(), "OVERLAY_TEST_WRITER="+f.dir, "OVERLAY_TEST_STATE="+state)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		io.ReadFull(out, make([]byte, len("writing\n")))
		time.Sleep(time.Duration(i*12) * time.Millisecond)
		cmd.Process.Kill()
		cmd.Wait()
	}
	tree := f.tree()
	same(t, "baseline", f.seen(f.baseline(tree)), f.checkedOut(tree))
	dirs, err := os.ReadDir(f.store.dir + "/snap/snapshots")
	if err != nil || len(dirs) != 1 {
		t.Fatalf("%d layers are there: %v", len(dirs), err)
	}
}

func TestDiskFull(t *testing.T) {
	f := newFixture(t)
	for i := range 20 {
		f.write(fmt.Sprint("f", i), strings.Repeat("x", 200_000))
	}
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("needs: tmpfs mount (%v)", err)
	}
	defer unix.Unmount(small, unix.MNT_DETACH)
	repo := f.repo
	store, err := Open(small + "/overlay")
	if err != nil {
		t.Fatal(err)
	}
	tree := f.tree()
	if _, err := store.Baseline(context.Background(), repo, tree); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	dirs, err := os.ReadDir(small + "/overlay/snap/snapshots")
	if err != nil || len(dirs) != 0 {
		t.Fatalf("%d layers are left: %v", len(dirs), err)
	}
	if err := unix.Mount("", small, "", unix.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatal(err)
	}
	s, err := store.Baseline(context.Background(), repo, tree)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}

func TestStoreOnOverlayfsIsRefused(t *testing.T) {
	f := newFixture(t)
	d := t.TempDir()
	for _, n := range []string{"l", "u", "w", "m"} {
		os.Mkdir(filepath.Join(d, n), 0o755)
	}
	err := f.space.Do(func() error {
		if err := unix.Mount("overlay", d+"/m", "overlay", 0, fmt.Sprintf("lowerdir=%[1]s/l,upperdir=%[1]s/u,workdir=%[1]s/w", d)); err != nil {
			return err
		}
		_, err := Open(d + "/m/state")
		var unfit *UnfitError
		if !errors.As(err, &unfit) {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRandomChangesEqualCheckout compares views of random changes with git's.
func TestRandomChangesEqualCheckout(t *testing.T) {
	f := newFixture(t)
	rounds := 0
	rapid.Check(t, func(rt *rapid.T) {
		if rounds++; rounds > 20 {
			return
		}
		mutate := func(n int) {
			for range n {
				depth := rapid.IntRange(1, 3).Draw(rt, "depth")
				var parts []string
				for range depth {
					parts = append(parts, rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "part"))
				}
				path := filepath.Join(f.dir, filepath.Join(parts...))
				// What stands in the way goes: files become directories and back.
				for p := filepath.Dir(path); len(p) > len(f.dir); p = filepath.Dir(p) {
					if st, err := os.Lstat(p); err == nil && !st.IsDir() {
						os.Remove(p)
					}
				}
				os.RemoveAll(path)
				switch rapid.IntRange(0, 3).Draw(rt, "op") {
				case 0:
				case 1, 2:
					os.MkdirAll(filepath.Dir(path), 0o755)
					mode := rapid.SampledFrom([]os.FileMode{0o644, 0o755}).Draw(rt, "mode")
					os.WriteFile(path, []byte(rapid.StringMatching(`[ab]{0,4}`).Draw(rt, "text")), mode)
				case 3:
					os.MkdirAll(filepath.Dir(path), 0o755)
					os.Symlink(rapid.SampledFrom([]string{"a", "../b", "/etc"}).Draw(rt, "target"), path)
				}
			}
		}
		mutate(rapid.IntRange(0, 10).Draw(rt, "before"))
		one := f.tree()
		mutate(rapid.IntRange(0, 10).Draw(rt, "after"))
		two := f.tree()
		base := f.baseline(one)
		same(rt, "baseline", f.seen(base), f.checkedOut(one))
		cand := f.candidate(base, two)
		same(rt, "candidate", f.seen(cand), f.checkedOut(two))
		var listed, tracked []string
		if err := cand.Each(func(x File) error { listed = append(listed, x.Path); return nil }); err != nil {
			rt.Fatal(err)
		}
		if err := f.repo.ListTree(context.Background(), two, func(e gitrepo.TreeEntry) error { tracked = append(tracked, e.Path); return nil }); err != nil {
			rt.Fatal(err)
		}
		slices.Sort(tracked)
		same(rt, "manifest", listed, tracked)
	})
}

func FuzzManifest(f *testing.F) {
	f.Add(record{layer: "snap/1/fs", base: "x", files: []File{{Path: "a\nb", Mode: 0o100644, OID: "1", Blob: schemas.BlobRefOf(nil)}}, gone: []string{"z"}}.encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decode(data)
		if err != nil {
			return
		}
		if again, err := decode(r.encode()); err != nil || again.layer != r.layer || len(again.files) != len(r.files) {
			t.Fatalf("%v %+v", err, r)
		}
	})
}
