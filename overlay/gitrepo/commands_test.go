package gitrepo

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// planted is a repository with a command behind every key, hook and variable
// that git runs one from. Each leaves the marker.
type planted struct {
	repo
	home, marker string
	missing      OID // a blob that only a fetch could bring
}

func plant(t *testing.T) planted {
	t.Helper()
	p := planted{repo: newRepo(t), home: t.TempDir(), marker: filepath.Join(t.TempDir(), "ran")}
	sub := newRepo(t)
	sub.write("s", "1")
	sub.commit("s")
	p.write("a.txt", "1\n")
	p.write("b.bin", "1\n")
	p.write("gone.md", "only at the remote\n")
	p.commit("one")
	p.git("submodule", "add", "-q", sub.dir, "sub")
	p.git("rm", "-q", "gone.md")
	p.commit("sub")
	p.missing = OID(p.git("rev-parse", "HEAD~1:gone.md"))
	must(t, os.Remove(filepath.Join(p.dir, ".git/objects", string(p.missing[:2]), string(p.missing[2:]))))
	evil := filepath.Join(p.dir, ".git", "evil.sh")
	script := []byte("#!/bin/sh\ntouch '" + p.marker + "'\ncat\n")
	must(t, os.WriteFile(evil, script, 0o755))
	p.write(".gitattributes", "*.txt filter=evil diff=evil merge=evil\n*.bin diff=evil working-tree-encoding=UTF-8\n")
	conf := fmt.Sprintf(`
[core]
	fsmonitor = '%[1]s'
	sshCommand = '%[1]s'
	pager = '%[1]s'
	editor = '%[1]s'
	hooksPath = %[2]q
	alternateRefsCommand = '%[1]s'
	gitProxy = '%[1]s'
	askPass = '%[1]s'
[filter "evil"]
	clean = '%[1]s'
	smudge = '%[1]s'
	process = '%[1]s'
	required = true
[diff]
	external = '%[1]s'
[diff "evil"]
	textconv = '%[1]s'
	command = '%[1]s'
[merge "evil"]
	driver = '%[1]s'
[alias]
	diff-files = "!'%[1]s'"
	write-tree = "!'%[1]s'"
	cat-file = "!'%[1]s'"
[include]
	path = evil.inc
[credential]
	helper = "!'%[1]s'"
[gpg]
	program = '%[1]s'
[protocol "ext"]
	allow = always
[remote "evil"]
	url = "ext::'%[1]s' %%S"
	promisor = true
	partialclonefilter = blob:none
	uploadpack = '%[1]s'
[extensions]
	partialclone = evil
[trace2]
	eventTarget = '%[3]s'
	normalTarget = '%[3]s'
`, evil, filepath.Join(p.dir, ".git", "evil-hooks"), p.marker)
	for _, file := range []string{filepath.Join(p.dir, ".git/config"), filepath.Join(p.dir, ".git/modules/sub/config"), filepath.Join(p.home, ".gitconfig")} {
		f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		must(t, err)
		_, err = f.WriteString(conf)
		must(t, errors.Join(err, f.Close()))
	}
	must(t, os.MkdirAll(filepath.Join(p.dir, ".git", "evil-hooks"), 0o755))
	must(t, os.MkdirAll(filepath.Join(p.dir, ".git", "hooks"), 0o755))
	for _, h := range []string{"post-index-change", "pre-commit", "reference-transaction", "fsmonitor-watchman", "pre-auto-gc"} {
		must(t, os.WriteFile(filepath.Join(p.dir, ".git", "evil-hooks", h), script, 0o755))
		must(t, os.WriteFile(filepath.Join(p.dir, ".git", "hooks", h), script, 0o755))
	}
	must(t, os.WriteFile(filepath.Join(p.dir, ".git", "evil.inc"), []byte("[core]\n\tfsmonitor = '"+evil+"'\n"), 0o644))
	p.write("a.txt", "2\n")
	p.write("b.bin", "2\n")
	p.write("c.txt", "new\n")
	p.write("sub/s", "changed inside\n")
	return p
}

// surround sets the caller's environment as badly.
func (p planted) surround(t *testing.T) {
	t.Helper()
	evil := filepath.Join(p.dir, ".git", "evil.sh")
	for name, value := range map[string]string{
		"HOME": p.home, "XDG_CONFIG_HOME": "", "GIT_EXTERNAL_DIFF": evil, "GIT_SSH_COMMAND": evil, "GIT_EDITOR": evil, "GIT_PAGER": evil, "PAGER": evil,
		"GIT_ASKPASS": evil, "GIT_PROXY_COMMAND": evil, "GIT_TRACE": p.marker, "GIT_TRACE2": p.marker, "GIT_EXEC_PATH": filepath.Join(p.dir, ".git"),
		"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": evil, "GIT_CONFIG_PARAMETERS": "'core.fsmonitor=" + evil + "'",
		"GIT_CONFIG_GLOBAL": filepath.Join(p.home, ".gitconfig"), "GIT_DIR": filepath.Join(p.dir, ".git"), "GIT_INDEX_FILE": filepath.Join(p.dir, ".git/index"),
		"GIT_OBJECT_DIRECTORY": filepath.Join(p.dir, ".git/objects"), "GIT_NO_LAZY_FETCH": "0", "GIT_ALLOW_PROTOCOL": "ext:file",
	} {
		t.Setenv(name, value)
	}
}

// everything does all that this package does.
func everything(ctx context.Context, t *testing.T, dir, state string, missing OID, after func(what string)) {
	t.Helper()
	g, err := Open(ctx, dir, Options{StateDir: state})
	must(t, err)
	after("Open")
	for what, sel := range map[string]Selection{"worktree": {Kind: KindWorktree}, "staged": {Kind: KindStaged}, "base": {Kind: KindBase, A: "HEAD"},
		"range": {Kind: KindRange, A: "HEAD", B: "HEAD"}, "tree": {Kind: KindTree, A: "HEAD"}, "upstream": {Kind: KindBase, A: "@{u}"}, "nothing": {Kind: KindBase, A: "nothing"}} {
		c, err := g.Capture(ctx, sel)
		if (err != nil) != (what == "nothing" || what == "upstream") {
			t.Errorf("%s: %v", what, err)
		}
		if what == "worktree" && err == nil {
			want(t, c, `create ".gitattributes" 0>100644`, `modify "a.txt"`, `modify "b.bin"`, `create "c.txt" 0>100644`)
		}
		after("Capture " + what)
	}
	if _, err := g.Capture(ctx, Selection{Kind: KindRange, A: "HEAD~1", B: "HEAD"}); !errors.As(err, new(*MissingObjectError)) {
		t.Error(err)
	}
	after("Capture of what is missing")
	blobs, err := g.Blobs(ctx)
	must(t, err)
	if _, err := blobs.Read(missing, io.Discard, 0); !errors.As(err, new(*MissingObjectError)) {
		t.Error(err)
	}
	must(t, blobs.Close())
	after("Blobs")
	tree, err := g.TreeOf(ctx, "HEAD")
	must(t, err)
	must(t, g.ListTree(ctx, tree, func(TreeEntry) error { return nil }))
	after("ListTree")
	blob, err := g.PutBlob(ctx, strings.NewReader("x"))
	must(t, err)
	_, err = g.WriteTree(ctx, tree, []TreeEdit{{Path: "a.txt", Mode: ModeFile, OID: blob}})
	must(t, err)
	after("WriteTree")
	_, err = g.WorktreeDigest(ctx)
	must(t, err)
	f := g.Follow()
	_, _, err = f.Latest(ctx)
	must(t, errors.Join(err, f.Close(), g.Close()))
	after("Follow")
}

// contents are the files below a directory.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		out[path] = fmt.Sprintf("%x", sha256.Sum256(b))
		return err
	}))
	return out
}

func TestNoCommandRunsAndNothingIsWritten(t *testing.T) {
	p := plant(t)
	before := contents(t, p.dir)
	t.Run("all", func(t *testing.T) {
		p.surround(t)
		everything(context.Background(), t, p.dir, t.TempDir(), p.missing, func(what string) {
			if _, err := os.Stat(p.marker); err == nil {
				t.Fatalf("%s ran a command", what)
			}
		})
	})
	if now := contents(t, p.dir); !maps.Equal(before, now) {
		t.Error("the repository was written")
	}
	// The test can fail: plain git does run them.
	_ = exec.Command("git", "-C", p.dir, "status").Run()
	if _, err := os.Stat(p.marker); err != nil {
		t.Fatal("the planted commands do not work at all")
	}
}

// TestSystemCalls looks at what git really opens and starts: no configuration
// but the shadow's, and no other program.
func TestSystemCalls(t *testing.T) {
	if dir := os.Getenv("GITREPO_TRACED"); dir != "" {
		everything(context.Background(), t, dir, os.Getenv("GITREPO_STATE"), OID(os.Getenv("GITREPO_MISSING")), func(string) {})
		return
	}
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs: strace, to see every program that git starts")
	}
	log := filepath.Join(t.TempDir(), "log")
	if err := exec.Command(strace, "-o", log, "true").Run(); err != nil {
		t.Skip("needs: ptrace, for strace")
	}
	p := plant(t)
	state := t.TempDir()
	cmd := exec.Command(strace, "-f", "-qq", "-s", "4096", "-e", "trace=execve,open,openat", "-e", "signal=none", "-o", log,
		os.Args[0], "-test.run=^TestSystemCalls$", "-test.v")
	cmd.Env = append(os.Environ(), "GITREPO_TRACED="+p.dir, "GITREPO_STATE="+state, "GITREPO_MISSING="+string(p.missing), "HOME="+p.home)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "PASS") {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := os.Open(log)
	must(t, err)
	defer f.Close()
	git, opened := map[string]bool{}, 0
	call := regexp.MustCompile(`^(\d+) +(execve|open|openat)\((?:[A-Z_]+, )?"([^"]*)"`)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m := call.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		pid, path := m[1], m[3]
		switch {
		case m[2] == "execve" && filepath.Base(path) == "git":
			git[pid] = true
		case m[2] == "execve" && path != os.Args[0]:
			t.Errorf("started %s", lines.Text())
		case !git[pid]:
		case strings.HasSuffix(path, "/.git/modules/sub/config"):
			// Git asks it for the format of the submodule's repository, to read
			// its HEAD, and for nothing else (read_repository_format).
		case strings.HasSuffix(path, ".gitconfig"), strings.HasPrefix(path, p.home), path == "/etc/gitconfig",
			strings.HasSuffix(path, "/config") && !strings.HasPrefix(path, state), strings.HasSuffix(path, "evil.inc"):
			t.Errorf("git opened %s", lines.Text())
		default:
			opened++
		}
	}
	must(t, lines.Err())
	if len(git) == 0 || opened == 0 {
		t.Fatal("nothing was traced")
	}
}
