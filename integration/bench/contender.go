package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/container"
	"github.com/aspis-dev/aspis/sandbox/seccomp"
)

// contender starts the program once, from the wish to the first byte that comes
// out of it, and on until nothing of it is left.
type contender struct {
	name, what string
	missing    string // why it cannot take part
	start      func(context.Context) (first, whole time.Duration, err error)
}

// patience is how long one start may take.
const patience = 20 * time.Second

// ours is the embedded runtime. Its time has the evidence in it: all walls are
// read back from the kernel before the program runs.
func ours(rt *container.Runtime, artifact, worktree string) contender {
	c := contender{name: "aspis", what: "all walls, filter, limits, evidence read back"}
	spec := sandbox.Spec{Name: "bench", Path: "/provider/bench-byte", Args: []string{"bench-byte"}, Env: []string{"PATH=/"}, Dir: "/provider", Artifact: artifact, Protect: []string{worktree}, Limits: limits}
	spec.Limits.WallClock, spec.Limits.FileBytes = time.Minute, 64<<20
	c.start = func(ctx context.Context) (first, whole time.Duration, err error) {
		began := time.Now()
		p, err := rt.Start(ctx, spec)
		if err != nil {
			return 0, 0, err
		}
		defer func() {
			err = errors.Join(err, p.Close(context.WithoutCancel(ctx)))
			whole = time.Since(began)
		}()
		if err := p.Release(ctx); err != nil {
			return 0, 0, err
		}
		if _, err := io.ReadFull(p.Stdout(), make([]byte, 1)); err != nil {
			return 0, 0, fmt.Errorf("wait for the first byte: %w", err)
		}
		first = time.Since(began)
		if mode, missing := p.Evidence().Mode(); mode != sandbox.ModeIsolated {
			// Still a start worth measuring, but not the one that was promised.
			return first, 0, fmt.Errorf("the sandbox is %s and not isolated: %s is missing: %s", mode, missing[0].Name, missing[0].Seen)
		}
		return first, 0, nil
	}
	return c
}

// command is another program that starts ours. open gives files that it inherits
// from descriptor 3 on.
func command(name, what string, argv func(id string) []string, open func() ([]*os.File, error)) contender {
	c := contender{name: name, what: what}
	tool := argv("x")[0]
	if _, err := exec.LookPath(tool); err != nil {
		c.missing = filepath.Base(tool) + " is not installed"
	}
	c.start = func(ctx context.Context) (first, whole time.Duration, err error) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		args := argv("bench-" + rand.Text())
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		var said bytes.Buffer
		cmd.Stderr = &said
		if open != nil {
			if cmd.ExtraFiles, err = open(); err != nil {
				return 0, 0, err
			}
			for _, f := range cmd.ExtraFiles {
				defer f.Close()
			}
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return 0, 0, fmt.Errorf("make a pipe: %w", err)
		}
		began := time.Now()
		if err := cmd.Start(); err != nil {
			return 0, 0, err
		}
		_, err = io.ReadFull(out, make([]byte, 1))
		first = time.Since(began)
		if ended := cmd.Wait(); ended != nil {
			err = ended // which says more than that nothing came
		}
		whole = time.Since(began)
		if err != nil {
			return 0, 0, fmt.Errorf("%w: %q", err, lastLine(said.String()))
		}
		return first, whole, nil
	}
	return c
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// contenders are this project's runtime and the others, with the same program
// and, where they keep any, the same limits.
func contenders(opt options, rt *container.Runtime, artifact string) ([]contender, error) {
	program := filepath.Join(artifact, "bench-byte")
	bwrap := func(more ...string) func(string) []string {
		return func(string) []string {
			args := []string{"bwrap", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--ro-bind", artifact, "/provider", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"}
			return append(append(args, more...), "/provider/bench-byte")
		}
	}
	filterFile := filepath.Join(opt.dir, "filter.bpf")
	bpf, _, err := seccomp.Cached(opt.dir, seccomp.Default())
	if err != nil {
		return nil, fmt.Errorf("compile the filter for bwrap: %w", err)
	}
	if err := os.WriteFile(filterFile, bpf, 0o600); err != nil {
		return nil, fmt.Errorf("write the filter for bwrap: %w", err)
	}
	openFilter := func() ([]*os.File, error) {
		f, err := os.Open(filterFile)
		return []*os.File{f}, err
	}
	dirs := map[string]string{}
	for name, has := range map[string]struct{ filter, limited bool }{"bare": {}, "filter": {filter: true}, "full": {true, true}} {
		dirs[name] = filepath.Join(opt.dir, "bundle-"+name)
		if err := bundle(dirs[name], artifact, has.filter, has.limited); err != nil {
			return nil, err
		}
	}
	state := func(tool string) string { return filepath.Join(opt.dir, "state-"+tool) }
	oci := func(tool, bundle string, more ...string) func(string) []string {
		return func(id string) []string {
			args := append([]string{tool, "--root", state(tool)}, more...)
			return append(args, "run", "--bundle", dirs[bundle], id)
		}
	}
	worktree := filepath.Join(opt.dir, "worktree")
	if err := os.MkdirAll(worktree, 0o755); err != nil {
		return nil, fmt.Errorf("make a worktree to keep out of reach: %w", err)
	}
	return []contender{
		command("exec", "fork and exec, no walls at all", func(string) []string { return []string{program} }, nil),
		ours(rt, artifact, worktree),
		command("bwrap", "namespaces, no filter, no limits", bwrap(), nil),
		command("bwrap+filter", "the filter of aspis, compiled before", bwrap("--seccomp", "3"), openFilter),
		command("crun", "engines' filter, no control group", oci("crun", "filter", "--cgroup-manager=disabled"), nil),
		command("crun+limits", "engines' filter and limits", oci("crun", "full", "--cgroup-manager=cgroupfs"), nil),
		command("runc", "no filter, no limits", oci("runc", "bare"), nil),
		command(reference, "engines' filter and limits", oci("runc", "full"), nil),
	}, nil
}
