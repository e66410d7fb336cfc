package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
)

type idMapping = syscall.SysProcIDMap

// Finding is one fact about the machine that walls depend on.
type Finding struct {
	Name  string             `json:"name"`
	Tried string             `json:"tried"` // what was read or done
	OK    bool               `json:"ok"`
	Seen  string             `json:"seen"`            // untrusted text in it is quoted
	Fix   string             `json:"fix,omitempty"`   // what a person can do about it
	Walls []sandbox.WallName `json:"walls,omitempty"` // what cannot be built, or only in a weaker way, without it
}

// Probe looks at the machine for what sandboxes need, as the user that calls
// it: it must run before the program enters a user namespace of its own to
// tell what the machine allows. stateDir is where snapshots are or will be
// kept; a small directory is made in it, or in the nearest one above it that
// exists, and removed. It takes some tens of milliseconds and never fails as a
// whole.
func Probe(ctx context.Context, stateDir string) []Finding {
	m := machine{root: os.Geteuid() == 0, stateDir: stateDir}
	m.admin = hasCapability(unix.CAP_SYS_ADMIN)
	dir, err := m.workDir()
	if err == nil {
		m.unprivileged = try(ctx, trialFlags|unix.CLONE_NEWUSER, dir)
		if m.admin {
			m.privileged = try(ctx, trialFlags, dir)
		}
		err = removeTrial(dir)
	}
	if err != nil {
		m.stateErr = errors.Join(m.stateErr, err)
	}
	return []Finding{
		m.kernel(), m.caller(), m.nesting(), m.userNamespaces(), m.apparmor(), m.idRanges(), m.namespaces(),
		m.mounts(), m.procMount(), m.overlay(), m.state(), m.seccomp(), m.cgroups(), m.landlock(),
	}
}

// removeTrial also removes what a child that was stopped half-way left: the
// directory inside an overlay's work directory has mode 0.
func removeTrial(dir string) error {
	closed, err := filepath.Glob(filepath.Join(dir, "upper-*", "work", "*"))
	for _, d := range closed {
		err = errors.Join(err, os.Chmod(d, 0o700))
	}
	return errors.Join(err, os.RemoveAll(dir))
}

type machine struct {
	root, admin  bool
	stateDir     string
	stateErr     error
	unprivileged tried
	privileged   tried
}

func hasCapability(c int) bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&hdr, &data[0]) != nil {
		return false
	}
	return data[c/32].Effective&(1<<(c%32)) != 0
}

// nearest gives the directory itself or the nearest one above it that exists.
func nearest(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || dir == "/" || dir == "." {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// workDir makes a directory for the trials, in the state directory if that
// is possible.
func (m *machine) workDir() (string, error) {
	in := nearest(m.stateDir)
	dir, err := os.MkdirTemp(in, ".aspis-probe-")
	if err == nil && !filepath.IsAbs(m.stateDir) {
		err = errors.Join(fmt.Errorf("state directory %q is not an absolute path", m.stateDir), os.RemoveAll(dir))
	}
	if err != nil {
		m.stateErr = err
		if dir, err = os.MkdirTemp("", ".aspis-probe-"); err != nil {
			return "", err
		}
	}
	return dir, os.Mkdir(memory(dir), 0o755)
}

func (m machine) kernel() Finding {
	f := Finding{Name: "kernel", Tried: "uname, mount_setattr and openat2"}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		f.Seen = err.Error()
		return f
	}
	f.Seen = fmt.Sprintf("Linux %s, %s", unix.ByteSliceToString(u.Release[:]), runtime.GOARCH)
	// Both are asked for something that can only be refused; a kernel that
	// does not have the call says so.
	attr := unix.MountSetattr(-1, "", 0, &unix.MountAttr{})
	_, open := unix.Openat2(-1, "", &unix.OpenHow{})
	f.OK = attr != unix.ENOSYS && open != unix.ENOSYS
	if !f.OK {
		f.Fix = "Use Linux 5.12 or later."
		f.Walls = []sandbox.WallName{sandbox.WallRootFilesystem, sandbox.WallSnapshotReadOnly}
	}
	return f
}

func (m machine) caller() Finding {
	f := Finding{Name: "caller", Tried: "geteuid, capget and /proc/self/uid_map", OK: true}
	f.Seen = fmt.Sprintf("user %d, group %d", os.Geteuid(), os.Getegid())
	if m.admin {
		f.Seen += ", with CAP_SYS_ADMIN"
	} else {
		f.Seen += ", without CAP_SYS_ADMIN"
	}
	if inUserNamespace() {
		f.Seen += ", already inside a user namespace"
	}
	return f
}

// nesting only explains what the trials show; nothing is concluded from it.
func (m machine) nesting() Finding {
	f := Finding{Name: "outer-container", Tried: "marker files, environment and the first process's environment", OK: true}
	var hints []string
	for _, p := range []string{"/.dockerenv", "/run/.containerenv", "/run/systemd/container"} {
		if _, err := os.Stat(p); err == nil {
			hints = append(hints, p)
		}
	}
	for _, v := range []string{"KUBERNETES_SERVICE_HOST", "container"} {
		if os.Getenv(v) != "" {
			hints = append(hints, "$"+v)
		}
	}
	if text, err := readText("/proc/1/environ", maxText); err == nil {
		for _, e := range splitEnviron(text) {
			if strings.HasPrefix(e, "container=") {
				hints = append(hints, strconv.Quote(e))
			}
		}
	}
	if s, err := readText("/proc/self/status", maxText); err == nil {
		if st, err := ParseStatus(s); err == nil && st.Seccomp == 2 {
			hints = append(hints, "a seccomp filter is already in force")
		}
	}
	f.Seen = "no sign of one"
	if len(hints) > 0 {
		f.Seen = "signs of one: " + strings.Join(hints, ", ")
	}
	return f
}

// sysctl gives a kernel setting, or "" where there is none.
func sysctl(name string) string {
	s, err := readText("/proc/sys/"+strings.ReplaceAll(name, ".", "/"), maxControl)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(s)
}

func (m machine) userNamespaces() Finding {
	f := Finding{Name: "user-namespaces", Tried: "started a child in a new user namespace with all the others, and mounted a file system there"}
	failure := m.unprivileged.failure("tmpfs")
	if failure == "" {
		f.OK, f.Seen = true, "allowed, with the right to mount"
		return f
	}
	f.Seen = failure
	f.Walls = []sandbox.WallName{sandbox.WallUserNamespace}
	if !m.admin {
		f.Walls = []sandbox.WallName{
			sandbox.WallUserNamespace, sandbox.WallMountNamespace, sandbox.WallPIDNamespace, sandbox.WallNetworkNamespace,
			sandbox.WallRootFilesystem, sandbox.WallWorktreeUnreachable,
		}
	}
	switch {
	case sysctl("kernel.unprivileged_userns_clone") == "0" && !m.root:
		f.Fix = "sudo sysctl kernel.unprivileged_userns_clone=1"
	case sysctl("user.max_user_namespaces") == "0":
		f.Fix = "sudo sysctl user.max_user_namespaces=15000"
	case restrictedByAppArmor() && !m.root:
		f.Fix = "Load the AppArmor profile contrib/apparmor/aspis, which has the rule `userns,` for this program: sudo install -m 644 contrib/apparmor/aspis /etc/apparmor.d/aspis && sudo apparmor_parser -r /etc/apparmor.d/aspis; or: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
	case m.unprivileged.start != nil && errors.Is(m.unprivileged.start, unix.EINVAL):
		f.Fix = "Use a kernel with CONFIG_USER_NS and the other namespaces."
	case m.unprivileged.start != nil && errors.Is(m.unprivileged.start, unix.ENOSPC):
		f.Fix = "Too many user namespaces exist or they are nested too deep: raise user.max_user_namespaces."
	default:
		f.Fix = fixOutside
	}
	return f
}

func restrictedByAppArmor() bool {
	return sysctl("kernel.apparmor_restrict_unprivileged_userns") == "1"
}

func (m machine) apparmor() Finding {
	f := Finding{Name: "security-modules", Tried: "/sys/kernel/security/lsm, kernel.apparmor_restrict_unprivileged_userns and /sys/fs/selinux/enforce", OK: true}
	lsm, err := readText("/sys/kernel/security/lsm", maxControl)
	if err != nil {
		lsm = "not shown"
	}
	f.Seen = fmt.Sprintf("modules: %q", strings.TrimSpace(lsm))
	if restrictedByAppArmor() {
		f.Seen += "; AppArmor restricts unprivileged user namespaces"
		if !m.root && m.unprivileged.failure("tmpfs") != "" {
			f.OK = false
			f.Walls = []sandbox.WallName{sandbox.WallUserNamespace}
			f.Fix = "Load the AppArmor profile contrib/apparmor/aspis, which has the rule `userns,` for this program: sudo install -m 644 contrib/apparmor/aspis /etc/apparmor.d/aspis && sudo apparmor_parser -r /etc/apparmor.d/aspis; or: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
		}
	}
	if s, err := readText("/sys/fs/selinux/enforce", maxControl); err == nil && strings.TrimSpace(s) == "1" {
		f.Seen += "; SELinux is enforcing"
	}
	return f
}

// best is the trial in which a sandbox would be built.
func (m machine) best() tried {
	if m.admin {
		return m.privileged
	}
	return m.unprivileged
}

const fixOutside = "Something around this process refuses them: in Docker add --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined, in Kubernetes set a seccompProfile and an appArmorProfile of type Unconfined; or run outside of that container."

// fixAdmin is for what needs CAP_SYS_ADMIN over some user namespace.
func (m machine) fixAdmin() string {
	if m.admin {
		return fixOutside
	}
	return "Run as root, or allow unprivileged user namespaces (see user-namespaces)."
}

// notTried fills in a finding whose trial could not begin.
func (m machine) notTried(f *Finding, walls ...sandbox.WallName) bool {
	err := m.best().start
	if err == nil {
		return false
	}
	f.Seen = fmt.Sprintf("could not be tried: %v", err)
	f.Fix = m.fixAdmin()
	f.Walls = walls
	return true
}

func (m machine) namespaces() Finding {
	f := Finding{Name: "namespaces", Tried: "started a child in new mount, pid, ipc, uts, net and cgroup namespaces"}
	if f.Seen = m.best().failure("private-mounts"); f.Seen != "" {
		f.Fix = m.fixAdmin()
		f.Walls = []sandbox.WallName{
			sandbox.WallMountNamespace, sandbox.WallPIDNamespace, sandbox.WallIPCNamespace, sandbox.WallUTSNamespace,
			sandbox.WallNetworkNamespace, sandbox.WallCgroupNamespace,
		}
		return f
	}
	f.OK, f.Seen = true, "all can be made"
	return f
}

func (m machine) seccomp() Finding {
	f := Finding{Name: "seccomp", Tried: "loaded the sandbox's filter in the child"}
	t := m.best()
	f.Seen = t.failure("seccomp")
	if t.start != nil {
		f.Tried = "asked the kernel whether it has filters, since there was no child"
		f.Seen = filtersMissing()
	}
	if f.Seen != "" {
		f.Fix = "Use a kernel with CONFIG_SECCOMP_FILTER, on amd64 or arm64."
		f.Walls = []sandbox.WallName{sandbox.WallSeccomp, sandbox.WallSessionKeyring}
		return f
	}
	f.OK, f.Seen = true, "filters can be loaded"
	return f
}

func filtersMissing() string {
	action := uint32(unix.SECCOMP_RET_ERRNO)
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	if errno != 0 {
		return fmt.Sprintf("filters are not available: %v", errno)
	}
	return ""
}

func (m machine) landlock() Finding {
	f := Finding{Name: "landlock", Tried: "landlock_create_ruleset", OK: true}
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		f.Seen = fmt.Sprintf("not available (%v); no wall depends on it", errno)
		return f
	}
	f.Seen = fmt.Sprintf("ABI %d; no wall depends on it", abi)
	return f
}
