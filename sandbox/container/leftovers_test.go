package container

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestHostKilled kills a host without warning, with its sandbox at different
// points, and looks at what is left before and after the next host collects.
func TestHostKilled(t *testing.T) {
	rt := newRuntime(t)
	run(t, rt, probeSpec())
	for _, what := range []string{"held", "ahead", "sleep", "child", "cling"} {
		t.Run(what, func(t *testing.T) {
			before := footprint(t, rt)
			ctx := testContext(t)
			cmd := exec.CommandContext(ctx, "/proc/self/exe")
			cmd.Env = []string{helperEnv + "=" + what, stateEnv + "=" + rt.opt.StateDir, artifactEnv + "=" + artifact}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			lines.Scan()
			var pid int
			if _, err := fmt.Sscanf(lines.Text(), "provider %d", &pid); err != nil {
				t.Fatalf("%v: %q", err, lines.Text())
			}
			for lines.Scan() && !strings.HasPrefix(lines.Text(), "mode ") {
			}
			if what != "held" && what != "ahead" {
				lines.Scan() // the program's first line
			}
			if left, err := CollectLeftovers(ctx, rt.opt.StateDir); err != nil || left.Running != 1 || len(left.Collected) != 0 {
				t.Errorf("while the host runs: %+v, %v", left, err)
			}
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if what != "cling" {
				ends(t, fd) // without anybody collecting
			}
			left, err := CollectLeftovers(ctx, rt.opt.StateDir)
			if err != nil || len(left.Collected) != 1 || left.Running != 0 {
				t.Errorf("after the host's end: %+v, %v", left, err)
			}
			if what == "cling" {
				ends(t, fd)
			}
			compare(t, before, footprint(t, rt))
		})
	}
}

// TestHostKilledAnywhere kills hosts at random moments of a start. Whatever a
// sandbox consists of is in its control groups, so that these being gone means
// that all of it is.
func TestHostKilledAnywhere(t *testing.T) {
	rt := newRuntime(t)
	run(t, rt, probeSpec())
	before := footprint(t, rt)
	ctx := testContext(t)
	for range soak(50) {
		cmd := exec.CommandContext(ctx, "/proc/self/exe")
		cmd.Env = []string{helperEnv + "=sleep", stateEnv + "=" + rt.opt.StateDir, artifactEnv + "=" + artifact}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(40 * time.Millisecond))
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed, as asked
		if left, err := CollectLeftovers(ctx, rt.opt.StateDir); err != nil {
			t.Errorf("%+v, %v", left, err)
		}
	}
	// Directories that were made and not yet written to are left for a while.
	old := time.Now().Add(-time.Hour)
	fresh, err := filepath.Glob(filepath.Join(rt.opt.StateDir, runDir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range fresh {
		if err := os.Chtimes(dir, old, old); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := CollectLeftovers(ctx, rt.opt.StateDir); err != nil || left.Running != 0 {
		t.Errorf("%+v, %v", left, err)
	}
	compare(t, before, footprint(t, rt))
}

func TestCollectUnfinished(t *testing.T) {
	state := t.TempDir()
	dir := filepath.Join(state, runDir, idPrefix+"x")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if left, err := CollectLeftovers(ctx, state); err != nil || left.Running != 1 {
		t.Errorf("a fresh directory: %+v, %v", left, err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(dir, old, old); err != nil {
		t.Fatal(err)
	}
	if left, err := CollectLeftovers(ctx, state); err != nil || len(left.Collected) != 1 {
		t.Errorf("an old directory: %+v, %v", left, err)
	}
}

func TestCollectRefusesForeignGroup(t *testing.T) {
	state := t.TempDir()
	if err := os.MkdirAll(filepath.Join(state, runDir), 0o700); err != nil {
		t.Fatal(err)
	}
	rec, err := ownRecord()
	if err != nil {
		t.Fatal(err)
	}
	rec.Host.Start++ // a process that has had our pid before
	rec.Groups = []string{"/sys/fs/cgroup/memory/somebody"}
	if err := writeRecord(filepath.Join(state, runDir, idPrefix+"x"), rec); err != nil {
		t.Fatal(err)
	}
	if _, err := CollectLeftovers(context.Background(), state); err == nil || !strings.Contains(err.Error(), "somebody") {
		t.Errorf("error %v", err)
	}
}
