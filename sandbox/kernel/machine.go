package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/moby/sys/user"
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
		f.Fix = "Load an AppArmor profile for aspis that has the rule `userns,`, or: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
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
			f.Fix = "Load an AppArmor profile for aspis that has the rule `userns,`, or: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
		}
	}
	if s, err := readText("/sys/fs/selinux/enforce", maxControl); err == nil && strings.TrimSpace(s) == "1" {
		f.Seen += "; SELinux is enforcing"
	}
	return f
}

// idRanges are what makes the ids inside other than the caller's.
func (m machine) idRanges() Finding {
	f := Finding{Name: "id-ranges", Tried: "newuidmap and newgidmap in PATH, /etc/subuid and /etc/subgid"}
	if m.root {
		f.OK, f.Seen = true, "not needed by root, who may map any ids"
		return f
	}
	f.Walls = []sandbox.WallName{sandbox.WallUserIDs}
	for _, tool := range []string{"newuidmap", "newgidmap"} {
		p, err := exec.LookPath(tool)
		if err != nil {
			f.Seen = tool + " is not installed"
			f.Fix = "Install it: package uidmap on Debian and Ubuntu, shadow-utils on Fedora. Without it the program inside has the caller's own id."
			return f
		}
		info, err := os.Stat(p)
		var xattr [64]byte
		if n, xerr := unix.Getxattr(p, "security.capability", xattr[:]); err != nil || info.Mode()&os.ModeSetuid == 0 && (xerr != nil || n == 0) {
			f.Seen = fmt.Sprintf("%q has neither the set-user-id bit nor a file capability", p)
			f.Fix = "Reinstall the package that brings it."
			return f
		}
	}
	u, err := user.CurrentUser()
	name := strconv.Itoa(os.Getuid())
	if err == nil {
		name = u.Name
	}
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		ranges, err := user.ParseSubIDFileFilter(file, func(s user.SubID) bool {
			return s.Name == name || s.Name == strconv.Itoa(os.Getuid())
		})
		if err != nil || len(ranges) == 0 {
			f.Seen = fmt.Sprintf("%s has no range for %q", file, name)
			f.Fix = fmt.Sprintf("sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %s", name)
			return f
		}
		f.Seen += fmt.Sprintf("%s: %d ids from %d; ", filepath.Base(file), ranges[0].Count, ranges[0].SubID)
	}
	f.Seen = strings.TrimSuffix(f.Seen, "; ")
	f.OK, f.Walls = true, nil
	return f
}

// best is the trial in which a sandbox would be built.
func (m machine) best() tried {
	if m.admin {
		return m.privileged
	}
	return m.unprivileged
}

const fixOutside = "Something around this process refuses them: in Docker add --security-opt seccomp=unconfined --security-opt apparmor=unconfined, in Kubernetes set a seccompProfile and an appArmorProfile of type Unconfined; or run outside of that container."

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

func (m machine) mounts() Finding {
	f := Finding{Name: "mounts", Tried: "mounted a memory file system and changed its options in the child"}
	walls := []sandbox.WallName{sandbox.WallRootFilesystem, sandbox.WallSnapshotReadOnly, sandbox.WallWorktreeUnreachable, sandbox.WallHostPathsUnwritable}
	if m.notTried(&f, walls...) {
		return f
	}
	for _, a := range []string{"tmpfs", "mount-setattr"} {
		if f.Seen = m.best().failure(a); f.Seen != "" {
			f.Fix, f.Walls = m.fixAdmin(), walls
			return f
		}
	}
	f.OK, f.Seen = true, "can be made and set read-only"
	return f
}

func (m machine) procMount() Finding {
	f := Finding{Name: "proc", Tried: "mounted a process file system in the child"}
	if m.notTried(&f, sandbox.WallProcMasked) {
		return f
	}
	if f.Seen = m.best().failure("proc"); f.Seen != "" {
		f.Fix = "The outer container covers parts of /proc, and the kernel then allows no new one: in Docker add --security-opt systempaths=unconfined, in Kubernetes set procMount: Unmasked."
		f.Walls = []sandbox.WallName{sandbox.WallProcMasked}
		return f
	}
	f.OK, f.Seen = true, "can be mounted"
	return f
}

func (m machine) overlay() Finding {
	f := Finding{Name: "overlay", Tried: "mounted overlays in the child: in memory, and over layers in the state directory"}
	if m.notTried(&f, sandbox.WallSnapshotReadOnly) {
		return f
	}
	t := m.best()
	if f.Seen = t.failure("overlay"); f.Seen != "" {
		f.Fix = "Load the module (sudo modprobe overlay); as an ordinary user Linux 5.11 or later is needed."
		f.Walls = []sandbox.WallName{sandbox.WallSnapshotReadOnly}
		return f
	}
	if m.stateErr != nil {
		f.Seen = "works in memory; not tried over the state directory: " + m.stateErr.Error()
		f.Fix = "Choose a state directory that you can write."
		return f
	}
	if f.Seen = t.failure("overlay-view"); f.Seen != "" {
		f.Fix = "Put the state directory on a local file system that overlays can be made of, such as ext4, xfs or tmpfs."
		f.Walls = []sandbox.WallName{sandbox.WallSnapshotReadOnly}
		return f
	}
	f.OK = true
	f.Seen = "read-only views and writable layers over the state directory"
	if why := t.failure("overlay-state"); why != "" {
		f.Seen = "read-only views over the state directory; writable layers only elsewhere, since there: " + why
		if also := t.failure("overlay-state-tmpfs"); also != "" {
			f.Seen += "; with the upper layer in memory: " + also
		}
		f.Fix = "Put the state directory on a local file system (not overlay, NFS or eCryptfs), or let work areas be kept in memory."
	}
	if why := m.unprivileged.failure("overlay"); m.admin && why != "" {
		f.Seen += "; not in a user namespace: " + why
	}
	return f
}

// fileSystems by their magic numbers, those that matter here.
var fileSystems = map[int64]string{
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "nfs", unix.FUSE_SUPER_MAGIC: "fuse", unix.CIFS_SUPER_MAGIC: "cifs",
	unix.SMB2_SUPER_MAGIC: "smb", unix.V9FS_MAGIC: "9p", unix.ECRYPTFS_SUPER_MAGIC: "ecryptfs", unix.F2FS_SUPER_MAGIC: "f2fs",
	unix.MSDOS_SUPER_MAGIC: "vfat", unix.EXFAT_SUPER_MAGIC: "exfat", 0x2fc12fc1: "zfs", unix.CEPH_SUPER_MAGIC: "ceph",
}

// remote or odd file systems, on which locks, links or layers do not work as
// snapshots need them.
var unfit = map[string]bool{"nfs": true, "fuse": true, "cifs": true, "smb": true, "9p": true, "ecryptfs": true, "vfat": true, "exfat": true, "ceph": true}

func (m machine) state() Finding {
	f := Finding{Name: "state-directory", Tried: "statfs, and made a directory there"}
	at := nearest(m.stateDir)
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		f.Seen = fmt.Sprintf("%q: %v", at, err)
		f.Fix = "Choose another state directory."
		return f
	}
	name := fileSystems[int64(st.Type)]
	if name == "" {
		name = fmt.Sprintf("a file system of type %#x", st.Type)
	}
	f.Seen = fmt.Sprintf("%q is on %s, %d MiB free", at, name, st.Bavail*uint64(st.Bsize)>>20)
	switch {
	case m.stateErr != nil:
		f.Seen += "; " + m.stateErr.Error()
		f.Fix = "Make it writable for this user, or choose another state directory."
	case st.Flags&unix.ST_RDONLY != 0:
		f.Seen += ", read-only"
		f.Fix = "Choose a state directory on a writable file system."
	case unfit[name]:
		f.Fix = "Choose a state directory on a local file system such as ext4, xfs, btrfs or tmpfs."
	default:
		f.OK = true
	}
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
