package kernel_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/container"
	"github.com/aspis-dev/aspis/sandbox/kernel"
	"github.com/aspis-dev/aspis/sandbox/process"
	"github.com/aspis-dev/aspis/sandbox/seccomp"
)

// bench is what every test here needs: a runtime, a program to run, and a
// worktree to protect.
type bench struct {
	space    *container.MountSpace
	runtime  *container.Runtime
	artifact string
	worktree string
	snapshot string
}

func newBench(tb testing.TB) bench {
	tb.Helper()
	space, err := container.NewSpace("")
	if err != nil {
		tb.Skipf("SKIPPED: no private mount namespace here (%v)", err)
	}
	tb.Cleanup(func() { _ = space.Close() })
	rt, err := container.New(container.Options{StateDir: tb.TempDir(), Space: space})
	if err != nil {
		tb.Fatal(err)
	}
	b := bench{space: space, runtime: rt, artifact: tb.TempDir(), worktree: tb.TempDir(), snapshot: tb.TempDir()}
	// Reachable for the sandbox's own user.
	for _, d := range []string{b.artifact, b.snapshot, filepath.Dir(b.artifact)} {
		if err := os.Chmod(d, 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	idle, err := os.ReadFile(buildIdle(tb))
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.artifact, "idle"), idle, 0o755); err != nil {
		tb.Fatal(err)
	}
	return b
}

// buildIdle gives the program that the sandboxes are for; one that was built
// before is named by the environment.
func buildIdle(tb testing.TB) string {
	tb.Helper()
	if name := os.Getenv("ASPIS_TEST_IDLE"); name != "" {
		return name
	}
	dir := tb.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "idle"), "./testdata/idle")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("build: %v\n%s", err, out)
	}
	return filepath.Join(dir, "idle")
}

func (b bench) spec() sandbox.Spec {
	return sandbox.Spec{
		Name: "idle", Path: "/provider/idle", Args: []string{"idle"}, Env: []string{"PATH=/usr/bin"}, Dir: "/provider",
		Artifact: b.artifact, System: true,
		Mounts:  []sandbox.Mount{{Source: b.snapshot, Target: "/workspace/candidate"}},
		Protect: []string{b.worktree},
		Limits: sandbox.Limits{
			MemoryBytes: 256 << 20, Pids: 64, OpenFiles: 128, CPUPercent: 100,
			TmpBytes: 8 << 20, FileBytes: 64 << 20, WallClock: time.Minute,
		},
	}
}

// evidence starts a process, takes its evidence and ends it.
func evidence(tb testing.TB, rt sandbox.Runtime, spec sandbox.Spec) (sandbox.Evidence, error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p, err := rt.Start(ctx, spec)
	if err != nil {
		return sandbox.Evidence{}, err
	}
	ev := p.Evidence()
	return ev, p.Close(ctx)
}

func describe(ev sandbox.Evidence) string {
	s := ""
	for _, w := range ev.Walls {
		mark := "  "
		if !w.Standing {
			mark = "! "
		}
		s += fmt.Sprintf("%s%-22s %s\n", mark, w.Name, w.Seen)
	}
	return s
}

func TestIsolated(t *testing.T) {
	b := newBench(t)
	ev, err := evidence(t, b.runtime, b.spec())
	if err != nil {
		t.Fatal(err)
	}
	if mode, missing := ev.Mode(); mode != sandbox.ModeIsolated {
		t.Errorf("mode %v, missing %v", mode, missing)
	}
	t.Log("\n" + describe(ev))
}

// TestMutants takes each wall away in turn (ISO-MUTANTS): the wall must be
// seen to be missing and the mode must fall to below what it is needed for.
func TestMutants(t *testing.T) {
	b := newBench(t)
	if ev, err := evidence(t, b.runtime, b.spec()); err != nil {
		t.Fatal(err)
	} else if mode, missing := ev.Mode(); mode != sandbox.ModeIsolated {
		t.Skipf("SKIPPED: this machine gives %v with all walls asked for: %v", mode, missing)
	}
	for _, row := range sandbox.Table() {
		t.Run(string(row.Name), func(t *testing.T) {
			spec := b.spec()
			spec.Without = []sandbox.WallName{row.Name}
			ev, err := evidence(t, b.runtime, spec)
			if err != nil {
				t.Fatal(err)
			}
			mode, missing := ev.Mode()
			if mode >= row.Needed {
				t.Errorf("mode %v without it", mode)
			}
			if !slices.ContainsFunc(missing, func(w sandbox.Wall) bool { return w.Name == row.Name }) {
				t.Errorf("not seen to be missing:\n%s", describe(ev))
			}
			for _, w := range missing {
				if w.Seen == "" || w.Fix == "" {
					t.Errorf("wall %s has no reason or no remedy", w.Name)
				}
				t.Logf("%s: %s", w.Name, w.Seen)
			}
		})
	}
}

// TestOverlaySnapshot shows a snapshot as it is kept: layers in a protected
// state directory, mounted where only the runtime's own namespace sees them.
func TestOverlaySnapshot(t *testing.T) {
	b := newBench(t)
	state := t.TempDir()
	for _, d := range []string{"one", "two"} {
		if err := os.Mkdir(filepath.Join(state, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	view := filepath.Join(b.space.Dir(), "view")
	err := b.space.Do(func() error {
		if err := os.Mkdir(view, 0o755); err != nil {
			return err
		}
		return unix.Mount("overlay", view, "overlay", unix.MS_RDONLY, "lowerdir="+state+"/one:"+state+"/two")
	})
	if err != nil {
		t.Fatal(err)
	}
	spec := b.spec()
	spec.Mounts = []sandbox.Mount{{Source: view, Target: "/workspace/candidate"}, {Source: filepath.Join(state, "one"), Target: "/workspace/baseline"}}
	spec.Protect = append(spec.Protect, state)
	ev, err := evidence(t, b.runtime, spec)
	if err != nil {
		t.Fatal(err)
	}
	if mode, missing := ev.Mode(); mode != sandbox.ModeIsolated {
		t.Errorf("mode %v, missing %v", mode, missing)
	}
}

// TestOtherExpectations holds one real process against expectations that it
// does not meet, each of which must bring its wall down and no other.
func TestOtherExpectations(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p, err := b.runtime.Start(ctx, b.spec())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	lax, err := seccomp.Compile(seccomp.Profile{Allow: []string{"keyctl"}}, runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	other := t.TempDir()
	for name, c := range map[string]struct {
		change func(*kernel.Expect)
		walls  []sandbox.WallName
	}{
		"as it is":            {func(*kernel.Expect) {}, nil},
		"laxer filter":        {func(ex *kernel.Expect) { ex.Filter = lax }, []sandbox.WallName{sandbox.WallSeccomp, sandbox.WallSessionKeyring}},
		"no filter":           {func(ex *kernel.Expect) { ex.Filter = nil }, []sandbox.WallName{sandbox.WallSeccomp, sandbox.WallSessionKeyring}},
		"other snapshot":      {func(ex *kernel.Expect) { ex.Spec.Mounts[0].Source = other }, []sandbox.WallName{sandbox.WallSnapshotReadOnly}},
		"other artifact":      {func(ex *kernel.Expect) { ex.Spec.Artifact = other }, []sandbox.WallName{sandbox.WallRootFilesystem}},
		"snapshot elsewhere":  {func(ex *kernel.Expect) { ex.Spec.Mounts[0].Target = "/workspace/other" }, []sandbox.WallName{sandbox.WallRootFilesystem, sandbox.WallSnapshotReadOnly, sandbox.WallUnixSockets}},
		"protected parent":    {func(ex *kernel.Expect) { ex.Spec.Protect = []string{filepath.Dir(b.snapshot)} }, nil},
		"protected itself":    {func(ex *kernel.Expect) { ex.Spec.Protect = []string{b.snapshot} }, []sandbox.WallName{sandbox.WallWorktreeUnreachable}},
		"protected below":     {func(ex *kernel.Expect) { ex.Spec.Protect = []string{"/usr/lib"} }, []sandbox.WallName{sandbox.WallWorktreeUnreachable}},
		"nothing protected":   {func(ex *kernel.Expect) { ex.Spec.Protect = nil }, []sandbox.WallName{sandbox.WallWorktreeUnreachable}},
		"nothing that exists": {func(ex *kernel.Expect) { ex.Spec.Protect = []string{"/no/such"} }, []sandbox.WallName{sandbox.WallWorktreeUnreachable}},
		"no system":           {func(ex *kernel.Expect) { ex.Spec.System = false }, []sandbox.WallName{sandbox.WallRootFilesystem, sandbox.WallUnixSockets}},
		"other pipes":         {func(ex *kernel.Expect) { ex.Pipes = make([]kernel.PipeID, 3) }, []sandbox.WallName{sandbox.WallFileDescriptors}},
		"other environment":   {func(ex *kernel.Expect) { ex.Spec.Env = []string{"PATH=/bin"} }, []sandbox.WallName{sandbox.WallEnvironment}},
		"less memory":         {func(ex *kernel.Expect) { ex.Spec.Limits.MemoryBytes-- }, []sandbox.WallName{sandbox.WallMemoryLimit}},
		"fewer processes":     {func(ex *kernel.Expect) { ex.Spec.Limits.Pids-- }, []sandbox.WallName{sandbox.WallPidsLimit}},
		"fewer files":         {func(ex *kernel.Expect) { ex.Spec.Limits.OpenFiles-- }, []sandbox.WallName{sandbox.WallOpenFilesLimit}},
		"smaller /tmp":        {func(ex *kernel.Expect) { ex.Spec.Limits.TmpBytes = 1 << 20 }, []sandbox.WallName{sandbox.WallRootFilesystem}},
		"less processor":      {func(ex *kernel.Expect) { ex.Spec.Limits.CPUPercent-- }, []sandbox.WallName{sandbox.WallCPULimit}},
		"no watchdog":         {func(ex *kernel.Expect) { ex.Watchdog = false }, []sandbox.WallName{sandbox.WallClockLimit}},
		"no limits": {func(ex *kernel.Expect) { ex.Spec.Limits = sandbox.Limits{} }, []sandbox.WallName{
			sandbox.WallMemoryLimit, sandbox.WallPidsLimit, sandbox.WallOpenFilesLimit, sandbox.WallCPULimit, sandbox.WallClockLimit}},
	} {
		t.Run(name, func(t *testing.T) {
			ex := b.expect(t)
			c.change(&ex)
			ev, err := kernel.Inspect(p.Pid(), ex)
			if err != nil {
				t.Fatal(err)
			}
			var got []sandbox.WallName
			_, missing := ev.Mode()
			for _, w := range missing {
				got = append(got, w.Name)
				t.Logf("%s: %s", w.Name, w.Seen)
			}
			if !slices.Equal(got, c.walls) {
				t.Errorf("missing %v, want %v", got, c.walls)
			}
		})
	}
}

// TestUnreadable makes each fact in turn one that could not be read: some wall
// must fall for it, and none may come to stand.
func TestUnreadable(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p, err := b.runtime.Start(ctx, b.spec())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close(ctx) }()
	// Facts that only matter where another one is not there.
	spare := map[string]bool{"memory": true, "pids": true, "cpu": true, "hostGroups": true, "groups": true, "hostPipes": true}
	ex := b.expect(t)
	n := 0
	err = kernel.Spoil(p.Pid(), ex, func(name string, walls []sandbox.Wall) {
		mode, missing := sandbox.Evidence{Walls: walls}.Mode()
		switch {
		case name == "":
			if mode != sandbox.ModeIsolated {
				t.Fatalf("mode %v, missing %v", mode, missing)
			}
		case mode == sandbox.ModeIsolated && !spare[name]:
			t.Errorf("nothing falls without %s", name)
		default:
			n++
			var names []sandbox.WallName
			for _, w := range missing {
				names = append(names, w.Name)
			}
			t.Logf("%s: %v", name, names)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d facts", n)
}

// expect is what the runtime would hold a process of b.spec against.
func (b bench) expect(tb testing.TB) kernel.Expect {
	tb.Helper()
	filter, err := seccomp.Compile(seccomp.Default(), runtime.GOARCH)
	if err != nil {
		tb.Fatal(err)
	}
	spec := b.spec()
	return kernel.Expect{Spec: spec, Watchdog: true, Watched: spec.Limits, Filter: filter}
}

func TestInspectNobody(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if ev, err := kernel.Inspect(cmd.Process.Pid, kernel.Expect{}); err == nil {
		t.Errorf("evidence of a process that has ended: %v", ev)
	}
}

// TestInspectItself: a process that is not confined at all, with as much open
// and mounted as a real program has.
func TestInspectItself(t *testing.T) {
	for _, pid := range []int{os.Getpid(), os.Getppid()} {
		ev, err := kernel.Inspect(pid, kernel.Expect{Spec: sandbox.Spec{Protect: []string{t.TempDir()}}})
		if err != nil {
			t.Fatal(err)
		}
		if mode, _ := ev.Mode(); mode != sandbox.ModeGated {
			t.Errorf("mode %v:\n%s", mode, describe(ev))
		}
		for _, w := range ev.Walls {
			switch w.Name {
			case sandbox.WallNetworkInterfaces, sandbox.WallSysMasked, sandbox.WallSnapshotReadOnly, sandbox.WallNoNewPrivileges:
				continue // may well be so
			}
			if w.Standing && os.Geteuid() == 0 {
				t.Errorf("%s stands: %s", w.Name, w.Seen)
			}
		}
	}
}

// TestInspectLeavesNothingOpen counts descriptors, also where things fail.
func TestInspectLeavesNothingOpen(t *testing.T) {
	count := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before := count()
	for range 50 {
		for _, ex := range []kernel.Expect{{}, {HostPid: 1 << 30}, {Thread: 1 << 30}} {
			_, _ = kernel.Inspect(os.Getpid(), ex)
		}
		_, _ = kernel.Inspect(1<<30, kernel.Expect{})
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func BenchmarkInspect(b *testing.B) {
	bench := newBench(b)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p, err := bench.runtime.Start(ctx, bench.spec())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = p.Close(ctx) }()
	ex := bench.expect(b)
	b.ReportAllocs()
	for b.Loop() {
		ev, err := kernel.Inspect(p.Pid(), ex)
		if err != nil {
			b.Fatal(err)
		}
		if mode, missing := ev.Mode(); mode != sandbox.ModeIsolated {
			b.Fatal(missing)
		}
	}
}

func TestPlainProcessIsGated(t *testing.T) {
	b := newBench(t)
	ev, err := evidence(t, process.New(), b.spec())
	if err != nil {
		t.Fatal(err)
	}
	if mode, _ := ev.Mode(); mode != sandbox.ModeGated {
		t.Errorf("mode %v:\n%s", mode, describe(ev))
	}
	for _, w := range ev.Walls {
		switch w.Name {
		case sandbox.WallFileDescriptors, sandbox.WallEnvironment, sandbox.WallMemoryLimit, sandbox.WallPidsLimit,
			sandbox.WallOpenFilesLimit, sandbox.WallClockLimit, sandbox.WallCPULimit, sandbox.WallNetworkInterfaces:
		default:
			if w.Standing {
				t.Errorf("%s stands for a plain process: %s", w.Name, w.Seen)
			}
		}
	}
}
