package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// TestMain runs as the other process of a test where the environment says so.
func TestMain(m *testing.M) {
	state := os.Getenv("OVERLAY_TEST_STATE")
	if state != "" {
		var err error
		switch dir := os.Getenv("OVERLAY_TEST_WORK"); {
		case dir == "":
			err = helperProcess(os.Getenv("OVERLAY_TEST_REPO"), state)
		case os.Getenv("OVERLAY_TEST_ENTER") != "":
			err = helperEnter(state, os.Getenv("OVERLAY_TEST_ENTER"))
		default:
			err = helperWork(dir, state)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// helperProcess makes the baseline of one tree and the candidate of another.
func helperProcess(dir, state string) error {
	ctx := context.Background()
	repo, err := gitrepo.Open(ctx, dir, gitrepo.Options{StateDir: state + "/git"})
	if err != nil {
		return err
	}
	store, err := Open(state + "/overlay")
	if err != nil {
		return err
	}
	fmt.Println("begin")
	for range 3 {
		base, err := store.Baseline(ctx, repo, gitrepo.OID(os.Getenv("OVERLAY_TEST_ONE")))
		if err != nil {
			return err
		}
		cand, err := store.Candidate(ctx, repo, base, gitrepo.OID(os.Getenv("OVERLAY_TEST_TWO")))
		if err != nil {
			return err
		}
		n := 0
		if err := cand.Each(func(File) error { n++; return nil }); err != nil || n == 0 {
			return fmt.Errorf("%d files: %w", n, err)
		}
		if err := errors.Join(cand.Close(), base.Close()); err != nil {
			return err
		}
	}
	return repo.Close()
}

func (f *fixture) helper(one, two gitrepo.OID) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "OVERLAY_TEST_REPO="+f.dir, "OVERLAY_TEST_STATE="+f.state, "OVERLAY_TEST_ONE="+string(one), "OVERLAY_TEST_TWO="+string(two))
	return cmd
}

// twoTrees makes a tree of n files, and another that differs in some.
func (f *fixture) twoTrees(n int) (one, two gitrepo.OID) {
	for i := range n {
		f.write(fmt.Sprintf("d%d/f%d", i%40, i), strings.Repeat(fmt.Sprint(i), 50))
	}
	one = f.tree()
	f.write("d0/f0", "changed")
	f.remove("d1")
	return one, f.tree()
}

func TestManyProcesses(t *testing.T) {
	f := newFixture(t)
	one, two := f.twoTrees(800)
	var wg sync.WaitGroup
	errs := make([]error, 6)
	for i := range errs {
		wg.Go(func() {
			if out, err := f.helper(one, two).CombinedOutput(); err != nil {
				errs[i] = fmt.Errorf("%w: %s", err, out)
			}
		})
	}
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(3 * time.Millisecond):
				if _, err := f.store.Collect(context.Background(), time.Now().Add(time.Hour)); err != nil {
					t.Error(err)
				}
			}
		}
	})
	time.AfterFunc(time.Second, func() { close(stop) })
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	base := f.baseline(one)
	same(t, "candidate", f.seen(f.candidate(base, two)), f.checkedOut(two))
	f.sound()
	if n := f.layersOnDisk(); n != 2 {
		t.Fatalf("%d layers", n)
	}
}

func TestOneOfManyWrites(t *testing.T) {
	f := newFixture(t)
	one, _ := f.twoTrees(400)
	counted := &counting{Source: f.repo}
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() {
			s, err := f.store.Baseline(context.Background(), counted, one)
			if err == nil {
				err = s.Close()
			}
			errs[i] = err
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if counted.lists != 1 {
		t.Fatalf("the tree was written %d times", counted.lists)
	}
}

type counting struct {
	Source
	mu    sync.Mutex
	lists int
}

func (c *counting) ListTree(ctx context.Context, tree gitrepo.OID, fn func(gitrepo.TreeEntry) error) error {
	c.mu.Lock()
	c.lists++
	c.mu.Unlock()
	return c.Source.ListTree(ctx, tree, fn)
}

// TestKilledWriter kills a process at many moments of its writing. Whatever is
// there afterwards is whole, and nothing of the dead stays.
func TestKilledWriter(t *testing.T) {
	f := newFixture(t)
	one, two := f.twoTrees(1500)
	moments := 16
	if testing.Short() {
		moments = 4
	}
	for i := range moments {
		cmd := f.helper(one, two)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, len("begin\n"))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 15 * time.Millisecond)
		cmd.Process.Kill()
		cmd.Wait()
		f.sound()
		if i%4 == 3 {
			if _, err := f.store.Collect(context.Background(), time.Now().Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
			if n := f.layersOnDisk(); n != 0 {
				t.Fatalf("%d layers are left", n)
			}
		}
	}
	base := f.baseline(one)
	cand := f.candidate(base, two)
	same(t, "baseline", f.seen(base), f.checkedOut(one))
	same(t, "candidate", f.seen(cand), f.checkedOut(two))
	f.sound()
	if n := f.layersOnDisk(); n != 2 {
		t.Fatalf("%d layers are there", n)
	}
}

// TestStoppedWriterKeepsItsLayer: one that only sleeps is not dead.
func TestStoppedWriterKeepsItsLayer(t *testing.T) {
	f := newFixture(t)
	one, two := f.twoTrees(3000)
	cmd := f.helper(one, two)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(60 * time.Millisecond)
	cmd.Process.Signal(syscall.SIGSTOP)
	before := -1
	if dirs, err := os.ReadDir(f.store.path("layers", "snapshots")); err == nil {
		before = len(dirs)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	// It may have been stopped with the database open: then this gives up.
	if _, err := f.store.Collect(ctx, time.Now().Add(-time.Hour)); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if before >= 0 && f.layersOnDisk() != before {
		t.Error("the layer of a living process was taken away")
	}
	cmd.Process.Signal(syscall.SIGCONT)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	f.sound()
}

func TestLockedStoreIsNotWaitedForWithoutEnd(t *testing.T) {
	f := newFixture(t)
	f.write("a", "1")
	tree := f.tree()
	lock, err := tryLock(f.store.path("lock"), unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := f.store.Baseline(ctx, f.repo, tree); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

func TestDiskFull(t *testing.T) {
	f := newFixture(t)
	for i := range 20 {
		f.write(fmt.Sprint("f", i), strings.Repeat("x", 200_000))
	}
	one := f.tree()
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("needs: tmpfs mount (%v)", err)
	}
	defer unix.Unmount(small, unix.MNT_DETACH)
	resize := func(size string) {
		t.Helper()
		if err := unix.Mount("", small, "", unix.MS_REMOUNT, "size="+size); err != nil {
			t.Fatal(err)
		}
	}
	store, err := Open(small + "/overlay")
	if err != nil {
		t.Fatal(err)
	}
	f.store = store
	f.space = newSpace(t) // one that has the mount
	full := func(err error) {
		t.Helper()
		if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "ASPIS_STATE_DIR") {
			t.Fatal(err)
		}
	}
	_, err = store.Baseline(context.Background(), f.repo, one)
	full(err)
	if n := f.layersOnDisk(); n != 0 {
		t.Fatalf("%d layers are left", n)
	}
	f.sound()
	resize("64m")
	base := f.baseline(one)
	// Every size at which a write may fail, from the first of a candidate on.
	f.write("new", strings.Repeat("y", 100_000))
	two := f.tree()
	for room := int64(0); ; room += 12 << 10 {
		var st unix.Statfs_t
		if err := unix.Statfs(small, &st); err != nil {
			t.Fatal(err)
		}
		used := (int64(st.Blocks) - int64(st.Bfree)) * st.Bsize
		resize(fmt.Sprint(used + room))
		cand, err := store.Candidate(context.Background(), f.repo, base, two)
		resize("64m")
		if err == nil {
			cand.Close()
			break
		}
		full(err)
		if n := f.layersOnDisk(); n != 1 {
			t.Fatalf("%d layers are left", n)
		}
		f.sound()
	}
	same(t, "candidate", f.seen(f.candidate(base, two)), f.checkedOut(two))
	resize("4800k")
	_, err = store.PutBlob(context.Background(), strings.NewReader(strings.Repeat("z", 5<<20)), 1<<30)
	full(err)
	f.sound()
}

func TestUnusableDirectories(t *testing.T) {
	f := newFixture(t)
	if os.Getuid() == 0 && !underUser() {
		t.Log("root may write anywhere: a file in a directory's place, and a read-only mount, only")
	} else if err := os.Mkdir(f.dir+"/shut", 0o500); err == nil {
		if _, err := Open(f.dir + "/shut/store"); err == nil && !underUser() {
			t.Error("opened below a directory that cannot be written")
		}
	}
	f.write("file", "")
	if _, err := Open(f.dir + "/file"); !errors.Is(err, unix.ENOTDIR) {
		t.Fatal(err)
	}
	d := t.TempDir()
	if err := f.space.Do(func() error { return unix.Mount("tmpfs", d, "tmpfs", unix.MS_RDONLY, "") }); err != nil {
		t.Skipf("needs: tmpfs mount (%v)", err)
	}
	err := f.space.Do(func() error { _, err := Open(d + "/store"); return err })
	if !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "ASPIS_STATE_DIR") {
		t.Fatal(err)
	}
}

func underUser() bool { in, err := inUserNamespace(); return in && err == nil }

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

// TestDamageIsFound changes one thing at a time of a sound store.
func TestDamageIsFound(t *testing.T) {
	f := newFixture(t)
	f.write("d/a", "one\n")
	f.write("b", "two\n")
	base := f.baseline(f.tree())
	f.write("b", "three\n")
	f.remove("d")
	cand := f.candidate(base, f.tree())
	blob, err := f.store.PutBlob(context.Background(), strings.NewReader("loose"), 10)
	if err != nil {
		t.Fatal(err)
	}
	at, _ := f.store.blobPath(blob)
	f.sound()
	write := func(text string) func(string) error {
		return func(p string) error { return os.WriteFile(p, []byte(text), 0o644) }
	}
	low, up := f.store.layerDir(base.layer), f.store.layerDir(cand.layer)
	for _, c := range []struct {
		what, path string
		do         func(string) error
	}{
		{"bytes", low + "/b", write("owt\n")},
		{"mode", low + "/b", func(p string) error { return os.Chmod(p, 0o755) }},
		{"missing", low + "/b", os.Remove},
		{"more", low + "/more", write("")},
		{"directory", low + "/more", func(p string) error { return os.Mkdir(p, 0o755) }},
		{"whiteout gone", up + "/d", os.Remove},
		{"whiteout below nothing", low + "/w", func(p string) error { return unix.Mknod(p, unix.S_IFCHR, 0) }},
		{"blob", at, write("xxxxx")},
		{"manifest cut", f.store.manifestPath(base.layer), func(p string) error { return os.Truncate(p, 100) }},
		{"manifest emptied", f.store.manifestPath(base.layer), func(p string) error { return os.Truncate(p, 0) }},
		{"manifest gone", f.store.manifestPath(base.layer), os.Remove},
	} {
		saved := filepath.Join(t.TempDir(), "saved")
		had := exec.Command("cp", "-a", c.path, saved).Run() == nil
		if err := c.do(c.path); err != nil {
			t.Fatal(c.what, err)
		}
		r, err := f.store.Verify(context.Background())
		if err != nil || len(r.Problems) == 0 {
			t.Errorf("%s: %v, not found", c.what, err)
		}
		os.RemoveAll(c.path)
		if had {
			if out, err := exec.Command("cp", "-a", saved, c.path).CombinedOutput(); err != nil {
				t.Fatal(string(out))
			}
		}
		f.sound()
	}
}

func TestEveryByteOfAManifestCounts(t *testing.T) {
	f := newFixture(t)
	for i := range 300 {
		f.write(fmt.Sprintf("d%d/f%d", i%9, i), fmt.Sprint(i))
	}
	base := f.baseline(f.tree())
	f.remove("d1")
	f.write("new", "new")
	cand := f.candidate(base, f.tree())
	for _, sn := range []*Snapshot{base, cand} {
		path := f.store.manifestPath(sn.layer)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < len(good); at += 1 + len(good)/300 {
			bad := []byte(string(good))
			bad[at] ^= 0x20
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			again := &Snapshot{store: f.store, key: sn.key, layer: sn.layer, base: sn.base, lease: sn.lease}
			err := again.Each(func(File) error { return nil })
			if err == nil {
				_, err = again.Paths(schemas.BlobRefOf([]byte("7")))
			}
			var damaged *DamagedError
			if !errors.As(err, &damaged) {
				t.Fatalf("byte %d of %d: %v", at, len(good), err)
			}
			if again.file != nil {
				again.file.Close()
			}
		}
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f.sound()
}

func TestDamagedCopyIsNotServed(t *testing.T) {
	f := newFixture(t)
	big := strings.Repeat("0123456789abcdef", wholeBlob/8)
	f.write("small", "one\n")
	f.write("big", big)
	base := f.baseline(f.tree())
	for name, text := range map[string]string{"small": "one\n", "big": big} {
		ref := schemas.BlobRefOf([]byte(text))
		if got, _, err := content(base.OpenBlob(ref)); err != nil || got != text {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(f.store.layerDir(base.layer), name), []byte("x"+text[1:]), 0o644); err != nil {
			t.Fatal(err)
		}
		var damaged *DamagedError
		if _, _, err := content(base.OpenBlob(ref)); !errors.As(err, &damaged) {
			t.Fatal(name, err)
		}
		if err := os.Remove(filepath.Join(f.store.layerDir(base.layer), name)); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/etc/passwd", filepath.Join(f.store.layerDir(base.layer), name)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := content(base.OpenBlob(ref)); !errors.As(err, &damaged) {
			t.Fatal(name, err)
		}
	}
}

func TestDamagedDatabase(t *testing.T) {
	f := newFixture(t)
	f.write("a", "1")
	tree := f.tree()
	f.baseline(tree).Close()
	path := f.store.path("layers", "metadata.db")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for what, bad := range map[string][]byte{
		"text":  []byte(strings.Repeat("no database", 10_000)),
		"zeros": make([]byte, len(good)),
		"cut":   good[:len(good)/4],
		"tail":  append(append([]byte{}, good[:len(good)/8]...), make([]byte, len(good)-len(good)/8)...),
	} {
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := f.store.Baseline(context.Background(), f.repo, tree); err == nil {
			if got, _, err := content(s.OpenBlob(schemas.BlobRefOf([]byte("1")))); err != nil || got != "1" {
				t.Errorf("%s: %q, %v", what, got, err)
			}
			s.Close()
			t.Logf("%s: made again", what)
		} else {
			t.Logf("%s: %v", what, err)
		}
	}
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	f.sound()
}
