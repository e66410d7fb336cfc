package sandbox

// WallName names a wall, the same in code, JSON and documentation.
type WallName string

// The walls, in the order of the table.
const (
	WallUserNamespace       WallName = "user-namespace"
	WallUserIDs             WallName = "user-ids"
	WallCapabilities        WallName = "capabilities"
	WallNoNewPrivileges     WallName = "no-new-privileges"
	WallSeccomp             WallName = "seccomp"
	WallMountNamespace      WallName = "mount-namespace"
	WallRootFilesystem      WallName = "root-filesystem"
	WallSnapshotReadOnly    WallName = "snapshot-read-only"
	WallWorktreeUnreachable WallName = "worktree-unreachable"
	WallHostPathsUnwritable WallName = "host-paths-unwritable"
	WallDevices             WallName = "devices"
	WallProcMasked          WallName = "proc-masked"
	WallSysMasked           WallName = "sys-masked"
	WallPIDNamespace        WallName = "pid-namespace"
	WallIPCNamespace        WallName = "ipc-namespace"
	WallUTSNamespace        WallName = "uts-namespace"
	WallCgroupNamespace     WallName = "cgroup-namespace"
	WallNetworkNamespace    WallName = "network-namespace"
	WallNetworkInterfaces   WallName = "network-interfaces"
	WallUnixSockets         WallName = "unix-sockets"
	WallFileDescriptors     WallName = "file-descriptors"
	WallSessionKeyring      WallName = "session-keyring"
	WallEnvironment         WallName = "environment"
	WallMemoryLimit         WallName = "memory-limit"
	WallPidsLimit           WallName = "pids-limit"
	WallOpenFilesLimit      WallName = "open-files-limit"
	WallCPULimit            WallName = "cpu-limit"
	WallClockLimit          WallName = "wall-clock-limit"
)

// Row is what is true of a wall whatever the machine.
type Row struct {
	Name    WallName
	Meaning string // one sentence
	Needed  Mode   // weakest mode that cannot be had without it
	Remedy  string // one sentence: what a person can do where it is missing
}

// Wall gives the wall as it was found.
func (r Row) Wall(standing bool, seen string) Wall {
	w := Wall{Name: r.Name, Standing: standing, Seen: seen, Needed: r.Needed}
	if !standing {
		w.Fix = r.Remedy
	}
	return w
}

// Table gives all walls in their order.
func Table() []Row { return append([]Row(nil), table...) }

// Lookup gives the row of a wall.
func Lookup(name WallName) (Row, bool) {
	for _, r := range table {
		if r.Name == name {
			return r, true
		}
	}
	return Row{}, false
}

// Remedies that several walls share.
const (
	remedyUserNS = "Allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces above 0, on Ubuntu the AppArmor profile contrib/apparmor/aspis), or run as root; `aspis doctor` tells which."
	remedyNS     = "Use the container runtime; it needs CAP_SYS_ADMIN or a user namespace, and `aspis doctor` tells which of the two this machine refuses."
	remedyMounts = "Use the container runtime, and do not show the worktree, the state directory or the home directory by an artifact or mount."
	remedyCgroup = "Give aspis a control group that it may divide: run it as root, or by `systemd-run --user --scope -p Delegate=yes aspis ...`."
	remedyLimit  = "Ask for the limit in the sandbox's specification."
)

// table is the one list of walls: documentation, evidence and the computed
// mode come from it.
//
// ModeMediatedWrite promises that the process has no way to write the real
// worktree. A wall is needed for it when, with all the others standing, its
// absence gives such a way, or takes away the ground on which another wall's
// check rests. The comments say which way. All others are needed for
// ModeIsolated only: they keep the process from reading, from exhausting the
// machine, or from a part of the kernel.
var table = []Row{
	{
		// The ids behind it own nothing (user-ids), so that even without the
		// namespace there is nothing the process may write.
		WallUserNamespace, "The process is in a user namespace of its own whose root is not the machine's root.",
		ModeIsolated, remedyUserNS,
	},
	{
		// The machine's root writes any file that a path leads to, and kernel
		// settings that start programs, without one capability. The caller's
		// own id owns the worktree.
		WallUserIDs, "The process runs under ids that are neither the machine's root nor, where more than one id can be had, the caller.",
		ModeMediatedWrite, "Install newuidmap and give the caller a range in /etc/subuid and /etc/subgid, or run as root so that an unused range can be taken.",
	},
	{
		// CAP_SYS_ADMIN remounts, CAP_SYS_PTRACE and CAP_DAC_OVERRIDE reach and
		// write what others own, CAP_DAC_READ_SEARCH opens files by handle.
		WallCapabilities, "Every capability set of the process is empty.",
		ModeMediatedWrite, remedyNS,
	},
	{
		// A set-user-id program would give back ids and capabilities, and the
		// walls above were only true until the next execve.
		WallNoNewPrivileges, "No program that the process executes can gain privileges.",
		ModeMediatedWrite, remedyNS,
	},
	{
		// Each call that the filter refuses is refused by another wall too, as
		// far as the kernel is without faults. It stands against those faults.
		WallSeccomp, "System calls that a provider does not need are refused by a filter that cannot be taken off.",
		ModeIsolated, "Use a kernel with CONFIG_SECCOMP_FILTER, and no outer container that forbids loading filters.",
	},
	{
		// In the host's mount namespace the worktree is where it always is.
		WallMountNamespace, "The process has a mount table of its own.",
		ModeMediatedWrite, remedyNS,
	},
	{
		// That no writable path leads to the worktree is concluded from the
		// mount table. The conclusion holds only if all of the table is known.
		WallRootFilesystem, "The root file system is not the machine's, cannot be written, and nothing is mounted in it but what was asked for.",
		ModeMediatedWrite, remedyMounts,
	},
	{
		// What is written into a snapshot is what the host would check and
		// then publish into the worktree.
		WallSnapshotReadOnly, "The snapshots are mounted at their places, are the very ones that the host made, and cannot be written.",
		ModeMediatedWrite, remedyMounts,
	},
	{
		// Where the worktree can be reached, only a mount option and an owner
		// are between the process and a write; a socket or pipe file can be
		// written even through a read-only mount.
		WallWorktreeUnreachable, "No path inside leads to the real worktree or another protected path, not even to read.",
		ModeMediatedWrite, remedyMounts,
	},
	{
		// The plain case of a direct write.
		WallHostPathsUnwritable, "Everything inside that can be written is private to the process and goes away with it.",
		ModeMediatedWrite, remedyMounts,
	},
	{
		// A disk can be written beneath its file system, and characters can be
		// typed into the caller's terminal.
		WallDevices, "The only devices are null, zero, full, random and urandom.",
		ModeMediatedWrite, remedyNS,
	},
	{
		// Under unprivileged ids nothing in /proc writes a file. That /proc
		// shows no other processes is part of worktree-unreachable.
		WallProcMasked, "/proc shows only the process's own namespace, and its dangerous files are hidden or read-only.",
		ModeIsolated, remedyNS,
	},
	{
		// As for /proc.
		WallSysMasked, "There is no /sys, or it is read-only with its firmware and device parts hidden.",
		ModeIsolated, remedyNS,
	},
	{
		// A process of the same user can be traced and made to write.
		WallPIDNamespace, "The process cannot see, signal or trace any process of the machine.",
		ModeMediatedWrite, remedyNS,
	},
	{
		WallIPCNamespace, "System V and POSIX message queues and shared memory are its own.",
		ModeIsolated, remedyNS,
	},
	{
		WallUTSNamespace, "The host name is its own.",
		ModeIsolated, remedyNS,
	},
	{
		WallCgroupNamespace, "It cannot see where in the machine's control groups it stands.",
		ModeIsolated, "Use a kernel with CONFIG_CGROUPS from 4.6 on, and the container runtime.",
	},
	{
		// Abstract sockets and the loopback belong to the network namespace:
		// a session bus, a debugger or a container daemon that listens there
		// starts programs for whoever asks.
		WallNetworkNamespace, "The process has a network stack of its own.",
		ModeMediatedWrite, remedyNS,
	},
	{
		// With a stack of its own, an interface more leads out of the machine,
		// not to its files.
		WallNetworkInterfaces, "There is no network interface but the loopback, no route out, and no socket but a relay of the host's to listed destinations, where one was asked for.",
		ModeIsolated, "Remove whatever adds an interface to new network namespaces, or the grant of network to this process.",
	},
	{
		// As for network-namespace: a socket of a daemon writes for us.
		WallUnixSockets, "No unix socket of the machine can be reached, neither by path nor by abstract name.",
		ModeMediatedWrite, "Keep sockets out of artifact directories and mounts, and use the container runtime.",
	},
	{
		// An open directory is a way around every mount.
		WallFileDescriptors, "The only open files are three pipes to the host.",
		ModeMediatedWrite, "Report this as a fault of aspis: a file of the host was left open in the child.",
	},
	{
		WallSessionKeyring, "The caller's kernel keys cannot be read or used.",
		ModeIsolated, "Use a kernel with key retention and user namespaces, and the container runtime.",
	},
	{
		WallEnvironment, "The environment has the named variables and nothing of the caller's.",
		ModeIsolated, "Report this as a fault of aspis: the environment was not the one asked for.",
	},
	{
		WallMemoryLimit, "The memory of the whole process tree is limited.",
		ModeIsolated, remedyCgroup,
	},
	{
		WallPidsLimit, "The number of processes and threads is limited.",
		ModeIsolated, remedyCgroup,
	},
	{
		WallOpenFilesLimit, "The number of open files of each process is limited.",
		ModeIsolated, remedyLimit,
	},
	{
		WallCPULimit, "The processor time that the tree can take is limited.",
		ModeIsolated, remedyCgroup,
	},
	{
		WallClockLimit, "The host ends the tree after a time.",
		ModeIsolated, remedyLimit,
	},
}
