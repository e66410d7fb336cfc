package overlay

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
)

// space is a private mount namespace on a thread of its own.
type space struct {
	dir   string
	calls chan func()
}

func newSpace(t testing.TB) *space {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs: root, or a user namespace in which one is (to make a mount namespace)")
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
		t.Skipf("needs: a mount namespace (%v)", err)
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

// fixture is a repository with a store.
type fixture struct {
	t     testing.TB
	dir   string
	state string
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
	if err := os.MkdirAll(state, 0o711); err != nil {
		f.t.Fatal(err)
	}
	if f.repo, err = gitrepo.Open(context.Background(), f.dir, gitrepo.Options{StateDir: state + "/git"}); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { f.repo.Close() })
	if f.store, err = Open(state + "/overlay"); err != nil {
		f.t.Fatal(err)
	}
	f.state = state
	f.t.Cleanup(f.store.Wait)
}

func (f *fixture) command(input string, args ...string) *exec.Cmd {
	cmd := exec.Command("git", append([]string{"-C", f.dir, "-c", "user.name=t", "-c", "user.email=t@example.org"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	cmd.Stdin = strings.NewReader(input)
	return cmd
}

func (f *fixture) run(cmd *exec.Cmd) string {
	f.t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		f.t.Fatalf("%v: %v\n%s", cmd.Args, err, stderr.Bytes())
	}
	return strings.TrimSpace(string(out))
}

func (f *fixture) git(args ...string) string {
	f.t.Helper()
	return f.run(f.command("", args...))
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

func (f *fixture) remove(path string) {
	f.t.Helper()
	if err := os.RemoveAll(filepath.Join(f.dir, path)); err != nil {
		f.t.Fatal(err)
	}
}

// tree is what the worktree holds.
func (f *fixture) tree() gitrepo.OID {
	f.t.Helper()
	tree, err := f.repo.WorktreeTree(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	return tree
}

// leaf is what a made-up tree has at a path.
type leaf struct {
	mode string
	text string
}

// made writes a tree with any paths at all into the repository.
func (f *fixture) made(leaves map[string]leaf) gitrepo.OID {
	f.t.Helper()
	var info strings.Builder
	hashed := map[string]string{}
	for path, l := range leaves {
		oid := fmt.Sprintf("%040x", len(l.text)+1)
		if l.mode != "160000" {
			if hashed[l.text] == "" {
				hashed[l.text] = f.run(f.command(l.text, "hash-object", "-w", "--stdin", "--no-filters"))
			}
			oid = hashed[l.text]
		}
		fmt.Fprintf(&info, "%s %s\t%s\x00", l.mode, oid, path)
	}
	index := filepath.Join(f.t.TempDir(), "index")
	cmd := f.command(info.String(), "update-index", "-z", "--index-info")
	cmd.Env = append(cmd.Env, "GIT_INDEX_FILE="+index)
	f.run(cmd)
	cmd = f.command("", "write-tree")
	cmd.Env = append(cmd.Env, "GIT_INDEX_FILE="+index)
	return gitrepo.OID(f.run(cmd))
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

// seen lists a mounted view: path, kind, permissions, content.
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
			out = append(out, fmt.Sprintf("%q dir %v", rel, info.Mode().Perm()))
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
			out = append(out, fmt.Sprintf("%q %v %v %x", rel, d.Type(), info.Mode().Perm(), b))
		}
		return nil
	})
	return out, err
}

// checkedOut lists what git itself makes of a tree.
func (f *fixture) checkedOut(tree gitrepo.OID) []string {
	f.t.Helper()
	dir, err := os.MkdirTemp(f.t.TempDir(), "out")
	if err != nil {
		f.t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	shadow := filepath.Join(f.state, "git", f.repo.ID())
	for _, args := range [][]string{{"read-tree", string(tree)}, {"checkout-index", "-a", "--prefix=" + dir + "/"}} {
		cmd := exec.Command("git", append([]string{"--git-dir=" + shadow, "--work-tree=" + dir, "-c", "core.protectNTFS=false"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_INDEX_FILE="+dir+".index")
		f.run(cmd)
	}
	out, err := listing(dir)
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

// sound fails the test where the store does not hold what it should.
func (f *fixture) sound() Report {
	f.t.Helper()
	r, err := f.store.Verify(context.Background())
	if err != nil || len(r.Problems) > 0 {
		f.t.Fatalf("%v\n%s", err, strings.Join(r.Problems, "\n"))
	}
	return r
}

// layersOnDisk counts the directories of layers.
func (f *fixture) layersOnDisk() int {
	f.t.Helper()
	dirs, err := os.ReadDir(f.store.path("layers", "snapshots"))
	if err != nil {
		f.t.Fatal(err)
	}
	return len(dirs)
}

func same(t interface{ Fatalf(string, ...any) }, what string, got, want []string) {
	if !slices.Equal(got, want) {
		t.Fatalf("%s:\ngot\n  %s\nwant\n  %s", what, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}
