package container

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestEnter runs the whole thing as an ordinary user: the test program, as a
// user without any power, enters a user namespace and starts a sandbox there.
func TestEnter(t *testing.T) {
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
	cmd := exec.Command(self, "-an-argument")
	cmd.Env = []string{helperEnv + "=enter", stateEnv + "=" + state, artifactEnv + "=" + artifact, "PATH=" + os.Getenv("PATH")}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	t.Logf("%v\n%s", err, out)
	if strings.Contains(string(out), "not: ") {
		t.Skipf("SKIPPED: %s", out)
	}
	if code := cmd.ProcessState.ExitCode(); code != 9 {
		t.Fatalf("exit code %d, want the child's 9", code)
	}
	inside := map[string]string{"single": "uid 0", "range": "uid 1000"}[wantIDs]
	for _, want := range []string{`args=["-an-argument"]`, "ids=" + wantIDs, "== pid 1 " + inside, "NoNewPrivs:\t1", "CapEff:\t0000000000000000"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("output lacks %q", want)
		}
	}
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
