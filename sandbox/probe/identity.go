package probe

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
)

func identityAttempts() []Attempt {
	return []Attempt{
		{"capabilities", sandbox.WallCapabilities, capabilities},
		{"raise-capabilities", sandbox.WallCapabilities, raise},
		{"new-privileges", sandbox.WallNoNewPrivileges, func(*Facts) Result {
			v, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
			if err == nil && v != 1 {
				return open("a program can gain some")
			}
			return blocked("none can be gained (%d, %v)", v, err)
		}},
		{"filter-is-there", sandbox.WallSeccomp, func(*Facts) Result {
			mode, err := statusLine("Seccomp:")
			if err != nil {
				return open("it cannot be seen: %v", err)
			}
			if mode != "2" {
				return open("the mode is %s", mode)
			}
			return blocked("a filter is loaded")
		}},
		{"become-root", sandbox.WallUserIDs, func(*Facts) Result { return become(0) }},
		{"become-other-user", sandbox.WallUserIDs, func(*Facts) Result { return become(65534) }},
		{"machine-root", sandbox.WallUserIDs, func(f *Facts) Result {
			if f.Nested {
				return notApplicable("the host is in a user namespace, and its ids are not the machine's")
			}
			b, err := os.ReadFile("/proc/self/uid_map")
			if err != nil {
				return answered(err)
			}
			var inside, outside, count int64
			if _, err := fmt.Sscan(string(b), &inside, &outside, &count); err == nil && outside == 0 && int64(os.Getuid()) == inside {
				return open("user %d is the machine's root, as far as can be seen", inside)
			}
			return blocked("its ids are %q", strings.Join(strings.Fields(string(b)), " "))
		}},
		{"set-groups", sandbox.WallCapabilities, func(*Facts) Result {
			_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
			return called(errno)
		}},
		{"set-user-id-program", sandbox.WallNoNewPrivileges, setUserID},
		{"execute-from-tmp", sandbox.WallHostPathsUnwritable, executeFromTmp},
	}
}

func statusLine(name string) (string, error) {
	b, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(rest), nil
		}
	}
	return "", fmt.Errorf("no line %q", name)
}

func capabilities(*Facts) Result {
	for _, set := range []string{"CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"} {
		v, err := statusLine(set)
		if err != nil {
			return open("it cannot be seen: %v", err)
		}
		if strings.Trim(v, "0") != "" {
			return open("%s %s", set, v)
		}
	}
	return blocked("all sets are empty")
}

func raise(*Facts) Result {
	runtime.LockOSThread() // this process ends next
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	want := [2]unix.CapUserData{{Effective: 1 << unix.CAP_SYS_ADMIN, Permitted: 1 << unix.CAP_SYS_ADMIN}}
	return answered(unix.Capset(&hdr, &want[0]))
}

func become(uid int) Result {
	if os.Getuid() == uid {
		return notApplicable("it is user %d here, and the only one", uid)
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SETUID, uintptr(uid), 0, 0)
	return called(errno)
}

// copySelf puts this program where it can be written.
func copySelf(mode os.FileMode) (string, error) {
	src, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", err
	}
	defer src.Close()
	p := fmt.Sprintf("/tmp/self-%d", os.Getpid())
	dst, err := os.OpenFile(p, os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(dst, src)
	dst.Close()
	if err == nil {
		err = os.Chmod(p, mode)
	}
	return p, err
}

func setUserID(*Facts) Result {
	p, err := copySelf(0o755 | os.ModeSetuid)
	defer os.Remove(p)
	if err != nil {
		return blocked("it cannot be made: %v", err)
	}
	v, perr := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err := exec.Command(p, "nothing").Run(); err != nil {
		return blocked("%v", err)
	}
	if perr == nil && v == 1 {
		return blocked("it runs, and gains nothing")
	}
	return open("it runs")
}

func executeFromTmp(*Facts) Result {
	p, err := copySelf(0o755)
	defer os.Remove(p)
	if err != nil {
		return blocked("it cannot be made: %v", err)
	}
	return answered(exec.Command(p, "nothing").Run())
}
