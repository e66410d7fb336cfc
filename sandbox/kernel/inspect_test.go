package kernel_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/container"
	"github.com/aspis-dev/aspis/sandbox/process"
)

// bench is what every test here needs: a runtime, a program to run, and a
// worktree to protect.
type bench struct {
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
	b := bench{runtime: rt, artifact: tb.TempDir(), worktree: tb.TempDir(), snapshot: tb.TempDir()}
	// Reachable for the sandbox's own user.
	for _, d := range []string{b.artifact, b.snapshot, filepath.Dir(b.artifact)} {
		if err := os.Chmod(d, 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-o", filepath.Join(b.artifact, "idle"), "./testdata/idle")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("build: %v\n%s", err, out)
	}
	return b
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

