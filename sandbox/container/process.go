package container

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/internal/supervise"
	"github.com/aspis-dev/aspis/sandbox/kernel"
)

// closeTimeout bounds the clean-up after a failed start.
const closeTimeout = 10 * time.Second

// idPrefix begins the name of every sandbox, and so of every directory and
// control group made for one.
const idPrefix = "aspis-"

func newID() string { return idPrefix + strings.ToLower(rand.Text()) }

// process is one sandbox, from the first directory made for it to the last
// one removed.
type process struct {
	id      string
	spec    sandbox.Spec
	ids     ids
	without map[sandbox.WallName]bool
	space   *MountSpace
	root    *root
	libDir  string // libcontainer's state, in the MountSpace
	runDir  string // our record, in the state directory
	group   *group
	pipes   *supervise.Pipes
	fifo    *os.File
	relay   *relay // nil without
	held    *kernel.Held
	filter  []byte // the seccomp program that it runs under

	lib      *libcontainer.Process
	launched bool        // something was made in the MountSpace
	started  atomic.Bool // lib has a child to wait for
	pid      int
	evidence sandbox.Evidence

	exchanging sync.Mutex // over evidence and the Spec's mounts, once started

	done    chan struct{} // closed when exit is set
	exit    sandbox.ExitState
	dog     *supervise.Watchdog
	closing sync.Mutex
	gone    bool
}

// newProcess makes everything that must be there before the start: the
// record first, so that nothing can be made that a later host would not find.
func (r *Runtime) newProcess(spec sandbox.Spec, without map[sandbox.WallName]bool) (_ *process, err error) {
	id := newID()
	p := &process{
		id: id, spec: spec, without: without, space: r.opt.Space,
		libDir: filepath.Join(r.opt.Space.Dir(), "state"),
		done:   make(chan struct{}), ids: r.ids,
	}
	if spec.RunAs != nil {
		p.ids = r.ids.runAs(*spec.RunAs)
	}
	p.root = &root{dir: filepath.Join(r.opt.Space.Dir(), "root", id), spec: &p.spec, without: without, owner: p.ids.owner}
	if p.runDir, err = r.record(id); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			ctx, stop := context.WithTimeout(context.Background(), closeTimeout)
			defer stop()
			err = errors.Join(err, p.Close(ctx))
		}
	}()
	if p.group, err = newGroup(r.groups, id, spec.Limits, without); err != nil {
		return nil, err
	}
	if p.pipes, err = supervise.NewPipes(); err != nil {
		return nil, err
	}
	return p, nil
}

// note writes down the program's process for CollectLeftovers. Until it is
// released it has no way to outlive us.
func (p *process) note() error {
	id, err := identify(p.pid)
	if err != nil {
		return err
	}
	return writeJSON(filepath.Join(p.runDir, programFile), id)
}

// inspect reads the evidence.
func (p *process) inspect(filter []byte) (err error) {
	ids, err := p.pipes.IDs()
	if err != nil {
		return err
	}
	if p.held != nil {
		p.held.Close()
	}
	p.filter = filter
	p.held, p.evidence, err = kernel.Hold(p.pid, p.expect(ids))
	if err != nil {
		return fmt.Errorf("read evidence: %w", err)
	}
	return nil
}

// inspectAgain reads what the host may have changed since.
func (p *process) inspectAgain(running bool) error {
	ids, err := p.pipes.IDs()
	if err != nil {
		return err
	}
	runtime := p.evidence.Runtime
	ev, err := p.held.Again(p.expect(ids), running)
	if err != nil {
		return fmt.Errorf("read evidence: %w", err)
	}
	ev.Runtime = runtime
	p.evidence = ev
	return nil
}

// expect is what the process is held against.
func (p *process) expect(ids []kernel.PipeID) kernel.Expect {
	return kernel.Expect{
		Spec:        p.spec,
		HostPid:     os.Getpid(),
		Thread:      p.space.tid,
		CgroupPaths: p.group.dirs,
		Watchdog:    p.dog != nil,
		Watched:     p.watched(),
		Pipes:       ids,
		Filter:      p.filter,
		Relay:       p.relay.expect(),
	}
}

// limitAfterStart sets what the start itself could not have lived under: the
// number of processes and threads.
func (p *process) limitAfterStart() error {
	if p.spec.Limits.Pids <= 0 || p.without[sandbox.WallPidsLimit] {
		return nil
	}
	n := int64(p.spec.Limits.Pids)
	if err := p.group.limitPids(n); err != nil {
		return err
	}
	if p.group.holds["pids"] {
		return nil
	}
	// Counted for each user of each user namespace by the kernel.
	lim := unix.Rlimit{Cur: uint64(n), Max: uint64(n)}
	if err := unix.Prlimit(p.pid, unix.RLIMIT_NPROC, &lim, nil); err != nil {
		return fmt.Errorf("limit processes: %w", err)
	}
	return nil
}

// watch collects the child's end, and starts what ends it when it goes too far.
func (p *process) watch() {
	p.dog = supervise.NewWatchdog(p.pid, p.watched(), p.killAll)
	go func() {
		state, _ := p.lib.Wait() // its error is an exit code other than 0, which state has too
		p.space.forget(p.pid)
		timedOut, overMemory := p.dog.Stop()
		p.exit = supervise.ExitState(state)
		p.exit.TimedOut = timedOut
		p.exit.OOM = overMemory || p.group.oomKills() > 0
		close(p.done)
	}()
}

// watched are the limits that no control group holds: always the wall clock.
func (p *process) watched() sandbox.Limits {
	var l sandbox.Limits
	if !p.group.holds["memory"] && !p.without[sandbox.WallMemoryLimit] {
		l.MemoryBytes = p.spec.Limits.MemoryBytes
	}
	if p.group.pidsDir() == "" && !p.without[sandbox.WallPidsLimit] {
		l.Pids = p.spec.Limits.Pids
	}
	if !p.without[sandbox.WallClockLimit] {
		l.WallClock = p.spec.Limits.WallClock
	}
	return l
}

func (p *process) Pid() int { return p.pid }
func (p *process) Evidence() sandbox.Evidence {
	p.exchanging.Lock()
	defer p.exchanging.Unlock()
	return p.evidence
}

func (p *process) Stdin() io.WriteCloser { return p.pipes.Host[0] }
func (p *process) Stdout() io.Reader     { return p.pipes.Host[1] }
func (p *process) Stderr() io.Reader     { return p.pipes.Host[2] }

// Release lets the first stage become the program. The wall clock runs from here.
func (p *process) Release(ctx context.Context) error {
	p.dog.Released()
	p.relay.serve()
	return p.pipes.Release(ctx)
}

// Signal goes to the program itself. After its end it gives os.ErrProcessDone.
func (p *process) Signal(s syscall.Signal) error { return p.lib.Signal(s) }

// Kill ends the whole tree.
func (p *process) Kill() error { return p.killAll() }

// killAll needs no state of the sandbox but what newProcess has set, since it
// also interrupts a start. With a pid namespace the end of its first process
// is the end of all of them; the group covers a start that is not that far,
// and a sandbox without the namespace.
func (p *process) killAll() error {
	var errs []error
	if p.started.Load() {
		if p.without[sandbox.WallPIDNamespace] {
			supervise.KillDescendants(p.pid)
		}
		if err := p.lib.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, err)
		}
	}
	if !p.started.Load() || p.without[sandbox.WallPIDNamespace] {
		errs = append(errs, p.group.kill())
	}
	return errors.Join(errs...)
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

// Close ends the sandbox and removes all of it. A nil result means that
// nothing is left; after an error it may be called again.
func (p *process) Close(ctx context.Context) error {
	p.closing.Lock()
	defer p.closing.Unlock()
	if p.gone {
		return nil
	}
	if p.pid != 0 {
		if err := p.killAll(); err != nil {
			return fmt.Errorf("kill: %w", err)
		}
		if _, err := p.Wait(ctx); err != nil {
			return fmt.Errorf("wait for the end: %w", err)
		}
	}
	var errs []error
	p.relay.close()
	if p.held != nil {
		p.held.Close()
	}
	if p.pipes != nil {
		p.pipes.Close()
	}
	if p.fifo != nil {
		_ = p.fifo.Close()
	}
	if p.group != nil {
		errs = append(errs, p.group.remove(ctx))
	}
	if p.launched {
		errs = append(errs, p.space.Do(func() error {
			return errors.Join(p.root.drop(), os.RemoveAll(filepath.Join(p.libDir, p.id)))
		}))
	}
	if err := errors.Join(errs...); err != nil {
		return err // the record stays, so that a later host finds the rest
	}
	if err := os.RemoveAll(p.runDir); err != nil {
		return err
	}
	p.gone = true
	return nil
}
