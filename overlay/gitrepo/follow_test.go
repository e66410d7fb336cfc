package gitrepo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// latest compares what the follower says with a fresh look.
func (r repo) latest(f *Follower, what string) {
	r.t.Helper()
	ctx := context.Background()
	b, tree, err := f.Latest(ctx)
	if err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
	want, wantTree, err := f.r.Current(ctx)
	if err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
	if b != want || tree != wantTree {
		r.t.Errorf("after %s: %v %s, want %v %s", what, b, tree, want, wantTree)
	}
}

func TestFollowerSeesEveryChange(t *testing.T) {
	r := newRepo(t)
	r.write("a", "1\n")
	r.write("dir/b", "2\n")
	r.write(".gitignore", "*.o\nbuild/\n")
	r.commit("one")
	g := r.open()
	f := g.Follow()
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	r.latest(f, "nothing")
	if !f.valid {
		t.Skip("SKIPPED: this file system cannot be watched")
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	in := func(p string) string { return filepath.Join(r.dir, p) }
	for _, step := range []struct {
		what string
		do   func()
	}{
		{"a change", func() { r.write("a", "9\n") }},
		{"a change of the same size", func() { r.write("a", "8\n") }},
		{"an untracked file", func() { r.write("new", "x\n") }},
		{"an ignored file", func() { r.write("x.o", "x\n") }},
		{"a file in a new directory", func() { r.write("deep/er/f", "x\n") }},
		{"a change in that directory", func() { r.write("deep/er/f", "y\n") }},
		{"an ignored directory", func() { r.write("build/out", "x\n") }},
		{"a change in the ignored directory", func() { r.write("build/out", "y\n") }},
		{"other ignore rules", func() { r.write(".gitignore", "*.o\n") }},
		{"a change in what is no longer ignored", func() { r.write("build/out", "z\n") }},
		{"an executable bit", func() { must(os.Chmod(in("a"), 0o755)) }},
		{"a rename", func() { must(os.Rename(in("dir"), in("dir2"))) }},
		{"a change in the renamed directory", func() { r.write("dir2/b", "7\n") }},
		{"a removal", func() { must(os.Remove(in("new"))) }},
		{"a symlink", func() { must(os.Symlink("a", in("link"))) }},
		{"an addition to the index", func() { r.git("add", "-f", "x.o") }},
		{"a commit", func() { r.commit("two") }},
		{"another branch", func() { r.git("checkout", "-q", "-b", "other"); r.write("a", "5\n"); r.commit("three") }},
		{"the first branch again", func() { r.git("checkout", "-q", "-") }},
		{"an exclude file", func() {
			must(os.MkdirAll(in(".git/info"), 0o755))
			must(os.WriteFile(in(".git/info/exclude"), []byte("secret\n"), 0o644))
		}},
		{"a packed repository", func() { r.git("pack-refs", "--all"); r.git("gc", "-q") }},
		{"a commit after that", func() { r.write("a", "4\n"); r.commit("four") }},
		{"a repository inside", func() {
			r.git("init", "-q", "inner")
			r.write("inner/f", "1\n")
			r.git("-C", "inner", "add", "f")
			r.git("-C", "inner", "commit", "-q", "-m", "x")
		}},
		{"a commit in it", func() { r.git("-C", "inner", "commit", "-q", "--allow-empty", "-m", "y") }},
		{"its removal", func() { must(os.RemoveAll(in("inner"))) }},
	} {
		step.do()
		r.latest(f, step.what)
		r.latest(f, step.what+", asked again")
	}
}

func TestFollowerRemembers(t *testing.T) {
	r := newRepo(t)
	r.write("a", "1\n")
	r.commit("one")
	f := r.open().Follow()
	defer f.Close()
	r.latest(f, "nothing")
	if !f.valid {
		t.Skip("SKIPPED: this file system cannot be watched")
	}
	// With a git that does not run, only memory can answer.
	git := f.r.git
	f.r.git = "/nonexistent"
	if _, _, err := f.Latest(context.Background()); err != nil {
		t.Error(err)
	}
	r.write("a", "2\n")
	if _, _, err := f.Latest(context.Background()); err == nil {
		t.Error("a change was passed over")
	}
	f.r.git = git
	r.latest(f, "a failed look")
}

// TestFollowerAtRandom makes changes of every kind in random order.
func TestFollowerAtRandom(t *testing.T) {
	r := newRepo(t)
	r.write("d0/f0", "0\n")
	r.commit("one")
	f := r.open().Follow()
	defer f.Close()
	seed := rand.Uint64()
	if s, err := strconv.ParseUint(os.Getenv("FOLLOW_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Log("seed ", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	path := func() string { return fmt.Sprintf("d%d/f%d", rnd.IntN(3), rnd.IntN(3)) }
	for n := range 60 {
		p := path()
		at := filepath.Join(r.dir, p)
		what := ""
		switch k := rnd.IntN(9); k {
		case 0, 1, 2:
			what = "write " + p
			r.write(p, fmt.Sprint(rnd.IntN(4), "\n"))
		case 3:
			what = "remove " + p
			_ = os.Remove(at)
		case 4:
			what = "remove the directory of " + p
			_ = os.RemoveAll(filepath.Dir(at))
		case 5:
			q := path()
			what = "rename " + p + " " + q
			_ = os.Rename(at, filepath.Join(r.dir, q))
		case 6:
			what = "ignore"
			r.write(".gitignore", fmt.Sprintf("d%d/\nf%d\n", rnd.IntN(3), rnd.IntN(3)))
		case 7:
			what = "add"
			r.git("add", "-A")
		case 8:
			what = "commit"
			r.git("commit", "-q", "--allow-empty", "-m", "x")
		}
		t.Log(n, what)
		r.latest(f, fmt.Sprintf("step %d, %s", n, what))
	}
}

// TestCurrentSeesWhatIsNotReported changes a file in the ways that the kernel
// does not report of a directory. Latest may be wrong about these, which is why
// a gate asks Current.
func TestCurrentSeesWhatIsNotReported(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"another hard link": func(path string) error {
			outside := filepath.Join(t.TempDir(), "link")
			if err := os.Link(path, outside); err != nil {
				return err
			}
			return os.WriteFile(outside, []byte("2\n"), 0o644)
		},
		"a shared mapping": func(path string) error {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			m, err := unix.Mmap(int(f.Fd()), 0, 2, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err != nil {
				return err
			}
			copy(m, "3\n")
			return unix.Munmap(m)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRepo(t)
			r.write("a", "1\n")
			r.commit("one")
			f := r.open().Follow()
			defer f.Close()
			ctx := context.Background()
			before, _, err := f.Latest(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := change(filepath.Join(r.dir, "a")); err != nil {
				t.Fatal(err)
			}
			after, tree, err := f.Current(ctx)
			if err != nil || after.Same(before) {
				t.Errorf("the change was passed over: %v, %v", after, err)
			}
			// What Current saw is remembered.
			if again, same, err := f.Latest(ctx); err != nil || !again.Same(after) || same != tree {
				t.Errorf("Latest gives %v %s, want %v %s; %v", again, same, after, tree, err)
			}
		})
	}
}

// TestUnreportedChangesEndTheBelief writes through a shared mapping, of which
// the kernel reports nothing.
func TestUnreportedChangesEndTheBelief(t *testing.T) {
	r := newRepo(t)
	r.write("a", "1\n")
	r.commit("one")
	f := r.open().Follow()
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	file, err := os.OpenFile(filepath.Join(r.dir, "a"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	mapped, err := unix.Mmap(int(file.Fd()), 0, 2, unix.PROT_WRITE|unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(mapped); err != nil {
			t.Error(err)
		}
	}()
	ctx := context.Background()
	first, _, err := f.Latest(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !f.valid {
		t.Skip("SKIPPED: this file system cannot be watched")
	}
	mapped[0] = '2'
	if b, _, err := f.Within(ctx, time.Hour); err != nil || !b.Same(first) {
		t.Fatalf("a change that nothing reports was seen: %v (%v)", b, err)
	}
	b, _, err := f.Within(ctx, 0)
	if err != nil || b.Same(first) {
		t.Fatalf("a look did not see the change: %v (%v)", b, err)
	}
	if f.watch != nil || f.valid {
		t.Fatal("reports are still believed")
	}
	mapped[0] = '3'
	if again, _, err := f.Within(ctx, time.Hour); err != nil || again.Same(b) {
		t.Fatalf("the next change was not looked for: %v (%v)", again, err)
	}
}
