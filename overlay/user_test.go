package overlay

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const nobody = 65534

// TestAsOrdinaryUser runs the other tests once more, as the root of a user
// namespace that is an unprivileged user outside.
func TestAsOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 || underUser() {
		t.Skip("needs: root, to become another user")
	}
	home := t.TempDir()
	for d := home; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(home, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run", "View|Work|Frozen|Live|Kind|Umask|Random|Manifest|Blob|Collect|Killed|Full|Overlayfs|Damage|Unusable", "-test.v", "-test.short")
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "TMPDIR="+home, "HOME="+home)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: nobody, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: nobody, Size: 1}},
		Credential:  &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true},
	}
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) == 0 {
		t.Skipf("needs: user namespaces (%v)", err)
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: TestViewEqualsCheckout") {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "---") || strings.Contains(line, "needs:") {
			t.Log(strings.TrimSpace(line))
		}
	}
}
