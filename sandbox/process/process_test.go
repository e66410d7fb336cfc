package process

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aspis-dev/aspis/sandbox"
)

func shell(t *testing.T, script string) sandbox.Spec {
	t.Helper()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("SKIPPED: no sh")
	}
	return sandbox.Spec{
		Name: "shell", Path: sh, Args: []string{"sh", "-c", script}, Env: []string{"ONLY=this", "PATH=/usr/bin:/bin"}, Dir: "/",
		Limits: sandbox.Limits{MemoryBytes: 256 << 20, Pids: 64, OpenFiles: 64, FileBytes: 1 << 20, WallClock: time.Minute},
	}
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func start(t *testing.T, spec sandbox.Spec) sandbox.Process {
	t.Helper()
	ctx := testContext(t)
	p, err := New().Start(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(testContext(t)); err != nil {
			t.Error(err)
		}
	})
	if err := p.Release(ctx); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestEnvironmentFilesAndLimits(t *testing.T) {
	p := start(t, shell(t, "env; ls /proc/self/fd; ulimit -n; ulimit -c; exit 3"))
	b, err := io.ReadAll(p.Stdout())
	if err != nil {
		t.Fatal(err)
	}
	out := string(b)
	for _, want := range []string{"ONLY=this\n", "\n64\n0\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %q: %q", want, out)
		}
	}
	if strings.Contains(out, "HOME=") || strings.Contains(out, "\n4\n") {
		t.Errorf("output has too much: %q", out)
	}
	if exit, err := p.Wait(testContext(t)); err != nil || exit.Code != 3 {
		t.Errorf("exit %+v, %v", exit, err)
	}
}

func TestModeIsGated(t *testing.T) {
	p := start(t, shell(t, "cat"))
	if mode, missing := p.Evidence().Mode(); mode != sandbox.ModeGated || len(missing) == 0 {
		t.Errorf("mode %v, missing %v", mode, missing)
	}
}

func TestPathsAreTranslated(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\npwd\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	spec := shell(t, "")
	spec.Artifact, spec.Path, spec.Args, spec.Dir = dir, "/provider/program", []string{"program"}, "/provider"
	p := start(t, spec)
	if b, err := io.ReadAll(p.Stdout()); err != nil || string(b) != dir+"\n" {
		t.Errorf("output %q, %v", b, err)
	}
}

func TestWallClock(t *testing.T) {
	spec := shell(t, "sleep 100 & sleep 100")
	spec.Limits.WallClock = 200 * time.Millisecond
	p := start(t, spec)
	exit, err := p.Wait(testContext(t))
	if err != nil || !exit.TimedOut || exit.Signal != syscall.SIGKILL {
		t.Errorf("exit %+v, %v", exit, err)
	}
}

func TestTooManyProcesses(t *testing.T) {
	spec := shell(t, "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 100 & done; wait")
	spec.Limits.Pids = 5
	p := start(t, spec)
	if exit, err := p.Wait(testContext(t)); err != nil || exit.Signal != syscall.SIGKILL || exit.TimedOut {
		t.Errorf("exit %+v, %v", exit, err)
	}
}

// TestOrphansDie kills a tree that has tried to leave it: the pipe that all
// of it holds is at its end only when nobody is left.
func TestOrphansDie(t *testing.T) {
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("SKIPPED: no setsid")
	}
	p := start(t, shell(t, "(setsid sleep 100 &) ; echo ready; sleep 100"))
	ready := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(p.Stdout(), ready); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(p.Stdout())
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-testContext(t).Done():
		t.Error("something of the tree still runs")
	}
}

func TestNoSuchProgram(t *testing.T) {
	spec := shell(t, "")
	spec.Path = "/no/such/program"
	if _, err := New().Start(testContext(t), spec); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("error %v", err)
	}
}
