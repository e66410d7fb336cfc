package container

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aspis-dev/aspis/sandbox"
)

// snapshotWith is a directory with one file.
func snapshotWith(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func waiting(rt *Runtime) (n int) {
	rt.warm.mu.Lock()
	defer rt.warm.mu.Unlock()
	for _, p := range rt.warm.pools {
		n += len(p.waiting)
	}
	return n
}

// eventually waits for what happens in the background.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: never", what)
		}
	}
}

// TestWarm takes sandboxes that were made ahead, each for a snapshot of its own:
// isolated, with that snapshot and no other in it, and refilled.
func TestWarm(t *testing.T) {
	rt := newRuntime(t)
	run(t, rt, probeSpec())
	before := footprint(t, rt)
	ctx := testContext(t)
	spec := evidenceSpec(t)
	spec.Args = []string{"probe", "cat", "/workspace/candidate/file", "/workspace/baseline/file"}
	if err := rt.Warm(ctx, spec, 2, time.Hour); err != nil {
		t.Fatal(err)
	}
	if n := waiting(rt); n != 2 {
		t.Fatalf("%d wait", n)
	}
	for i := range 4 {
		eventually(t, "refilled", func() bool { return waiting(rt) == 2 })
		rt.warm.mu.Lock()
		var next *process
		for _, p := range rt.warm.pools {
			next = p.waiting[0]
		}
		rt.warm.mu.Unlock()
		spec.Mounts = []sandbox.Mount{{Source: snapshotWith(t, fmt.Sprint("candidate ", i)), Target: "/workspace/candidate"},
			{Source: snapshotWith(t, fmt.Sprint("baseline ", i)), Target: "/workspace/baseline"}}
		p, err := rt.Start(ctx, spec)
		if err != nil {
			t.Fatal(err)
		}
		if p.Pid() != next.pid {
			t.Error("it was made from nothing")
		}
		if mode, missing := p.Evidence().Mode(); mode != sandbox.ModeIsolated || p.Evidence().Runtime != rt.Name() {
			t.Errorf("mode %v, missing %v", mode, missing)
		}
		if err := p.Release(ctx); err != nil {
			t.Fatal(err)
		}
		out, err := io.ReadAll(p.Stdout())
		if want := fmt.Sprintf("candidate %d\nbaseline %d\n", i, i); err != nil || string(out) != want {
			t.Errorf("it says %q, %v; want %q", out, err, want)
		}
		closeProcess(t, p)
	}
	if err := rt.Close(); err != nil {
		t.Error(err)
	}
	if err := rt.Warm(ctx, spec, 1, time.Hour); err == nil {
		t.Error("a closed runtime makes sandboxes ahead")
	}
	compare(t, before, footprint(t, rt))
}

// TestWarmIsOfOneProfile asks for what differs in each thing that is fixed when
// a sandbox is made: none of these may get the one that waits.
func TestWarmIsOfOneProfile(t *testing.T) {
	rt := newRuntime(t)
	ctx := testContext(t)
	spec := evidenceSpec(t)
	if err := rt.Warm(ctx, spec, 1, time.Hour); err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	other := t.TempDir()
	for name, change := range map[string]func(*sandbox.Spec){
		"arguments":   func(s *sandbox.Spec) { s.Args = []string{"probe", "exit"} },
		"environment": func(s *sandbox.Spec) { s.Env = append(slices.Clone(s.Env), "A=b") },
		"directory":   func(s *sandbox.Spec) { s.Dir = "/" },
		"artifact":    func(s *sandbox.Spec) { s.Artifact, s.Path = other, "/bin/true" },
		"system":      func(s *sandbox.Spec) { s.System = false },
		"targets":     func(s *sandbox.Spec) { s.Mounts = s.Mounts[:1] },
		"limits":      func(s *sandbox.Spec) { s.Limits.Pids++ },
		"relay":       func(s *sandbox.Spec) { r, _ := relaySpec(t, []string{"example.org"}); s.Relay = r.Relay },
		"init":        func(s *sandbox.Spec) { s.Init = true },
		"tmp":         func(s *sandbox.Spec) { s.TmpExec = true },
		"holes":       func(s *sandbox.Spec) { s.Without = []sandbox.WallName{sandbox.WallSeccomp} },
	} {
		s := spec
		change(&s)
		if p := rt.takeWarm(ctx, &s); p != nil {
			t.Errorf("%s: it was taken", name)
			closeProcess(t, p)
		}
	}
	if p := rt.takeWarm(ctx, &spec); p == nil {
		t.Error("the same is not taken")
	} else {
		closeProcess(t, p)
	}
}

func TestWarmDrains(t *testing.T) {
	rt := newRuntime(t)
	run(t, rt, probeSpec())
	before := footprint(t, rt)
	if err := rt.Warm(testContext(t), probeSpec(), 2, 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	eventually(t, "drained", func() bool {
		rt.warm.mu.Lock()
		defer rt.warm.mu.Unlock()
		return rt.warm.size == 0 && len(rt.warm.pools) == 0
	})
	if err := rt.Close(); err != nil {
		t.Error(err)
	}
	compare(t, before, footprint(t, rt))
}

// TestWarmDead kills the one that waits: the taker gets another.
func TestWarmDead(t *testing.T) {
	rt := newRuntime(t)
	ctx := testContext(t)
	if err := rt.Warm(ctx, probeSpec(), 1, time.Hour); err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	for _, p := range rt.warm.pools {
		if err := p.waiting[0].Kill(); err != nil {
			t.Fatal(err)
		}
		if _, err := p.waiting[0].Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if out, exit := run(t, rt, probeSpec()); exit.Code != 0 || out != "hello\n" {
		t.Errorf("%q, %+v", out, exit)
	}
}

func TestWarmRelay(t *testing.T) {
	rt := newRuntime(t)
	port := target(t)
	spec, _ := relaySpec(t, []string{"example.org"}, tries(port)...)
	if err := rt.Warm(testContext(t), spec, 1, time.Hour); err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	// Another list than the one that it was made with.
	other, log := relaySpec(t, []string{"localhost:" + port, "127.0.0.1:" + port, "[::1]:" + port})
	spec.Relay = other.Relay
	p := rt.takeWarm(testContext(t), &spec)
	if p == nil {
		t.Fatal("none is taken")
	}
	defer closeProcess(t, p)
	if mode, missing := p.Evidence().Mode(); mode != sandbox.ModeIsolated {
		t.Errorf("mode %v, missing %v", mode, missing)
	}
	if err := p.Release(testContext(t)); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(p.Stdout())
	if err != nil {
		t.Fatal(err)
	}
	mustShow(t, string(out), port)
	if len(log.Log().Attempts) == 0 {
		t.Error("nothing was noted")
	}
}

// TestExchange shows a program that runs one snapshot after another.
func TestExchange(t *testing.T) {
	rt := newRuntime(t)
	ctx := testContext(t)
	spec := evidenceSpec(t)
	spec.Exchangeable = true
	spec.Args = []string{"probe", "look", "/workspace/candidate/file"}
	spec.Mounts = []sandbox.Mount{{Source: snapshotWith(t, "first"), Target: "/workspace/candidate"}}
	started, err := rt.Start(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	p := started.(*process)
	defer closeProcess(t, p)
	if err := p.Release(ctx); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(p.Stdout())
	look := func() string {
		if _, err := io.WriteString(p.Stdin(), "\n"); err != nil {
			t.Fatal(err)
		}
		lines.Scan()
		return lines.Text()
	}
	if got := look(); got != `"first" open /workspace/candidate/file: read-only file system` {
		t.Errorf("at first: %s", got)
	}
	for i := range 5 {
		text := fmt.Sprint("number ", i)
		ev, err := p.Exchange(ctx, []sandbox.Mount{{Source: snapshotWith(t, text), Target: "/workspace/candidate"}})
		if err != nil {
			t.Fatal(err)
		}
		if mode, missing := ev.Mode(); mode != sandbox.ModeIsolated {
			t.Errorf("mode %v, missing %v", mode, missing)
		}
		if got, want := look(), fmt.Sprintf("%q open /workspace/candidate/file: read-only file system", text); got != want {
			t.Errorf("it sees %s, want %s", got, want)
		}
	}
	// The evidence is of what is mounted, and not of what was asked for.
	p.spec.Mounts = []sandbox.Mount{{Source: snapshotWith(t, "another"), Target: "/workspace/candidate"}}
	if err := p.inspectAgain(true); err != nil {
		t.Fatal(err)
	}
	if mode, _ := p.Evidence().Mode(); mode == sandbox.ModeIsolated {
		t.Error("a snapshot that is not there is said to be")
	}
	for _, m := range [][]sandbox.Mount{nil, {{Source: t.TempDir(), Target: "/etc"}}} {
		if _, err := p.Exchange(ctx, m); err == nil {
			t.Errorf("exchanged %v", m)
		}
	}
}

// TestWarmRootless makes one ahead as an ordinary user, takes it, and exchanges
// what it shows.
func TestWarmRootless(t *testing.T) {
	cmd, _ := asUser(t, "enter see")
	cmd.Env = append(cmd.Env, warmEnv+"="+snapshotWith(t, "text"))
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "not: ") {
		t.Skipf("SKIPPED: %s", out)
	}
	if !strings.Contains(string(out), "warm isolated isolated []") {
		t.Errorf("%v: %s", err, out)
	}
}

// BenchmarkWarm measures taking one that waits, with its evidence.
func BenchmarkWarm(b *testing.B) {
	rt := newRuntime(b)
	ctx := testContext(b)
	snapshot := b.TempDir()
	spec := probeSpec()
	spec.Mounts = []sandbox.Mount{{Source: snapshot, Target: "/workspace/candidate"}}
	spec.Protect = []string{b.TempDir()}
	if err := rt.Warm(ctx, spec, 4, time.Hour); err != nil {
		b.Fatal(err)
	}
	defer rt.Close()
	var all times
	for b.Loop() {
		for waiting(rt) < 4 {
			time.Sleep(time.Millisecond)
		}
		begin := all.begin()
		p := rt.takeWarm(ctx, &spec)
		all.end(begin)
		if p == nil {
			b.Fatal("none is taken")
		}
		if err := p.Close(ctx); err != nil {
			b.Fatal(err)
		}
	}
	all.report(b)
}
