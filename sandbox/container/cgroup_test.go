package container

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestUnifiedWithoutControllers hides version 1 from a helper, so that it sees
// a machine with version 2 alone and no controller to use.
func TestUnifiedWithoutControllers(t *testing.T) {
	for _, needs := range []string{"unshare", "sh", "mount"} {
		if _, err := exec.LookPath(needs); err != nil || os.Geteuid() != 0 {
			t.Skipf("SKIPPED: needs root and %s", needs)
		}
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		t.Skip("SKIPPED: this machine has version 2 alone, and every test uses it")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(testContext(t), "unshare", "--mount", "sh", "-c", "mount -t cgroup2 none /sys/fs/cgroup && exec "+self)
	cmd.Env = []string{helperEnv + "=see", stateEnv + "=" + t.TempDir(), artifactEnv + "=" + artifact, "PATH=" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 9 || !strings.Contains(string(out), "== pid 1 ") {
		t.Errorf("%v: %s", err, out)
	}
	if left, err := os.ReadDir("/sys/fs/cgroup/unified"); err == nil {
		for _, e := range left {
			if strings.HasPrefix(e.Name(), idPrefix) {
				t.Errorf("left behind: %s", e.Name())
			}
		}
	}
}

// TestStartingThreadComesBack looks where the thread is after a start.
func TestStartingThreadComesBack(t *testing.T) {
	rt := newRuntime(t)
	where := func() (text string) {
		if err := rt.opt.Space.Do(func() error {
			b, err := os.ReadFile("/proc/thread-self/cgroup")
			text = string(b)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return text
	}
	before := where()
	run(t, rt, probeSpec())
	if after := where(); after != before {
		t.Errorf("thread was in\n%sand is in\n%s", before, after)
	}
}

// TestGroupHoldsLimits reads the limits back while the program runs.
func TestGroupHoldsLimits(t *testing.T) {
	rt := newRuntime(t)
	p, err := rt.Start(testContext(t), probeSpec())
	if err != nil {
		t.Fatal(err)
	}
	defer closeProcess(t, p)
	g := p.(*process).group
	if len(g.dirs) == 0 {
		t.Skip("SKIPPED: no control group can be used here")
	}
	for _, limit := range []string{"memory", "pids", "cpu"} {
		if !g.holds[limit] {
			t.Errorf("no limit of %s in %v", limit, g.dirs)
		}
	}
}

func TestRemoveGroupKills(t *testing.T) {
	rt := newRuntime(t)
	home := rt.groups.home["pids"]
	if home == "" {
		t.Skip("SKIPPED: no version 1 pids controller")
	}
	g, err := newGroup(rt.groups, idPrefix+"test", probeSpec().Limits, nil)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range g.dirs {
		if err := writeFile(dir, "cgroup.procs", int64(cmd.Process.Pid)); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Now()
	if err := g.remove(testContext(t)); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // killed, as looked at next
	if s := cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGKILL || time.Since(begin) > 10*time.Second {
		t.Errorf("ended by %v", s.Signal())
	}
}
