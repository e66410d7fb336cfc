package kernel

import "github.com/aspis-dev/aspis/sandbox"

// Expect is what a process is held against.
type Expect struct {
	Spec sandbox.Spec
	// HostPid is a process of the host, whose namespaces, mounts and ids must
	// not be the inspected one's. Zero means this process.
	HostPid int
	// Thread is a thread of this process whose mount namespace shows the sources
	// of Spec.Mounts. Zero means that this process's own namespace does.
	Thread int
	// CgroupPaths are the directories of the control groups made for the
	// process: by controller on version 1, under "" on version 2. They only
	// tell where a hierarchy is mounted; in which group the process is, the
	// kernel says.
	CgroupPaths map[string]string
	// Watchdog tells that the host itself ends the tree when it is over one of
	// Spec.Limits that no kernel mechanism holds, and always over its wall
	// clock.
	Watchdog bool
	// Pipes are the host's own ends of the process's standard files, as any
	// file descriptors of this process; an inode says that both ends are of
	// one pipe. Nil accepts any three pipes that the host process has open too.
	Pipes []PipeID
	// Filter is the seccomp program that was to be loaded, as the kernel takes
	// it. Where the kernel lets us read the loaded program back, it must be
	// the same; nil skips the comparison.
	Filter []byte
	// EnvNames are variables that a runtime adds to those of Spec.Env. Nil
	// means HOME.
	EnvNames []string
	// Root names the inside path of the first stage's own files, which are
	// mounted besides what the Spec asks for. Empty means /.aspis.
	Root string
}

// PipeID identifies a pipe.
type PipeID struct{ Dev, Ino uint64 }
