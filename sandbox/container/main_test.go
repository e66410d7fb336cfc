package container

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/aspis-dev/aspis/sandbox"
)

// artifact is the directory with the probe program.
var artifact string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	if os.Getenv(helperEnv) != "" {
		helperMain()
		return 0
	}
	dir, err := os.MkdirTemp("", "aspis-probe-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "probe"), "./testdata/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the probe: %v\n%s", err, out)
		return 1
	}
	artifact = dir
	leave, err := ownGroups()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer leave()
	return m.Run()
}

// ownGroups puts this process into control groups of its own, so that the
// tests can tell its sandboxes' groups from those of other packages' tests.
// Where that cannot be had it does nothing.
func ownGroups() (leave func(), err error) {
	h, err := readHierarchy()
	if err != nil {
		return nil, err
	}
	leave = func() {}
	if h.unified {
		return leave, nil
	}
	for _, home := range h.home {
		dir := filepath.Join(home, fmt.Sprintf("test-%d", os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		if err := writeFile(dir, "cgroup.procs", int64(os.Getpid())); err != nil {
			return nil, err
		}
		inner := leave
		leave = func() {
			inner()
			if err := writeFile(home, "cgroup.procs", int64(os.Getpid())); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
			defer cancel()
			if err := removeGroup(ctx, dir); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}
	return leave, nil
}

// newRuntime gives a runtime with a space and a state directory of its own.
func newRuntime(tb testing.TB) *Runtime {
	tb.Helper()
	space, err := NewSpace("")
	if err != nil {
		tb.Skipf("SKIPPED: no private mount namespace here (%v); run as root or see Enter", err)
	}
	tb.Cleanup(func() { _ = space.Close() })
	rt, err := New(Options{StateDir: tb.TempDir(), Space: space})
	if err != nil {
		tb.Fatal(err)
	}
	return rt
}

// probeSpec runs the probe with the given arguments under generous limits.
func probeSpec(args ...string) sandbox.Spec {
	return sandbox.Spec{
		Name: "probe", Path: "/provider/probe", Args: append([]string{"probe"}, args...),
		Env: []string{"PATH=/usr/bin"}, Dir: "/provider", Artifact: artifact,
		Limits: sandbox.Limits{
			MemoryBytes: 256 << 20, Pids: 64, OpenFiles: 128, CPUPercent: 100,
			TmpBytes: 8 << 20, FileBytes: 64 << 20, WallClock: time.Minute,
		},
	}
}

func testContext(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	tb.Cleanup(cancel)
	return ctx
}
