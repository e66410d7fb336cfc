package kernel

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// AsNobody runs a test of this binary as an ordinary user.
func AsNobody(t *testing.T, test string, env ...string) string {
	t.Helper()
	const nobody = 65534
	return runAs(t, test, nobody, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}, env)
}

// AsMapped runs a test of this binary as the root of a user namespace that has
// a range of ids, as newuidmap gives an ordinary user one.
func AsMapped(t *testing.T, test string, env ...string) string {
	t.Helper()
	const first = 700_000
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: 65536}}
	return runAs(t, test, first, &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{Uid: 0, Gid: 0},
	}, env)
}

func runAs(t *testing.T, test string, owner int, attr *syscall.SysProcAttr, env []string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can become another user")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Chown(dir, owner, owner); err != nil {
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
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("as another user: %v\n%s", err, out)
	}
	return string(out)
}
