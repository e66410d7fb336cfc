package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
)

// hierarchy is where this process stands in the machine's control groups, and
// so where groups for sandboxes may be made.
type hierarchy struct {
	unified bool // version 2 alone; libcontainer must see it the same way
	// home holds the directory of our own group: by controller on version 1,
	// under "" on version 2.
	home map[string]string
}

// controllers are the version 1 controllers in use; the same limits on
// version 2 are files of one group.
var controllers = []string{"memory", "pids", "cpu"}

// readHierarchy finds our own groups from the kernel's tables. A machine
// without any usable one gives an empty hierarchy, not an error.
func readHierarchy() (hierarchy, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return hierarchy{}, fmt.Errorf("read own control groups: %w", err)
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.FSType != "cgroup" && m.FSType != "cgroup2", false
	})
	if err != nil {
		return hierarchy{}, fmt.Errorf("read control group mounts: %w", err)
	}
	h := hierarchy{home: map[string]string{}}
	for line := range bytes.Lines(b) {
		// hierarchy-id:controllers:path
		f := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		for _, name := range strings.Split(f[1], ",") {
			if dir := groupDir(mounts, name, f[2]); dir != "" {
				h.home[name] = dir
			}
		}
	}
	if h.unified = cgroups.IsCgroup2UnifiedMode(); !h.unified {
		// Of hybrid hierarchies version 2 holds none of the controllers.
		maps.DeleteFunc(h.home, func(c, _ string) bool { return !slices.Contains(controllers, c) })
		return h, nil
	}
	maps.DeleteFunc(h.home, func(c, _ string) bool { return c != "" })
	return h, nil
}

// try leaves only those controllers that can really be used, which cannot be
// told without trying: a machine may let a group be made and not be entered.
// All groups that it makes have the given name. It must run on the thread that
// starts sandboxes.
func (h hierarchy) try(name string) error {
	if h.unified {
		if h.home[""] == "" || h.tryJoin(name) != nil {
			delete(h.home, "")
		}
		return nil
	}
	for c, home := range h.home {
		g := &group{h: h, dirs: map[string]string{c: filepath.Join(home, name)}}
		if err := os.Mkdir(g.dirs[c], 0o755); err != nil {
			if !unusable(err) {
				return fmt.Errorf("try control group: %w", err)
			}
			delete(h.home, c)
			continue
		}
		leave, err := g.enter()
		if err == nil {
			err = leave()
		}
		if rerr := os.Remove(g.dirs[c]); rerr != nil {
			return fmt.Errorf("try control group: %w", errors.Join(err, rerr))
		}
		if err != nil {
			delete(h.home, c)
		}
	}
	return nil
}

// groupDir turns a path in a hierarchy into a directory, as far as a mount
// shows it.
func groupDir(mounts []*mountinfo.Info, controller, path string) string {
	for _, m := range mounts {
		if controller == "" {
			if m.FSType != "cgroup2" {
				continue
			}
		} else if m.FSType != "cgroup" || !hasOption(m.VFSOptions, controller) {
			continue
		}
		rel, err := filepath.Rel(m.Root, path)
		if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
			continue
		}
		return filepath.Join(m.Mountpoint, rel)
	}
	return ""
}

func hasOption(options, want string) bool {
	for o := range strings.SplitSeq(options, ",") {
		if o == want {
			return true
		}
	}
	return false
}

// group is the control group of one sandbox.
type group struct {
	h     hierarchy
	dirs  map[string]string // what was made; keys as in hierarchy.home
	holds map[string]bool   // limits in force: "memory", "pids", "cpu"
}

// newGroup makes directories and sets the limits that a child must be born
// under. What cannot be made is left out: the watchdog and the rlimits are
// then what enforces it, and the evidence says so. The number of processes is
// set by limitPids, after the start has used some of its own.
func newGroup(h hierarchy, name string, lim sandbox.Limits, without map[sandbox.WallName]bool) (*group, error) {
	g := &group{h: h, dirs: map[string]string{}, holds: map[string]bool{}}
	if h.unified {
		if h.home[""] == "" {
			return g, nil
		}
		return g, g.makeUnified(name, lim, without)
	}
	for c, home := range h.home {
		dir := filepath.Join(home, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return g, fmt.Errorf("make control group: %w", err)
		}
		g.dirs[c] = dir
	}
	if dir := g.dirs["memory"]; dir != "" && lim.MemoryBytes > 0 && !without[sandbox.WallMemoryLimit] {
		if err := writeFile(dir, "memory.limit_in_bytes", lim.MemoryBytes); err != nil {
			return g, err
		}
		// Memory and swap together, where the kernel counts swap; otherwise a
		// hog would move to the disk instead of ending.
		if err := writeFile(dir, "memory.memsw.limit_in_bytes", lim.MemoryBytes); err != nil && !errors.Is(err, os.ErrNotExist) {
			return g, err
		}
		g.holds["memory"] = true
	}
	if dir := g.dirs["cpu"]; dir != "" && lim.CPUPercent > 0 && !without[sandbox.WallCPULimit] {
		if err := writeFile(dir, "cpu.cfs_quota_us", cpuPeriod*int64(lim.CPUPercent)/100); err != nil {
			return g, err
		}
		g.holds["cpu"] = true
	}
	return g, nil
}

// cpuPeriod is the kernel's default accounting period in microseconds.
const cpuPeriod = 100_000

// pidsDir is the directory where processes can be limited, or empty.
func (g *group) pidsDir() string {
	dir := g.dirs["pids"]
	if g.h.unified {
		dir = g.dirs[""]
	}
	if dir == "" {
		return ""
	}
	if _, err := os.Stat(filepath.Join(dir, "pids.max")); err != nil {
		return ""
	}
	return dir
}

// limitPids bounds processes and threads. The kernel lets a group that is
// already over it live and refuses it any more.
func (g *group) limitPids(n int64) error {
	dir := g.pidsDir()
	if dir == "" {
		return nil
	}
	if err := writeFile(dir, "pids.max", n); err != nil {
		return err
	}
	g.holds["pids"] = true
	return nil
}

// enter moves the calling thread, so that a child it starts is born in the
// group, and returns what moves it back. On version 1 a thread may stand
// apart from its process, and moving the caller itself skips the wait for all
// processors that moving somebody else costs (8 to 16 ms). On version 2 it
// does nothing: libcontainer moves the child.
func (g *group) enter() (leave func() error, err error) {
	if g.h.unified {
		return func() error { return nil }, nil
	}
	leave = func() error {
		var errs []error
		for c := range g.dirs {
			errs = append(errs, writeFile(g.h.home[c], "tasks", 0))
		}
		return errors.Join(errs...)
	}
	for _, dir := range g.dirs {
		if err := writeFile(dir, "tasks", 0); err != nil {
			return nil, errors.Join(err, leave())
		}
	}
	return leave, nil
}

// oomKills is how many processes of the group the kernel killed for want of memory.
func (g *group) oomKills() int64 {
	file := filepath.Join(g.dirs["memory"], "memory.oom_control")
	if g.h.unified {
		file = filepath.Join(g.dirs[""], "memory.events")
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(b) {
		if n, ok := strings.CutPrefix(string(line), "oom_kill "); ok {
			v, _ := strconv.ParseInt(strings.TrimSpace(n), 10, 64)
			return v
		}
	}
	return 0
}

// plan names every directory that newGroup may make, so that it can be
// written down before anything is made.
func (h hierarchy) plan(name string) []string {
	var dirs []string
	if h.unified {
		if h.home[""] == "" {
			return nil
		}
		for parent := range ancestors(h.home[""]) {
			dirs = append(dirs, filepath.Join(parent, name))
		}
		return dirs
	}
	for _, home := range h.home {
		dirs = append(dirs, filepath.Join(home, name))
	}
	return dirs
}

// remove takes the group away, killing whatever is still in it. It gives up
// when ctx ends, and may be called again.
func (g *group) remove(ctx context.Context) error {
	var errs []error
	for _, dir := range g.dirs {
		errs = append(errs, removeGroup(ctx, dir))
	}
	return errors.Join(errs...)
}

// kill sends SIGKILL to everything in the group.
func (g *group) kill() error {
	var errs []error
	for _, dir := range g.dirs {
		errs = append(errs, killGroup(dir))
	}
	return errors.Join(errs...)
}

func removeGroup(ctx context.Context, dir string) error {
	for wait := 200 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		err := unix.Rmdir(dir)
		switch err {
		case nil, unix.ENOENT:
			return nil
		case unix.EBUSY:
			// A killed process leaves its group a little after its parent
			// hears of its end.
			if kerr := killGroup(dir); kerr != nil {
				return kerr
			}
		default:
			return &os.PathError{Op: "rmdir", Path: dir, Err: err}
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("control group %s still has processes: %w", dir, ctx.Err())
		case <-t.C:
		}
	}
}

// killGroup sends SIGKILL to every process of the group but this one.
func killGroup(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list control group: %w", err)
	}
	for f := range strings.FieldsSeq(string(b)) {
		pid, err := strconv.Atoi(f)
		if err != nil || pid <= 1 || pid == os.Getpid() {
			continue
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
			return fmt.Errorf("kill %d of %s: %w", pid, dir, err)
		}
	}
	return nil
}

// unusable tells the errors that mean "not ours to use" from real failures.
func unusable(err error) bool {
	return errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) || errors.Is(err, os.ErrNotExist)
}

// writeFile writes one number to a control file, with one system call: the
// kernel takes each write as a command.
func writeFile(dir, name string, v int64) error {
	return writeControl(dir, name, strconv.FormatInt(v, 10))
}

func writeControl(dir, name, v string) error {
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(v)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("set %s to %s: %w", path, v, err)
	}
	return nil
}
