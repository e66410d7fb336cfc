package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// object writes an object that no git would write.
func (r repo) object(kind string, content []byte) string {
	r.t.Helper()
	cmd := exec.Command("git", "-C", r.dir, "hash-object", "-w", "--literally", "-t", kind, "--stdin")
	cmd.Stdin = bytes.NewReader(content)
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// crafted writes a tree of "mode name oid" rows, in any order and with any name.
func (r repo) crafted(rows ...[3]string) string {
	r.t.Helper()
	var b bytes.Buffer
	for _, row := range rows {
		fmt.Fprintf(&b, "%s %s\x00", row[0], row[1])
		for i := 0; i < len(row[2]); i += 2 {
			var c byte
			fmt.Sscanf(row[2][i:i+2], "%02x", &c)
			b.WriteByte(c)
		}
	}
	return r.object("tree", b.Bytes())
}

func TestCraftedTreesAreRefused(t *testing.T) {
	ctx := context.Background()
	r := newRepo(t)
	r.write("a", "1")
	r.commit("one")
	blob := r.git("rev-parse", "HEAD:a")
	sub := r.crafted([3]string{"100644", "x", blob})
	g := r.open()
	for what, tree := range map[string]string{
		"dot git":       r.crafted([3]string{"40000", ".git", sub}),
		"dot GIT":       r.crafted([3]string{"40000", ".GIT", sub}),
		"up":            r.crafted([3]string{"40000", "..", sub}),
		"here":          r.crafted([3]string{"40000", ".", sub}),
		"empty":         r.crafted([3]string{"40000", "", sub}),
		"slash":         r.crafted([3]string{"100644", "../x", blob}),
		"twice":         r.crafted([3]string{"100644", "a", blob}, [3]string{"100755", "a", blob}),
		"file and dir":  r.crafted([3]string{"100644", "a", blob}, [3]string{"100644", "a-b", blob}, [3]string{"40000", "a", sub}),
		"disorder":      r.crafted([3]string{"100644", "b", blob}, [3]string{"100644", "a", blob}),
		"twice, nested": r.crafted([3]string{"40000", "d", sub}, [3]string{"40000", "d", sub}),
	} {
		var damaged *DamagedError
		err := g.ListTree(ctx, OID(tree), func(TreeEntry) error { return nil })
		if !errors.As(err, &damaged) {
			t.Errorf("%s: listing gave %v", what, err)
		}
		c, err := g.Capture(ctx, Selection{Kind: KindTree, A: tree})
		if what == "disorder" {
			continue // as a change it says nothing twice
		}
		if !errors.As(err, &damaged) && !errors.As(err, new(*UnsupportedNameError)) {
			t.Errorf("%s: capture gave %v %v", what, c, err)
		}
	}
}

// TestTreeWithoutEnd has a tree of a few kilobytes that stands for 10^10 files.
func TestTreeWithoutEnd(t *testing.T) {
	r := newRepo(t)
	r.write("a", "1")
	r.commit("one")
	row := [3]string{"100644", "", r.git("rev-parse", "HEAD:a")}
	tree := ""
	for range 10 {
		var rows [][3]string
		for i := range 10 {
			row[1] = fmt.Sprint("n", i)
			rows = append(rows, row)
		}
		tree = r.crafted(rows...)
		row = [3]string{"40000", "", tree}
	}
	g := r.open()
	g.memory = 64 << 20
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := g.Capture(ctx, Selection{Kind: KindTree, A: tree}); err == nil || ctx.Err() != nil {
		t.Error(err)
	}
	var large *TooLargeError
	if err := g.ListTree(ctx, OID(tree), func(TreeEntry) error { return nil }); !errors.As(err, &large) {
		t.Error(err)
	}
}

// A .gitmodules file comes with the change and must not hide a part of it.
func TestSubmoduleCannotBeHidden(t *testing.T) {
	sub := newRepo(t)
	sub.write("s", "1")
	sub.commit("s")
	r := newRepo(t)
	r.git("submodule", "add", "-q", sub.dir, "sub")
	r.commit("one")
	inner := repo{t, filepath.Join(r.dir, "sub")}
	inner.write("s", "2")
	inner.commit("two")
	r.git("config", "-f", ".gitmodules", "submodule.sub.ignore", "all")
	expect := []string{`modify ".gitmodules"`, `modify "sub"`}
	want(t, r.capture(Selection{Kind: KindWorktree}), expect...)
	r.git("add", ".gitmodules")
	r.git("update-index", "--cacheinfo", "160000,"+inner.git("rev-parse", "HEAD")+",sub")
	want(t, r.capture(Selection{Kind: KindStaged}), expect...)
	r.git("commit", "-q", "-m", "two")
	want(t, r.capture(Selection{Kind: KindBase, A: "HEAD~1"}), expect...)
}

// Git leaves names that it refuses out of the index without failing.
func TestRefusedNamesAreNotLeftOut(t *testing.T) {
	for _, name := range []string{".GIT/hooks/x", "d/.Git", "git~1", "d/.git ."} {
		r := newRepo(t)
		r.write("a", "1")
		r.commit("one")
		r.write(name, "x")
		r.write("z", "x")
		_, err := r.open().Capture(context.Background(), Selection{Kind: KindWorktree})
		var odd *UnsupportedNameError
		if !errors.As(err, &odd) || len(odd.Names) != 1 || odd.Names[0] != name {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestPipesAreNotWaitedFor(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	r := newRepo(t)
	r.write("a", "1")
	r.commit("one")
	pipe := func(name string) {
		t.Helper()
		_ = os.Remove(filepath.Join(r.dir, name))
		must(t, syscall.Mkfifo(filepath.Join(r.dir, name), 0o644))
	}
	pipe("untracked")
	if c := r.capture(Selection{Kind: KindWorktree}); len(c.Entries) != 0 {
		t.Error(summary(c)) // git knows no pipes
	}
	pipe("a")
	var unreadable *WorktreeError
	if _, err := r.open().Capture(ctx, Selection{Kind: KindWorktree}); !errors.As(err, &unreadable) {
		t.Error(err)
	}
	pipe(".git/index")
	var damaged *DamagedError
	if _, err := r.open().Capture(ctx, Selection{Kind: KindStaged}); !errors.As(err, &damaged) {
		t.Error(err)
	}
	pipe(".git/config")
	if _, err := Open(ctx, r.dir, Options{StateDir: t.TempDir()}); !errors.As(err, &damaged) {
		t.Error(err)
	}
}

// A file of the tree whose content cannot be had is not an absent file.
func TestBlobAtDoesNotTakeMissingForAbsent(t *testing.T) {
	ctx := context.Background()
	r := newRepo(t)
	r.write(".asp/asp.json", "{}")
	r.write("f", "x")
	r.commit("one")
	tree := OID(r.git("rev-parse", "HEAD^{tree}"))
	g := r.open()
	for _, path := range []string{"nothing", ".asp/nothing", "f/below", "nothing/at/all"} {
		if _, ok, err := g.BlobAt(ctx, tree, path, 100); ok || err != nil {
			t.Errorf("%s: %v %v", path, ok, err)
		}
	}
	if _, _, err := g.BlobAt(ctx, tree, ".asp/asp.json", 1); err == nil {
		t.Error("the limit is not kept")
	}
	if _, _, err := g.BlobAt(ctx, tree, ".asp", 100); err == nil {
		t.Error("a directory is no file")
	}
	for _, name := range []string{"HEAD:.asp/asp.json", "HEAD:.asp"} {
		oid := r.git("rev-parse", name)
		must(t, os.Remove(filepath.Join(r.dir, ".git/objects", oid[:2], oid[2:])))
		var missing *MissingObjectError
		if _, ok, err := r.open().BlobAt(ctx, tree, ".asp/asp.json", 100); ok || !errors.As(err, &missing) {
			t.Errorf("%s is missing: %v %v", name, ok, err)
		}
	}
}

// A branch that cannot be read is not one that is yet to be born.
func TestBrokenBranchIsNotUnborn(t *testing.T) {
	r := newRepo(t)
	r.write("a", "1")
	r.commit("one")
	branch := filepath.Join(r.dir, ".git/refs/heads/main")
	for _, text := range []string{"", "rubbish", strings.Repeat("1", 40) + "\n"} {
		must(t, os.WriteFile(branch, []byte(text), 0o644))
		for _, kind := range []SelectionKind{KindWorktree, KindStaged} {
			if c, err := r.open().Capture(context.Background(), Selection{Kind: kind}); err == nil {
				t.Errorf("%q: %v", text, c)
			}
		}
	}
}

func TestUnreadableRepository(t *testing.T) {
	outer := newRepo(t)
	outer.commit("outer")
	r := repo{t, filepath.Join(outer.dir, "inner")}
	must(t, os.Mkdir(r.dir, 0o755))
	r.git("init", "-q")
	must(t, os.Chmod(filepath.Join(r.dir, ".git"), 0))
	defer os.Chmod(filepath.Join(r.dir, ".git"), 0o755)
	state := t.TempDir()
	if os.Getuid() == 0 {
		// Root may read everything; this thread looks at files as nobody does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		must(t, syscall.Setfsuid(65534))
		defer syscall.Setfsuid(0)
	}
	var not *NotARepositoryError
	if g, err := Open(context.Background(), r.dir, Options{StateDir: state}); !errors.As(err, &not) {
		t.Fatal(g, err)
	}
}

// What killed processes leave is gone after the next start, and nothing that
// another one uses.
func TestLeftoversAreSwept(t *testing.T) {
	r := newRepo(t)
	r.write("a", "1")
	r.commit("one")
	state := t.TempDir()
	open := func() *Repo {
		g, err := Open(context.Background(), r.dir, Options{StateDir: state})
		must(t, err)
		return g
	}
	g := open()
	left := filepath.Join(g.shadow, scratchPrefix+"left")
	must(t, os.Mkdir(left, 0o700))
	r.write("b", "2")
	_, young, err := g.Current(context.Background())
	must(t, err)
	ancient := filepath.Join(g.shadow, "objects", string(young[:2]), string(young[2:]))
	must(t, os.Chtimes(ancient, time.Now(), time.Now().Add(-keepObjects-time.Hour)))
	must(t, os.Remove(filepath.Join(g.shadow, "swept")))
	must(t, g.inScratch(func(dir string) error {
		open()
		_, err := os.Stat(dir)
		return err
	}))
	for _, path := range []string{left, ancient} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
	if _, again, err := open().Current(context.Background()); err != nil || again != young {
		t.Fatal(again, err)
	}
}

// forge puts other bytes in the place of a loose object, in a form that git
// itself takes without a word.
func (r repo) forge(oid, kind, content string) {
	r.t.Helper()
	other := r.object(kind, []byte(content))
	from, err := os.ReadFile(filepath.Join(r.dir, ".git/objects", other[:2], other[2:]))
	must(r.t, err)
	path := filepath.Join(r.dir, ".git/objects", oid[:2], oid[2:])
	must(r.t, os.Remove(path))
	must(r.t, os.WriteFile(path, from, 0o444))
}

// An object that holds other bytes than its name stands for is damaged.
func TestForgedObjects(t *testing.T) {
	ctx := context.Background()
	for _, files := range []int{1, fewObjects} {
		r := newRepo(t)
		for i := range files {
			r.write(fmt.Sprint("f", i), fmt.Sprintln("one", i))
		}
		r.commit("one")
		for i := range files {
			r.write(fmt.Sprint("f", i), fmt.Sprintln("two", i))
		}
		r.commit("two")
		first := r.git("rev-parse", "HEAD~1^{tree}")
		r.forge(r.git("rev-parse", "HEAD:f0"), "blob", "forged")
		if out := r.git("cat-file", "blob", "HEAD:f0"); out != "forged" {
			t.Fatal(out)
		}
		var damaged *DamagedError
		if c, err := r.open().Capture(ctx, Selection{Kind: KindBase, A: "HEAD~1"}); !errors.As(err, &damaged) {
			t.Errorf("%d files: %v %v", files, c, err)
		}
		r.forge(r.git("rev-parse", "HEAD~1:f0"), "blob", "forged too")
		if _, _, err := r.open().BlobAt(ctx, OID(first), "f0", 100); !errors.As(err, &damaged) {
			t.Error(err)
		}
		r.forge(first, "tree", "")
		if _, _, err := r.open().BlobAt(ctx, OID(first), "f0", 100); !errors.As(err, &damaged) {
			t.Error(err)
		}
		if _, err := r.open().TreeOf(ctx, "HEAD~1"); !errors.As(err, &damaged) {
			t.Error(err)
		}
	}
}

// A kept git that was killed is replaced without a word.
func TestKeptProcessMayDie(t *testing.T) {
	ctx := context.Background()
	r := newRepo(t)
	r.commit("one")
	g := r.open()
	for range 3 {
		if _, err := g.TreeOf(ctx, "HEAD"); err != nil {
			t.Fatal(err)
		}
		must(t, g.lookup.reader.cmd.Process.Kill())
	}
	must(t, g.Close())
	must(t, g.Close())
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := g.Capture(ended, Selection{Kind: KindWorktree}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
