package probe

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
)

func mountAttempts() []Attempt {
	enter := func(flag int) func(*Facts) Result {
		return func(*Facts) Result {
			runtime.LockOSThread() // this process ends next
			return answered(unix.Unshare(flag))
		}
	}
	return []Attempt{
		{"mount-tmpfs", sandbox.WallSeccomp, func(*Facts) Result {
			err := unix.Mount("tmpfs", "/tmp/home", "tmpfs", 0, "")
			if err == nil {
				_ = unix.Unmount("/tmp/home", unix.MNT_DETACH)
			}
			return answered(err)
		}},
		{"mount-proc", sandbox.WallSeccomp, func(*Facts) Result {
			err := unix.Mount("proc", "/tmp/home", "proc", 0, "")
			if err == nil {
				_ = unix.Unmount("/tmp/home", unix.MNT_DETACH)
			}
			return answered(err)
		}},
		{"bind-mount", sandbox.WallSeccomp, func(*Facts) Result {
			err := unix.Mount("/provider", "/tmp/home", "", unix.MS_BIND, "")
			if err == nil {
				_ = unix.Unmount("/tmp/home", unix.MNT_DETACH)
			}
			return answered(err)
		}},
		// Where it could, it would make read-only what is so already.
		{"remount-root", sandbox.WallSeccomp, func(*Facts) Result {
			return answered(unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""))
		}},
		{"unmount", sandbox.WallSeccomp, func(*Facts) Result { return answered(unix.Unmount("/tmp/home", 0), unix.EINVAL) }},
		{"pivot-root", sandbox.WallSeccomp, func(*Facts) Result { return answered(unix.PivotRoot("/tmp/home", "/tmp/home"), unix.EINVAL) }},
		{"chroot", sandbox.WallSeccomp, func(*Facts) Result { return answered(unix.Chroot("/tmp/home")) }},
		{"new-mount-fsopen", sandbox.WallSeccomp, func(*Facts) Result {
			_, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
			return answered(err)
		}},
		{"new-mount-open-tree", sandbox.WallSeccomp, func(*Facts) Result {
			_, err := unix.OpenTree(unix.AT_FDCWD, "/tmp", unix.OPEN_TREE_CLONE)
			return answered(err)
		}},
		{"new-mount-move", sandbox.WallSeccomp, func(*Facts) Result {
			return answered(unix.MoveMount(-1, "", -1, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH), unix.EBADF)
		}},
		{"new-mount-setattr", sandbox.WallSeccomp, func(*Facts) Result {
			return answered(unix.MountSetattr(unix.AT_FDCWD, "/tmp/home", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID}), unix.EINVAL)
		}},
		{"unshare-mounts", sandbox.WallSeccomp, enter(unix.CLONE_NEWNS)},
		{"unshare-network", sandbox.WallSeccomp, enter(unix.CLONE_NEWNET)},
		{"unshare-pids", sandbox.WallSeccomp, enter(unix.CLONE_NEWPID)},
		{"unshare-cgroups", sandbox.WallSeccomp, enter(unix.CLONE_NEWCGROUP)},
		{"clone-user-namespace", sandbox.WallSeccomp, func(*Facts) Result {
			cmd := exec.Command("/proc/self/exe", "nothing")
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
			return answered(cmd.Run())
		}},
		{"clone3-user-namespace", sandbox.WallSeccomp, clone3},
		{"join-namespace", sandbox.WallSeccomp, func(*Facts) Result { return join("/proc/self/ns/net", unix.CLONE_NEWNET) }},
		{"join-first-process", sandbox.WallSeccomp, func(*Facts) Result { return join("/proc/1/ns/mnt", unix.CLONE_NEWNS) }},
	}
}

func join(path string, kind int) Result {
	runtime.LockOSThread() // this process ends next
	f, err := os.Open(path)
	if err != nil {
		return answered(err)
	}
	defer f.Close()
	return answered(unix.Setns(int(f.Fd()), kind), unix.EINVAL)
}

// clone3 makes a child that ends at once, without a word to the language's
// runtime on its side.
func clone3(*Facts) Result {
	args := struct {
		flags, pidfd, childTid, parentTid, exitSignal, stack, stackSize, tls uint64
	}{flags: unix.CLONE_NEWUSER, exitSignal: uint64(unix.SIGCHLD)}
	pid, _, errno := syscall.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
	if errno == 0 && pid == 0 {
		for {
			_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	return called(errno)
}
