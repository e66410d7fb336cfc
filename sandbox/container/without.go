package container

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
)

// breach opens the holes in the file system that Spec.Without asks for. The
// other walls are left out where they are built. Only what is built changes:
// the evidence is taken from the kernel as for any other sandbox and must find
// the hole.
func (r *root) breach() error {
	if r.without[sandbox.WallWorktreeUnreachable] {
		for i, p := range r.spec.Protect {
			if err := r.expose(p, fmt.Sprintf("/breach/protected-%d", i)); err != nil {
				return err
			}
		}
	}
	if r.without[sandbox.WallHostPathsUnwritable] {
		if err := r.expose(os.TempDir(), "/breach/tmp"); err != nil {
			return err
		}
	}
	if r.without[sandbox.WallSysMasked] {
		if err := r.expose("/sys", "/sys"); err != nil {
			return err
		}
	}
	if r.without[sandbox.WallUnixSockets] {
		return r.exposeSocket()
	}
	return nil
}

// expose shows a path of the machine as it is, writable.
func (r *root) expose(p, target string) error {
	info, err := os.Stat(p)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = r.mkdir(target)
	} else {
		err = r.touch(target)
	}
	if err != nil {
		return err
	}
	return bind(p, r.in(target), 0)
}

// exposeSocket puts a unix socket of the host's into the root.
func (r *root) exposeSocket() error {
	const dir = "/breach/socket"
	if err := r.mkdir(dir); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	// The name stays when the socket is closed.
	defer unix.Close(fd)
	// Bound by way of the working directory, since a socket's name is short;
	// this thread's file-system attributes are its own.
	if err := unix.Chdir(r.in(dir)); err != nil {
		return os.NewSyscallError("chdir", err)
	}
	defer func() { _ = unix.Chdir("/") }()
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Base("host.sock")}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	return nil
}

// breaks tells whether a namespace must be left out: because it is the wall to
// leave out, or because that wall cannot be left out alone.
func breaks(without map[sandbox.WallName]bool, wall sandbox.WallName) bool {
	switch wall {
	case sandbox.WallUserNamespace:
		// A root of its own may mount nothing in a namespace that is not.
		return without[wall] || without[sandbox.WallMountNamespace]
	case sandbox.WallNetworkNamespace:
		// The machine's interfaces are in the machine's namespace.
		return without[wall] || without[sandbox.WallNetworkInterfaces]
	}
	return without[wall]
}

// breaksFilter tells whether the seccomp filter must be left out.
func breaksFilter(without map[sandbox.WallName]bool) bool {
	return without[sandbox.WallSeccomp] ||
		// The kernel takes no filter from an unprivileged process that could
		// still gain privileges.
		without[sandbox.WallNoNewPrivileges] ||
		// The filter keeps the caller's keys out of reach as well.
		without[sandbox.WallSessionKeyring]
}

// breachConfig opens the holes that are libcontainer's to open.
func breachConfig(c *configs.Config, without map[sandbox.WallName]bool) {
	if without[sandbox.WallDevices] {
		c.Mounts[devMount].Source = "/dev"
	}
	if without[sandbox.WallPIDNamespace] {
		// The kernel gives a new /proc only of one's own pid namespace.
		c.Mounts[procMount] = presentProc(0)
	}
	if without[sandbox.WallCapabilities] {
		kept := []string{"CAP_NET_RAW", "CAP_SYS_CHROOT"}
		c.Capabilities = &configs.Capabilities{Bounding: kept, Effective: kept, Permitted: kept, Inheritable: kept, Ambient: kept}
	}
}
