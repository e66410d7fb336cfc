package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/internal/supervise"
)

// process is one program and its tree.
type process struct {
	spec     sandbox.Spec
	cmd      *exec.Cmd
	pipes    *supervise.Pipes
	dog      *supervise.Watchdog
	evidence sandbox.Evidence
	done     chan struct{} // closed when exit is set
	exit     sandbox.ExitState
	closing  sync.Mutex
	gone     bool
}

func (p *process) Pid() int                   { return p.cmd.Process.Pid }
func (p *process) Evidence() sandbox.Evidence { return p.evidence }
func (p *process) Stdin() io.WriteCloser      { return p.pipes.Host[0] }
func (p *process) Stdout() io.Reader          { return p.pipes.Host[1] }
func (p *process) Stderr() io.Reader          { return p.pipes.Host[2] }

// Release lets the first stage become the program. The wall clock runs from here.
func (p *process) Release(ctx context.Context) error {
	p.dog.Released()
	return p.pipes.Release(ctx)
}

// Signal goes to the program itself. After its end it gives os.ErrProcessDone.
func (p *process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Kill ends the whole tree, as far as it can be found: what leaves the
// program's process group and outlives the program is out of reach.
func (p *process) Kill() error {
	select {
	case <-p.done:
		return nil
	default:
	}
	// Held still, so that it is killed and does not end by itself, with some
	// code of its own, when its children are gone.
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop: %w", err)
	}
	supervise.KillDescendants(p.Pid())
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill: %w", err)
	}
	return nil
}

// collect waits for the program's end. Its process group ends with it: it is
// killed while the dead program still holds the number, which otherwise could
// be somebody else's by then.
func (p *process) collect() {
	for {
		err := unix.Waitid(unix.P_PID, p.Pid(), nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			break
		}
	}
	_ = unix.Kill(-p.Pid(), unix.SIGKILL) // nobody else in it
	_ = p.cmd.Wait()                      // its error is an exit code other than 0, which the state has too
	timedOut, overMemory := p.dog.Stop()
	p.exit = supervise.ExitState(p.cmd.ProcessState)
	p.exit.TimedOut, p.exit.OOM = timedOut, overMemory
	close(p.done)
}

// Wait gives how the program ended.
func (p *process) Wait(ctx context.Context) (sandbox.ExitState, error) {
	select {
	case <-p.done:
		return p.exit, nil
	case <-ctx.Done():
		return sandbox.ExitState{}, context.Cause(ctx)
	}
}

// Close ends the program's tree. It may be called again after an error.
func (p *process) Close(ctx context.Context) error {
	p.closing.Lock()
	defer p.closing.Unlock()
	if p.gone {
		return nil
	}
	if err := p.Kill(); err != nil {
		return err
	}
	if _, err := p.Wait(ctx); err != nil {
		return fmt.Errorf("wait for the end: %w", err)
	}
	p.pipes.Close()
	p.gone = true
	return nil
}
