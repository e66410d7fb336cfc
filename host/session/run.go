package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay"
	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/egress"
)

// Command is what runs in a session.
type Command struct {
	Args    []string
	Dir     string   // where it begins, an absolute path in the project
	Env     []string // the whole environment but HOME
	Shown   []string // host paths that are readable inside, at the same place
	Protect []string // host paths that must not be reachable
	Limits  sandbox.Limits
	// Egress is the only way to a network; nil gives none. Bundle is a file on the
	// host with its certificates, "" for none.
	Egress  *egress.Proxy
	Bundle  string
	Without []sandbox.WallName

	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Signals are passed on to the command.
	Signals <-chan os.Signal
	// Begun is told how the command is confined, before its first instruction.
	Begun func(mode string, missing []Wall)
}

// Runner is where commands run.
type Runner struct {
	Book    *Book
	Runtime sandbox.Runtime
	Space   overlay.Mounter
	// Own are ids that own nothing, under which the project's files can be shown;
	// nil where there are none, and the command runs as the project's owner.
	Own *sandbox.IDs
}

// DefaultLimits leave room for builds, and end what runs away.
func DefaultLimits() sandbox.Limits {
	l := sandbox.Limits{Pids: 8192, OpenFiles: 4096, CPUPercent: 100 * runtime.NumCPU(), TmpBytes: 4 << 30, WallClock: 24 * time.Hour, MemoryBytes: 4 << 30}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		total := int64(info.Totalram) * int64(info.Unit) //nolint:unconvert // its type differs by architecture
		l.MemoryBytes = total / 4 * 3
		l.TmpBytes = total / 4
	}
	return l
}

// Run runs a command in a session, to its end. The error is for a command that
// could not be started, or whose end could not be seen; what was done in the work
// area is kept whatever happens.
func (r *Runner) Run(ctx context.Context, s *Session, c Command) (_ *Run, err error) {
	area, err := r.Book.Store.OpenWorkArea(s.ID)
	if err != nil {
		return nil, err
	}
	owner, err := ownerOf(s.Dir)
	if err != nil {
		return nil, err
	}
	mounted, as, err := r.mount(ctx, area, owner)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, mounted.Close()) }()
	spec, err := theSpec(s, c, mounted)
	if err != nil {
		return nil, err
	}
	spec.RunAs = as
	p, err := r.Runtime.Start(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("start the session: %w", err)
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
		defer cancel()
		err = errors.Join(err, p.Close(clean))
	}()
	run := Run{Command: c.Args, Started: time.Now().UTC(), Code: -1, Shown: c.Shown, Network: "none"}
	if c.Egress != nil {
		run.Network = strings.Join(c.Egress.Destinations(), " ")
	}
	run.Mode, run.Walls = wallsOf(p.Evidence())
	s.Runs = append(s.Runs, run)
	at := &s.Runs[len(s.Runs)-1]
	if err := r.Book.Save(s); err != nil {
		return nil, err
	}
	if c.Begun != nil {
		c.Begun(at.Mode, at.Walls)
	}
	if err := p.Release(ctx); err != nil {
		return nil, fmt.Errorf("start the command: %w", err)
	}
	exit, err := converse(ctx, p, c)
	if err != nil {
		return nil, err
	}
	if c.Egress != nil {
		record := c.Egress.Log()
		at.Attempts = &record
	}
	at.Ended, at.Code, at.OOM, at.TimedOut = time.Now().UTC(), exit.Code, exit.OOM, exit.TimedOut
	if exit.Signal > 0 {
		at.Code = 128 + int(exit.Signal)
	}
	at.MaxRSS, at.CPUMs = exit.Usage.MaxRSSBytes, (exit.Usage.User + exit.Usage.System).Milliseconds()
	return at, r.Book.Save(s)
}

// ownerOf is whom the project belongs to.
func ownerOf(dir string) (sandbox.IDs, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return sandbox.IDs{}, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	return sandbox.IDs{User: int(st.Uid), Group: int(st.Gid)}, nil
}

// mount mounts the work area for the ids that the command runs as: ones that own
// nothing on the machine where files can be shown under them, else the owner's.
func (r *Runner) mount(ctx context.Context, area *overlay.WorkArea, owner sandbox.IDs) (*overlay.WorkMount, *sandbox.IDs, error) {
	if r.Own != nil {
		m, err := area.MountAs(ctx, r.Space, overlay.Owner(owner), overlay.Owner(*r.Own))
		if err == nil || !errors.Is(err, overlay.ErrNoMapping) {
			return m, nil, err
		}
	}
	m, err := area.Mount(ctx, r.Space)
	return m, &owner, err
}

// theSpec describes the container: the project at its own place, writable over
// copy-on-write, the machine's programs, and nothing else of the machine's.
func theSpec(s *Session, c Command, m *overlay.WorkMount) (sandbox.Spec, error) {
	if rel, err := filepath.Rel(s.Dir, c.Dir); err != nil || !filepath.IsLocal(rel) {
		return sandbox.Spec{}, fmt.Errorf("%q does not lie in the project %q", c.Dir, s.Dir)
	}
	path, err := program(c)
	if err != nil {
		return sandbox.Spec{}, err
	}
	spec := sandbox.Spec{Name: "session " + s.Name, Path: path, Args: c.Args, Env: c.Env, Dir: c.Dir, System: true, Protect: c.Protect,
		Limits: c.Limits, Without: c.Without, TmpExec: true, Init: true}
	for _, p := range m.Parts {
		spec.Work = append(spec.Work, sandbox.Mount{Source: p.Path, Target: p.Dir})
	}
	if c.Egress != nil {
		spec.Relay = c.Egress
		bundle := ""
		if c.Bundle != "" {
			bundle = bundleTarget
			spec.Mounts = append(spec.Mounts, sandbox.Mount{Source: c.Bundle, Target: bundle})
		}
		spec.Env = append(slices.Clone(spec.Env), egress.Environment(sandbox.RelayPort, bundle)...)
	}
	for _, p := range c.Shown {
		spec.Mounts = append(spec.Mounts, sandbox.Mount{Source: p, Target: p})
	}
	return spec, nil
}

// bundleTarget is where a command finds the certificates of its proxy.
const bundleTarget = "/etc/aspis/certificates.pem"

// program finds the command as a shell would: by its path in the project, or in
// the directories of PATH.
func program(c Command) (string, error) {
	if len(c.Args) == 0 || c.Args[0] == "" {
		return "", errors.New("there is no command")
	}
	name := c.Args[0]
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(c.Dir, name)
		}
		return name, nil
	}
	path := ""
	for _, e := range c.Env {
		if p, ok := strings.CutPrefix(e, "PATH="); ok {
			path = p
		}
	}
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return filepath.Join(dir, name), nil
		}
	}
	return "", fmt.Errorf("%q is in none of the directories of PATH that a session sees (%s); give its path, or show its directory with --ro", name, path)
}

// converse passes streams and signals to and fro until the command has ended.
func converse(ctx context.Context, p sandbox.Process, c Command) (sandbox.ExitState, error) {
	var out sync.WaitGroup
	for _, s := range []struct {
		w io.Writer
		r io.Reader
	}{{c.Stdout, p.Stdout()}, {c.Stderr, p.Stderr()}} {
		out.Go(func() {
			// A reader of ours that has gone ends the command as it would outside.
			if _, err := io.Copy(s.w, s.r); err != nil {
				_ = p.Signal(syscall.SIGPIPE)
				_, _ = io.Copy(io.Discard, s.r)
			}
		})
	}
	if c.Stdin != nil {
		go func() { // ends with the process's own
			_, _ = io.Copy(p.Stdin(), c.Stdin)
			_ = p.Stdin().Close()
		}()
	} else {
		_ = p.Stdin().Close()
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case sig := <-c.Signals:
				if sig, ok := sig.(syscall.Signal); ok {
					_ = p.Signal(sig)
				}
			case <-ctx.Done():
				_ = p.Kill()
				return
			case <-done:
				return
			}
		}
	}()
	exit, err := p.Wait(context.WithoutCancel(ctx))
	if err != nil {
		return exit, fmt.Errorf("wait for the command: %w", err)
	}
	out.Wait()
	return exit, nil
}
