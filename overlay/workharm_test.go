package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// helperWork makes and drops work areas until it is killed or has made three.
func helperWork(dir, state string) error {
	store, err := Open(state)
	if err != nil {
		return err
	}
	fmt.Println("begin")
	for i := range 3 {
		if i == 1 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("by-", os.Getpid())), []byte("x"), 0o644); err != nil {
				return err
			}
		}
		w, err := store.CreateWorkArea(context.Background(), WorkSource{Dir: dir}, WorkOptions{})
		if err != nil {
			return err
		}
		if i == 2 {
			continue // which stays
		}
		if err := w.Drop(context.Background()); err != nil {
			return err
		}
	}
	return nil
}

func (p *plain) helper() *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "OVERLAY_TEST_WORK="+p.dir, "OVERLAY_TEST_STATE="+p.store.dir)
	return cmd
}

func (p *plain) many(n int) {
	p.t.Helper()
	for i := range n {
		p.write(fmt.Sprintf("d%d/f%d", i%20, i), strings.Repeat(fmt.Sprint(i), 300))
	}
}

// TestKilledWhileMakingWorkAreas: whatever is there afterwards is whole, and
// nothing of the dead stays.
func TestKilledWhileMakingWorkAreas(t *testing.T) {
	p := newPlain(t)
	p.many(1500)
	moments := 14
	if testing.Short() {
		moments = 4
	}
	for i := range moments {
		cmd := p.helper()
		out, err := cmd.StdoutPipe()
		p.must(err)
		p.must(cmd.Start())
		if _, err := io.ReadFull(out, make([]byte, len("begin\n"))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 12 * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		p.sound()
		areas, err := p.store.WorkAreas()
		p.must(err)
		for _, w := range areas {
			p.seen(w)
			p.must(w.Drop(context.Background()))
		}
		if i%4 == 3 {
			if _, err := p.store.Collect(context.Background(), time.Now().Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
			for _, d := range []string{"work/layers", "work/tmp", "trash"} {
				if left, err := os.ReadDir(p.store.path(d)); err != nil || len(left) > 0 {
					t.Fatal(d, left, err)
				}
			}
		}
	}
	w := p.area(WorkOptions{})
	if !maps.Equal(p.seen(w), p.project()) {
		t.Fatal("the work area does not show the project")
	}
}

// TestKilledInAWorkArea: what was done is there for the next.
func TestKilledInAWorkArea(t *testing.T) {
	p := newPlain(t)
	p.many(50)
	w := p.area(WorkOptions{})
	cmd := p.helper()
	cmd.Env = append(cmd.Env, "OVERLAY_TEST_ENTER="+w.ID())
	out, err := cmd.StdoutPipe()
	p.must(err)
	cmd.Stderr = os.Stderr
	p.must(cmd.Start())
	if _, err := io.ReadFull(out, make([]byte, len("done\n"))); err != nil {
		t.Fatal(err)
	}
	p.must(cmd.Process.Kill())
	_ = cmd.Wait()
	same(t, "changes", lines(p.changes(w)), []string{"modify d1/f1", "delete d2/f2", "create made"})
	if got := p.seen(w)["made"]; got != "-rw-r--r-- by the one that was killed" {
		t.Fatal(got)
	}
}

// helperEnter works in a work area and waits to be killed.
func helperEnter(state, id string) error {
	store, err := Open(state)
	if err != nil {
		return err
	}
	w, err := store.OpenWorkArea(id)
	if err != nil {
		return err
	}
	// The namespace is this thread's alone: an overlay takes no layer that was
	// opened in another.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	m, err := w.Mount(context.Background(), here{os.TempDir()})
	if err != nil {
		return err
	}
	err = errors.Join(os.WriteFile(m.Path+"/d1/f1", []byte("changed"), 0o644), os.Remove(m.Path+"/d2/f2"),
		os.WriteFile(m.Path+"/made", []byte("by the one that was killed"), 0o644))
	fmt.Println("done")
	if err == nil {
		select {}
	}
	return err
}

// here is a mounter of the thread that it is used on.
type here struct{ dir string }

func (h here) Do(fn func() error) error { return fn() }
func (h here) Dir() string              { return h.dir }

func TestManyMakeWorkAreasAtOnce(t *testing.T) {
	p := newPlain(t)
	p.many(600)
	var wg sync.WaitGroup
	errs := make([]error, 5)
	for i := range errs {
		wg.Go(func() {
			if out, err := p.helper().CombinedOutput(); err != nil {
				errs[i] = fmt.Errorf("%w: %s", err, out)
			}
		})
	}
	stop := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			select {
			case <-stop:
				done <- nil
				return
			case <-time.After(2 * time.Millisecond):
				_, err = p.store.Collect(context.Background(), time.Now().Add(time.Hour))
			}
		}
		done <- err
	}()
	wg.Wait()
	close(stop)
	p.must(errors.Join(append(errs, <-done)...))
	if r := p.sound(); r.WorkAreas != 5 {
		t.Fatalf("%+v", r)
	}
	areas, err := p.store.WorkAreas()
	p.must(err)
	for _, w := range areas {
		if len(p.seen(w)) < 600 {
			t.Fatal("a work area lacks files")
		}
	}
}

// TestDiskFullUnderWorkAreas makes a work area at every size at which a write
// may fail: it fails clearly or falls back, and the store stays sound.
func TestDiskFullUnderWorkAreas(t *testing.T) {
	p := newPlain(t)
	p.many(60)
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=16m"); err != nil {
		t.Skipf("needs: tmpfs mount (%v)", err)
	}
	defer unix.Unmount(small, unix.MNT_DETACH)
	store, err := Open(small + "/store")
	p.must(err)
	p.store, p.space = store, newSpace(t) // one that has the mount
	resize := func(size int64) {
		t.Helper()
		p.must(unix.Mount("", small, "", unix.MS_REMOUNT, fmt.Sprint("size=", size)))
	}
	want := p.project()
	fell, failed, made := 0, 0, 0
	for room := int64(8 << 10); made < 2; room += 8 << 10 {
		var st unix.Statfs_t
		p.must(unix.Statfs(small, &st))
		resize((int64(st.Blocks)-int64(st.Bfree))*st.Bsize + room)
		w, err := store.CreateWorkArea(context.Background(), WorkSource{Dir: p.dir}, WorkOptions{MaxCopy: 1 << 40})
		resize(16 << 20)
		switch {
		case err != nil:
			failed++
			if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "ASPIS_STATE_DIR") {
				t.Fatal(err)
			}
		case w.Parts()[0].Live:
			fell++
			if !strings.Contains(w.Parts()[0].Why, "no room") {
				t.Fatal(w.Parts()[0].Why)
			}
		default:
			made++
		}
		if w != nil {
			if !maps.Equal(p.seen(w), want) {
				t.Fatal("a work area does not show the project")
			}
			p.must(w.Drop(context.Background()))
		}
		p.sound()
		if _, err := store.Collect(context.Background(), time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	if failed == 0 || fell == 0 {
		t.Fatalf("failed %d, fell back %d times", failed, fell)
	}
}

func TestMaxCopyMakesItLive(t *testing.T) {
	p := newPlain(t)
	p.write("big", strings.Repeat("x", 100_000))
	w := p.area(WorkOptions{MaxCopy: 50_000})
	part := w.Parts()[0]
	if !part.Live && part.Held.Cloned == 0 || part.Live && !strings.Contains(part.Why, "50000") {
		t.Fatalf("%+v", part)
	}
	p.sound()
}

func TestStateInsideOfTheProject(t *testing.T) {
	p := newPlain(t)
	p.write("a", "1")
	store, err := Open(p.dir + "/.state")
	p.must(err)
	p.store = store
	w := p.area(WorkOptions{})
	if got := p.seen(w); len(got) != 1 || got["a"] == "" {
		t.Fatal(got)
	}
	var unfit *UnfitError
	if _, err := store.CreateWorkArea(context.Background(), WorkSource{Dir: p.dir}, WorkOptions{Live: true}); !errors.As(err, &unfit) {
		t.Fatal(err)
	}
}

// TestOddFilesInTheProject: what cannot be kept is told, and the rest is there.
func TestOddFilesInTheProject(t *testing.T) {
	p := newPlain(t)
	p.must(unix.Mkfifo(p.dir+"/fifo", 0o644))
	deep := strings.Repeat("abcdefghij/", 180) + "leaf"
	p.write(deep, "deep")
	p.write("a\nb\xff", "odd")
	p.write("hole", "")
	p.must(os.Truncate(p.dir+"/hole", 4<<30))
	p.must(unix.Setxattr(p.dir+"/hole", "user.note", []byte("kept"), 0))
	p.must(os.Symlink(strings.Repeat("t/", 2000), p.dir+"/link"))
	p.must(os.Chmod(p.dir+"/a\nb\xff", 0o4750))
	w := p.area(WorkOptions{})
	if s := w.Parts()[0].Skipped; len(s) != 1 || s[0].Path != "fifo" {
		t.Fatal(s)
	}
	p.in(w, func(dir string) error {
		for _, name := range []string{deep, "a\nb\xff", "hole", "link"} {
			was, err := os.Lstat(filepath.Join(p.dir, name))
			if err != nil {
				return err
			}
			is, err := os.Lstat(filepath.Join(dir, name))
			if err != nil {
				return err
			}
			if was.Mode() != is.Mode() || was.Size() != is.Size() || !was.ModTime().Equal(is.ModTime()) {
				return fmt.Errorf("%q: %v %d %v, was %v %d %v", name, is.Mode(), is.Size(), is.ModTime(), was.Mode(), was.Size(), was.ModTime())
			}
		}
		var st unix.Stat_t
		if err := unix.Stat(dir+"/hole", &st); err != nil || st.Blocks > 64 {
			return fmt.Errorf("a hole was filled: %d blocks: %w", st.Blocks, err)
		}
		buf := make([]byte, 16)
		n, err := unix.Getxattr(dir+"/hole", "user.note", buf)
		if err != nil || string(buf[:n]) != "kept" {
			return fmt.Errorf("the attribute is %q: %w", buf[:max(n, 0)], err)
		}
		return nil
	})
	p.sound()
}

// TestProjectOnOverlayfs: inside of a container the project may itself lie on an
// overlay, which can be below another.
func TestProjectOnOverlayfs(t *testing.T) {
	p := newPlain(t)
	p.write("a", "1")
	p.write("d/b", "2")
	top := t.TempDir()
	for _, d := range []string{"u", "w", "m"} {
		p.must(os.Mkdir(filepath.Join(top, d), 0o755))
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/u,workdir=%s/w", p.dir, top, top)
	if p.store.userns {
		options += ",userxattr"
	}
	p.must(p.space.Do(func() error { return unix.Mount("overlay", top+"/m", "overlay", 0, options) }))
	for _, o := range []WorkOptions{{}, {Live: true}} {
		var w *WorkArea
		p.must(p.space.Do(func() (err error) {
			if err := os.WriteFile(top+"/m/c", []byte("3"), 0o644); err != nil {
				return err
			}
			w, err = p.store.CreateWorkArea(context.Background(), WorkSource{Dir: top + "/m"}, o)
			return err
		}))
		if out := p.shell(w, "cat a d/b c; echo 4 >c; rm -r d; mv a e"); out != "123" {
			t.Fatal(out)
		}
		p.must(p.space.Do(func() error {
			d, err := w.Changes(context.Background(), ChangesOptions{})
			if err != nil {
				return err
			}
			if got := lines(d); fmt.Sprint(got) != fmt.Sprint([]string{"modify c", "delete d/", "delete d/b", "rename e from a"}) {
				return fmt.Errorf("%q", got)
			}
			if now, err := whole(top + "/m"); err != nil || len(now) != 4 {
				return fmt.Errorf("the project was changed: %q: %w", now, err)
			}
			return nil
		}))
		p.must(w.Drop(context.Background()))
	}
}

// TestFileThatIsBeingWritten: what is kept of one that grows all the time is its
// beginning, and never of several moments unless that is told.
func TestFileThatIsBeingWritten(t *testing.T) {
	p := newPlain(t)
	p.many(200)
	log, err := os.Create(p.dir + "/log")
	p.must(err)
	defer log.Close()
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if _, err := fmt.Fprintf(log, "line %d\n", i); err != nil || i > 2_000_000 {
				done <- err
				return
			}
		}
	}()
	var got []string
	for range 5 {
		w := p.area(WorkOptions{})
		got = append(got, strings.TrimPrefix(p.seen(w)["log"], "-rw-r--r-- "))
		p.must(w.Drop(context.Background()))
	}
	close(stop)
	p.must(<-done)
	final, err := os.ReadFile(p.dir + "/log")
	p.must(err)
	for i, g := range got {
		if !strings.HasPrefix(string(final), g) || i > 0 && len(g) < len(got[i-1]) {
			t.Fatalf("%d: %d bytes that were never there", i, len(g))
		}
	}
}

// TestWorkAreaWithoutWhatCannotBeRead: it is told, and the rest is kept.
func TestWorkAreaWithoutWhatCannotBeRead(t *testing.T) {
	if !underUser() {
		t.Log("root reads everything: what is left is that nothing is left out")
	}
	p := newPlain(t)
	p.write("a", "1")
	p.write("shut/b", "2")
	p.must(os.Chmod(p.dir+"/a", 0))
	p.must(os.Chmod(p.dir+"/shut", 0))
	w := p.area(WorkOptions{})
	if got := p.seen(w); len(got)+len(w.Parts()[0].Skipped) != 3 {
		t.Fatalf("%q, left out %v", got, w.Parts()[0].Skipped)
	}
}

// TestChangesWhileWorkGoesOn looks again and again while files come and go.
func TestChangesWhileWorkGoesOn(t *testing.T) {
	p := newPlain(t)
	p.many(100)
	w := p.area(WorkOptions{})
	m, err := w.Mount(context.Background(), p.space)
	p.must(err)
	stop := make(chan struct{})
	begun, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- p.space.Do(func() error {
			for i := 0; ; i++ {
				if i == 1 {
					close(begun)
				}
				select {
				case <-stop:
					return nil
				default:
				}
				dir := fmt.Sprintf("%s/x%d", m.Path, i%5)
				err := errors.Join(os.MkdirAll(dir+"/y", 0o755), os.WriteFile(dir+"/y/f", fmt.Append(nil, i), 0o644),
					os.Rename(dir+"/y", dir+"/z"), os.WriteFile(fmt.Sprintf("%s/d1/f1", m.Path), fmt.Append(nil, i), 0o644), os.RemoveAll(dir))
				if err != nil {
					return err
				}
			}
		})
	}()
	<-begun
	for range 60 {
		if _, err := w.Changes(context.Background(), ChangesOptions{Keep: true}); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	p.must(<-done)
	p.must(m.Close())
	same(t, "changes", lines(p.changes(w)), []string{"modify d1/f1"})
}

// TestWorkAreasOverAReboot: what was on disk is used again; what may not have
// been is not, and is told.
func TestWorkAreasOverAReboot(t *testing.T) {
	p := newPlain(t)
	p.many(20)
	p.settle()
	want := p.project()
	w := p.area(WorkOptions{})
	p.shell(w, "echo mine >mine")
	p.store.Wait()
	// As if the machine had been started since.
	id := w.note.Parts[0].Layers[0]
	l, err := p.store.frozenLayer(id)
	p.must(err)
	l.note.Boot = "another"
	p.must(os.Remove(p.store.frozenDir(id, "note.json")))
	p.must(writeJSON(p.store.frozenDir(id, "note.json"), l.note))
	want["mine"] = "-rw-r--r-- mine\n"
	if got := p.seen(w); !maps.Equal(got, want) {
		t.Fatal("after a reboot it is not what it was")
	}
	if next := p.area(WorkOptions{}); next.note.Parts[0].Layers[0] != id {
		t.Fatal("what was kept is not used again")
	}
	p.sound()
	// As if it had gone down before the disk had everything.
	p.must(os.Remove(p.store.frozenDir(id, "synced")))
	var damaged *DamagedError
	if _, err := w.Mount(context.Background(), p.space); !errors.As(err, &damaged) {
		t.Fatal(err)
	}
	same(t, "what was done is still to be had", lines(p.changes(w)), []string{"create mine"})
	next := p.area(WorkOptions{})
	if next.note.Parts[0].Layers[0] == id {
		t.Fatal("what may be cut short is used again")
	}
	delete(want, "mine")
	if got := p.seen(next); !maps.Equal(got, want) {
		t.Fatal("the next does not show the project")
	}
	if r, err := p.store.Verify(context.Background()); err != nil || len(r.Problems) == 0 {
		t.Fatal(r, err)
	}
}

// TestVerifyWhileWorkAreasComeAndGo finds nothing wrong with what only changes.
func TestVerifyWhileWorkAreasComeAndGo(t *testing.T) {
	p := newPlain(t)
	p.many(40)
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			w, err := p.store.CreateWorkArea(context.Background(), WorkSource{Dir: p.dir}, WorkOptions{Live: i%2 == 0})
			if err == nil {
				err = w.Drop(context.Background())
			}
			if err != nil {
				done <- err
				return
			}
		}
	}()
	for range 150 {
		p.sound()
		if _, err := p.store.List(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	p.must(<-done)
}
