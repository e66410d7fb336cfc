package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/internal/stage"
	"github.com/aspis-dev/aspis/sandbox/internal/supervise"
	"github.com/aspis-dev/aspis/sandbox/kernel"
)

const (
	// startTimeout bounds a start whose context has no deadline.
	startTimeout = 30 * time.Second
	// closeTimeout bounds the clean-up after a failed start.
	closeTimeout = 10 * time.Second
	// providerDir is where a container would show the artifact.
	providerDir = "/provider"
)

// Runtime starts processes without walls.
type Runtime struct{}

var _ sandbox.Runtime = Runtime{}

// New gives the runtime. It needs nothing of the machine.
func New() Runtime { return Runtime{} }

// Name identifies the runtime in evidence.
func (Runtime) Name() string { return "process" }

// Start holds the program at the first stage with its evidence taken.
// Spec.Without has no effect: there is nothing to leave out.
func (r Runtime) Start(ctx context.Context, spec sandbox.Spec) (_ sandbox.Process, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	header := stage.Header{Path: translate(spec, spec.Path), Args: spec.Args, Reap: true}
	word, err := header.Encode()
	if err != nil {
		return nil, fmt.Errorf("process %q: %w", spec.Name, err)
	}
	pipes, err := supervise.NewPipes()
	if err != nil {
		return nil, fmt.Errorf("process %q: %w", spec.Name, err)
	}
	p := &process{spec: spec, pipes: pipes, done: make(chan struct{})}
	err = p.launch()
	pipes.CloseChild()
	if err != nil {
		pipes.Close()
		return nil, fmt.Errorf("process %q: %w", spec.Name, err)
	}
	defer func() {
		if err != nil {
			clean, stop := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
			defer stop()
			err = fmt.Errorf("process %q: %w", spec.Name, errors.Join(err, p.Close(clean)))
		}
	}()
	if err := pipes.Handshake(ctx, word); err != nil {
		return nil, fmt.Errorf("program %q: %w", header.Path, err)
	}
	if err := limit(p.Pid(), spec.Limits); err != nil {
		return nil, err
	}
	ids, err := pipes.IDs()
	if err != nil {
		return nil, err
	}
	p.evidence, err = kernel.Inspect(p.Pid(), kernel.Expect{
		Spec: spec, HostPid: os.Getpid(), Watchdog: true, Watched: spec.Limits, Pipes: ids,
	})
	if err != nil {
		return nil, fmt.Errorf("read evidence: %w", err)
	}
	p.evidence.Runtime = r.Name()
	return p, nil
}

// translate gives the host's path for a path inside a container that was
// never built.
func translate(spec sandbox.Spec, path string) string {
	if rest, ok := below(path, providerDir); ok && spec.Artifact != "" {
		return filepath.Join(spec.Artifact, rest)
	}
	for _, m := range spec.Mounts {
		if rest, ok := below(path, m.Target); ok {
			return filepath.Join(m.Source, rest)
		}
	}
	return path
}

func below(path, dir string) (rest string, ok bool) {
	if path == dir {
		return "", true
	}
	return strings.CutPrefix(path, dir+"/")
}

// launch starts the first stage. The thread that does so waits for it as
// well, since the child asks to be killed when that thread ends.
func (p *process) launch() error {
	p.cmd = exec.Command("/proc/self/exe")
	p.cmd.Args = []string{os.Args[0], stage.Marker}
	p.cmd.Env = append([]string{}, p.spec.Env...) // never nil, which would inherit ours
	p.cmd.Dir = translate(p.spec, p.spec.Dir)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = p.pipes.Child[0], p.pipes.Child[1], p.pipes.Child[2]
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := p.cmd.Start(); err != nil {
			started <- err
			return
		}
		p.dog = supervise.NewWatchdog(p.cmd.Process.Pid, p.spec.Limits, p.Kill)
		close(started)
		p.collect()
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start the first stage: %w", err)
	}
	return nil
}

// limit lowers the resource limits of the held first stage, which the program
// inherits.
func limit(pid int, lim sandbox.Limits) error {
	for _, l := range []struct {
		what int
		max  int64
		set  bool
	}{
		{unix.RLIMIT_CORE, 0, true},
		{unix.RLIMIT_NOFILE, int64(lim.OpenFiles), lim.OpenFiles > 0},
		{unix.RLIMIT_FSIZE, lim.FileBytes, lim.FileBytes > 0},
	} {
		if !l.set {
			continue
		}
		var now unix.Rlimit
		if err := unix.Prlimit(pid, l.what, nil, &now); err != nil {
			return fmt.Errorf("read limit %d: %w", l.what, err)
		}
		most := min(uint64(l.max), now.Max) // raising needs a capability
		if err := unix.Prlimit(pid, l.what, &unix.Rlimit{Cur: most, Max: most}, nil); err != nil {
			return fmt.Errorf("set limit %d to %d: %w", l.what, most, err)
		}
	}
	l, ok := supervise.CPULimit(lim)
	if !ok {
		return nil
	}
	var now unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_CPU, nil, &now); err != nil {
		return fmt.Errorf("read the limit of processor time: %w", err)
	}
	l.Max = min(l.Max, now.Max)
	l.Cur = min(l.Cur, l.Max)
	if err := unix.Prlimit(pid, unix.RLIMIT_CPU, &l, nil); err != nil {
		return fmt.Errorf("limit processor time: %w", err)
	}
	return nil
}
