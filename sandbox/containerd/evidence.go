package containerd

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/kernel"
)

// inspect reads the evidence.
func (p *process) inspect() error {
	visible, err := p.visible()
	if err != nil {
		return fmt.Errorf("read evidence: %w", err)
	}
	ex := kernel.Expect{
		Spec:     p.spec,
		Watchdog: true,
		Watched:  sandbox.Limits{WallClock: p.spec.Limits.WallClock},
		Filter:   p.r.filter,
	}
	if visible {
		if ex.Root, err = p.rootfs(); err != nil {
			return fmt.Errorf("read evidence: %w", err)
		}
		if ex.Pipes, err = p.shimPipes(); err != nil {
			return fmt.Errorf("read evidence: %w", err)
		}
	}
	ev, err := kernel.Inspect(p.pid, ex)
	if err != nil {
		return fmt.Errorf("read evidence: %w", err)
	}
	if !visible {
		ev.Walls = hide(ev.Walls, p.r.opt.Runtime)
	}
	ev.Runtime = p.r.Name()
	p.evidence = ev
	return nil
}

// visible tells whether the process that this kernel shows is the first stage
// itself. In gVisor and in a virtual machine it is the runtime's own.
func (p *process) visible() (bool, error) {
	var want, got unix.Stat_t
	if err := unix.Stat(p.r.opt.Stage, &want); err != nil {
		return false, &os.PathError{Op: "stat", Path: p.r.opt.Stage, Err: err}
	}
	exe := fmt.Sprintf("/proc/%d/exe", p.pid)
	if err := unix.Stat(exe, &got); err != nil {
		return false, &os.PathError{Op: "stat", Path: exe, Err: err}
	}
	return want.Dev == got.Dev && want.Ino == got.Ino, nil
}

// outside are the walls that hold whatever is inside, because they are around
// the runtime's own process.
var outside = map[sandbox.WallName]bool{
	sandbox.WallMemoryLimit: true, sandbox.WallPidsLimit: true, sandbox.WallCPULimit: true, sandbox.WallClockLimit: true,
}

// hide takes back what was seen of a process that is not the program's. What a
// stronger runtime does inside may be more than any of these walls; it is not
// claimed, because it cannot be looked at.
func hide(walls []sandbox.Wall, runtime string) []sandbox.Wall {
	for i, w := range walls {
		if outside[w.Name] {
			continue
		}
		row, _ := sandbox.Lookup(w.Name)
		walls[i] = row.Wall(false, fmt.Sprintf("the runtime %q runs the program out of this kernel's sight, so that it cannot be checked", runtime))
		walls[i].Fix = "Use " + DefaultRuntime + " where a mode is required that is computed from walls; this runtime may be the stronger one all the same."
	}
	return walls
}

// rootfs finds where the shim has mounted the snapshot on the machine.
func (p *process) rootfs() (string, error) {
	end := filepath.Join("/", p.r.opt.Namespace, p.id, "rootfs")
	list, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasSuffix(m.Mountpoint, end), false
	})
	if err != nil {
		return "", fmt.Errorf("read own mounts: %w", err)
	}
	if len(list) != 1 {
		return "", fmt.Errorf("%d mounts are the container's root", len(list))
	}
	return list[0].Mountpoint, nil
}

// shimPipes identifies the program's three pipes by the other ends, which the
// shim holds. One that does not lead there is left unnamed, so that the wall
// does not stand.
func (p *process) shimPipes() ([]kernel.PipeID, error) {
	shim, err := parent(p.pid)
	if err != nil {
		return nil, err
	}
	held, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", shim))
	if err != nil {
		return nil, err
	}
	known := map[kernel.PipeID]bool{}
	for _, f := range held {
		var st unix.Stat_t
		if unix.Stat(f, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO {
			known[kernel.PipeID{Dev: st.Dev, Ino: st.Ino}] = true
		}
	}
	ids := make([]kernel.PipeID, 3)
	for i := range ids {
		var st unix.Stat_t
		if err := unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", p.pid, i), &st); err != nil {
			continue
		}
		if id := (kernel.PipeID{Dev: st.Dev, Ino: st.Ino}); known[id] {
			ids[i] = id
		}
	}
	return ids, nil
}

// shimWait bounds how long the process that made the sandbox may take to hand
// it over to the shim.
const shimWait = 5 * time.Second

// parent is the shim, once what has made the sandbox has ended.
func parent(pid int) (int, error) {
	deadline := time.Now().Add(shimWait)
	for {
		f, err := stat(pid)
		if err != nil {
			return 0, err
		}
		shim, err := strconv.Atoi(f[1])
		if err != nil {
			return 0, fmt.Errorf("parent of %d: %w", pid, err)
		}
		name, err := os.Readlink("/proc/" + strconv.Itoa(shim) + "/exe")
		if err == nil && strings.HasPrefix(filepath.Base(name), "containerd-shim") {
			return shim, nil
		}
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("its parent is %d (%q) and no shim", shim, name)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
