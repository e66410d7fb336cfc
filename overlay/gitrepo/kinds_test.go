package gitrepo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
)

// A file becomes a directory or a symlink, and back.
func TestDirectoriesAndSymlinksInPlaceOfEachOther(t *testing.T) {
	r := newRepo(t)
	in := func(p string) string { return filepath.Join(r.dir, p) }
	r.write("d/f", "1")
	r.write("d/e/g", "1")
	r.write("file", "1")
	must(t, os.Symlink("d", in("link")))
	r.commit("one")
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "f"), []byte("secret"), 0o644))
	must(t, os.RemoveAll(in("d")))
	must(t, os.Symlink(outside, in("d")))
	must(t, os.Remove(in("file")))
	r.write("file/in", "2")
	must(t, os.Remove(in("link")))
	r.write("link/in", "2")
	want(t, r.capture(Selection{Kind: KindWorktree}), `create "d" 0>120000`, `delete "d/e/g" 100644>0`, `delete "d/f" 100644>0`,
		`delete "file" 100644>0`, `create "file/in" 0>100644`, `delete "link" 120000>0`, `create "link/in" 0>100644`)
}

func TestConflictsInTheIndex(t *testing.T) {
	ctx := context.Background()
	r := newRepo(t)
	r.write("a", "1\n")
	r.write("b", "1\n")
	r.commit("one")
	r.git("checkout", "-q", "-b", "side")
	r.write("a", "2\n")
	r.git("rm", "-q", "b")
	r.commit("two")
	r.git("checkout", "-q", "main")
	r.write("a", "3\n")
	r.write("b", "3\n")
	r.commit("three")
	cmd := []string{"-C", r.dir, "-c", "user.name=t", "-c", "user.email=t@example.org", "merge", "-q", "side"}
	_ = runGit(cmd...)
	var unmerged *UnmergedError
	if _, err := r.open().Capture(ctx, Selection{Kind: KindStaged}); !errors.As(err, &unmerged) || strings.Join(unmerged.Paths, " ") != "a b" {
		t.Fatal(err)
	}
	os.Remove(filepath.Join(r.dir, "b"))
	want(t, r.capture(Selection{Kind: KindWorktree}), `modify "a"`, `delete "b" 100644>0`)
}

func TestIndexFlagsAndExtensions(t *testing.T) {
	setUp := func(t *testing.T) repo {
		r := newRepo(t)
		r.write("a", "1\n")
		r.write("b", "1\n")
		r.write("d/c", "1\n")
		r.commit("one")
		return r
	}
	t.Run("assume-unchanged is believed, as by git", func(t *testing.T) {
		r := setUp(t)
		r.git("update-index", "--assume-unchanged", "a")
		r.write("a", "2\n")
		r.write("b", "2\n")
		want(t, r.capture(Selection{Kind: KindWorktree}), `modify "b"`)
	})
	t.Run("skip-worktree stays as in the index", func(t *testing.T) {
		r := setUp(t)
		r.git("update-index", "--skip-worktree", "a")
		os.Remove(filepath.Join(r.dir, "a"))
		r.write("b", "2\n")
		want(t, r.capture(Selection{Kind: KindWorktree}), `modify "b"`)
	})
	t.Run("intent to add", func(t *testing.T) {
		r := setUp(t)
		r.write("new", "1\n")
		r.git("add", "-N", "new")
		if c := r.capture(Selection{Kind: KindStaged}); len(c.Entries) != 0 {
			t.Fatal(summary(c))
		}
		want(t, r.capture(Selection{Kind: KindWorktree}), `create "new" 0>100644`)
	})
	t.Run("fsmonitor that says nothing changed", func(t *testing.T) {
		r := setUp(t)
		hook := filepath.Join(t.TempDir(), "hook")
		must(t, os.WriteFile(hook, []byte("#!/bin/sh\nprintf 'token\\0'\n"), 0o755))
		r.git("config", "core.fsmonitor", hook)
		r.git("update-index", "--fsmonitor")
		r.git("status")
		r.write("a", "another length\n")
		if out := r.git("status", "--porcelain"); out != "" {
			t.Skipf("SKIPPED: this git does not believe the hook: %s", out)
		}
		want(t, r.capture(Selection{Kind: KindWorktree}), `modify "a"`)
	})
	t.Run("untracked cache", func(t *testing.T) {
		r := setUp(t)
		r.git("config", "core.untrackedCache", "true")
		r.git("update-index", "--force-untracked-cache")
		r.git("status")
		r.write("d/new", "1\n")
		want(t, r.capture(Selection{Kind: KindWorktree}), `create "d/new" 0>100644`)
	})
	t.Run("split index, changed for the greater part", func(t *testing.T) {
		r := setUp(t)
		r.git("update-index", "--split-index")
		shared, _ := filepath.Glob(filepath.Join(r.dir, ".git/sharedindex.*"))
		if len(shared) != 1 {
			t.Fatal(shared)
		}
		before, err := os.Stat(shared[0])
		must(t, err)
		r.write("a", "2\n")
		r.write("b", "2\n")
		r.write("d/c", "2\n")
		r.git("add", "a")
		want(t, r.capture(Selection{Kind: KindStaged}), `modify "a"`)
		want(t, r.capture(Selection{Kind: KindWorktree}), `modify "a"`, `modify "b"`, `modify "d/c"`)
		if after, err := os.Stat(shared[0]); err != nil || !after.ModTime().Equal(before.ModTime()) && len(shared) == 1 && after.Size() != before.Size() {
			t.Error("the shared index was touched")
		}
	})
	t.Run("sparse index", func(t *testing.T) {
		r := setUp(t)
		r.write("out/x/y", "1\n")
		r.write("in/z", "1\n")
		r.commit("two")
		r.git("sparse-checkout", "set", "--cone", "--sparse-index", "in")
		if !strings.Contains(r.git("ls-files", "--sparse")+"\n", "out/\n") {
			t.Skip("SKIPPED: this git makes no sparse index")
		}
		r.write("in/z", "2\n")
		r.write("in/new", "2\n")
		want(t, r.capture(Selection{Kind: KindWorktree}), `create "in/new" 0>100644`, `modify "in/z"`)
		r.git("add", "in/z")
		want(t, r.capture(Selection{Kind: KindStaged}), `modify "in/z"`)
	})
	t.Run("index of version 4", func(t *testing.T) {
		r := setUp(t)
		r.git("update-index", "--index-version", "4")
		r.write("d/c", "2\n")
		want(t, r.capture(Selection{Kind: KindWorktree}), `modify "d/c"`)
	})
}

func TestPartialClone(t *testing.T) {
	ctx := context.Background()
	r := newRepo(t)
	r.git("config", "uploadpack.allowFilter", "true")
	r.write("a", strings.Repeat("line\n", 30))
	r.write("out/b", "1\n")
	r.write(".asp/asp.json", "{}")
	r.commit("one")
	r.git("mv", "a", "moved")
	r.write("moved", strings.Repeat("line\n", 30)+"more\n")
	r.write(".asp/asp.json", "{ }")
	r.commit("two")
	dir := filepath.Join(t.TempDir(), "partial")
	r.git("clone", "-q", "--filter=blob:none", "file://"+r.dir, dir)
	p := repo{t, dir}
	_, err := p.open().Capture(ctx, Selection{Kind: KindBase, A: "HEAD~1"})
	var missing *MissingObjectError
	if !errors.As(err, &missing) || !missing.Partial {
		t.Fatal(err)
	}
	if _, ok, err := p.open().BlobAt(ctx, OID(p.git("rev-parse", "HEAD~1^{tree}")), ".asp/asp.json", 100); ok || !errors.As(err, &missing) {
		t.Fatal(ok, err)
	}
	p.write("out/b", "2\n")
	want(t, p.capture(Selection{Kind: KindWorktree}), `modify "out/b"`)
	// Files that are not checked out were never fetched.
	sparse := filepath.Join(t.TempDir(), "sparse")
	r.git("clone", "-q", "--filter=blob:none", "--sparse", "file://"+r.dir, sparse)
	s := repo{t, sparse}
	s.write("new", "1\n")
	want(t, s.capture(Selection{Kind: KindWorktree}), `create "new" 0>100644`)
	s.git("add", "new")
	want(t, s.capture(Selection{Kind: KindStaged}), `create "new" 0>100644`)
}

func TestUserRulesAreFollowed(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", "")
	must(t, os.WriteFile(filepath.Join(home, "mine"), []byte("\ufeff*.mine\n"), 0o644))
	must(t, os.WriteFile(filepath.Join(home, ".gitconfig"), []byte("[core]\n\texcludesFile = ~/mine\n\tfsmonitor = /nonexistent\n"), 0o644))
	r := newRepo(t)
	r.write("a", "1")
	r.commit("one")
	g := r.open()
	r.write("x.mine", "1")
	r.write("y", "1")
	c, err := g.Capture(context.Background(), Selection{Kind: KindWorktree})
	must(t, err)
	want(t, c, `create "y" 0>100644`)
	// Rules that change while the repository is open count at once.
	must(t, os.WriteFile(filepath.Join(r.dir, ".git/info/exclude"), []byte("\ufeffy\n!x.mine\n"), 0o644))
	c, err = g.Capture(context.Background(), Selection{Kind: KindWorktree})
	must(t, err)
	want(t, c, `create "x.mine" 0>100644`)
}

func TestLineEndings(t *testing.T) {
	for _, how := range []string{"attributes", "private attributes", "autocrlf"} {
		t.Run(how, func(t *testing.T) {
			r := newRepo(t)
			r.write("a.txt", "one\ntwo\n")
			r.write("b.txt", "one\ntwo\n")
			r.write("id", "$Id$\n")
			switch how {
			case "attributes":
				r.write(".gitattributes", "*.txt text eol=crlf\nid ident\n")
			case "private attributes":
				r.write(".git/info/attributes", "*.txt text eol=crlf\nid ident\n")
			case "autocrlf":
				r.git("config", "core.autocrlf", "true")
			}
			r.commit("one")
			for _, f := range []string{"a.txt", "b.txt", "id"} {
				os.Remove(filepath.Join(r.dir, f))
			}
			r.git("checkout", "--", ".")
			// Written anew with the same bytes, none has changed.
			for _, f := range []string{"a.txt", "id"} {
				text, err := os.ReadFile(filepath.Join(r.dir, f))
				must(t, err)
				if f == "a.txt" && !strings.Contains(string(text), "\r\n") {
					t.Fatalf("%q", text)
				}
				must(t, os.Remove(filepath.Join(r.dir, f)))
				r.write(f, string(text))
			}
			if c := r.capture(Selection{Kind: KindWorktree}); len(c.Entries) != 0 {
				t.Fatal(summary(c))
			}
			r.write("b.txt", "one\r\ntwo\r\nthree\r\n")
			c := r.capture(Selection{Kind: KindWorktree})
			want(t, c, `modify "b.txt"`)
			r.git("add", "-A")
			if tree := r.git("write-tree"); tree != string(c.CandidateTree) {
				t.Fatal(tree, c.CandidateTree)
			}
		})
	}
}

func TestRepositoriesThatWouldBeMisread(t *testing.T) {
	ctx := context.Background()
	for _, lines := range []string{
		"[extensions]\n\tobjectformat = sha512\n", "[extensions]\n\trefstorage = reftable\n", "[extensions]\n\tnovelty = 1\n",
		"[core]\n\tworktree = ../elsewhere\n", "[core]\n\trepositoryformatversion = 2\n",
	} {
		r := newRepo(t)
		must(t, os.WriteFile(filepath.Join(r.dir, ".git/config"), []byte("[core]\n\trepositoryformatversion = 1\n"+lines), 0o644))
		var unsupported *UnsupportedRepositoryError
		if _, err := Open(ctx, r.dir, Options{StateDir: t.TempDir()}); !errors.As(err, &unsupported) {
			t.Errorf("%q: %v", lines, err)
		}
	}
	r := newRepo(t)
	r.git("config", "core.worktree", r.dir)
	if g := r.open(); g.Root() != r.dir {
		t.Error(g.Root())
	}
	r.git("config", "--unset", "core.worktree")
	r.commit("one")
	g := r.open()
	r.git("config", "core.bare", "true")
	if _, err := g.Capture(ctx, Selection{Kind: KindWorktree}); err == nil {
		t.Error("it became bare unseen")
	}
	var none *NoWorktreeError
	if _, err := r.open().Capture(ctx, Selection{Kind: KindWorktree}); !errors.As(err, &none) {
		t.Error(err)
	}
	// To a linked worktree of a bare repository that does not apply.
	linked := filepath.Join(t.TempDir(), "linked")
	r.git("worktree", "add", "-q", linked)
	l := repo{t, linked}
	l.write("new", "1")
	want(t, l.capture(Selection{Kind: KindWorktree}), `create "new" 0>100644`)
}

func TestRevisions(t *testing.T) {
	ctx := context.Background()
	r := newRepo(t)
	for i := range 3 {
		r.write("a", fmt.Sprint(i))
		r.commit("c")
	}
	r.git("checkout", "-q", "-b", "side", "HEAD~1")
	r.git("tag", "-a", "-m", "x", "v1")
	r.git("update-ref", "refs/remotes/origin/main", "main")
	r.git("fetch", "-q", ".", "main")
	r.git("notes", "add", "-m", "x")
	replaced := r.git("rev-parse", "main")
	r.git("replace", "main", "main~2")
	g := r.open()
	for _, rev := range []string{"main", "HEAD~1", "HEAD^", "origin/main", "v1", "v1^0", "@", "FETCH_HEAD", "@{-1}", "HEAD@{1}", "refs/heads/main",
		r.git("rev-parse", "--short", "HEAD"), "main~1^{tree}"} {
		got, err := g.TreeOf(ctx, rev)
		cmd := r.git("--no-replace-objects", "rev-parse", rev+"^{tree}")
		if err != nil || string(got) != cmd {
			t.Errorf("%s: %s %v, want %s", rev, got, err, cmd)
		}
	}
	if tree, err := g.TreeOf(ctx, replaced); err != nil || string(tree) != r.git("--no-replace-objects", "rev-parse", replaced+"^{tree}") {
		t.Error("a replacement was taken for the commit")
	}
	var unknown *UnknownRevisionError
	for _, rev := range []string{"@{u}", "side@{upstream}", "@{push}", "HEAD:a", "--all", "^main", "main..side", "main side", ":a", "0000000"} {
		if tree, err := g.TreeOf(ctx, rev); !errors.As(err, &unknown) && !errors.As(err, new(*DamagedError)) {
			t.Errorf("%s: %v %v", rev, tree, err)
		}
	}
	r.git("checkout", "-q", "--orphan", "island")
	r.write("a", "island")
	r.commit("island")
	var none *NoMergeBaseError
	if _, err := r.open().Capture(ctx, Selection{Kind: KindBase, A: "main"}); !errors.As(err, &none) {
		t.Error(err)
	}
	want(t, r.capture(Selection{Kind: KindRange, A: "side", B: "HEAD"}), `modify "a"`)
}

func TestEmbeddedRepositories(t *testing.T) {
	r := newRepo(t)
	r.commit("one")
	r.git("init", "-q", "inner")
	var unreadable *WorktreeError
	if _, err := r.open().Capture(context.Background(), Selection{Kind: KindWorktree}); !errors.As(err, &unreadable) || !strings.Contains(err.Error(), "without a commit") {
		t.Fatal(err)
	}
	inner := repo{t, filepath.Join(r.dir, "inner")}
	inner.commit("x")
	want(t, r.capture(Selection{Kind: KindWorktree}), `create "inner" 0>160000`)
}

func TestWriteTreeDoesWhatItIsTold(t *testing.T) {
	ctx := context.Background()
	r := newRepo(t)
	r.write("a", "1\n")
	r.write("b", "2\n")
	r.write("d/f", "3\n")
	r.write("d/g", "4\n")
	r.commit("one")
	g := r.open()
	defer g.Close()
	base, err := g.TreeOf(ctx, "HEAD")
	must(t, err)
	a, b := OID(r.git("rev-parse", "HEAD:a")), OID(r.git("rev-parse", "HEAD:b"))
	set := func(path string, oid OID) TreeEdit { return TreeEdit{Path: path, Mode: ModeFile, OID: oid} }
	gone := func(path string) TreeEdit { return TreeEdit{Path: path} }
	for what, edits := range map[string][]TreeEdit{
		"file on directory": {set("d", a)}, "file on part of a directory": {set("d", a), gone("d/f")}, "below a file": {set("a/x", a)},
		"deep below a file": {set("a/x/y/z", a)}, "twice": {set("x", a), set("x", b)}, "both": {set("x", a), set("x/y", b)},
		"dot git": {set("x/.git/config", a)}, "up": {set("../x", a)}, "mode": {{Path: "x", Mode: 0o40000, OID: a}}, "oid": {set("x", "12")},
		"nul": {set("x\x00y", a)}, "empty": {gone("")},
	} {
		if tree, err := g.WriteTree(ctx, base, edits); err == nil {
			t.Errorf("%s: %s", what, r.git("--git-dir="+g.shadow, "ls-tree", "-r", string(tree)))
		}
	}
	for what, c := range map[string]struct {
		edits []TreeEdit
		lines []string
	}{
		"nothing":            {nil, nil},
		"swap":               {[]TreeEdit{gone("a"), set("b", a), gone("b"), set("a", b)}, []string{`modify "a"`, `modify "b"`}},
		"file for directory": {[]TreeEdit{set("d", a), gone("d/f"), gone("d/g")}, []string{`create "d" 0>100644`, `delete "d/f" 100644>0`, `delete "d/g" 100644>0`}},
		"directory for file": {[]TreeEdit{set("a/x/y", b), gone("a")}, []string{`delete "a" 100644>0`, `create "a/x/y" 0>100644`}},
		"none there":         {[]TreeEdit{gone("nothing")}, nil},
	} {
		tree, err := g.WriteTree(ctx, base, c.edits)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		diff, err := g.diffTrees(ctx, base, tree, "--no-renames")
		must(t, err)
		got := &Capture{}
		for _, ch := range diff {
			got.Entries = append(got.Entries, entry(ch, nil))
		}
		if s := strings.TrimSpace(summary(got)); s != strings.Join(c.lines, "\n") {
			t.Errorf("%s: %s", what, s)
		}
	}
	if tree, err := g.WriteTree(ctx, g.EmptyTree(), []TreeEdit{set("x/y", a)}); err != nil || tree == "" {
		t.Error(err)
	}
}

func TestWorktreeDigest(t *testing.T) {
	ctx := context.Background()
	r := newRepo(t)
	g := r.open()
	defer g.Close()
	seen := map[string]string{}
	for _, step := range []struct {
		what string
		do   func()
	}{
		{"unborn", func() {}},
		{"first commit", func() { r.write("a", "1\n"); r.commit("one") }},
		{"another commit of the same tree", func() { r.commit("two") }},
		{"a change", func() { r.write("a", "2\n") }},
		{"the same change, staged", func() { r.git("add", "a") }},
		{"an untracked file", func() { r.write("new", "") }},
	} {
		step.do()
		d, err := g.WorktreeDigest(ctx)
		must(t, err)
		if other, twice := seen[d]; twice {
			t.Errorf("%s and %s are one", step.what, other)
		}
		seen[d] = step.what
		r.git("update-index", "-q", "--refresh")
		if again, err := g.WorktreeDigest(ctx); err != nil || again != d {
			t.Errorf("%s: %s, then %s %v", step.what, d, again, err)
		}
	}
}

func TestOneRepoServesManyAtOnce(t *testing.T) {
	ctx := context.Background()
	r := newRepo(t)
	r.write("a", "1\n")
	r.commit("one")
	r.write("a", "2\n")
	r.commit("two")
	r.write("a", "3\n")
	state := t.TempDir()
	shared, err := Open(ctx, r.dir, Options{StateDir: state})
	must(t, err)
	defer shared.Close()
	var g errgroup.Group
	for i := range 12 {
		g.Go(func() error {
			repo := shared
			if i%3 == 0 { // another process has the same shadow
				other, err := Open(ctx, r.dir, Options{StateDir: state})
				if err != nil {
					return err
				}
				defer other.Close()
				repo = other
			}
			sel := Selection{Kind: KindWorktree}
			if i%2 == 0 {
				sel = Selection{Kind: KindBase, A: "HEAD~1"}
			}
			c, err := repo.Capture(ctx, sel)
			if err == nil && summary(c) != "modify \"a\"\n" {
				err = errors.New(summary(c))
			}
			return err
		})
	}
	must(t, g.Wait())
}

func TestRepositoryUnderAnOddPath(t *testing.T) {
	for _, name := range []string{"# hash", `"quoted"`, "new\nline", `back\slash`, "[brackets]*", "ünï\xff", "a:b"} {
		r := repo{t, filepath.Join(t.TempDir(), name)}
		must(t, os.MkdirAll(r.dir, 0o755))
		r.git("init", "-q", "-b", "main")
		r.write("a", "1\n")
		r.commit("one")
		r.git("update-index", "--split-index")
		r.write("a", "2\n")
		g, err := Open(context.Background(), r.dir, Options{StateDir: filepath.Join(t.TempDir(), name)})
		must(t, err)
		c, err := g.Capture(context.Background(), Selection{Kind: KindWorktree})
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		want(t, c, `modify "a"`)
		must(t, g.Close())
	}
}

func TestInsideASubmodule(t *testing.T) {
	sub := newRepo(t)
	sub.write("s", "1\n")
	sub.commit("s")
	r := newRepo(t)
	r.git("submodule", "add", "-q", sub.dir, "sub")
	r.commit("one")
	s := repo{t, filepath.Join(r.dir, "sub")}
	s.write("s", "2\n")
	if g := s.open(); g.Root() != s.dir || g.CommonDir() != filepath.Join(r.dir, ".git/modules/sub") {
		t.Fatal(g.Root(), g.CommonDir())
	}
	want(t, s.capture(Selection{Kind: KindWorktree}), `modify "s"`)
	if c := r.capture(Selection{Kind: KindWorktree}); len(c.Entries) != 0 {
		t.Fatal(summary(c)) // what lies in a submodule is its own affair until it is committed
	}
}
