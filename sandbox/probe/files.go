package probe

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
)

// mark is what is written where it can be: the host looks for it.
const mark = "written from inside a sandbox\n"

func fileAttempts() []Attempt {
	writes := func(path string) func(*Facts) Result {
		return func(*Facts) Result { return openForWriting(path) }
	}
	return []Attempt{
		{"write-worktree", sandbox.WallWorktreeUnreachable, writeWorktree},
		{"read-host-secret", sandbox.WallWorktreeUnreachable, func(f *Facts) Result { return read(f.Secret) }},
		{"read-host-shadow", sandbox.WallRootFilesystem, func(*Facts) Result { return read("/etc/shadow") }},
		{"write-snapshot", sandbox.WallSnapshotReadOnly, func(f *Facts) Result { return overwrite(f.Shown) }},
		{"create-in-snapshot", sandbox.WallSnapshotReadOnly, func(f *Facts) Result { return create(filepath.Dir(f.Shown[0])) }},
		{"rename-in-snapshot", sandbox.WallSnapshotReadOnly, func(f *Facts) Result { return answered(os.Rename(f.Shown[0], f.Shown[0]+".moved")) }},
		{"chmod-in-snapshot", sandbox.WallSnapshotReadOnly, func(f *Facts) Result { return answered(os.Chmod(f.Shown[0], 0o666)) }},
		{"create-in-root", sandbox.WallRootFilesystem, func(*Facts) Result { return create("/") }},
		{"create-in-etc", sandbox.WallRootFilesystem, func(*Facts) Result { return create("/etc") }},
		{"create-in-artifact", sandbox.WallRootFilesystem, func(*Facts) Result { return create("/provider") }},
		{"write-own-program", sandbox.WallRootFilesystem, writes("/proc/self/exe")},
		{"write-first-stage", sandbox.WallRootFilesystem, writes("/.aspis/stage")},
		{"write-sysctl", sandbox.WallProcMasked, writes("/proc/sys/kernel/hostname")},
		{"write-core-pattern", sandbox.WallProcMasked, writes("/proc/sys/kernel/core_pattern")},
		{"write-modprobe-path", sandbox.WallProcMasked, writes("/proc/sys/kernel/modprobe")},
		{"write-binfmt", sandbox.WallProcMasked, writes("/proc/sys/fs/binfmt_misc/register")},
		{"write-sysrq", sandbox.WallProcMasked, writes("/proc/sysrq-trigger")},
		{"read-kcore", sandbox.WallProcMasked, func(*Facts) Result { return read("/proc/kcore") }},
		{"read-kmsg", sandbox.WallProcMasked, func(*Facts) Result { return read("/proc/kmsg") }},
		{"read-keys", sandbox.WallProcMasked, func(*Facts) Result { return read("/proc/keys") }},
		{"read-timers", sandbox.WallProcMasked, func(*Facts) Result { return read("/proc/timer_list") }},
		{"write-uid-map", sandbox.WallUserNamespace, func(*Facts) Result { return writeTo("/proc/self/uid_map", "0 0 4294967295\n") }},
		{"lower-oom-score", sandbox.WallCapabilities, func(*Facts) Result { return writeTo("/proc/self/oom_score_adj", "-1000\n") }},
		{"write-cgroup", sandbox.WallSysMasked, func(*Facts) Result {
			return writableBelow("/sys/fs/cgroup", "cgroup.procs", "tasks", "memory.max", "release_agent")
		}},
		{"write-sys", sandbox.WallSysMasked, func(*Facts) Result { return writableBelow("/sys/kernel", "uevent_helper", "mm") }},
		{"see-sys", sandbox.WallSysMasked, func(*Facts) Result { return lists("/sys/kernel") }},
		{"write-host-tmp", sandbox.WallHostPathsUnwritable, findCanaries},
		{"devices", sandbox.WallDevices, devices},
		{"read-memory-device", sandbox.WallDevices, func(*Facts) Result { return read("/dev/mem") }},
		{"read-disk-device", sandbox.WallDevices, func(*Facts) Result { return openDisks() }},
		{"open-terminal", sandbox.WallDevices, func(*Facts) Result { return read("/dev/tty") }},
		{"symlink-out", sandbox.WallWorktreeUnreachable, symlinkOut},
		{"dot-dot-out", sandbox.WallWorktreeUnreachable, func(f *Facts) Result { return read(strings.Repeat("/..", 40) + f.Secret) }},
		{"dot-dot-from-view", sandbox.WallWorktreeUnreachable, func(f *Facts) Result { return read(filepath.Dir(f.Shown[0]) + strings.Repeat("/..", 40) + f.Secret) }},
		{"root-of-first-process", sandbox.WallPIDNamespace, func(f *Facts) Result { return read("/proc/1/root" + f.Secret) }},
		{"hard-link-of-snapshot", sandbox.WallSnapshotReadOnly, func(f *Facts) Result { return answered(os.Link(f.Shown[0], "/tmp/linked")) }},
		{"hard-link-of-program", sandbox.WallRootFilesystem, func(*Facts) Result {
			return answered(unix.Linkat(unix.AT_FDCWD, "/proc/self/exe", unix.AT_FDCWD, "/tmp/exe", unix.AT_SYMLINK_FOLLOW))
		}},
		{"make-character-device", sandbox.WallSeccomp, func(*Facts) Result { return makeNode(unix.S_IFCHR, 1, 1) }},
		{"make-block-device", sandbox.WallSeccomp, func(*Facts) Result { return makeNode(unix.S_IFBLK, 8, 0) }},
		{"open-by-handle", sandbox.WallSeccomp, openByHandle},
		{"inherited-files", sandbox.WallFileDescriptors, inheritedFiles},
		{"environment", sandbox.WallEnvironment, environment},
	}
}

func openForWriting(path string) Result {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err == nil {
		f.Close()
	}
	return answered(err)
}

func writeTo(path, text string) Result {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return answered(err)
	}
	defer f.Close()
	_, err = f.WriteString(text)
	return answered(err)
}

// overwrite writes the mark over canaries, which are made to be written over.
func overwrite(paths []string) Result {
	var last Result
	for _, p := range paths {
		f, err := os.OpenFile(p, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(mark)
			f.Close()
		}
		if last = answered(err); last.State == Open {
			return last
		}
	}
	return last
}

// writeWorktree tries the paths that the host has, and then any that show them.
func writeWorktree(f *Facts) Result {
	if r := overwrite(f.Files); r.State == Open {
		return r
	}
	return findCanaries(f)
}

func create(dir string) Result {
	p := filepath.Join(dir, "aspis-probe-was-here")
	f, err := os.OpenFile(p, os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		f.Close()
		_ = os.Remove(p) // what can be made can be removed
	}
	return answered(err)
}

// read takes one byte; a masked file is there and empty.
func read(path string) Result {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return answered(err)
	}
	defer f.Close()
	n, err := f.Read(make([]byte, 1))
	if n == 0 && (errors.Is(err, io.EOF) || err == nil) {
		return blocked("it is empty")
	}
	return answered(err)
}

func lists(dir string) Result {
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) == 0 {
		return blocked("it is empty")
	}
	return answered(err)
}

// writableBelow looks for files that can be opened for writing, by name, and
// opens them only.
func writableBelow(dir string, names ...string) Result {
	last := blocked("there are none")
	seen := 0
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if seen++; seen > 20_000 {
			return filepath.SkipAll
		}
		if err != nil {
			last = blocked("%v", err)
			return nil
		}
		if d.IsDir() || !slices.Contains(names, d.Name()) {
			return nil
		}
		if last = openForWriting(p); last.State == Open {
			last.Seen = p + " could be opened for writing"
			return filepath.SkipAll
		}
		return nil
	})
	if err != nil {
		return answered(err)
	}
	return last
}

// findCanaries looks for the canaries of the host wherever its paths may show.
func findCanaries(f *Facts) Result {
	name := filepath.Base(f.Files[0])
	last := blocked("none is to be found")
	for _, top := range []string{"/", "/breach"} {
		entries, err := os.ReadDir(top)
		if err != nil {
			continue
		}
		for _, e := range entries {
			p := filepath.Join(top, e.Name())
			if e.IsDir() && p != "/proc" && p != "/usr" && p != "/sys" {
				if r := findBelow(p, name, f); r.State == Open {
					return r
				}
			}
		}
	}
	return last
}

func findBelow(dir, name string, f *Facts) Result {
	found := blocked("none is to be found")
	seen := 0
	_ = filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error { // errors are for what cannot be seen
		if seen++; seen > 50_000 {
			return filepath.SkipAll
		}
		if err == nil && !d.IsDir() && d.Name() == name && !slices.Contains(f.Shown, p) {
			if found = overwrite([]string{p}); found.State == Open {
				return filepath.SkipAll
			}
		}
		return nil
	})
	return found
}

func devices(*Facts) Result {
	entries, err := os.ReadDir("/dev")
	if err != nil {
		return answered(err)
	}
	few := []string{"null", "zero", "full", "random", "urandom", "fd", "stdin", "stdout", "stderr"}
	for _, e := range entries {
		if !slices.Contains(few, e.Name()) {
			return open("there is %q", e.Name())
		}
	}
	return blocked("the %d that everybody has", len(entries))
}

func openDisks() Result {
	last := blocked("there are none")
	for _, d := range []string{"/dev/sda", "/dev/vda", "/dev/nvme0n1", "/dev/loop0", "/dev/mapper/control", "/dev/fuse", "/dev/kvm", "/dev/kmsg"} {
		if last = openForWriting(d); last.State == Open {
			return last
		}
	}
	return last
}

func symlinkOut(f *Facts) Result {
	link := fmt.Sprintf("/tmp/link-%d", os.Getpid())
	if err := os.Symlink(f.Secret, link); err != nil {
		return notApplicable("no link can be made: %v", err)
	}
	defer os.Remove(link)
	return read(link)
}

func makeNode(kind uint32, major, minor uint32) Result {
	p := fmt.Sprintf("/tmp/node-%d", os.Getpid())
	err := unix.Mknod(p, kind|0o600, int(unix.Mkdev(major, minor)))
	if err == nil {
		_ = os.Remove(p) // just made
	}
	return answered(err)
}

func openByHandle(*Facts) Result {
	h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, "/tmp", 0)
	if err != nil {
		h = unix.NewFileHandle(1, make([]byte, 8))
	}
	fd, err := unix.OpenByHandleAt(unix.AT_FDCWD, h, unix.O_RDONLY)
	if err == nil {
		_ = unix.Close(fd)
	}
	return answered(err, unix.ESTALE, unix.EINVAL, unix.EBADF)
}

func inheritedFiles(*Facts) Result {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return answered(err)
	}
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if errors.Is(err, os.ErrNotExist) || strings.HasPrefix(target, "anon_inode:[event") {
			continue // the list itself, and the language's own
		}
		if e.Name() > "2" || len(e.Name()) > 1 {
			if target != "/proc/"+fmt.Sprint(os.Getpid())+"/fd" {
				return open("file %s is %q", e.Name(), target)
			}
		}
	}
	return blocked("the three streams alone")
}

func environment(f *Facts) Result {
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		if !slices.Contains(f.Env, name) && name != "HOME" {
			return open("variable %q is there", name)
		}
	}
	return blocked("what was given and no more")
}
