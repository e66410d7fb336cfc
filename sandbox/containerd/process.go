package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/image-spec/identity"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/internal/supervise"
)

// process is one sandbox. Its id is that of its container, snapshot and
// control group.
type process struct {
	r        *Runtime
	id       string
	spec     sandbox.Spec
	dir      string // with the pipes
	pipes    *supervise.Pipes
	box      client.Container
	task     client.Task
	dog      *supervise.Watchdog
	pid      int
	evidence sandbox.Evidence

	done    chan struct{} // closed when exit is set
	exit    sandbox.ExitState
	closing sync.Mutex
	gone    bool
}

// create makes the snapshot, the container and its first process, and lets that
// become the first stage.
func (p *process) create(ctx context.Context) error {
	parents, err := p.r.image.RootFS(ctx)
	if err != nil {
		return fmt.Errorf("layers of the image: %w", err)
	}
	layers := p.r.client.SnapshotService(snapshotter)
	root, err := layers.Prepare(ctx, p.id, identity.ChainID(parents).String(),
		snapshots.WithLabels(map[string]string{ownerKey: p.r.owner, keepKey: "true"}))
	if err != nil {
		return fmt.Errorf("snapshot of the image: %w", err)
	}
	if root, err = harden(root); err != nil {
		return err
	}
	oci := ociSpec(&p.spec, p.r.opt, p.id)
	if err := makeMountPoints(option(root, "upperdir="), oci.Mounts); err != nil {
		return fmt.Errorf("mount points: %w", err)
	}
	p.box, err = p.r.client.NewContainer(ctx, p.id, client.WithSpec(oci), client.WithRuntime(p.r.opt.Runtime, nil))
	if err != nil {
		return fmt.Errorf("container: %w", err)
	}
	fifos, err := p.makeFifos()
	if err != nil {
		return err
	}
	if err := p.openOutputs(fifos.set.Config); err != nil {
		return err
	}
	p.task, err = p.box.NewTask(ctx, func(string) (cio.IO, error) { return fifos, nil }, client.WithRootFS(root))
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	p.pid = int(p.task.Pid())
	if err := p.openInput(fifos.set.Config); err != nil {
		return err
	}
	if err := p.watch(ctx); err != nil {
		return err
	}
	if err := p.task.Start(ctx); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return nil
}

// harden takes from the mount of a snapshot what the machine would believe of
// files in it.
func harden(list []mount.Mount) ([]mount.Mount, error) {
	if len(list) != 1 || list[0].Type != "overlay" || option(list, "upperdir=") == "" {
		return nil, fmt.Errorf("the snapshotter gives %d mounts, where one overlay with a layer of its own is needed", len(list))
	}
	m := list[0]
	m.Options = append([]string{"nosuid", "nodev"}, m.Options...)
	return []mount.Mount{m}, nil
}

func option(list []mount.Mount, name string) string {
	for _, m := range list {
		for _, o := range m.Options {
			if v, ok := strings.CutPrefix(o, name); ok {
				return v
			}
		}
	}
	return ""
}

// ends are the named pipes as the client wants to have them. We read and write
// them ourselves.
type ends struct{ set *cio.FIFOSet }

func (e ends) Config() cio.Config { return e.set.Config }
func (e ends) Cancel()            {}
func (e ends) Wait()              {}
func (e ends) Close() error       { return nil }

func (p *process) makeFifos() (ends, error) {
	p.dir = filepath.Join(p.r.opt.StateDir, p.id)
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		return ends{}, fmt.Errorf("pipes: %w", err)
	}
	c := cio.Config{Stdin: filepath.Join(p.dir, "in"), Stdout: filepath.Join(p.dir, "out"), Stderr: filepath.Join(p.dir, "err")}
	for _, f := range []string{c.Stdin, c.Stdout, c.Stderr} {
		if err := unix.Mkfifo(f, 0o600); err != nil {
			return ends{}, fmt.Errorf("pipes: %w", err)
		}
	}
	return ends{cio.NewFIFOSet(c, nil)}, nil
}

// openOutputs opens our ends of standard output and error, which the shim waits
// for. They are not read before it has opened its own.
func (p *process) openOutputs(c cio.Config) error {
	p.pipes = &supervise.Pipes{}
	for i, name := range []string{1: c.Stdout, 2: c.Stderr} {
		if name == "" {
			continue
		}
		f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("pipes: %w", err)
		}
		p.pipes.Host[i] = f
	}
	return nil
}

// openInput opens our end of standard input. The shim has its own open by now.
func (p *process) openInput(c cio.Config) (err error) {
	if p.pipes.Host[0], err = os.OpenFile(c.Stdin, os.O_WRONLY|unix.O_NONBLOCK, 0); err != nil {
		return fmt.Errorf("pipes: %w", err)
	}
	return nil
}

// watch waits for the program's end, and starts what ends it when it goes too far.
func (p *process) watch(ctx context.Context) error {
	alone := context.WithoutCancel(ctx)
	ended, err := p.task.Wait(alone)
	if err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	p.dog = supervise.NewWatchdog(p.pid, sandbox.Limits{WallClock: p.spec.Limits.WallClock}, p.Kill)
	go func() {
		status := <-ended
		timedOut, _ := p.dog.Stop()
		p.exit = sandbox.ExitState{Code: int(status.ExitCode()), TimedOut: timedOut}
		// The shim tells a signal as a shell does.
		if n := p.exit.Code - 128; n > 0 && n < 65 {
			p.exit.Code, p.exit.Signal = -1, syscall.Signal(n)
		}
		if status.Error() != nil {
			p.exit.Code = -1
		}
		close(p.done)
	}()
	return nil
}

// limitPids bounds processes and threads of the held first stage.
func (p *process) limitPids(ctx context.Context) error {
	if p.spec.Limits.Pids <= 0 {
		return nil
	}
	limit := int64(p.spec.Limits.Pids)
	res := resources(p.spec.Limits)
	res.Pids = &specs.LinuxPids{Limit: &limit}
	if err := p.task.Update(ctx, client.WithResources(res)); err != nil {
		return fmt.Errorf("limit processes: %w", err)
	}
	return nil
}

func (p *process) Pid() int                   { return p.pid }
func (p *process) Evidence() sandbox.Evidence { return p.evidence }
func (p *process) Stdin() io.WriteCloser      { return input{p} }
func (p *process) Stdout() io.Reader          { return p.pipes.Host[1] }
func (p *process) Stderr() io.Reader          { return p.pipes.Host[2] }

// input also tells the shim of its end, which holds the pipe open by itself.
type input struct{ p *process }

func (i input) Write(b []byte) (int, error) { return i.p.pipes.Host[0].Write(b) }

func (i input) Close() error {
	err := i.p.pipes.Host[0].Close()
	ctx, cancel := i.p.context(context.Background())
	defer cancel()
	if cerr := i.p.task.CloseIO(ctx, client.WithStdinCloser); cerr != nil && !errdefs.IsNotFound(cerr) {
		err = errors.Join(err, fmt.Errorf("close standard input: %w", cerr))
	}
	return err
}

// context is for requests that are made outside of a start.
func (p *process) context(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(namespaces.WithNamespace(ctx, p.r.opt.Namespace), closeTimeout)
}

// Release lets the first stage become the program. The wall clock runs from here.
func (p *process) Release(ctx context.Context) error {
	p.dog.Released()
	return p.pipes.Release(ctx)
}

// Signal goes to the program itself.
func (p *process) Signal(s syscall.Signal) error {
	select {
	case <-p.done:
		return os.ErrProcessDone
	default:
	}
	ctx, cancel := p.context(context.Background())
	defer cancel()
	err := p.task.Kill(ctx, s)
	if errdefs.IsNotFound(err) {
		return os.ErrProcessDone
	}
	return err
}

// Kill ends the whole tree: the program is the first process of its pid
// namespace.
func (p *process) Kill() error {
	if err := p.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill: %w", err)
	}
	return nil
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

// Close ends the sandbox and removes all of it from the daemon. After an error
// it may be called again.
func (p *process) Close(ctx context.Context) error {
	p.closing.Lock()
	defer p.closing.Unlock()
	if p.gone {
		return nil
	}
	ctx = namespaces.WithNamespace(ctx, p.r.opt.Namespace)
	if err := p.r.remove(ctx, p.id); err != nil {
		return err
	}
	if p.dog != nil {
		if _, err := p.Wait(ctx); err != nil {
			return fmt.Errorf("wait for the end: %w", err)
		}
	}
	if p.pipes != nil {
		p.pipes.Close()
	}
	if p.dir != "" {
		if err := os.RemoveAll(p.dir); err != nil {
			return err
		}
	}
	p.gone = true
	return nil
}
