// Package child runs one program to its end within bounds: its time, what it may
// print, and its whole process group with what has run away from it. It knows
// nothing of what the program is for.
package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Command is what is run. Nothing is inherited.
type Command struct {
	Path string
	Args []string // without the program's own name
	Dir  string
	Env  []string
	// Timeout ends it; it must be above 0.
	Timeout time.Duration
	// Stdout and Stderr bound what is kept of each, in bytes. A program that
	// prints more to standard output is ended, since the rest would be lost.
	Stdout, Stderr int
}

// Result is how it ended. Code is its exit code and counts only where Failure is
// empty.
type Result struct {
	Code           int
	Stdout, Stderr []byte
	// Failure says in words why there is no whole run: it was not there, was
	// killed, took too long, printed too much, or was cancelled.
	Failure string
	// Missing, TimedOut and Truncated name three of those.
	Missing, TimedOut, Truncated bool
	Elapsed                      time.Duration
}

// settle is how long a program's output may stay open after its end, by what it
// has left running.
const settle = 500 * time.Millisecond

var errTooMuch = errors.New("it printed too much")

// Run runs a command. It returns when the program and all that it started are
// gone, at the latest soon after the timeout or the end of ctx.
func Run(ctx context.Context, c Command) Result {
	started := time.Now()
	becomeReaper()
	run, stop := context.WithTimeoutCause(ctx, c.Timeout, errTimeout)
	defer stop()
	run, abort := context.WithCancelCause(run)
	defer abort(nil)
	out := &bounded{limit: c.Stdout, full: func() { abort(errTooMuch) }}
	said := &bounded{limit: c.Stderr}
	cmd := exec.CommandContext(run, c.Path, c.Args...)
	cmd.Dir, cmd.Env = c.Dir, c.Env
	cmd.Stdout, cmd.Stderr = out, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = settle
	err := cmd.Run()
	if cmd.Process != nil {
		// Its group is gone unless it left somebody behind.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		endOrphans()
	}
	r := Result{Stdout: out.bytes(), Stderr: said.bytes(), Elapsed: time.Since(started)}
	r.explain(err, context.Cause(run), c)
	return r
}

var errTimeout = errors.New("it took too long")

func (r *Result) explain(err, cause error, c Command) {
	var exit *exec.ExitError
	switch {
	case errors.Is(cause, errTooMuch):
		r.Truncated, r.Failure = true, fmt.Sprintf("it printed more than %d bytes and was ended", c.Stdout)
	case errors.Is(cause, errTimeout):
		r.TimedOut, r.Failure = true, fmt.Sprintf("it was not done within %s and was ended", c.Timeout.Round(time.Millisecond))
	case cause != nil:
		r.Failure = "it was cancelled"
	case err == nil:
	case errors.Is(err, exec.ErrWaitDelay):
		r.Failure = "it left processes behind that held its output, so that its output may not be whole"
	case errors.As(err, &exit):
		st, ok := exit.Sys().(syscall.WaitStatus)
		switch {
		case ok && st.Signaled() && st.Signal() == syscall.SIGKILL:
			r.Failure = "it was killed, most likely for want of memory"
		case ok && st.Signaled():
			r.Failure = fmt.Sprintf("it crashed: signal %d (%s)", int(st.Signal()), st.Signal())
		default:
			r.Code = exit.ExitCode()
		}
	case errors.Is(err, syscall.ENOENT), errors.Is(err, exec.ErrNotFound):
		// The interpreter of a script may be what is missing; the kernel does not
		// tell them apart.
		r.Missing, r.Failure = true, fmt.Sprintf("the program %q or its interpreter is not there", c.Path)
	case errors.Is(err, syscall.E2BIG):
		r.Failure = "its arguments are too long"
	default:
		r.Failure = "it could not be run: " + strings.TrimPrefix(err.Error(), "fork/exec ")
	}
}

// bounded keeps the first limit bytes.
type bounded struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	limit int
	full  func()
}

// Write never fails: a program whose error output is not kept should not notice.
func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	room := b.limit - b.buf.Len()
	if len(p) <= room {
		return b.buf.Write(p)
	}
	b.buf.Write(p[:max(room, 0)])
	if b.full != nil {
		b.full()
	}
	return len(p), nil
}

// bytes gives what was kept; nobody writes any more.
func (b *bounded) bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Bytes()
}
