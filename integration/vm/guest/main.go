// Command guest is the first process of a virtual machine of the matrix. In
// the initial memory file system it loads the few modules that are needed and
// goes on from the disk; there it makes the machine into the kind that the
// kernel's command line names, runs what is to be tried, tells the result as
// JSON on the second serial port and switches the machine off.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// again is the argument with which the guest goes on from the disk, and work the
// one of the child that does what there is to do.
const (
	again = "disk"
	work  = "work"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == work {
		if err := machine(); err != nil {
			fmt.Println("guest:", err)
		}
		return
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guest: it is the first process of a virtual machine, and of no other")
		os.Exit(2)
	}
	var err error
	if len(os.Args) > 1 && os.Args[1] == again {
		err = first()
	} else {
		err = fromMemory()
	}
	if err != nil {
		fmt.Println("guest:", err)
	}
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println("guest: power off:", err)
	}
	select {} // until the kernel is done; its first process must not end
}

// first starts the child and collects the processes that have lost their
// parents, until the child ends.
func first() error {
	child, err := os.StartProcess("/sbin/guest", []string{"guest", work}, &os.ProcAttr{
		Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return err
	}
	for {
		pid, err := unix.Wait4(-1, nil, 0, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("wait4", err)
		}
		if pid == child.Pid {
			return nil
		}
	}
}

// fromMemory ends by executing this program from the disk.
func fromMemory() error {
	if err := mount("devtmpfs", "/dev", "devtmpfs", 0, ""); err != nil {
		return err
	}
	if err := mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	left := map[string]bool{}
	for f := range strings.FieldsSeq(string(line)) {
		if m, ok := strings.CutPrefix(f, "aspis.without="); ok {
			left[m] = true
		}
	}
	if err := loadModules("/modules", left); err != nil {
		return err
	}
	if err := mount("/dev/vda", "/root", "ext4", 0, ""); err != nil {
		return err
	}
	for _, d := range []string{"/dev", "/proc"} {
		if err := unix.Mount(d, "/root"+d, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", d, err)
		}
	}
	if err := errors.Join(unix.Chdir("/root"), unix.Mount(".", "/", "", unix.MS_MOVE, ""), unix.Chroot("."), unix.Chdir("/")); err != nil {
		return fmt.Errorf("go to the disk: %w", err)
	}
	return unix.Exec("/sbin/guest", []string{"guest", again}, []string{"PATH=/usr/bin:/usr/sbin"})
}

// loadModules loads all files of dir, which are named in the order they need.
func loadModules(dir string, without map[string]bool) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range files {
		// 07-name.ko
		_, name, _ := strings.Cut(strings.TrimSuffix(e.Name(), ".ko"), "-")
		if without[name] {
			continue
		}
		f, err := os.Open(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load the module %s: %w", name, err)
		}
	}
	return nil
}

// mount mounts, and makes the place for it.
func mount(source, target, kind string, flags uintptr, data string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s at %s: %w", kind, target, err)
	}
	return nil
}
