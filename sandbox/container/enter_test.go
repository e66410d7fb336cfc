package container

import (
	"os"
	"os/exec"
	"path/filepath"
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
	const uid = 64999 // nobody's
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(state, uid, uid); err != nil {
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
	for _, want := range []string{`args=["-an-argument"]`, "== pid 1 uid 0", "NoNewPrivs:\t1", "CapEff:\t0000000000000000"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("output lacks %q", want)
		}
	}
}
