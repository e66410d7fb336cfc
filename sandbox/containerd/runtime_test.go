package containerd

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"

	"github.com/aspis-dev/aspis/sandbox"
)

func (d *daemon) options(t *testing.T, stage string) Options {
	t.Helper()
	return Options{Address: d.address, Image: imageName, Digest: d.digest, StateDir: filepath.Join(d.dir, "aspis"), Stage: stage}
}

// TestContainerd runs a program from an image in a real daemon: every wall is
// seen, its streams are its own, its end is told, and nothing is left.
func TestContainerd(t *testing.T) {
	d := startDaemon(t)
	stage := build(t, "./testdata/stage", "CGO_ENABLED=1", "-tags", "netgo osusergo", "-ldflags", "-linkmode external -extldflags -static")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	opt := d.options(t, stage)
	r, err := New(ctx, opt)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	spec := sandbox.Spec{
		Name: "probe", Path: "/probe", Args: []string{"probe", "echo"}, Env: []string{"PATH=/"}, Dir: "/", Protect: []string{"/work", opt.StateDir, "/root"},
		Mounts: []sandbox.Mount{{Source: snapshotDir(t), Target: "/workspace/candidate"}},
		Limits: sandbox.Limits{MemoryBytes: 256 << 20, Pids: 64, OpenFiles: 128, CPUPercent: 100, TmpBytes: 8 << 20, FileBytes: 64 << 20, WallClock: time.Minute},
	}
	t.Run("isolated", func(t *testing.T) { echo(ctx, t, r, spec) })
	t.Run("wall clock", func(t *testing.T) {
		s := spec
		s.Args, s.Limits.WallClock = []string{"probe", "sleep"}, 300*time.Millisecond
		if state := end(ctx, t, r, s); !state.TimedOut {
			t.Errorf("%+v", state)
		}
	})
	t.Run("another digest", func(t *testing.T) {
		bad := opt
		bad.Digest = sum([]byte("another"))
		if _, err := New(ctx, bad); err == nil || !strings.Contains(err.Error(), "not "+bad.Digest) {
			t.Errorf("accepted: %v", err)
		}
	})
	t.Run("no program", func(t *testing.T) {
		s := spec
		s.Path = "/none"
		if p, err := r.Start(ctx, s); err == nil {
			t.Errorf("started: %v", p.Close(ctx))
		}
	})
	t.Run("host killed", func(t *testing.T) {
		p, err := r.Start(ctx, spec)
		if err != nil {
			t.Fatal(err)
		}
		// As a host that has ended would have labelled it.
		info := snapshots.Info{Name: p.(*process).id, Labels: map[string]string{ownerKey: "boot.1.1", keepKey: "true"}}
		if _, err := r.client.SnapshotService(snapshotter).Update(namespaces.WithNamespace(ctx, DefaultNamespace), info, "labels"); err != nil {
			t.Fatal(err)
		}
		next, err := New(ctx, opt)
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close()
		nothingLeft(ctx, t, r)
		if err := p.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	nothingLeft(ctx, t, r)
}

func snapshotDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "aspis-snapshot-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func echo(ctx context.Context, t *testing.T, r *Runtime, spec sandbox.Spec) {
	p, err := r.Start(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	for _, w := range p.Evidence().Walls {
		if !w.Standing {
			t.Errorf("%s: %s", w.Name, w.Seen)
		}
	}
	if mode, missing := p.Evidence().Mode(); mode != sandbox.ModeIsolated {
		t.Errorf("%v, missing %v", mode, missing)
	}
	if err := p.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(p.Stdin(), "hello\n"); err != nil {
		t.Fatal(err)
	}
	if err := p.Stdin().Close(); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(p.Stdout())
	if err != nil || !strings.Contains(string(out), "hello") {
		t.Errorf("%q %v", out, err)
	}
	if state, err := p.Wait(ctx); err != nil || state.Code != 0 {
		t.Errorf("%+v %v", state, err)
	}
}

// end runs a program to its end.
func end(ctx context.Context, t *testing.T, r *Runtime, spec sandbox.Spec) sandbox.ExitState {
	t.Helper()
	p, err := r.Start(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Release(ctx); err != nil {
		t.Fatal(err)
	}
	state, err := p.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(ctx); err != nil {
		t.Error(err)
	}
	return state
}

func nothingLeft(ctx context.Context, t *testing.T, r *Runtime) {
	t.Helper()
	list, err := r.client.Containers(namespaces.WithNamespace(ctx, DefaultNamespace))
	if err != nil || len(list) > 0 {
		t.Errorf("%d containers are left, %v", len(list), err)
	}
	left, err := filepath.Glob(filepath.Join(r.opt.StateDir, "aspis-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), filepath.Dir(r.opt.StateDir)+"/state") {
		t.Errorf("a root is still mounted, %v", err)
	}
}
