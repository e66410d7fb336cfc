package kernel

import (
	"syscall"

	"github.com/aspis-dev/aspis/sandbox"
)

// Expect is what a process is held against. All of it comes from the host.
// What is left out is not assumed: the wall that needs it does not stand.
type Expect struct {
	Spec sandbox.Spec
	// HostPid is a process of the host, whose namespaces, mounts and ids must
	// not be the inspected one's. Zero means this process.
	HostPid int
	// Thread is a thread of this process whose mount namespace shows the
	// sources of Spec.Mounts. Zero means that any thread's may.
	Thread int
	// CgroupPaths are the directories of the control groups made for the
	// process: by controller on version 1, under "" on version 2. They help
	// where no mount shows the group that the kernel names, and only if the
	// kernel lists the process in them.
	CgroupPaths map[string]string
	// Watchdog tells that a watchdog of the host's is running for the process.
	Watchdog bool
	// Watched are the limits that this watchdog enforces by ending the tree.
	Watched sandbox.Limits
	// Pipes are the host's ends of standard input, output and error, by which
	// the other ends are known. Nil accepts pipes of which the host process
	// has some end open.
	Pipes []PipeID
	// Relay is the one socket that may be in the process's network namespace:
	// the host's own, listening on the loopback. Nil allows none.
	Relay *Listener
	// Filter is the seccomp program that was loaded, as the kernel takes it.
	Filter []byte
	// EnvNames are variables that a runtime adds to those of Spec.Env. Nil
	// means HOME.
	EnvNames []string
	// StageDir is where the first stage's own files are mounted, besides what
	// the Spec asks for. Empty means /.aspis.
	StageDir string
	// Root is a directory of the host's at which an overlay is mounted that was
	// made to be this process's root and nothing else, as container daemons do.
	// Empty means that no mount of the host's may show the root.
	Root string
}

// PipeID identifies a pipe by what fstat gives for either end.
type PipeID struct{ Dev, Ino uint64 }

// Listener is a socket of the host's.
type Listener struct {
	Socket syscall.Conn
	Port   int
	// Destinations is how many it leads to.
	Destinations int
}
