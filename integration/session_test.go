package integration

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aspis-dev/aspis/integration/conformance"
)

// inSession runs aspis run with a command.
func inSession(t *testing.T, w *conformance.World, flags []string, command ...string) conformance.Outcome {
	t.Helper()
	return runIn(t, w, append(append(append([]string{"run"}, flags...), "--"), command...)...)
}

// TestSessionLeavesTheProjectAlone has a command change, remove, commit and
// build; nothing of it is in the project until it is applied, and then exactly
// that.
func TestSessionLeavesTheProjectAlone(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	write(t, w, ".gitignore", "build/\n")
	write(t, w, "build/kept.o", "object\n")
	git(t, w, "add", "-A")
	git(t, w, "commit", "-q", "-m", "More")
	before, err := conformance.Fingerprint(w.Repo)
	if err != nil {
		t.Fatal(err)
	}
	o := inSession(t, w, []string{"--name", "one"}, "sh", "-ec", `
		cat build/kept.o
		echo changed >README.md
		rm src/old.go
		mkdir -p deep/er; echo new >'deep/er/a "file"'; printf '#!/bin/sh\n' >run; chmod +x run; ln -s README.md link
		echo object2 >build/more.o
		printf '#!/bin/sh\ntouch /tmp/hooked\n' >.git/hooks/post-commit; chmod +x .git/hooks/post-commit
		git config user.name agent; git config user.email agent@example.org; git config core.fsmonitor 'touch /tmp/owned; true'
		git add -A; git commit -q -m 'By the agent'; git log --oneline | wc -l
		exit 7`)
	if o.Code != 7 || !strings.Contains(o.Stdout, "object\n") || !strings.Contains(o.Stderr, "session one, isolated") {
		t.Fatalf("%+v", o)
	}
	after, err := conformance.Fingerprint(w.Repo)
	if err != nil || before != after {
		t.Fatalf("the project is not as it was (%v)", err)
	}
	o = runIn(t, w, "session", "diff", "--as", "name-only")
	if want := "README.md\n\"deep/er/a \\\"file\\\"\"\nlink\nrun\nsrc/old.go\n"; o.Code != 0 || strings.ReplaceAll(o.Stdout, `deep/er/a "file"`, `"deep/er/a \"file\""`) != want {
		t.Errorf("name-only: %+v", o)
	}
	if !strings.Contains(o.Stderr, "git directory was changed") || !strings.Contains(o.Stderr, "ignored by git") {
		t.Errorf("what stays in the session is not told: %s", o.Stderr)
	}
	if o := runIn(t, w, "session", "discard", "one"); o.Code != 3 || !strings.Contains(o.Stderr, "never applied") {
		t.Errorf("unsaved work was discarded: %+v", o)
	}
	// The user goes on meanwhile, in another file and in other lines.
	write(t, w, "data/mine", "mine\n")
	if o := runIn(t, w, "session", "apply", "one"); o.Code != 0 || !strings.Contains(o.Stdout, "published") {
		t.Fatalf("apply: %+v", o)
	}
	got := files(t, w.Repo)
	for path, want := range map[string]string{"README.md": `false "changed\n"`, `deep/er/a "file"`: `false "new\n"`, "run": `true "#!/bin/sh\n"`, "link": "-> README.md",
		"data/mine": `false "mine\n"`, "build/kept.o": `false "object\n"`, "src/old.go": "", "build/more.o": ""} {
		if got[path] != want {
			t.Errorf("%s: %s, want %s", path, got[path], want)
		}
	}
	if _, err := os.Stat(filepath.Join(w.Repo, ".git/hooks/post-commit")); err == nil {
		t.Error("a hook reached the project")
	}
	if o := git(t, w, "log", "--oneline"); strings.Contains(o, "agent") {
		t.Errorf("commits reached the project: %s", o)
	}
	if o := runIn(t, w, "session", "discard", "one"); o.Code != 0 {
		t.Errorf("discard: %+v", o)
	}
	if o := runIn(t, w, "session", "ls"); o.Stdout != "" {
		t.Errorf("ls: %+v", o)
	}
}

// TestSessionApplyOnly takes some paths, and finds conflicts with the user's own
// work.
func TestSessionApplyOnly(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	if o := inSession(t, w, []string{"--name", "two"}, "sh", "-c", "echo a >README.md; echo b >src/new.go; echo 'on: push' >.envrc"); o.Code != 0 {
		t.Fatalf("%+v", o)
	}
	if o := runIn(t, w, "session", "apply", "--only", "src/**"); o.Code != 0 {
		t.Fatalf("%+v", o)
	}
	if got := files(t, w.Repo); got["src/new.go"] != `false "b\n"` || got["README.md"] == `false "a\n"` {
		t.Errorf("%v", got)
	}
	if o := runIn(t, w, "session", "apply", "--only", ".envrc"); o.Code != 2 || !strings.Contains(o.Stdout, "missing-authority") {
		t.Errorf("a protected file: %+v", o)
	}
	write(t, w, "README.md", "By me.\n")
	before := files(t, w.Repo)
	if o := runIn(t, w, "session", "apply", "--only", "README.md"); o.Code != 2 || !strings.Contains(o.Stdout, "conflict") {
		t.Errorf("a conflict: %+v", o)
	}
	if d := differences(before, files(t, w.Repo)); len(d) > 0 {
		t.Error(d)
	}
}

// TestSessionIsConfined tries to read secrets, to reach out, and to run away.
func TestSessionIsConfined(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	secrets := secretFiles(t, w)
	t.Setenv("ASPIS_TEST_SECRET", "hunter2")
	delete(secrets, filepath.Join(w.Repo, "src/main.go")) // of the project
	for name := range secrets {
		if o := inSession(t, w, []string{"--rm"}, "cat", name); o.Code == 0 || strings.Contains(o.Stdout, "secret") {
			t.Errorf("%s can be read: %+v", name, o)
		}
	}
	if o := inSession(t, w, []string{"--rm"}, "env"); strings.Contains(o.Stdout, "hunter2") || strings.Contains(o.Stdout, "ASPIS_STATE_DIR") {
		t.Errorf("the environment leaks: %s", o.Stdout)
	}
	if o := inSession(t, w, []string{"--rm", "--env", "A=b"}, "sh", "-c", `echo "$A"; wc -l </proc/net/dev; ls /proc | grep -c '^[0-9]'`); !strings.HasPrefix(o.Stdout, "b\n3\n") {
		t.Errorf("only lo, and the variable that was passed: %+v", o)
	}
	for name, script := range map[string]string{
		"mount": "mount -t tmpfs none /tmp", "user namespace": "unshare -U true", "outside": "touch /usr/x /etc/x /x", "state": "ls " + w.State, "hosts": "kill -9 " + fmt.Sprint(os.Getpid()),
	} {
		if o := inSession(t, w, []string{"--rm"}, "sh", "-c", script); o.Code == 0 {
			t.Errorf("%s: %+v", name, o)
		}
	}
	if o := inSession(t, w, []string{"--rm"}, "sh", "-c", "for i in 1 2 3; do (sleep 1000 &) ; done; echo gone"); o.Code != 0 || o.Stdout != "gone\n" {
		t.Errorf("orphans: %+v", o)
	}
	if o := inSession(t, w, []string{"--rm", "--limit", "time=1s"}, "sleep", "100"); o.Code == 0 {
		t.Errorf("it ran over its time: %+v", o)
	}
	if o := inSession(t, w, []string{"--rm", "--limit", "pids=20"}, "sh", "-c", "f() { f | f & }; f; sleep 1; echo end"); strings.Contains(o.Stderr, "did not end") {
		t.Errorf("a fork bomb: %+v", o)
	}
	if o := inSession(t, w, []string{"--rm", "--limit", "tmp=1M"}, "sh", "-c", "head -c 5000000 /dev/zero >/tmp/full"); o.Code == 0 {
		t.Errorf("/tmp is larger than it may be: %+v", o)
	}
	if o := inSession(t, w, []string{"--limit", "colour=red"}, "true"); o.Code == 0 || runIn(t, w, "session", "ls").Stdout != "" {
		t.Errorf("a bad limit: %+v", o)
	}
	if o := inSession(t, w, nil, "no-such-program"); o.Code != 125 || runIn(t, w, "session", "ls").Stdout != "" || !strings.Contains(o.Stderr, "no-such-program") {
		t.Errorf("%+v", o)
	}
}

// TestSessionPassesStreamsAndSignals pipes through a session, and ends it by a
// signal that its command has no handler for.
func TestSessionPassesStreamsAndSignals(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	command := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(deadline(t, time.Minute), filepath.Join(bin, "aspis"), append([]string{"--config", w.Config, "--repo", w.Repo, "run", "--rm", "--"}, args...)...)
		cmd.Env = append(cmd.Environ(), "ASPIS_STATE_DIR="+w.State, "HOME="+filepath.Join(w.Dir, "home"))
		return cmd
	}
	cmd := command("sh", "-c", "wc -c; echo err >&2")
	cmd.Stdin = strings.NewReader(strings.Repeat("x", 5<<20))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || strings.TrimSpace(string(out)) != fmt.Sprint(5<<20) || !strings.Contains(stderr.String(), "\nerr\n") {
		t.Errorf("%q (%v), %q", out, err, stderr.String())
	}
	cmd = command("sh", "-c", "echo ready; exec sleep 100")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 128+int(syscall.SIGINT) {
		t.Errorf("exit code %d", code)
	}
}

// TestSessionOutlivesItsHost kills the host in the middle: the work is there, and
// the session goes on.
func TestSessionOutlivesItsHost(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	mark := fmt.Sprintf("mark-%d", rand.Uint64())
	cmd := exec.Command(filepath.Join(bin, "aspis"), "--config", w.Config, "--repo", w.Repo, "run", "--name", "long", "--", "sh", "-c", "echo work >done; echo ready; exec sleep 1000 # "+mark)
	cmd.Env = append(cmd.Environ(), "ASPIS_STATE_DIR="+w.State, "HOME="+filepath.Join(w.Dir, "home"))
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if o := inSession(t, w, []string{"--session", "long"}, "cat", "done"); o.Code != 0 || o.Stdout != "work\n" {
		t.Errorf("%+v", o)
	}
	if err := traces(w, mark, nil); err != nil {
		t.Error(err)
	}
	var all []struct {
		Name string
		Runs []struct{ Code int }
	}
	o := runIn(t, w, "session", "ls", "--format", "json")
	if err := json.Unmarshal([]byte(o.Stdout), &all); err != nil || len(all) != 1 || len(all[0].Runs) != 2 {
		t.Errorf("%v: %s", err, o.Stdout)
	}
}

// TestSessionReachesOnlyWhatIsAllowed has real servers, a client in a session, and
// a key that the client uses and never sees.
func TestSessionReachesOnlyWhatIsAllowed(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("needs: curl, the client of this test")
	}
	l := lab(t)
	w := world(t, l, l.NewConfig())
	open := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, "open") }))
	defer open.Close()
	shut := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, "shut") }))
	defer shut.Close()
	address := strings.TrimPrefix(open.URL, "http://")
	script := fmt.Sprintf("curl -sS -m 10 %s/x; echo; curl -sS -m 10 %s/y; echo; curl -sS -m 5 --noproxy '*' %s/z || echo direct fails", open.URL, shut.URL, open.URL)
	o := inSession(t, w, []string{"--name", "net", "--allow", address}, "sh", "-c", script)
	if !strings.Contains(o.Stderr, "session net, isolated") || !strings.HasPrefix(o.Stdout, "open\n") || strings.Contains(o.Stdout, "shut") || !strings.Contains(o.Stdout, "direct fails") {
		t.Errorf("%+v", o)
	}
	if !strings.Contains(o.Stderr, "not let through to "+strings.TrimPrefix(shut.URL, "http://")) {
		t.Errorf("the refused attempt is not told: %s", o.Stderr)
	}
	if o := runIn(t, w, "session", "show", "net"); !strings.Contains(o.Stdout, `"attempts"`) {
		t.Errorf("the evidence has no attempts: %s", o.Stdout)
	}
	for _, bad := range [][]string{{"--allow", "a b"}, {"--credential", "x=Y"}, {"--allow", "example.org", "--credential", "example.org=NO_SUCH_VARIABLE"}} {
		if o := inSession(t, w, bad, "true"); o.Code != 125 {
			t.Errorf("%v: %+v", bad, o)
		}
	}
}
