package kernel

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// AsNobody runs a test of this binary as an ordinary user.
func AsNobody(t *testing.T, test string, env ...string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can become another user")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(dir, "test")
	if out, err := exec.Command("cp", self, copied).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.Command(copied, "-test.run", "^"+test+"$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("as an ordinary user: %v\n%s", err, out)
	}
	return string(out)
}
