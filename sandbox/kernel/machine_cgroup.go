package kernel

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/aspis-dev/aspis/sandbox"
)

// controllerFile is a file that a group has when a controller counts in it.
var controllerFile = map[string]struct{ v1, v2 string }{
	"memory": {"memory.limit_in_bytes", "memory.max"},
	"pids":   {"pids.max", "pids.max"},
	"cpu":    {"cpu.cfs_quota_us", "cpu.max"},
}

var controllerWall = map[string]sandbox.WallName{
	"memory": sandbox.WallMemoryLimit, "pids": sandbox.WallPidsLimit, "cpu": sandbox.WallCPULimit,
}

// cgroups makes a group below our own for each controller and takes it away
// again.
func (m machine) cgroups() Finding {
	f := Finding{Name: "control-groups", Tried: "made a group below the caller's own, for memory, pids and cpu"}
	text, err := readText("/proc/self/cgroup", maxText)
	if err != nil {
		f.Seen = fmt.Sprintf("not in this kernel: %v", err)
		f.Walls = []sandbox.WallName{sandbox.WallMemoryLimit, sandbox.WallPidsLimit, sandbox.WallCPULimit}
		f.Fix = "Use a kernel with control groups."
		return f
	}
	list, err := ParseMembership(text)
	if err != nil {
		f.Seen = err.Error()
		return f
	}
	mountText, err := readText("/proc/self/mountinfo", maxMounts)
	if err != nil {
		f.Seen = err.Error()
		return f
	}
	mounts, err := ParseMounts(mountText)
	if err != nil {
		f.Seen = err.Error()
		return f
	}
	var good, bad []string
	for _, controller := range []string{"memory", "pids", "cpu"} {
		member, unified, ok := group(list, controller)
		if !ok {
			err = errors.New("the kernel lists no group")
		} else if dir, shown := groupDir(mounts, member); !shown {
			err = errors.New("no mount shows the caller's group")
		} else {
			err = tryGroup(dir, controller, unified)
		}
		if err != nil {
			bad = append(bad, fmt.Sprintf("%s: %v", controller, err))
			f.Walls = append(f.Walls, controllerWall[controller])
		} else {
			good = append(good, controller)
		}
	}
	f.Seen = layout(list)
	if len(good) > 0 {
		f.Seen += "; can be limited: " + strings.Join(good, ", ")
	}
	if len(bad) > 0 {
		f.Seen += "; cannot: " + strings.Join(bad, ", ")
		f.Fix = "Run as root, or by `systemd-run --user --scope -p Delegate=yes aspis ...`"
		if m.root {
			f.Fix = "Make the caller's control group writable: in a container, mount /sys/fs/cgroup read-write"
		}
		f.Fix += "; without it resource limits and the host's watchdog do, and a total of processor time takes the place of a share."
	}
	f.OK = len(bad) == 0
	return f
}

func layout(list []Membership) string {
	var v1, v2 bool
	for _, m := range list {
		switch {
		case m.Controllers == nil:
			v2 = true
		case !strings.HasPrefix(m.Controllers[0], "name="):
			v1 = true
		}
	}
	switch {
	case v1 && v2:
		return "hybrid: controllers on version 1, version 2 beside it"
	case v1:
		return "version 1"
	case v2:
		return "version 2"
	}
	return "no hierarchy"
}

// tryGroup makes a group and looks whether the controller counts in it. On
// version 2 a group with processes of its own hands no controllers on, so that
// the groups above are tried too, as the runtime does.
func tryGroup(dir, controller string, unified bool) error {
	name := "aspis-probe-" + rand.Text()
	files := controllerFile[controller]
	if !unified {
		return makeGroup(filepath.Join(dir, name), files.v1)
	}
	var errs []error
	for {
		err := makeGroup(filepath.Join(dir, name), files.v2)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
		dir = filepath.Dir(dir)
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
			return errs[0]
		}
	}
}

func makeGroup(dir, file string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		// Of the group's name, which was made up, nobody learns anything.
		return fmt.Errorf("no group can be made in %q: %w", filepath.Dir(dir), errors.Unwrap(err))
	}
	_, err := os.Stat(filepath.Join(dir, file))
	return errors.Join(err, os.Remove(dir))
}
