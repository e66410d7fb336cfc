package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/internal/stage"
)

// Sizes of the memory-backed parts of a sandbox's root, in bytes.
const (
	skeletonSize     = 1 << 20
	defaultTmpSize   = 64 << 20
	tmpBytesPerInode = 4096
)

// providerHome is where HOME points unless the Spec says otherwise.
const providerHome = "/tmp/home"

// root builds the file system that a sandbox sees, as a tree of mounts at dir.
// It must run inside the MountSpace. All of it is read-only but /tmp. /proc is
// left to libcontainer, which mounts it from within the new pid namespace, and
// there is no /sys at all.
type root struct {
	dir     string
	spec    *sandbox.Spec
	without map[sandbox.WallName]bool
	self    self
	places  []string // for mounts that come later
	owner   int      // outside id of the user that the program runs as, for /tmp
}

func (r *root) build() error {
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	opts := fmt.Sprintf("mode=0755,size=%d,nr_inodes=1024", skeletonSize)
	if err := unix.Mount("tmpfs", r.dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		return fmt.Errorf("mount root: %w", err)
	}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"first stage", r.stage},
		{"/dev", func() error { return r.mkdir("/dev") }},
		{"/tmp", r.tmp},
		{"/proc", func() error { return r.mkdir("/proc") }},
		{"artifact", r.artifact},
		{"system directories", r.system},
		{"mounts", r.mounts},
		{"work areas", r.work},
		{"broken walls", r.breach},
		{"read-only root", r.seal},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

// in is the outside path of an inside path. Inside paths come from the Spec,
// which the host wrote; Clean keeps a stray ".." within the root all the same.
func (r *root) in(p string) string { return filepath.Join(r.dir, filepath.Clean("/"+p)) }

func (r *root) mkdir(p string) error { return os.MkdirAll(r.in(p), 0o755) }

func (r *root) touch(p string) error {
	if err := r.mkdir(filepath.Dir(p)); err != nil {
		return err
	}
	return emptyFile(r.in(p))
}

// emptyFile makes a file without opening it: a descriptor that a process which
// is being started meanwhile inherits would keep the mount from becoming
// read-only.
func emptyFile(p string) error {
	if err := unix.Mknod(p, unix.S_IFREG|0o644, 0); err != nil {
		return &os.PathError{Op: "mknod", Path: p, Err: err}
	}
	return nil
}

func (r *root) stage() error {
	if err := r.touch(stage.Path); err != nil {
		return err
	}
	if err := bindReadOnly(r.self.path, r.in(stage.Path)); err != nil {
		return err
	}
	if r.self.loader == "" {
		return nil
	}
	if err := r.touch(stage.Loader); err != nil {
		return err
	}
	if err := bindReadOnly(r.self.loader, r.in(stage.Loader)); err != nil {
		return err
	}
	if err := r.mkdir(insideLibs); err != nil {
		return err
	}
	return bindReadOnly(filepath.Dir(r.self.loader), r.in(insideLibs))
}

// tmp is the only writable place.
func (r *root) tmp() error {
	dir := r.in("/tmp")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	size := r.spec.Limits.TmpBytes
	if size <= 0 {
		size = defaultTmpSize
	}
	opts := fmt.Sprintf("mode=1777,size=%d,nr_inodes=%d", size, size/tmpBytesPerInode+64)
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if r.spec.TmpExec {
		flags &^= unix.MS_NOEXEC
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", flags, opts); err != nil {
		return err
	}
	home := r.in(providerHome)
	if err := os.Mkdir(home, 0o700); err != nil {
		return err
	}
	return os.Chown(home, r.owner, r.owner)
}

func (r *root) artifact() error {
	if r.spec.Artifact == "" {
		return nil
	}
	if err := r.readable(r.spec.Artifact); err != nil {
		return err
	}
	if err := r.mkdir("/provider"); err != nil {
		return err
	}
	return bindReadOnly(r.spec.Artifact, r.in("/provider"))
}

// readable finds the mistake that is made most often with artifacts: the
// sandbox's user owns nothing, so that what it is shown must be for everybody.
func (r *root) readable(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) == r.owner || info.Mode().Perm()&0o005 == 0o005 {
		return nil
	}
	return fmt.Errorf("%q has mode %v, and the sandbox runs under ids of its own: give everybody access with chmod -R o+rX", dir, info.Mode().Perm())
}

// place makes what a mount is put on.
func (r *root) place(m sandbox.Mount) error {
	if !filepath.IsAbs(m.Target) || filepath.Clean(m.Target) != m.Target || m.Target == "/" {
		return fmt.Errorf("mount target %q is not a clean absolute path", m.Target)
	}
	info, err := os.Stat(m.Source)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(r.in(m.Target)); err == nil {
		return nil // something that is shown lies there, such as a part of the system
	}
	if info.IsDir() {
		return r.mkdir(m.Target)
	}
	return r.touch(m.Target)
}

// work shows work areas, which can be written.
func (r *root) work() error {
	for _, m := range r.spec.Work {
		if err := r.place(m); err != nil {
			return err
		}
		if err := bind(m.Source, r.in(m.Target), unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV); err != nil {
			return err
		}
	}
	return nil
}

func (r *root) mounts() error {
	for _, p := range r.places {
		if err := r.mkdir(p); err != nil {
			return err
		}
	}
	if r.spec.Exchangeable {
		return nil // hung up when the sandbox is there
	}
	for _, m := range r.spec.Mounts {
		err := r.place(m)
		if err != nil {
			return err
		}
		if r.without[sandbox.WallSnapshotReadOnly] {
			err = bindWritable(m.Source, r.in(m.Target))
		} else {
			err = bindReadOnly(m.Source, r.in(m.Target))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *root) seal() error {
	if r.without[sandbox.WallRootFilesystem] {
		return nil
	}
	return readOnly(r.dir)
}

// bindWritable binds without the read-only flag, the source's own included.
func bindWritable(source, target string) error {
	if err := bind(source, target, 0); err != nil {
		return err
	}
	set := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, target, 0, &set); err != nil {
		return &os.PathError{Op: "mount_setattr", Path: target, Err: err}
	}
	return nil
}

// readOnly makes the one mount at dir read-only.
func readOnly(dir string) error {
	set := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, dir, 0, &set); err != nil {
		return &os.PathError{Op: "mount_setattr", Path: dir, Err: err}
	}
	return nil
}

// drop takes the tree out of the MountSpace; a started sandbox has its own
// copy. More than one mount lies there if the sandbox has none of its own.
func (r *root) drop() error {
	for {
		switch err := unix.Unmount(r.dir, unix.MNT_DETACH); err {
		case nil:
			continue
		case unix.EINVAL, unix.ENOENT: // no mount any more, or never one
			if err := os.Remove(r.dir); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			return nil
		default:
			return fmt.Errorf("unmount %s: %w", r.dir, err)
		}
	}
}

// systemDirs are shown as the machine has them: a link stays a link.
var systemDirs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

// systemFiles are what programs need of /etc to be loaded and to check
// certificates. Nothing that names the machine's users, hosts or secrets.
var systemFiles = []string{
	"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives",
	"/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted",
	"/etc/localtime", "/etc/mime.types",
}

// etcFiles are written for the sandbox.
var etcFiles = map[string]string{
	"/etc/passwd": "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n" +
		"provider:x:1000:1000:provider:" + providerHome + ":/usr/sbin/nologin\n" +
		"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
	"/etc/group":         "root:x:0:\nprovider:x:1000:\nnogroup:x:65534:\n",
	"/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
	"/etc/hosts":         "127.0.0.1 localhost\n::1 localhost\n",
}

// writeUninherited writes a file while nothing is forked; see emptyFile.
func writeUninherited(p, text string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(p, []byte(text), 0o644)
}

func (r *root) system() error {
	for p, text := range etcFiles {
		if err := r.mkdir(filepath.Dir(p)); err != nil {
			return err
		}
		if err := writeUninherited(r.in(p), text); err != nil {
			return err
		}
	}
	if !r.spec.System {
		return nil
	}
	for _, p := range append(append([]string{}, systemDirs...), systemFiles...) {
		if err := r.show(p); err != nil {
			return err
		}
	}
	return nil
}

// show makes a path of the machine visible at the same place, if it exists.
func (r *root) show(p string) error {
	info, err := os.Lstat(p)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case info.Mode()&os.ModeSymlink != 0:
		target, err := os.Readlink(p)
		if err != nil {
			return err
		}
		if err := r.mkdir(filepath.Dir(p)); err != nil {
			return err
		}
		return os.Symlink(target, r.in(p))
	case info.IsDir():
		if err := r.mkdir(p); err != nil {
			return err
		}
	case info.Mode().IsRegular():
		if err := r.touch(p); err != nil {
			return err
		}
	default:
		return nil
	}
	return bindReadOnly(p, r.in(p))
}

// deviceNames are the few that programs cannot do without and that give
// nothing away.
var deviceNames = []string{"null", "zero", "full", "random", "urandom"}

// buildDevices makes the /dev that all sandboxes share. It must run inside the
// MountSpace. The files are bound from the machine, since a user namespace may
// not make them.
func buildDevices(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0755,size=64k,nr_inodes=32"); err != nil {
		return fmt.Errorf("mount devices: %w", err)
	}
	for _, name := range deviceNames {
		p := filepath.Join(dir, name)
		if err := emptyFile(p); err != nil {
			return err
		}
		if err := bindDevice(filepath.Join("/dev", name), p); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return readOnly(dir)
}
