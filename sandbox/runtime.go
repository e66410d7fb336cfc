package sandbox

import (
	"context"
	"io"
	"syscall"
	"time"
)

// Runtime builds what a Spec asks for.
type Runtime interface {
	// Name identifies the runtime in evidence.
	Name() string
	// Start gives a process that is held at a first stage, inside its finished
	// confinement and with its evidence taken, before any code of its own has
	// run. A wall that could not be built is not an error: the evidence says
	// so. After an error nothing is left behind. Cancelling ctx ends a start,
	// not a started process.
	Start(ctx context.Context, spec Spec) (Process, error)
}

// Process is a started Spec.
type Process interface {
	// Pid is the first process's id, as the host sees it.
	Pid() int
	// Evidence was read from the kernel before the process was released.
	Evidence() Evidence
	// Release lets the first stage become the program. The wall clock runs
	// from here.
	Release(ctx context.Context) error

	Stdin() io.WriteCloser
	Stdout() io.Reader
	Stderr() io.Reader

	// Signal goes to the program alone. It gives os.ErrProcessDone after the
	// program's end.
	Signal(syscall.Signal) error
	// Kill ends the whole tree.
	Kill() error
	// Wait gives how the program ended, or ctx's cause.
	Wait(ctx context.Context) (ExitState, error)
	// Close kills what still runs, waits for it, removes everything that was
	// made for it and verifies that nothing is left. It may be called again;
	// after a nil result that does nothing.
	Close(ctx context.Context) error
}

// ExitState says how a program ended.
type ExitState struct {
	Code     int            // exit code; -1 when ended by a signal, or unknown
	Signal   syscall.Signal // that ended it; 0 or -1 for none
	OOM      bool           // killed for being over its memory limit
	TimedOut bool           // killed for being over its wall-clock limit
	Usage    Usage
}

// Usage is what the program and its waited-for children used; zero where it
// could not be collected.
type Usage struct {
	User, System time.Duration // processor time
	MaxRSSBytes  int64         // largest resident set of any one process
}
