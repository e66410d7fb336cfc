package container

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// asUser is the test program, run by an ordinary user.
func asUser(t *testing.T, what string) (cmd *exec.Cmd, wantIDs string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root to become an ordinary user")
	}
	dir, err := os.MkdirTemp(artifact, "enter-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self := filepath.Join(dir, "test")
	if err := copyFile("/proc/self/exe", self); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(dir, "state")
	uid, wantIDs := ordinaryUser()
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(state, int(uid), int(uid)); err != nil {
		t.Fatal(err)
	}
	cmd = exec.CommandContext(testContext(t), self, "-an-argument")
	cmd.Env = []string{helperEnv + "=" + what, stateEnv + "=" + state, artifactEnv + "=" + artifact, "PATH=" + os.Getenv("PATH")}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return cmd, wantIDs
}

// TestEnter runs the whole thing as an ordinary user: the test program, as a
// user without any power, enters a user namespace and starts a sandbox there.
func TestEnter(t *testing.T) {
	cmd, wantIDs := asUser(t, "enter see")
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "not: ") {
		t.Skipf("SKIPPED: %s", out)
	}
	if code := cmd.ProcessState.ExitCode(); code != 9 {
		t.Fatalf("exit code %d, want the child's 9; %v: %s", code, err, out)
	}
	inside := map[string]string{"single": "uid 0", "range": "uid 1000"}[wantIDs]
	for _, want := range []string{`args=["-an-argument"]`, `inner=true note="handed over"`, "ids=" + wantIDs, "== pid 1 " + inside, "NoNewPrivs:\t1", "CapEff:\t0000000000000000"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("output lacks %q: %s", want, out)
		}
	}
}

// startEntered gives a user's host that runs a sandbox which sleeps, and a
// file for the end of that sandbox's first process.
func startEntered(t *testing.T) (cmd *exec.Cmd, provider int) {
	t.Helper()
	cmd, _ = asUser(t, "enter sleep")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "sleeping" {
		if strings.HasPrefix(lines.Text(), "not: ") {
			t.Skipf("SKIPPED: %s", lines.Text())
		}
		var pid int
		if _, err := fmt.Sscanf(lines.Text(), "provider %d", &pid); err == nil {
			if provider, err = unix.PidfdOpen(pid, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	if provider == 0 {
		t.Fatal("the host started nothing")
	}
	return cmd, provider
}

// ends waits for the end of a process by its file.
func ends(t *testing.T, pidfd int) {
	t.Helper()
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	if n, err := unix.Poll(poll, 5000); n != 1 {
		t.Errorf("still runs (%d, %v)", n, err)
	}
	if err := unix.Close(pidfd); err != nil {
		t.Error(err)
	}
}

// TestEnteredDiesWithParent kills the process that the user started.
func TestEnteredDiesWithParent(t *testing.T) {
	cmd, provider := startEntered(t)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed, as asked
	ends(t, provider)
}

// TestEnteredGetsSignals ends the process that the user started politely; the
// signal is handed on and the way of ending comes back.
func TestEnteredGetsSignals(t *testing.T) {
	cmd, provider := startEntered(t)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // its code is looked at
	if code := cmd.ProcessState.ExitCode(); code != 128+int(syscall.SIGTERM) {
		t.Errorf("exit code %d", code)
	}
	ends(t, provider)
}

// ordinaryUser is one with subordinate ids, if the machine has one, and else
// an id that is nobody's.
func ordinaryUser() (uid uint32, ids string) {
	b, _ := os.ReadFile("/etc/subuid") // absent: no such user
	for line := range strings.Lines(string(b)) {
		name, _, _ := strings.Cut(line, ":")
		u, err := user.Lookup(name)
		if err != nil || u.Uid == "0" {
			continue
		}
		n, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil || u.Uid != u.Gid {
			continue
		}
		if _, err := exec.LookPath("newuidmap"); err == nil {
			return uint32(n), "range"
		}
	}
	return 64999, "single"
}

// TestEnterAsRoot runs it as a root that may not mount, as containers have it:
// such a root maps ids that are nobody's, by itself.
func TestEnterAsRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("SKIPPED: needs setpriv (package util-linux) to give up CAP_SYS_ADMIN")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(testContext(t), setpriv, "--bounding-set=-sys_admin", "--", self, "-an-argument")
	cmd.Env = []string{helperEnv + "=enter see", stateEnv + "=" + t.TempDir(), artifactEnv + "=" + artifact, "PATH=" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "not: ") {
		t.Skipf("SKIPPED: %s", out)
	}
	if code := cmd.ProcessState.ExitCode(); code != 9 {
		t.Fatalf("exit code %d, want the child's 9; %v: %s", code, err, out)
	}
	for _, want := range []string{"ids=range", "== pid 1 uid 1000", "CapEff:\t0000000000000000"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("output lacks %q: %s", want, out)
		}
	}
	for _, wall := range []string{"user-namespace", "user-ids"} {
		if strings.Contains(string(out), "missing "+wall) {
			t.Errorf("%s is missing: %s", wall, out)
		}
	}
}

func TestSpare(t *testing.T) {
	for _, c := range []struct {
		name string
		m    []idRange
		want idRange
		ok   bool
	}{
		{"the machine", []idRange{{0, 0, fullMap}}, idRange{DefaultUIDBase, 0, idCount}, true},
		{"a container's", []idRange{{0, 100000, 65536}}, idRange{32768, 0, 31744}, true},
		{"one id", []idRange{{0, 1000, 1}}, idRange{}, false},
		{"too few", []idRange{{0, 100000, 1500}}, idRange{}, false},
	} {
		got, ok := spare(c.m)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%s: %v, %v", c.name, got, ok)
		}
	}
}
