package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/integration/vm/matrix"
)

// userID is the ordinary user's id and group.
const userID = 1000

// machine makes the machine into the kind that is asked for, tries it and tells.
func machine() error {
	out, err := os.OpenFile("/dev/ttyS1", os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open the port for the report: %w", err)
	}
	defer out.Close()
	if err := rawPort(out); err != nil {
		return err
	}
	report := matrix.Report{}
	if err := fill(&report); err != nil {
		report.Fault = err.Error()
	}
	b, err := json.Marshal(report)
	if err != nil {
		return err
	}
	_, err = out.Write(append(b, '\n'))
	return err
}

// rawPort keeps the line discipline from changing what is written.
func rawPort(f *os.File) error {
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return fmt.Errorf("set up the port for the report: %w", err)
	}
	t.Oflag &^= unix.OPOST
	return unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t)
}

func fill(r *matrix.Report) error {
	if err := basics(); err != nil {
		return err
	}
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	for f := range strings.FieldsSeq(string(line)) {
		if name, ok := strings.CutPrefix(f, "aspis.cell="); ok {
			r.Cell = name
		}
	}
	cell, ok := matrix.Find(r.Cell)
	if !ok {
		return fmt.Errorf("there is no cell %q", r.Cell)
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return err
	}
	r.Kernel = unix.ByteSliceToString(uts.Release[:])
	if err := prepare(cell); err != nil {
		return fmt.Errorf("prepare the machine: %w", err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}
	r.Boot = float64(now.Nano()) / 1e9
	began := time.Now()
	err = try(cell, r)
	r.Seconds = time.Since(began).Seconds()
	return err
}

// basics are what every machine has.
func basics() error {
	for _, m := range []struct{ source, target, kind, data string }{
		{"sysfs", "/sys", "sysfs", ""}, {"tmpfs", "/run", "tmpfs", "mode=755"}, {"tmpfs", "/dev/shm", "tmpfs", "mode=1777"},
		{"devpts", "/dev/pts", "devpts", "gid=5,mode=620,ptmxmode=666"}, {"mqueue", "/dev/mqueue", "mqueue", ""},
	} {
		if err := mount(m.source, m.target, m.kind, unix.MS_NOSUID, m.data); err != nil {
			return err
		}
	}
	// Not on every kernel, and only of use where it is.
	_ = unix.Mount("securityfs", "/sys/kernel/security", "securityfs", 0, "")
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(target, "/dev/"+name); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	if err := unix.Sethostname([]byte("machine")); err != nil {
		return err
	}
	if err := own(); err != nil {
		return err
	}
	return loopback()
}

// setUserID are the programs that act as root for whoever calls them.
var setUserID = []string{"/usr/bin/newuidmap", "/usr/bin/newgidmap"}

// own gives the disk to root: whoever made it may have been somebody else.
func own() error {
	for _, top := range []string{"/usr", "/etc", "/opt", "/sbin", "/var"} {
		err := filepath.WalkDir(top, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, 0, 0)
		})
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	for _, p := range setUserID {
		if err := os.Chmod(p, 0o755|fs.ModeSetuid); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return errors.Join(os.Chown("/", 0, 0), os.Chmod("/tmp", 0o777|fs.ModeSticky), os.Chmod("/root", 0o700),
		os.Chmod("/etc/shadow", 0o600), os.Chown("/home/dev", userID, userID))
}

// loopback brings the loopback interface up.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return os.NewSyscallError("bring up the loopback interface", unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr))
}

// prepare makes the differences between the kinds.
func prepare(c matrix.Cell) error {
	if err := mountGroups(c.Groups); err != nil {
		return err
	}
	if !c.Ranges {
		for _, p := range setUserID {
			if err := os.Remove(p); err != nil {
				return err
			}
		}
	} else {
		for _, f := range []string{"/etc/subuid", "/etc/subgid"} {
			if err := os.WriteFile(f, []byte("dev:100000:65536\n"), 0o644); err != nil {
				return err
			}
		}
	}
	switch c.Proc {
	case "hidepid":
		if err := unix.Mount("proc", "/proc", "proc", unix.MS_REMOUNT, "hidepid=2"); err != nil {
			return fmt.Errorf("hide processes: %w", err)
		}
	case "covered":
		if err := unix.Mount("tmpfs", "/proc/acpi", "tmpfs", unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("cover a part of /proc: %w", err)
		}
	}
	for name, v := range c.Sysctls {
		if err := write("/proc/sys/"+name, v); err != nil {
			return fmt.Errorf("set the sysctl: %w", err)
		}
	}
	return nil
}

// write writes to a control file with one system call.
func write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
