package sandbox

import (
	"context"
	"net"
	"time"
)

// Spec is what a process may touch and how much it may use. The host writes
// it; nothing in it comes from a repository or from the process itself.
type Spec struct {
	// Name is used in errors and ids only.
	Name string

	// Path is the program's absolute path inside the container, Args its
	// argument vector with Args[0] included.
	Path string
	Args []string
	// Env is the whole environment, as "NAME=value". Nothing is inherited from
	// the host; a runtime adds HOME where the Spec gives none.
	Env []string
	// Dir is the working directory inside the container.
	Dir string

	// Artifact is a host directory that is shown read-only at /provider.
	// Empty shows none.
	Artifact string
	// System shows the machine's /usr, /lib*, /bin and /sbin and a minimal
	// /etc, all read-only.
	System bool
	// Mounts are shown as well, always read-only.
	Mounts []Mount
	// Exchangeable lets the sources of Mounts be exchanged while the program
	// runs, by runtimes that can (see container.Runtime).
	Exchangeable bool
	// Work are writable work areas: overlays whose upper layer is the host's own
	// and which hold back what is written there. Nothing else that is shown can
	// be written, but /tmp.
	Work []Mount
	// RunAs runs the program under ids of the host's, the only ones that the
	// container then has. Nil gives it ids that own nothing.
	RunAs *IDs
	// Init runs the program as a child of an init of ours, which reaps orphans
	// and passes signals on. A program that is itself the first of its pid
	// namespace gets no signal that it has no handler for.
	Init bool
	// TmpExec lets programs run from /tmp, which builds and tests do.
	TmpExec bool
	// Protect names host paths that must be neither reachable nor writable
	// from inside: the real worktree, the host's state, the caller's home.
	// What Artifact, System and Mounts show on purpose is judged apart: a
	// source below a protected path may be shown, the protected path itself,
	// or anything above it, may not.
	Protect []string

	// Relay is the only way to a network, if there is one: a port on the
	// loopback, RelayPort, that the host serves from outside. Nil gives none.
	Relay Relay

	Limits Limits

	// Without leaves walls out of the container that is built. It is a hook
	// for tests of the evidence: what is claimed is read from the kernel and
	// never changed by it.
	Without []WallName
}

// RelayPort is where a process finds its Relay, on 127.0.0.1. The number is the
// one that proxies usually have; the network stack is the container's own.
const RelayPort = 3128

// Relay takes connections of the process to named destinations. One that is
// given to a Runtime decides on its own what it lets through.
type Relay interface {
	// Destinations are what it lets through, for evidence.
	Destinations() []string
	// Serve takes connections until ctx ends or ln is closed, and returns when
	// all that it took are closed.
	Serve(ctx context.Context, ln net.Listener) error
}

// IDs are a user and a group, as the runtime's own user namespace has them.
type IDs struct{ User, Group int }

// Mount shows one host path inside.
type Mount struct {
	Source string // host path, as the runtime's mount namespace sees it
	Target string // clean absolute path inside, such as /workspace/candidate
}

// Limits bound what a process tree may use. Zero means that no limit was asked
// for, and the wall that a limit would have been is then missing.
type Limits struct {
	MemoryBytes int64         // memory of the whole tree, swap included
	Pids        int           // processes and threads of the whole tree
	OpenFiles   int           // file descriptors of each process
	CPUPercent  int           // of one processor, for the whole tree: 200 is two processors
	TmpBytes    int64         // size of the private /tmp; zero takes the runtime's default
	FileBytes   int64         // size of any one file that is written; zero sets none
	WallClock   time.Duration // from release to the end, enforced by the host
}
