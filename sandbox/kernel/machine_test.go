package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/seccomp"
)

// report is what the tests print of a probe.
func report(list []Finding) string {
	var b strings.Builder
	for _, f := range list {
		mark := "  "
		if !f.OK {
			mark = "! "
		}
		b.WriteString(mark + f.Name + ": " + f.Seen)
		if f.Fix != "" {
			b.WriteString("\n      fix: " + f.Fix)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestProbe(t *testing.T) {
	dir := t.TempDir()
	list := Probe(context.Background(), filepath.Join(dir, "not", "yet"))
	t.Log("\n" + report(list))
	names := map[string]bool{}
	for _, f := range list {
		if f.Name == "" || f.Tried == "" || f.Seen == "" || names[f.Name] {
			t.Errorf("finding %+v", f)
		}
		names[f.Name] = true
		if !f.OK && f.Fix == "" {
			t.Errorf("%s has no remedy", f.Name)
		}
		for _, w := range f.Walls {
			if _, ok := sandbox.Lookup(w); !ok {
				t.Errorf("%s names a wall %q", f.Name, w)
			}
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestProbeAsOrdinaryUser(t *testing.T) {
	t.Log(AsNobody(t, "TestProbe"))
}

// restrictEnv makes the test program take something from itself before its
// tests run, so that the probe sees a machine that lacks it.
const restrictEnv = "ASPIS_TEST_RESTRICT"

// Restrict is called first of all in the test program.
func Restrict() error {
	switch os.Getenv(restrictEnv) {
	case "":
		return nil
	case "no-user-namespaces": // started as the root of a user namespace
		return os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0)
	case "memory-dev": // as in a container: devices made in a memory file system
		ours, err1 := os.Readlink("/proc/self/ns/mnt")
		parents, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid()))
		if err := errors.Join(err1, err2); err != nil || ours == parents {
			return fmt.Errorf("not in a mount namespace of its own: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID, "size=64k,mode=755"); err != nil {
			return err
		}
		for name, number := range allowedDevices {
			if err := unix.Mknod("/dev/"+name, unix.S_IFCHR|0o666, int(number)); err != nil {
				return err
			}
			if err := os.Chmod("/dev/"+name, 0o666); err != nil {
				return err
			}
		}
		return nil
	case "filter": // as in a container with a strict profile
		runtime.LockOSThread()
		code, err := seccomp.Compile(seccomp.Default(), runtime.GOARCH)
		if err == nil {
			err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		}
		if err != nil {
			return err
		}
		prog := unix.SockFprog{Len: uint16(len(code) / 8), Filter: (*unix.SockFilter)(unsafe.Pointer(&code[0]))}
		if tid, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog))); errno != 0 || tid != 0 {
			return fmt.Errorf("load filter: thread %d, %w", tid, errno)
		}
		return nil
	}
	return errors.New("unknown restriction")
}

// Restricted runs a test of this binary with something taken away.
func Restricted(t *testing.T, what, test string, attr *syscall.SysProcAttr) string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), restrictEnv+"="+what)
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func TestProbeWithoutUserNamespaces(t *testing.T) {
	out := Restricted(t, "no-user-namespaces", "TestProbe", &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	})
	for _, want := range []string{"! user-namespaces: ", "fix: sudo sysctl user.max_user_namespaces="} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestProbeUnderFilter(t *testing.T) {
	out := Restricted(t, "filter", "TestProbe", nil)
	for _, want := range []string{"! user-namespaces: ", "! namespaces: ", "! mounts: ", "! overlay: ", "a seccomp filter is already in force"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	t.Log(out)
}

func TestTrialByHand(t *testing.T) {
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", trialMarker, t.TempDir())
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("it went ahead: %s", out)
	}
	after, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || string(before) != string(after) {
		t.Errorf("mounts changed: %v", err)
	}
}

func TestProbeEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, f := range Probe(ctx, "relative/path") {
		if f.Name == "mounts" && f.OK {
			t.Errorf("tried after the end: %+v", f)
		}
	}
}

func BenchmarkProbe(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		Probe(context.Background(), dir)
	}
}
