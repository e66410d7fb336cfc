package overlay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// at opens another repository with the same store.
func (f *fixture) at(dir string) *plain {
	f.t.Helper()
	return &plain{t: f.t, store: f.store, space: f.space, dir: dir}
}

func (f *fixture) source(dir string) WorkSource {
	f.t.Helper()
	repo, err := gitrepo.Open(context.Background(), dir, gitrepo.Options{StateDir: f.state + "/git"})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { repo.Close() })
	src, err := SourceOf(repo)
	if err != nil {
		f.t.Fatal(err)
	}
	return src
}

// inPlace runs a script with every part of a work area mounted where its
// directory really is, as a session would.
func (p *plain) inPlace(w *WorkArea, script string) string {
	p.t.Helper()
	m, err := w.Mount(context.Background(), p.space)
	p.must(err)
	var out []byte
	err = p.space.Do(func() (err error) {
		for _, part := range m.Parts {
			if err := unix.Mount(part.Path, part.Dir, "", unix.MS_BIND, ""); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, unix.Unmount(part.Dir, unix.MNT_DETACH)) }()
		}
		cmd := exec.Command("sh", "-euc", script)
		cmd.Dir = w.Dir()
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b",
			"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
		if out, err = cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
	p.must(errors.Join(err, m.Close()))
	return string(out)
}

// gitWork is what an agent may do with git, and its marks.
const gitWork = `
	git checkout -q -b agent; echo agent >agent.txt; git add agent.txt; git commit -qm "by the agent"
	git config core.hooksPath /tmp/evil; mkdir -p "$(git rev-parse --git-common-dir)/hooks"
	echo evil >"$(git rev-parse --git-common-dir)/hooks/post-checkout"
	git stash list; git gc -q --prune=now; git fsck --strict 2>&1; git log --format=%s -1; git status --porcelain`

// TestGitInAWorkArea commits, packs and configures in work areas over
// repositories of every kind, none of which notices.
func TestGitInAWorkArea(t *testing.T) {
	f := newFixture(t)
	f.write("a", "1\n")
	f.write("sub/dir/b", "2\n")
	f.write(".gitignore", "build/\n*.o\n")
	f.git("add", "-A")
	f.git("commit", "-qm", "one")
	f.write("a", "2\n")
	f.git("commit", "-qam", "two")
	elsewhere := t.TempDir()
	kinds := map[string]string{"main": f.dir}
	make := func(name string, args ...string) {
		dir := filepath.Join(elsewhere, name)
		f.git(append(args, dir)...)
		kinds[name] = dir
	}
	make("linked", "worktree", "add", "-q", "--detach")
	make("shallow", "clone", "-q", "--depth=1", "file://"+f.dir)
	make("alternates", "clone", "-q", "--shared", f.dir)
	f.git("config", "uploadpack.allowFilter", "true")
	make("partial", "clone", "-q", "--filter=blob:none", "file://"+f.dir)
	make("sparse", "clone", "-q", "--sparse", f.dir)
	make("separate", "clone", "-q", "--separate-git-dir="+elsewhere+"/separate.git", f.dir)
	f.run(exec.Command("git", "-C", elsewhere, "init", "-q", "--object-format=sha256", "sha256"))
	kinds["sha256"] = elsewhere + "/sha256"
	p := f.at(kinds["sha256"])
	p.write("a", "1\n")
	super := elsewhere + "/super"
	f.run(exec.Command("git", "init", "-q", super))
	f.run(exec.Command("git", "-C", super, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", f.dir, "module"))
	kinds["super"], kinds["submodule"] = super, super+"/module"
	if testing.Short() {
		maps.DeleteFunc(kinds, func(name, _ string) bool { return name != "main" && name != "linked" })
	}
	// What a clone is served by must not be seen as changed either.
	for name, dir := range kinds {
		p := f.at(dir)
		p.write("build/out.o", "object")
		p.write("untracked", "untracked")
		src := f.source(dir)
		before := p.project()
		beside := map[string]map[string]string{}
		for _, d := range src.Also {
			beside[d] = f.at(d).project()
		}
		for _, o := range []WorkOptions{{}, {Live: true}} {
			w, err := f.store.CreateWorkArea(context.Background(), src, o)
			if err != nil {
				t.Fatal(name, err)
			}
			out := p.inPlace(w, gitWork)
			if !strings.Contains(out, "by the agent\n") || !strings.Contains(out, "?? untracked") || strings.Contains(strings.ReplaceAll(out, " M module\n", ""), " M ") {
				t.Errorf("%s: %s", name, out)
			}
			if got := p.project(); !maps.Equal(got, before) {
				t.Errorf("%s: the project was changed", name)
			}
			for d, was := range beside {
				if !maps.Equal(f.at(d).project(), was) {
					t.Errorf("%s: %s was changed", name, d)
				}
			}
			d, err := w.Changes(context.Background(), ChangesOptions{Prune: func(dir, p string) bool {
				return dir != w.Dir() || p == ".git" || strings.HasPrefix(p, ".git/")
			}})
			if err != nil {
				t.Fatal(name, err)
			}
			if got := lines(d); !slices.Equal(got, []string{"create agent.txt"}) {
				t.Errorf("%s: %q", name, got)
			}
			drift, err := w.Drift(context.Background())
			if err != nil || len(drift) > 0 {
				t.Errorf("%s: drift %v %v", name, drift, err)
			}
			p.must(w.Drop(context.Background()))
		}
	}
	if _, err := SourceOf(f.repo); err != nil {
		t.Fatal(err)
	}
	bare, err := gitrepo.Open(context.Background(), func() string { f.git("clone", "-q", "--bare", f.dir, elsewhere+"/bare"); return elsewhere + "/bare" }(), gitrepo.Options{StateDir: f.state + "/git"})
	if err != nil {
		t.Fatal(err)
	}
	defer bare.Close()
	var none *gitrepo.NoWorktreeError
	if _, err := SourceOf(bare); !errors.As(err, &none) {
		t.Fatal(err)
	}
}

// TestChangesEqualGitsOwn compares what is found in a work area with what git
// finds in it.
func TestChangesEqualGitsOwn(t *testing.T) {
	f := newFixture(t)
	for i := range 40 {
		f.write(fmt.Sprintf("d%d/e%d/f%d", i%3, i%5, i), fmt.Sprintf("text %d\n", i))
	}
	f.git("add", "-A")
	f.git("commit", "-qm", "one")
	p := f.at(f.dir)
	w, err := f.store.CreateWorkArea(context.Background(), f.source(f.dir), WorkOptions{})
	p.must(err)
	out := p.inPlace(w, `
		git rm -q -r d0/e0; mv d1 moved; chmod +x d2/e2/f2; echo more >>d2/e2/f17; rm d2/e1/f11; mkdir d2/e1/f11; echo x >d2/e1/f11/x
		ln -s ../x d0/link; cp d2/e2/f2 copy; echo >empty; : >none; mv d0/e3/f3 d0/e3/F3; printf 'odd' >"$(printf 'a\nb\377')"
		git add -A; git diff --cached -z --raw --no-abbrev --no-renames HEAD | tr '\0' '\1'`)
	want := map[string]string{}
	fields := strings.Split(strings.TrimSuffix(out, "\x01"), "\x01")
	for i := 0; i+1 < len(fields); i += 2 {
		meta := strings.Fields(strings.TrimPrefix(fields[i], ":"))
		want[fields[i+1]] = meta[0] + " " + meta[1]
	}
	d, err := w.Changes(context.Background(), ChangesOptions{Prune: func(_, p string) bool { return p == ".git" }})
	p.must(err)
	got := map[string]string{}
	for _, c := range d.Changes {
		before, after := c.GitModes()
		if c.IsDir() && (before == 0 && after == 0) || before == after && c.Metadata {
			continue
		}
		if c.Kind == schemas.ChangeRename {
			got[c.From] = fmt.Sprintf("%06o 000000", before)
			before = 0
		}
		got[c.Path] = fmt.Sprintf("%06o %06o", before, after)
	}
	if !maps.Equal(got, want) {
		t.Fatalf("got\n%q\nwant\n%q", got, want)
	}
}

// TestBigIgnoredFilesAreNotCopied: what is ignored and large is linked, and seen
// through if it is written in place, which is told.
func TestBigIgnoredFilesAreNotCopied(t *testing.T) {
	f := newFixture(t)
	f.write(".gitignore", "deps/\n")
	f.write("src/a", "source\n")
	for i := range 3 {
		f.write(fmt.Sprintf("deps/big%d", i), strings.Repeat("x", linkAbove/2))
	}
	f.git("add", "-A")
	f.git("commit", "-qm", "one")
	p := f.at(f.dir)
	p.settle()
	src := f.source(f.dir)
	w, err := f.store.CreateWorkArea(context.Background(), src, WorkOptions{})
	p.must(err)
	h := w.Parts()[0].Held
	if h.Cloned > 0 {
		t.Skip("needs: a file system without reflinks; here nothing has to be linked")
	}
	if h.Linked < 3 || h.LinkedBytes < 3*linkAbove/2 || h.CopiedBytes > 1<<20 {
		t.Fatalf("%+v", h)
	}
	p.shell(w, `echo y >>deps/big1; rm deps/big2`)
	if got := p.project()["deps/big1"]; strings.HasSuffix(got, "y\n") {
		t.Fatal("the project was written")
	}
	// The user's tools: one replaces, one removes, one writes in place.
	p.must(os.WriteFile(f.dir+"/new", []byte("new"), 0o644))
	p.must(os.Rename(f.dir+"/new", f.dir+"/deps/big0"))
	p.must(os.Remove(f.dir + "/deps/big1"))
	file, err := os.OpenFile(f.dir+"/deps/big2", os.O_WRONLY|os.O_APPEND, 0)
	p.must(err)
	_, err = file.WriteString("z")
	p.must(errors.Join(err, file.Close()))
	drift, err := w.Drift(context.Background())
	p.must(err)
	var got []string
	for _, d := range drift {
		got = append(got, fmt.Sprintf("%s %s %v", d.Kind, d.Path, d.Seen))
	}
	slices.Sort(got)
	same(t, "drift", got, []string{"delete deps/big1 false", "modify deps/big0 false", "modify deps/big2 true"})
	if got := p.seen(w)["deps/big0"]; len(got) < linkAbove/2 {
		t.Fatal("what was replaced is seen")
	}
	// Another work area is made without linking anything again.
	w2, err := f.store.CreateWorkArea(context.Background(), src, WorkOptions{})
	p.must(err)
	if h := w2.Parts()[0].Held; h.Linked > 2 {
		t.Fatalf("%+v", h)
	}
}

// TestProjectRewrittenUnderRunningSessions switches branches, rebuilds and
// rewrites the project while three work areas over it are in use, each of which
// goes on seeing what it began with.
func TestProjectRewrittenUnderRunningSessions(t *testing.T) {
	f := newFixture(t)
	f.write(".gitignore", "build/\n")
	for i := range 150 {
		f.write(fmt.Sprintf("src/d%d/f%d", i%6, i), fmt.Sprint("main ", i))
	}
	f.git("add", "-A")
	f.git("commit", "-qm", "main")
	f.git("checkout", "-q", "-b", "other")
	f.git("rm", "-q", "-r", "src/d0")
	for i := range 150 {
		if i%6 > 0 {
			f.write(fmt.Sprintf("src/d%d/f%d", i%6, i), fmt.Sprint("other ", i))
		}
	}
	f.git("commit", "-qam", "other")
	f.git("checkout", "-q", "main")
	p := f.at(f.dir)
	build := func(round int) {
		p.must(os.RemoveAll(f.dir + "/build"))
		for i := range 60 {
			p.write(fmt.Sprintf("build/o%d", i), fmt.Sprint("built ", round, i))
		}
	}
	build(0)
	type session struct {
		w    *WorkArea
		m    *WorkMount
		want map[string]string
	}
	var sessions []session
	for round := range 3 {
		w, err := f.store.CreateWorkArea(context.Background(), f.source(f.dir), WorkOptions{})
		p.must(err)
		s := session{w: w, want: p.project()}
		s.m, err = w.Mount(context.Background(), p.space)
		p.must(err)
		sessions = append(sessions, s)
		f.git("checkout", "-q", []string{"other", "main", "other"}[round])
		build(round + 1)
	}
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for round := 10; ; round++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			for i := range 60 {
				if err := os.WriteFile(fmt.Sprintf("%s/build/o%d", f.dir, i), fmt.Append(nil, "in place ", round), 0o644); err != nil {
					done <- err
					return
				}
			}
		}
	}()
	for range 4 {
		for i, s := range sessions {
			var got map[string]string
			p.must(p.space.Do(func() (err error) { got, err = whole(s.m.Path); return err }))
			if !maps.Equal(got, s.want) {
				t.Errorf("session %d no longer sees what it began with", i)
			}
		}
		f.git("checkout", "-q", "-f", "main")
		f.git("checkout", "-q", "-f", "other")
	}
	close(stop)
	p.must(<-done)
	for i, s := range sessions {
		drift, err := s.w.Drift(context.Background())
		p.must(err)
		if !slices.ContainsFunc(drift, func(d Drift) bool { return strings.HasPrefix(d.Path, "build/") && !d.Seen }) {
			t.Errorf("session %d: %v", i, drift)
		}
		p.must(s.m.Close())
	}
}

// TestViewsOfRepositoriesAsTheyAre compares views with what git archives, over
// repositories of every kind.
func TestViewsOfRepositoriesAsTheyAre(t *testing.T) {
	f := newFixture(t)
	f.write("a", "1\n")
	f.write("lfs.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:"+strings.Repeat("a", 64)+"\nsize 12345\n")
	f.write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n*.crlf eol=crlf\n")
	f.write("t.crlf", "one\ntwo\n")
	f.write("d/e/x", "x\n")
	f.must(os.Chmod(f.dir+"/d/e/x", 0o755))
	f.must(os.Symlink("../a", f.dir+"/d/up"))
	f.git("add", "-A")
	f.git("commit", "-qm", "one")
	f.write("a", "2\n")
	f.git("commit", "-qam", "two")
	f.git("config", "uploadpack.allowFilter", "true")
	elsewhere := t.TempDir()
	f.git("worktree", "add", "-q", "--detach", elsewhere+"/linked")
	for name, args := range map[string][]string{
		"shallow": {"--depth=1", "file://" + f.dir}, "alternates": {"--shared", f.dir}, "partial": {"--filter=blob:none", "file://" + f.dir},
		"sparse": {"--sparse", f.dir}, "bare": {"--bare", f.dir},
	} {
		f.git(append(append([]string{"clone", "-q"}, args...), elsewhere+"/"+name)...)
	}
	super := elsewhere + "/super"
	for _, args := range [][]string{{"init", "-q", "--object-format=sha256", elsewhere + "/sha256"}, {"init", "-q", super},
		{"-C", super, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", f.dir, "module"}} {
		f.run(exec.Command("git", args...))
	}
	f.must(os.WriteFile(elsewhere+"/sha256/s", []byte("s"), 0o755))
	f.must(os.Symlink("s", elsewhere+"/sha256/l"))
	for _, name := range []string{"sha256", "super"} {
		for _, args := range [][]string{{"add", "-A"}, {"-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "one"}} {
			f.run(exec.Command("git", append([]string{"-C", elsewhere + "/" + name}, args...)...))
		}
	}
	for _, name := range []string{"linked", "shallow", "alternates", "partial", "sparse", "bare", "sha256", "super", "super/module"} {
		dir := elsewhere + "/" + name
		repo, err := gitrepo.Open(context.Background(), dir, gitrepo.Options{StateDir: f.state + "/git"})
		f.must(err)
		tree, err := repo.TreeOf(context.Background(), "HEAD")
		f.must(err)
		s, err := f.store.Baseline(context.Background(), repo, tree)
		if err != nil {
			t.Fatal(name, err)
		}
		// As they are stored: line ends are for whoever checks them out.
		out := t.TempDir()
		cmd := exec.Command("sh", "-c", `git -c tar.umask=0022 archive HEAD >"$1.tar" && tar -xpf "$1.tar" -C "$1" --no-same-owner`, "sh", out)
		cmd.Dir = dir
		f.run(cmd)
		want, err := listing(out)
		f.must(err)
		for i, line := range want {
			if strings.HasPrefix(line, `"t.crlf"`) {
				want[i] = strings.ReplaceAll(line, "0d0a", "0a")
			}
		}
		same(t, name, f.seen(s), want)
		f.must(s.Close())
		if name == "partial" {
			before, err := repo.TreeOf(context.Background(), "HEAD~1")
			f.must(err)
			var missing *gitrepo.MissingObjectError
			if _, err := f.store.Baseline(context.Background(), apart{repo, "partial"}, before); !errors.As(err, &missing) {
				t.Errorf("what was never fetched: %v", err)
			}
		}
		f.must(repo.Close())
	}
	f.sound()
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}
