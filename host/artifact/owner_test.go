package artifact

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestOwner(t *testing.T) {
	me := uint32(os.Geteuid())
	for _, c := range []struct {
		name     string
		uid      uint32
		mode     os.FileMode
		stranger int64
		ok       bool
	}{
		{"root's", 0, 0o644, -1, true},
		{"one's own", me, 0o755, -1, true},
		{"another user's", 4711, 0o644, -1, false},
		{"the overflow id on the machine itself", 65534, 0o644, -1, false},
		{"outer root's, seen from a user namespace", 65534, 0o644, 65534, true},
		{"another user's, in a user namespace", 4711, 0o644, 65534, false},
		{"outer root's, but for all to write", 65534, 0o666, 65534, false},
		{"for the group to write", 0, 0o664, -1, false},
		{"a link, whose mode means nothing", 0, 0o777 | os.ModeSymlink, -1, true},
	} {
		if err := owner(c.uid, c.mode, c.stranger); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestHoldsRoot(t *testing.T) {
	for text, want := range map[string]bool{
		"         0          0 4294967295\n":        true,
		"         0       1001          1\n":        false,
		"0 1001 1\n1 100000 65536\n":                false,
		"0 1001 1\n1 0 1\n":                         true,
		"0 1001\n":                                  true,
		"0 x 1\n":                                   true,
		"0 4294967296 1\n":                          true,
		"         0 2000000000      65536\n1 0 0\n": false,
		"0 1001 1\n1 100000 65536\n70000 0 1\n":     true,
	} {
		if got := holdsRoot(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestInUserNamespace looks at a file of the machine's root from within a user
// namespace that does not have it.
func TestInUserNamespace(t *testing.T) {
	const file = "ASPIS_TEST_OWNED_FILE"
	if path := os.Getenv(file); path != "" {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := onlyOurs(info); err != nil {
			t.Fatal(err)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be two users at once")
	}
	dir := t.TempDir()
	for p := dir; p != "/" && p != os.TempDir(); p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "installed")
	write(t, path, "x", 0o644)
	self := filepath.Join(dir, "test")
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	write(t, self, string(exe), 0o755)
	cmd := exec.Command(self, "-test.run=^TestInUserNamespace$", "-test.v")
	cmd.Env = []string{file + "=" + path}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}}}
	out, err := cmd.CombinedOutput()
	if err != nil && strings.Contains(err.Error(), "operation not permitted") {
		t.Skip("no user namespaces here: ", err)
	}
	if err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("%v: %s", err, out)
	}
}
