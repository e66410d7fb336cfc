package container

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/internal/stage"
)

// makeUnified makes a version 2 group. A group with processes of its own may
// not hand controllers to children, so the place is searched upwards from our
// own group: the first ancestor where a child may be made that has at least
// the memory or the pids controller.
func (g *group) makeUnified(name string, lim sandbox.Limits, without map[sandbox.WallName]bool) error {
	for parent := range ancestors(g.h.home[""]) {
		dir, has, err := tryUnified(parent, name)
		if err != nil {
			return err
		}
		if dir != "" {
			g.dirs[""] = dir
			return g.limitUnified(dir, has, lim, without)
		}
	}
	return nil
}

// ancestors gives a version 2 group and those above it, to the top of the mount.
func ancestors(home string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for dir := home; yield(dir); dir = filepath.Dir(dir) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(dir), "cgroup.controllers")); err != nil {
				return
			}
		}
	}
}

// tryJoin finds out whether a child can be put into a group that we make. It
// can be made but not joined where the nearest group above both is not ours.
func (h hierarchy) tryJoin(name string) (err error) {
	g := &group{h: h, dirs: map[string]string{}, holds: map[string]bool{}}
	if err := g.makeUnified(name, sandbox.Limits{}, nil); err != nil {
		return err
	}
	if g.dirs[""] == "" {
		return errors.New("no control group can be made")
	}
	// The first stage waits for its instructions, which never come.
	hold, word, err := os.Pipe()
	if err != nil {
		return err
	}
	defer word.Close()
	defer hold.Close()
	child := exec.Command("/proc/self/exe", stage.Marker)
	child.Stdin = hold
	if err := child.Start(); err != nil {
		return err
	}
	err = writeFile(g.dirs[""], "cgroup.procs", int64(child.Process.Pid))
	_ = child.Process.Kill()
	_ = child.Wait() // killed, as asked
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return errors.Join(err, g.remove(ctx))
}

// tryUnified makes a child of parent if it would have controllers.
func tryUnified(parent, name string) (dir string, has map[string]bool, err error) {
	for _, c := range controllers {
		// Refused (EBUSY) where parent has processes, and harmless where the
		// controller is on already.
		_ = writeControl(parent, "cgroup.subtree_control", "+"+c)
	}
	dir = filepath.Join(parent, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		if unusable(err) || errors.Is(err, os.ErrExist) {
			return "", nil, nil
		}
		return "", nil, fmt.Errorf("make control group: %w", err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("read controllers: %w", err), os.Remove(dir))
	}
	has = map[string]bool{}
	for c := range strings.FieldsSeq(string(b)) {
		has[c] = true
	}
	if !has["memory"] && !has["pids"] {
		return "", nil, os.Remove(dir)
	}
	return dir, has, nil
}

func (g *group) limitUnified(dir string, has map[string]bool, lim sandbox.Limits, without map[sandbox.WallName]bool) error {
	if has["memory"] && lim.MemoryBytes > 0 && !without[sandbox.WallMemoryLimit] {
		if err := writeFile(dir, "memory.max", lim.MemoryBytes); err != nil {
			return err
		}
		if err := writeControl(dir, "memory.swap.max", "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		// One killed process would leave the rest in an unknown state.
		if err := writeControl(dir, "memory.oom.group", "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		g.holds["memory"] = true
	}
	if has["cpu"] && lim.CPUPercent > 0 && !without[sandbox.WallCPULimit] {
		if err := writeControl(dir, "cpu.max", fmt.Sprintf("%d %d", cpuPeriod*int64(lim.CPUPercent)/100, cpuPeriod)); err != nil {
			return err
		}
		g.holds["cpu"] = true
	}
	return nil
}
