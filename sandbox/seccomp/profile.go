package seccomp

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	moby "github.com/moby/profiles/seccomp"
	"golang.org/x/sys/unix"
)

// Profile says which system calls are allowed. The zero value is the
// strictest.
type Profile struct {
	// Egress allows sockets of the internet families. Without it a sandbox has
	// unix sockets only.
	Egress bool
	// Allow lets calls through that are otherwise refused. It is there for
	// containers that are built without a wall on purpose; evidence that is
	// taken of such a container says that the wall is missing.
	Allow []string
}

// Default is the profile of a provider without network.
func Default() Profile { return Profile{} }

// Digest identifies the profile's meaning on every architecture, as
// "sha256:<hex>".
func (p Profile) Digest() string {
	var b strings.Builder
	b.WriteString(amd64Calls + arm64Calls)
	for _, arch := range Architectures() {
		fmt.Fprintln(&b, arch, strings.Join(engineDefaults(arch), " "))
	}
	fmt.Fprintln(&b, Forbidden())
	conditional := p.conditional()
	for _, name := range slices.Sorted(maps.Keys(conditional)) {
		fmt.Fprintln(&b, name, conditional[name])
	}
	fmt.Fprintln(&b, p.Allow)
	sum := sha256.Sum256([]byte(b.String()))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Action is what the kernel does with a call: a SECCOMP_RET_ value.
type Action uint32

// The actions in use.
const (
	ActionAllow Action = unix.SECCOMP_RET_ALLOW
	ActionKill  Action = unix.SECCOMP_RET_KILL_PROCESS
	ActionEPERM        = Action(unix.SECCOMP_RET_ERRNO) | Action(unix.EPERM)
	// ActionENOSYS makes a call look as if the kernel did not have it.
	ActionENOSYS = Action(unix.SECCOMP_RET_ERRNO) | Action(unix.ENOSYS)
	// ActionFamily is what a kernel without an address family answers.
	ActionFamily = Action(unix.SECCOMP_RET_ERRNO) | Action(unix.EAFNOSUPPORT)
)

// verdict is what becomes of one call: the action of the first test that
// holds, else the last one.
type verdict struct {
	tests     []test
	otherwise Action
}

// test compares the low half of an argument. The arguments that are looked at
// are ints to the kernel, which ignores their high half; a filter that
// compared it could be passed by setting it.
type test struct {
	arg   int
	mask  uint32
	value uint32
	then  Action
}

func (v verdict) equal(w verdict) bool {
	return v.otherwise == w.otherwise && slices.Equal(v.tests, w.tests)
}

// forbidden are refused whatever is granted, with the reason why each group
// is no use to a provider and one to an attacker.
var forbidden = []struct{ reason, names string }{
	{"makes or enters namespaces, where a process has capabilities again", "unshare setns"},
	{"changes the mount tree", "mount umount umount2 pivot_root chroot mount_setattr move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick"},
	{"reads or changes other processes", "ptrace process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp"},
	{"runs programs of its own in the kernel", "bpf"},
	{"works on requests that no filter sees", "io_uring_setup io_uring_enter io_uring_register"},
	{"holds the kernel at a place of its choice", "userfaultfd"},
	{"measures the machine and other processes", "perf_event_open lookup_dcookie syslog"},
	{"reads and uses the caller's keys", "add_key keyctl request_key"},
	{"opens files by number, past every path", "open_by_handle_at"},
	{"replaces or extends the kernel", "kexec_load kexec_file_load init_module finit_module delete_module create_module query_module get_kernel_syms"},
	{"changes the machine", "reboot swapon swapoff acct settimeofday clock_settime stime sethostname setdomainname quotactl quotactl_fd nfsservctl _sysctl"},
	{"touches the hardware", "iopl ioperm vhangup"},
	{"watches files of others", "fanotify_init"},
	{"changes how programs are run in ways that only emulators need", "modify_ldt uselib vm86 vm86old"},
	{"places memory, which is the machine's business", "mbind set_mempolicy set_mempolicy_home_node move_pages migrate_pages"},
	{"manages security modules", "lsm_set_self_attr"},
}

// Forbidden names the calls that every profile refuses whatever their
// arguments. Not every architecture has each of them.
func Forbidden() []string {
	var names []string
	for _, group := range forbidden {
		names = append(names, strings.Fields(group.names)...)
	}
	return names
}

const (
	// namespaceFlags are the CLONE_NEW* flags that clone takes; CLONE_NEWTIME
	// is not one, since its bit is part of the exit signal there.
	namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
		unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

	tioclinux = 0x541c // asm-generic/ioctls.h; not in the unix package

	personalityQuery = 0xffffffff
	whole            = 0xffffffff
)

// conditional are the calls whose arguments matter.
func (p Profile) conditional() map[string]verdict {
	sockets := verdict{otherwise: ActionFamily, tests: []test{{0, whole, unix.AF_UNIX, ActionAllow}}}
	if p.Egress {
		sockets.tests = append(sockets.tests, test{0, whole, unix.AF_INET, ActionAllow}, test{0, whole, unix.AF_INET6, ActionAllow})
	}
	files := func(mode int) verdict {
		return verdict{otherwise: ActionAllow, tests: []test{
			{mode, unix.S_IFMT, unix.S_IFCHR, ActionEPERM}, {mode, unix.S_IFMT, unix.S_IFBLK, ActionEPERM},
		}}
	}
	return map[string]verdict{
		"socket":     sockets,
		"socketpair": {otherwise: ActionFamily, tests: []test{{0, whole, unix.AF_UNIX, ActionAllow}}},
		"clone":      {otherwise: ActionEPERM, tests: []test{{0, namespaceFlags, 0, ActionAllow}}},
		// Its flags are in memory, where a filter cannot look; without it C
		// libraries use clone.
		"clone3": {otherwise: ActionENOSYS},
		// Typing into the terminal, and its clipboard.
		"ioctl": {otherwise: ActionAllow, tests: []test{
			{1, whole, unix.TIOCSTI, ActionEPERM}, {1, whole, tioclinux, ActionEPERM},
		}},
		"personality": {otherwise: ActionEPERM, tests: []test{
			{0, whole, personalityQuery, ActionAllow}, {0, whole, 0, ActionAllow},
		}},
		"mknod":   files(1),
		"mknodat": files(2),
	}
}

// call is one system call of an architecture with its verdict.
type call struct {
	nr      uint32
	name    string
	verdict verdict
}

// calls gives a verdict for every call that the architecture is known to
// have, in the order of their numbers.
func (p Profile) calls(arch string) ([]call, error) {
	table, err := lookupArch(arch)
	if err != nil {
		return nil, err
	}
	verdicts := map[string]verdict{}
	for _, name := range engineDefaults(arch) {
		verdicts[name] = verdict{otherwise: ActionAllow}
	}
	for _, name := range Forbidden() {
		verdicts[name] = verdict{otherwise: ActionEPERM}
	}
	for name, v := range p.conditional() {
		verdicts[name] = v
	}
	numbers := table.numbers()
	for _, name := range p.Allow {
		if _, ok := numbers[name]; !ok {
			return nil, fmt.Errorf("profile allows %q, which %s does not have", name, arch)
		}
		verdicts[name] = verdict{otherwise: ActionAllow}
	}
	list := make([]call, 0, len(numbers))
	for name, nr := range numbers {
		v, ok := verdicts[name]
		if !ok {
			v = verdict{otherwise: ActionENOSYS}
		}
		list = append(list, call{nr, name, v})
	}
	slices.SortFunc(list, func(a, b call) int { return int(a.nr) - int(b.nr) })
	return list, nil
}

// engineDefaults are the calls that container engines allow by default to a
// process without capabilities, whatever the arguments. Their rules that
// depend on arguments or on the kernel's version concern calls that this
// package decides itself.
func engineDefaults(arch string) []string {
	var names []string
	for _, rule := range moby.DefaultProfile().Syscalls {
		if rule.Action != "SCMP_ACT_ALLOW" || len(rule.Args) > 0 {
			continue
		}
		if in := rule.Includes; in != nil && (len(in.Caps) > 0 || in.MinKernel != nil || len(in.Arches) > 0 && !slices.Contains(in.Arches, arch)) {
			continue
		}
		if ex := rule.Excludes; ex != nil && (len(ex.Caps) > 0 || ex.MinKernel != nil || slices.Contains(ex.Arches, arch)) {
			continue
		}
		names = append(names, rule.Names...)
	}
	return names
}
