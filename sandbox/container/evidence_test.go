package container

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/aspis-dev/aspis/sandbox"
)

// evidenceSpec has something for every wall to keep apart.
func evidenceSpec(t *testing.T) sandbox.Spec {
	t.Helper()
	worktree, snapshot, baseline := t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{worktree, snapshot, baseline} {
		if err := os.WriteFile(filepath.Join(dir, "file"), []byte("text\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	spec := probeSpec()
	spec.System = true
	spec.Mounts = []sandbox.Mount{
		{Source: snapshot, Target: "/workspace/candidate"},
		{Source: baseline, Target: "/workspace/baseline"},
	}
	spec.Protect = []string{worktree}
	return spec
}

func evidence(t *testing.T, rt *Runtime, spec sandbox.Spec) sandbox.Evidence {
	t.Helper()
	p, err := rt.Start(testContext(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer closeProcess(t, p)
	return p.Evidence()
}

func TestIsolated(t *testing.T) {
	rt := newRuntime(t)
	e := evidence(t, rt, evidenceSpec(t))
	mode, missing := e.Mode()
	if mode != sandbox.ModeIsolated {
		for _, w := range missing {
			t.Errorf("%s: %s", w.Name, w.Seen)
		}
	}
	if e.Runtime != rt.Name() || e.Pid == 0 || e.At.IsZero() {
		t.Errorf("evidence %+v", e)
	}
}

// TestWithoutEachWall builds the sandbox with one wall left out at a time; the
// evidence must find just that.
func TestWithoutEachWall(t *testing.T) {
	rt := newRuntime(t)
	for _, row := range sandbox.Table() {
		t.Run(string(row.Name), func(t *testing.T) {
			spec := evidenceSpec(t)
			spec.Without = []sandbox.WallName{row.Name}
			mode, missing := evidence(t, rt, spec).Mode()
			i := slices.IndexFunc(missing, func(w sandbox.Wall) bool { return w.Name == row.Name })
			if i < 0 {
				t.Fatalf("the wall is said to stand; missing are %v", missing)
			}
			t.Logf("%v: %s", mode, missing[i].Seen)
			if mode >= row.Needed {
				t.Errorf("mode %v without it", mode)
			}
		})
	}
}
