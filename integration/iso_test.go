package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aspis-dev/aspis/integration/conformance"
	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/schemas"
)

// isolatedOnly requires isolation, and shows the provider the snapshot.
func isolatedOnly(c *conformance.Config) *conformance.Config {
	c.Requirements[0].Assurance = []schemas.AssuranceMode{schemas.Isolated}
	c.Providers[0].Workspace = "snapshot"
	return c
}

// judge changes one file and checks the worktree.
func judge(t *testing.T, w *conformance.World, extra ...string) *schemas.Verdict {
	t.Helper()
	if err := w.Write("src/new.go", "package main\n"); err != nil {
		t.Fatal(err)
	}
	v, stderr, err := w.Check(deadline(t, time.Minute), schemas.Gate, 0, extra...)
	if err != nil {
		t.Fatal(err)
	}
	if stderr != "" {
		t.Logf("stderr: %s", stderr)
	}
	return v
}

func details(v *schemas.Verdict) string {
	var b strings.Builder
	for _, d := range v.Coverage.Degraded {
		fmt.Fprintf(&b, "%s %s: %s\n", d.Source, d.Reason, d.Detail)
	}
	return b.String()
}

func mustBeIsolated(t *testing.T, v *schemas.Verdict) {
	t.Helper()
	if v.Decision != schemas.Allow || v.Assurance.Mode != schemas.Isolated {
		t.Fatalf("%s, %s %s\n%s", v.Decision, v.Assurance.Mode, v.Assurance.Detail, details(v))
	}
}

func noEscape(t *testing.T, v *schemas.Verdict) {
	t.Helper()
	for _, f := range v.Findings {
		if f.Diagnostic.Code == "test/escape" {
			t.Errorf("the provider got out: %s", f.Diagnostic.Message)
		}
	}
}

// secretFiles are what a provider must not reach: in the worktree, the state
// directory, the caller's home and the machine's temporary directory.
func secretFiles(t *testing.T, w *conformance.World) map[string]string {
	t.Helper()
	files := map[string]string{
		filepath.Join(w.Repo, "src/main.go"): "", filepath.Join(w.State, "secret"): "", filepath.Join(w.Dir, "home/.ssh/id"): "", filepath.Join(t.TempDir(), "secret"): "",
	}
	for path := range files {
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			b = []byte("secret")
			if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, b, 0o666); err != nil {
				t.Fatal(err)
			}
		} else if err != nil {
			t.Fatal(err)
		}
		files[path] = string(b)
	}
	return files
}

func TestISO_ESCAPE(t *testing.T) {
	l := lab(t)
	w := world(t, l, isolatedOnly(l.NewConfig()))
	secrets := secretFiles(t, w)
	attack := []string{"/etc/shadow", "/etc/hostname", "/proc/1/root/etc/shadow", "/proc/2/environ", "/proc/kcore", "/dev/mem", "/var/run/docker.sock", "/workspace/candidate/../../../etc/shadow"}
	for path := range secrets {
		attack = append(attack, path)
	}
	cfg := isolatedOnly(l.NewConfig("attack=" + strings.Join(attack, ",")))
	if err := w.WriteConfig(cfg); err != nil {
		t.Fatal(err)
	}
	v := judge(t, w)
	noEscape(t, v)
	mustBeIsolated(t, v)
	for path, text := range secrets {
		if b, err := os.ReadFile(path); err != nil || string(b) != text {
			t.Errorf("%s is now %q (%v)", path, b, err)
		}
	}
}

func TestISO_NET(t *testing.T) {
	l := lab(t)
	dir := t.TempDir()
	var listeners []net.Listener
	for _, a := range [][2]string{{"unix", "@aspis-iso-net-" + strconv.Itoa(os.Getpid())}, {"unix", filepath.Join(dir, "sock")}, {"tcp", "127.0.0.1:0"}, {"tcp", "[::1]:0"}} {
		ln, err := net.Listen(a[0], a[1])
		if err != nil {
			t.Logf("no listener on %v: %v", a, err)
			continue
		}
		t.Cleanup(func() { ln.Close() })
		listeners = append(listeners, ln)
	}
	dial := []string{"udp:192.0.2.1:53", "tcp:169.254.169.254:80"}
	for _, ln := range listeners {
		dial = append(dial, ln.Addr().Network()+":"+ln.Addr().String())
	}
	cfg := isolatedOnly(l.NewConfig("dial="+strings.Join(dial, ","), "attack=/etc/resolv.conf"))
	w := world(t, l, cfg)
	v := judge(t, w)
	noEscape(t, v)
	mustBeIsolated(t, v)
}

// evidence reads back which walls were seen standing.
func evidence(t *testing.T, w *conformance.World, v *schemas.Verdict) map[sandbox.WallName]bool {
	t.Helper()
	o, err := w.Run(deadline(t, time.Minute), "receipt", "show", v.Receipt.ReceiptID, "--evidence", "--format", "json")
	if err != nil || o.Code != 0 {
		t.Fatalf("%v %+v", err, o)
	}
	var rec struct {
		ReceiptID string
		Providers []struct {
			Walls struct {
				Pid   int
				Walls []struct {
					Name     sandbox.WallName
					Standing bool
					Seen     string
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(o.Stdout), &rec); err != nil {
		t.Fatalf("%v: %s", err, o.Stdout)
	}
	if rec.ReceiptID != v.Receipt.ReceiptID || len(rec.Providers) != 1 || rec.Providers[0].Walls.Pid <= 0 {
		t.Fatalf("the evidence is %s", o.Stdout)
	}
	seen := map[sandbox.WallName]bool{}
	for _, wall := range rec.Providers[0].Walls.Walls {
		seen[wall.Name] = wall.Standing && wall.Seen != ""
	}
	return seen
}

func TestISO_EVIDENCE(t *testing.T) {
	l := lab(t)
	w := world(t, l, isolatedOnly(l.NewConfig()))
	v := judge(t, w)
	mustBeIsolated(t, v)
	seen := evidence(t, w, v)
	for _, row := range sandbox.Table() {
		if !seen[row.Name] {
			t.Errorf("isolated without evidence for %s", row.Name)
		}
	}
}

func TestISO_MUTANTS(t *testing.T) {
	needRoot(t)
	l := lab(t)
	c := isolatedOnly(l.NewConfig())
	// Less than any machine has, so that the machine itself is not the limit.
	half := 50
	c.Providers[0].Permissions = &schemas.Permissions{Read: []string{"**"}, ResourceLimits: &schemas.ResourceLimits{CPUPct: &half}}
	w := world(t, l, c)
	mustBeIsolated(t, judge(t, w))
	for _, row := range sandbox.Table() {
		t.Run(string(row.Name), func(t *testing.T) {
			v := judge(t, w, "--without-wall", string(row.Name))
			if v.Decision == schemas.Allow || v.Assurance.Mode == schemas.Isolated {
				t.Fatalf("without %s: %s, %s", row.Name, v.Decision, v.Assurance.Mode)
			}
			if row.Needed == sandbox.ModeMediatedWrite && v.Assurance.Mode.Rank() >= schemas.MediatedWrite.Rank() {
				t.Errorf("without %s the mode is still %s", row.Name, v.Assurance.Mode)
			}
			if text := details(v); !strings.Contains(text, string(schemas.ReasonInsufficientAssurance)) {
				t.Errorf("no reason is told: %s", text)
			}
			if standing, told := evidence(t, w, v)[row.Name]; !told || standing {
				t.Errorf("the evidence does not show that %s is missing", row.Name)
			}
		})
	}
	// A mutant of one start is none of the next.
	mustBeIsolated(t, judge(t, w))
}

func TestISO_ROOTLESS(t *testing.T) {
	needRoot(t)
	opt := options(t)
	opt.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	// The temporary directories of tests are for their user only.
	dir, err := os.MkdirTemp("", "aspis-rootless-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	opt.Dir = dir
	l, err := conformance.NewLab(opt)
	if err != nil {
		t.Fatal(err)
	}
	c := l.NewConfig("attack=/etc/shadow," + filepath.Join(dir, "none"))
	c.Providers[0].Workspace = "snapshot"
	w := world(t, l, c)
	v := judge(t, w)
	noEscape(t, v)
	switch v.Assurance.Mode {
	case schemas.Isolated, schemas.MediatedWrite:
		if v.Decision != schemas.Allow {
			t.Errorf("%s at %s\n%s", v.Decision, v.Assurance.Mode, details(v))
		}
	default:
		if v.Decision == schemas.Allow || !strings.Contains(details(v), string(schemas.ReasonInsufficientAssurance)) {
			t.Errorf("%s at %s\n%s", v.Decision, v.Assurance.Mode, details(v))
		}
	}
	t.Logf("as an ordinary user: %s at %s; %s", v.Decision, v.Assurance.Mode, v.Assurance.Detail)
}

// traces looks for what a host may have left: processes with a mark in their
// arguments, mounts below its world, control groups with its sandboxes' ids.
func traces(w *conformance.World, mark string, ids []string) error {
	var errs []error
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, p := range procs {
		if b, err := os.ReadFile(p); err == nil && (bytes.Contains(b, []byte(mark)) || bytes.Contains(b, []byte(w.Dir))) {
			errs = append(errs, fmt.Errorf("process %s: %q", p, b))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	if bytes.Contains(mounts, []byte(w.Dir)) {
		errs = append(errs, errors.New("a mount below the world is left"))
	}
	for _, id := range ids {
		for _, pattern := range []string{"/sys/fs/cgroup/" + id, "/sys/fs/cgroup/*/" + id, "/sys/fs/cgroup/*/*/" + id, "/sys/fs/cgroup/*/*/*/" + id} {
			if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
				errs = append(errs, errors.Join(fmt.Errorf("control groups are left: %v", left), err))
			}
		}
	}
	return errors.Join(errs...)
}

// sandboxes lists the run directories below a state directory.
func sandboxes(w *conformance.World) []string {
	dirs, _ := filepath.Glob(filepath.Join(w.State, "run/run/*"))
	for i, d := range dirs {
		dirs[i] = filepath.Base(d)
	}
	return dirs
}

func TestISO_NO_LEFTOVERS(t *testing.T) {
	needRoot(t)
	l := lab(t)
	mark := fmt.Sprintf("mark=%d", rand.Uint64())
	c := l.NewConfig("slow", "orphan", mark)
	c.Providers[0].Workspace = "snapshot"
	w := world(t, l, c)
	if err := w.Write("src/new.go", "package main\n"); err != nil {
		t.Fatal(err)
	}
	ctx := deadline(t, 2*time.Minute)
	caught := 0
	for i := range 20 {
		// Both seams, killed anywhere between the start and the middle of a check.
		after := time.Duration(rand.IntN(600)) * time.Millisecond
		h := serve(t, w)
		asked, cancel := context.WithCancel(ctx)
		text := "package main\n"
		go func() { _, _ = h.Evaluate(asked, schemas.Gate, conformance.Change{"src/other.go": &text}, 0) }()
		time.Sleep(after)
		if err := syscall.Kill(h.Pid(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		h.ExitCode() // waits
		cancel()
		ids := sandboxes(w)
		caught += len(ids)
		t.Logf("killed after %v: %v", after, ids)
		// A status is a start like any other, and does not wait for the slow provider.
		o, err := w.Run(ctx, "status", "--format", "json")
		if err != nil || o.Code != 0 {
			t.Fatalf("killed after %v, the next start: %v %+v", after, err, o)
		}
		if left := sandboxes(w); len(left) > 0 {
			t.Errorf("kill %d after %v: run directories are left: %v", i, after, left)
		}
		if err := traces(w, mark, ids); err != nil {
			t.Errorf("kill %d after %v: %v", i, after, err)
		}
	}
	if caught < 5 {
		t.Errorf("only %d kills hit a host with a sandbox; the test shows little", caught)
	}
	t.Logf("%d sandboxes were left by 20 kills and collected", caught)
}
