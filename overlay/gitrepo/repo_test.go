package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/aspis-dev/aspis/schemas"
)

// repo is a real repository in a temporary directory.
type repo struct {
	t   testing.TB
	dir string
}

func newRepo(t testing.TB, args ...string) repo {
	t.Helper()
	r := repo{t, filepath.Join(t.TempDir(), "work tree")}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r.git(append([]string{"init", "-q", "-b", "main"}, args...)...)
	return r
}

func (r repo) git(args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", append([]string{"-C", r.dir, "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r repo) write(path, text string) {
	r.t.Helper()
	full := filepath.Join(r.dir, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

func (r repo) commit(msg string) string {
	r.t.Helper()
	r.git("add", "-A")
	r.git("commit", "-q", "--allow-empty", "-m", msg)
	return r.git("rev-parse", "HEAD")
}

func (r repo) open() *Repo {
	r.t.Helper()
	g, err := Open(context.Background(), r.dir, Options{StateDir: r.t.TempDir()})
	if err != nil {
		r.t.Fatal(err)
	}
	return g
}

func (r repo) capture(sel Selection) *Capture {
	r.t.Helper()
	c, err := r.open().Capture(context.Background(), sel)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := schemas.ValidateChangeSet(&c.ChangeSet); err != nil {
		r.t.Fatalf("the changeset is not valid: %v\n%+v", err, c.ChangeSet)
	}
	return c
}

// summary writes a capture the way a reader checks it.
func summary(c *Capture) string {
	var b strings.Builder
	for _, e := range c.Entries {
		fmt.Fprintf(&b, "%s %q", e.Kind, e.Path)
		if e.From != "" {
			fmt.Fprintf(&b, " from %q", e.From)
		}
		if e.BeforeMode != e.AfterMode {
			fmt.Fprintf(&b, " %o>%o", e.BeforeMode, e.AfterMode)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func want(t *testing.T, c *Capture, lines ...string) {
	t.Helper()
	if got, w := summary(c), strings.Join(lines, "\n")+"\n"; got != w {
		t.Fatalf("got\n%swant\n%s", got, w)
	}
}

func TestBaseComparesFromTheMergeBase(t *testing.T) {
	r := newRepo(t)
	r.write("a", "1\n")
	r.write("gone", strings.Repeat("x\n", 50))
	r.commit("one")
	r.git("branch", "feature")
	r.write("a", "main moved on\n")
	r.commit("two")
	r.git("checkout", "-q", "feature")
	r.write("b", "new\n")
	r.git("mv", "gone", "moved")
	r.commit("three")
	c := r.capture(Selection{Kind: KindBase, A: "main"})
	want(t, c, `create "b" 0>100644`, `rename "moved" from "gone"`)
	if c.Baseline.Rev != "git:tree:"+r.git("rev-parse", "main~1^{tree}") {
		t.Fatal(c.Baseline)
	}
	if got := c.Entries[0].After; got != schemas.BlobRefOf([]byte("new\n")) {
		t.Fatal(got)
	}
}

func TestEveryKindOfChange(t *testing.T) {
	r := newRepo(t)
	r.write("modify", "1\n")
	r.write("delete", "a file that goes\n")
	r.write("exec", "#!/bin/sh\n")
	r.write("link", "target")
	r.write("dir/file", "x\n")
	r.commit("one")
	r.write("modify", "2\n")
	os.Remove(filepath.Join(r.dir, "delete"))
	os.Chmod(filepath.Join(r.dir, "exec"), 0o755)
	os.Remove(filepath.Join(r.dir, "link"))
	if err := os.Symlink("target", filepath.Join(r.dir, "link")); err != nil {
		t.Fatal(err)
	}
	os.RemoveAll(filepath.Join(r.dir, "dir"))
	r.write("dir", "now a file\n")
	r.write("empty", "")
	expect := []string{`delete "delete" 100644>0`, `create "dir" 0>100644`, `delete "dir/file" 100644>0`, `create "empty" 0>100644`,
		`modify "exec" 100644>100755`, `modify "link" 100644>120000`, `modify "modify"`}
	want(t, r.capture(Selection{Kind: KindWorktree}), expect...)
	r.git("add", "-A")
	want(t, r.capture(Selection{Kind: KindStaged}), expect...)
	r.commit("two")
	want(t, r.capture(Selection{Kind: KindRange, A: "HEAD~1", B: "HEAD"}), expect...)
	want(t, r.capture(Selection{Kind: KindTree, A: "HEAD~1"}),
		`create "delete" 0>100644`, `delete "dir" 100644>0`, `create "dir/file" 0>100644`, `delete "empty" 100644>0`,
		`modify "exec" 100755>100644`, `modify "link" 120000>100644`, `modify "modify"`)
}

func TestWorktreeTakesUntrackedAndLeavesIgnored(t *testing.T) {
	r := newRepo(t)
	r.write(".gitignore", "*.log\n")
	r.commit("one")
	r.write("new", "x")
	r.write("noise.log", "x")
	r.write(".git/info/exclude", "private\n")
	r.write("private", "x")
	want(t, r.capture(Selection{Kind: KindWorktree}), `create "new" 0>100644`)
}

func TestUnbornHead(t *testing.T) {
	r := newRepo(t)
	r.write("a", "x")
	c := r.capture(Selection{Kind: KindWorktree})
	want(t, c, `create "a" 0>100644`)
	if c.Baseline.Rev != "git:tree:4b825dc642cb6eb9a060e54bf8d69288fbee4904" {
		t.Fatal(c.Baseline)
	}
	r.git("add", "a")
	want(t, r.capture(Selection{Kind: KindStaged}), `create "a" 0>100644`)
	var unknown *UnknownRevisionError
	if _, err := r.open().Capture(context.Background(), Selection{Kind: KindBase, A: "HEAD~1"}); !errors.As(err, &unknown) {
		t.Fatal(err)
	}
}

func TestOddNames(t *testing.T) {
	r := newRepo(t)
	r.commit("zero")
	names := []string{"sp ace", "new\nline", `quo"te`, "tab\t", "ünïcode", "-dash", ":(glob)x", "#x", "a'b", "*"}
	for _, n := range names {
		r.write(n, n)
	}
	c := r.capture(Selection{Kind: KindWorktree})
	var got []string
	for _, e := range c.Entries {
		got = append(got, e.Path)
		if e.After != schemas.BlobRefOf([]byte(e.Path)) {
			t.Errorf("%q has the wrong bytes", e.Path)
		}
	}
	slices.Sort(names)
	if !slices.Equal(got, names) {
		t.Fatalf("got %q", got)
	}
	r.write("bad\xff", "x")
	r.write(`back\slash`, "x")
	_, err := r.open().Capture(context.Background(), Selection{Kind: KindWorktree})
	var odd *UnsupportedNameError
	if !errors.As(err, &odd) || len(odd.Names) != 2 || !strings.Contains(err.Error(), `"bad\xff"`) {
		t.Fatal(err)
	}
}

func TestKindsOfRepository(t *testing.T) {
	ctx := context.Background()
	t.Run("linked worktree", func(t *testing.T) {
		r := newRepo(t)
		r.write("a", "1")
		r.commit("one")
		linked := filepath.Join(t.TempDir(), "linked")
		r.git("worktree", "add", "-q", "-b", "side", linked)
		l := repo{t, linked}
		l.write("a", "2")
		want(t, l.capture(Selection{Kind: KindWorktree}), `modify "a"`)
		if c := r.capture(Selection{Kind: KindWorktree}); len(c.Entries) != 0 {
			t.Fatal(summary(c))
		}
		l.commit("two")
		want(t, l.capture(Selection{Kind: KindBase, A: "main"}), `modify "a"`)
	})
	t.Run("subdirectory", func(t *testing.T) {
		r := newRepo(t)
		r.write("d/e/a", "1")
		g, err := Open(ctx, filepath.Join(r.dir, "d/e"), Options{StateDir: t.TempDir()})
		if err != nil || g.Root() != r.dir {
			t.Fatal(g, err)
		}
	})
	t.Run("packed refs and tags", func(t *testing.T) {
		r := newRepo(t)
		r.write("a", "1")
		r.commit("one")
		r.git("tag", "-a", "-m", "x", "v1")
		r.git("pack-refs", "--all")
		r.write("a", "2")
		r.commit("two")
		want(t, r.capture(Selection{Kind: KindBase, A: "v1"}), `modify "a"`)
	})
	t.Run("detached", func(t *testing.T) {
		r := newRepo(t)
		r.write("a", "1")
		first := r.commit("one")
		r.write("a", "2")
		r.commit("two")
		r.git("checkout", "-q", first)
		r.write("a", "3")
		want(t, r.capture(Selection{Kind: KindWorktree}), `modify "a"`)
	})
	t.Run("bare", func(t *testing.T) {
		r := newRepo(t)
		r.write("a", "1")
		r.commit("one")
		r.write("a", "2")
		r.commit("two")
		bare := filepath.Join(t.TempDir(), "bare.git")
		r.git("clone", "-q", "--bare", r.dir, bare)
		b := repo{t, bare}
		want(t, b.capture(Selection{Kind: KindBase, A: "HEAD~1"}), `modify "a"`)
		var none *NoWorktreeError
		if _, err := b.open().Capture(ctx, Selection{Kind: KindWorktree}); !errors.As(err, &none) {
			t.Fatal(err)
		}
	})
	t.Run("shallow", func(t *testing.T) {
		r := newRepo(t)
		for i := range 3 {
			r.write("a", fmt.Sprint(i))
			r.commit("c")
		}
		dir := filepath.Join(t.TempDir(), "shallow")
		r.git("clone", "-q", "--depth", "2", "file://"+r.dir, dir)
		s := repo{t, dir}
		want(t, s.capture(Selection{Kind: KindBase, A: "HEAD~1"}), `modify "a"`)
		var unknown *UnknownRevisionError
		if _, err := s.open().Capture(ctx, Selection{Kind: KindBase, A: "HEAD~2"}); !errors.As(err, &unknown) {
			t.Fatal(err)
		}
	})
	t.Run("sha256", func(t *testing.T) {
		r := newRepo(t, "--object-format=sha256")
		r.write("a", "1")
		r.commit("one")
		r.write("a", "2")
		want(t, r.capture(Selection{Kind: KindWorktree}), `modify "a"`)
	})
	t.Run("split index", func(t *testing.T) {
		r := newRepo(t)
		r.write("a", "1")
		r.write("b", "1")
		r.commit("one")
		r.git("update-index", "--split-index")
		r.write("b", "2")
		want(t, r.capture(Selection{Kind: KindWorktree}), `modify "b"`)
	})
	t.Run("alternates", func(t *testing.T) {
		r := newRepo(t)
		r.write("a", "1")
		r.commit("one")
		dir := filepath.Join(t.TempDir(), "shared")
		r.git("clone", "-q", "--shared", r.dir, dir)
		s := repo{t, dir}
		s.write("a", "2")
		want(t, s.capture(Selection{Kind: KindWorktree}), `modify "a"`)
	})
	t.Run("sparse", func(t *testing.T) {
		r := newRepo(t)
		r.write("in/a", "1")
		r.write("out/b", "1")
		r.commit("one")
		r.git("sparse-checkout", "set", "in")
		r.write("in/a", "2")
		want(t, r.capture(Selection{Kind: KindWorktree}), `modify "in/a"`)
	})
	t.Run("submodule moved", func(t *testing.T) {
		sub := newRepo(t)
		sub.write("s", "1")
		sub.commit("s")
		r := newRepo(t)
		r.git("submodule", "add", "-q", sub.dir, "sub")
		r.commit("one")
		inner := repo{t, filepath.Join(r.dir, "sub")}
		inner.write("s", "2")
		now := inner.commit("two")
		c := r.capture(Selection{Kind: KindWorktree})
		want(t, c, `modify "sub"`)
		if c.Entries[0].After != schemas.BlobRefOf([]byte("Subproject commit "+now+"\n")) {
			t.Fatal(c.Entries[0])
		}
	})
}

func TestDamageIsOneClearError(t *testing.T) {
	ctx := context.Background()
	r := newRepo(t)
	r.write("a", "1")
	r.commit("one")
	r.write("a", "2")
	r.commit("two")
	blob := r.git("rev-parse", "HEAD:a")
	path := filepath.Join(r.dir, ".git/objects", blob[:2], blob[2:])
	os.Chmod(path, 0o644)
	if err := os.WriteFile(path, []byte("rubbish"), 0o644); err != nil {
		t.Fatal(err)
	}
	var damaged *DamagedError
	if _, err := r.open().Capture(ctx, Selection{Kind: KindBase, A: "HEAD~1"}); !errors.As(err, &damaged) {
		t.Fatal(err)
	}
	os.Remove(path)
	var missing *MissingObjectError
	if _, err := r.open().Capture(ctx, Selection{Kind: KindBase, A: "HEAD~1"}); !errors.As(err, &missing) {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.dir, ".git/index"), []byte("rubbish"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := r.open().Capture(ctx, Selection{Kind: KindStaged}); !errors.As(err, &damaged) {
		t.Fatal(err)
	}
	var not *NotARepositoryError
	if _, err := Open(ctx, t.TempDir(), Options{StateDir: t.TempDir()}); !errors.As(err, &not) {
		t.Fatal(err)
	}
	for _, rev := range []string{"nowhere", "", "--output=/tmp/x", "HEAD~99", "@{u}", "a\nb"} {
		var unknown *UnknownRevisionError
		if _, err := r.open().Capture(ctx, Selection{Kind: KindBase, A: rev}); !errors.As(err, &unknown) {
			t.Fatalf("%q: %v", rev, err)
		}
	}
}

func TestCurrentTellsDirtFromClean(t *testing.T) {
	ctx := context.Background()
	r := newRepo(t)
	r.write("a", "1")
	r.commit("one")
	b, _, err := r.open().Current(ctx)
	if err != nil || b.Dirty != "" {
		t.Fatal(b, err)
	}
	r.write("a", "2")
	d1, _, err := r.open().Current(ctx)
	if err != nil || d1.Dirty == "" || d1.Rev != b.Rev {
		t.Fatal(d1, err)
	}
	r.write("a", "3")
	if d2, _, _ := r.open().Current(ctx); d2.Dirty == d1.Dirty {
		t.Fatal("two states have one digest")
	}
}

func TestWriteTreeAppliesEdits(t *testing.T) {
	ctx := context.Background()
	r := newRepo(t)
	r.write("a", "1")
	r.write("d/b", "1")
	r.commit("one")
	g := r.open()
	base, err := g.TreeOf(ctx, "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	blob, err := g.PutBlob(ctx, strings.NewReader("new"))
	if err != nil {
		t.Fatal(err)
	}
	tree, err := g.WriteTree(ctx, base, []TreeEdit{{Path: "d/b"}, {Path: "x/y", Mode: ModeExec, OID: blob}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := g.Compare(ctx, base, tree)
	if err != nil {
		t.Fatal(err)
	}
	want(t, c, `delete "d/b" 100644>0`, `create "x/y" 0>100755`)
	text, ok, err := g.BlobAt(ctx, tree, "x/y", 100)
	if err != nil || !ok || string(text) != "new" {
		t.Fatal(text, ok, err)
	}
	if _, ok, err := g.BlobAt(ctx, tree, "d/b", 100); ok || err != nil {
		t.Fatal(ok, err)
	}
}

func FuzzRawDiff(f *testing.F) {
	f.Add([]byte(":100644 100755 1111111111111111111111111111111111111111 2222222222222222222222222222222222222222 M\x00a\x00"))
	f.Add([]byte(":100644 100644 1111111111111111111111111111111111111111 1111111111111111111111111111111111111111 R100\x00a\x00b\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var p rawParser
		if records(bytes.NewReader(data), p.record) != nil {
			return
		}
		changes, err := p.end()
		if err != nil {
			return
		}
		for _, c := range changes {
			if c.Path == "" || strings.Contains(c.Path, "\x00") || safeTreePath(c.Path) != nil {
				t.Fatalf("%+v", c)
			}
		}
	})
}

func FuzzLsTree(f *testing.F) {
	f.Add([]byte("100644 blob 1111111111111111111111111111111111111111\ta/b"))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := parseLsTree(data)
		if err == nil && (!validOID(string(e.OID)) || safeTreePath(e.Path) != nil) {
			t.Fatalf("%+v", e)
		}
	})
}

// runGit runs a git that may fail.
func runGit(args ...string) error { return exec.Command("git", args...).Run() }

func FuzzTreeObject(f *testing.F) {
	f.Add([]byte("100644 a\x00aaaaaaaaaaaaaaaaaaaa40000 d\x00bbbbbbbbbbbbbbbbbbbb"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_ = eachEntry(data, 20, func(name string, _ uint32, oid OID) error {
			if name == "" || !validOID(string(oid)) {
				t.Fatalf("%q %q", name, oid)
			}
			return nil
		})
	})
}

func FuzzChangedFiles(f *testing.F) {
	f.Add([]byte("M\x00a\x00D\x00b\x00U\x00c\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		gone, found, err := sortChanges(data)
		if err == nil && len(gone)+len(found) > len(data) {
			t.Fatalf("%q %q", gone, found)
		}
	})
}
