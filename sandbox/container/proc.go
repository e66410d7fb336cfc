package container

import (
	"fmt"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
)

// The kernel gives a user namespace a new /proc only where one can be seen that
// nothing is mounted over, since covers are somebody's decision to hide what is
// below (mount_too_revealing in the kernel's fs/namespace.c). Container engines
// cover parts of /proc.

// procCovered tells whether anything is mounted below /proc.
func procCovered() (bool, error) {
	list, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, "/proc/"), false
	})
	if err != nil {
		return false, fmt.Errorf("read own mounts: %w", err)
	}
	return len(list) > 0, nil
}

// uncover mounts a /proc without covers in the MountSpace, which is enough for
// sandboxes to have one. Nothing of it is shown in them.
func uncover(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("proc", dir, "proc", quiet, ""); err != nil {
		return os.NewSyscallError("mount proc", err)
	}
	return nil
}

// presentProc shows the /proc of this process, with what lies over it. A
// sandbox sees the machine's processes in it and may look into none of them;
// the evidence says so.
func presentProc(flags int) *configs.Mount {
	return &configs.Mount{Device: "bind", Source: "/proc", Destination: "/proc", Flags: unix.MS_BIND | unix.MS_REC | flags}
}

// quiet are the flags with which a /proc of its own is mounted.
const quiet = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// fixCovered is what can be done where no new /proc can be had.
const fixCovered = "The outer container covers parts of /proc, and the kernel then allows no new one: in Docker add --security-opt systempaths=unconfined, in Kubernetes set procMount: Unmasked."

// explainProc names the remedy at the walls that the present /proc breaches.
func explainProc(walls []sandbox.Wall) {
	for i, w := range walls {
		if !w.Standing && (w.Name == sandbox.WallProcMasked || w.Name == sandbox.WallWorktreeUnreachable) {
			walls[i].Fix = fixCovered
		}
	}
}
