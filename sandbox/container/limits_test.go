package container

import (
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aspis-dev/aspis/sandbox"
)

func TestMemoryLimit(t *testing.T) {
	rt := newRuntime(t)
	spec := probeSpec("hog")
	spec.Limits.MemoryBytes = 64 << 20
	out, exit := run(t, rt, spec)
	if exit.Signal != syscall.SIGKILL || !exit.OOM {
		t.Errorf("exit %+v after %q", exit, out)
	}
	if strings.Contains(out, "MiB 129") {
		t.Errorf("got far over the limit: %q", out)
	}
}

// TestWatchedLimits takes the control groups away, so that the watchdog and
// the resource limits have to do.
func TestWatchedLimits(t *testing.T) {
	rt := newRuntime(t)
	rt.groups = hierarchy{unified: rt.groups.unified}
	t.Run("memory", func(t *testing.T) {
		spec := probeSpec("hog")
		spec.Limits.MemoryBytes = 64 << 20
		if out, exit := run(t, rt, spec); exit.Signal != syscall.SIGKILL || !exit.OOM {
			t.Errorf("exit %+v after %q", exit, out)
		}
	})
	t.Run("processes", func(t *testing.T) {
		spec := probeSpec("fork")
		spec.Limits.Pids = 64
		if out, _ := run(t, rt, spec); strings.Contains(out, "never stopped") {
			t.Errorf("output %q", out)
		}
	})
}

// TestCPUTotal takes the control groups away, so that a total of processor time
// has to do for the share.
func TestCPUTotal(t *testing.T) {
	rt := newRuntime(t)
	rt.groups = hierarchy{unified: rt.groups.unified}
	spec := probeSpec("spin")
	spec.Limits.WallClock = 30 * time.Second
	spec.Limits.CPUPercent = 3 // of 30 s, and less than any machine has
	p, err := rt.Start(testContext(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range p.Evidence().Walls {
		if w.Name == sandbox.WallCPULimit && (!w.Standing || !strings.Contains(w.Seen, "resource limit: 1 seconds")) {
			t.Errorf("%+v", w)
		}
	}
	closeProcess(t, p)
	if _, exit := run(t, rt, spec); exit.Signal != syscall.SIGXCPU && exit.Signal != syscall.SIGKILL || exit.TimedOut {
		t.Errorf("exit %+v", exit)
	}
	spec.Without = []sandbox.WallName{sandbox.WallCPULimit}
	p, err = rt.Start(testContext(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer closeProcess(t, p)
	if mode, _ := p.Evidence().Mode(); mode == sandbox.ModeIsolated {
		t.Error("isolated without any limit of processor time")
	}
}

func TestPidsLimit(t *testing.T) {
	rt := newRuntime(t)
	spec := probeSpec("fork")
	spec.Limits.Pids = 32
	out, _ := run(t, rt, spec)
	if !strings.Contains(out, "stopped after") || strings.Contains(out, "never") {
		t.Errorf("output %q", out)
	}
}

func TestOpenFilesLimit(t *testing.T) {
	rt := newRuntime(t)
	spec := probeSpec("files")
	spec.Limits.OpenFiles = 100
	out, _ := run(t, rt, spec)
	if !strings.HasPrefix(out, "stopped after 9") {
		t.Errorf("output %q", out)
	}
}

func TestWallClock(t *testing.T) {
	rt := newRuntime(t)
	spec := probeSpec("child")
	spec.Limits.WallClock = 300 * time.Millisecond
	begin := time.Now()
	_, exit := run(t, rt, spec)
	if !exit.TimedOut || exit.Signal != syscall.SIGKILL {
		t.Errorf("exit %+v", exit)
	}
	if d := time.Since(begin); d < spec.Limits.WallClock || d > 10*time.Second {
		t.Errorf("ended after %v", d)
	}
}

func TestKill(t *testing.T) {
	rt := newRuntime(t)
	ctx := testContext(t)
	p, err := rt.Start(ctx, probeSpec("child"))
	if err != nil {
		t.Fatal(err)
	}
	defer closeProcess(t, p)
	if err := p.Release(ctx); err != nil {
		t.Fatal(err)
	}
	var b [8]byte
	if _, err := io.ReadFull(p.Stdout(), b[:]); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(ctx); err != nil || exit.Signal != syscall.SIGKILL || exit.TimedOut {
		t.Errorf("exit %+v, %v", exit, err)
	}
	// The grandchild held the pipe as well.
	if _, err := io.ReadAll(p.Stdout()); err != nil {
		t.Error(err)
	}
}
