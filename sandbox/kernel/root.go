package kernel

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// rootDir is the inspected process's root directory, held open. Everything in
// it is resolved inside it and without links: what is there was arranged for
// a process that may be hostile.
type rootDir struct {
	fd  int
	buf []byte
}

func openRoot(p *process) (*rootDir, error) {
	fd, err := unix.Openat(p.fd, "root", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open its root directory: %w", err)
	}
	return &rootDir{fd, p.buf}, nil
}

func (r *rootDir) close() { _ = unix.Close(r.fd) }

// open gives a descriptor for an absolute inside path.
func (r *rootDir) open(name string, flags int) (int, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	for range 8 { // EAGAIN: something was renamed while the path was walked
		fd, err := unix.Openat2(r.fd, name, &how)
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
	return -1, unix.EAGAIN
}

// id identifies what is at an inside path.
func (r *rootDir) id(name string) (fileID, error) {
	fd, err := r.open(name, unix.O_PATH)
	if err != nil {
		return fileID{}, &os.PathError{Op: "open inside", Path: name, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fileID{}, &os.PathError{Op: "stat inside", Path: name, Err: err}
	}
	return fileID{st.Dev, st.Ino}, nil
}

// source compares what is shown inside with what the host has.
type source struct {
	inside fileID
	match  bool
	err    error
}

// sources looks at each target of the Spec.
func (f *facts) sources(root *rootDir) map[string]source {
	shown := map[string]source{}
	lookup := func(target, from string) {
		id, err := root.id(target)
		s := source{inside: id, err: errors.Join(err, f.spaces.err)}
		for _, space := range f.spaces.v {
			var st unix.Stat_t
			if s.err == nil && unix.Stat(space.root+from, &st) == nil && (fileID{st.Dev, st.Ino}) == id {
				s.match = true
				break
			}
		}
		shown[target] = s
	}
	if f.ex.Spec.Artifact != "" {
		lookup(artifactTarget, f.ex.Spec.Artifact)
	}
	for _, m := range f.ex.Spec.Mounts {
		lookup(m.Target, m.Source)
	}
	for _, m := range f.ex.Spec.Work {
		lookup(m.Target, m.Source)
	}
	for _, m := range f.mounts.v {
		if f.ex.Spec.System && isSystem(m.Mountpoint) {
			lookup(m.Mountpoint, m.Mountpoint)
		}
	}
	return shown
}

// mountSpace is a mount namespace of this process's.
type mountSpace struct {
	id   fileID
	root string // a path that leads to its root directory
}

// mountSpaces gives the namespaces in which sources can be seen: the given
// thread's, or else every thread's.
func (f *facts) mountSpaces() fact[[]mountSpace] {
	if f.ex.Thread != 0 {
		s, err := spaceOf(f.ex.Thread)
		return fact[[]mountSpace]{[]mountSpace{s}, err}
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fact[[]mountSpace]{err: fmt.Errorf("list own threads: %w", err)}
	}
	var list []mountSpace
	seen := map[fileID]bool{}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		s, err := spaceOf(tid)
		if errors.Is(err, os.ErrNotExist) {
			continue // ended meanwhile
		}
		if err != nil {
			return fact[[]mountSpace]{err: err}
		}
		if !seen[s.id] {
			seen[s.id] = true
			list = append(list, s)
		}
	}
	return fact[[]mountSpace]{v: list}
}

func spaceOf(tid int) (mountSpace, error) {
	dir := threadDir(tid)
	id, err := idAt(unix.AT_FDCWD, dir+"/ns/mnt")
	return mountSpace{id, dir + "/root"}, err
}

// tree is what was found by walking the parts of the root that are private to
// the process, which are small.
type tree struct {
	odd     []oddFile
	devices []oddFile // everything in /dev
}

// oddFile is neither a regular file, a directory nor a link.
type oddFile struct {
	path string
	mode fs.FileMode // type bits
	rdev uint64
}

const (
	maxTree  = 8192 // entries
	maxDepth = 32
)

// walk goes through every memory-backed mount.
func (r *rootDir) walk(mounts []*mountinfo.Info) fact[tree] {
	var t tree
	var err error
	if t.devices, err = r.list("/dev"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fact[tree]{err: err}
	}
	budget := maxTree
	for _, m := range mounts {
		if m.FSType != "tmpfs" {
			continue
		}
		fd, err := r.open(m.Mountpoint, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENOENT) {
			continue // one file, or a mount that another one hides
		}
		if err == nil {
			err = walkDir(fd, m.Mountpoint, 0, &budget, &t.odd)
		}
		if err != nil {
			return fact[tree]{err: fmt.Errorf("look through %q: %w", m.Mountpoint, err)}
		}
	}
	return fact[tree]{v: t}
}

// walkDir takes over fd. It stays on the mount.
func walkDir(fd int, name string, depth int, budget *int, odd *[]oddFile) error {
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	entries, err := dir.ReadDir(*budget + 1)
	if err != nil && err != io.EOF {
		return err
	}
	if *budget -= len(entries); *budget < 0 || depth > maxDepth {
		return errTooLong
	}
	for _, e := range entries {
		p := path.Join(name, e.Name())
		switch e.Type() {
		case 0, fs.ModeSymlink:
		case fs.ModeDir:
			sub, err := unix.Openat2(fd, e.Name(), &unix.OpenHow{
				Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
				Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
			})
			if err == unix.EXDEV {
				continue // a mount: judged as one
			}
			if err != nil {
				return &os.PathError{Op: "open", Path: p, Err: err}
			}
			if err := walkDir(sub, p, depth+1, budget, odd); err != nil {
				return err
			}
		default:
			*odd = append(*odd, oddFile{path: p, mode: e.Type()})
		}
	}
	return nil
}

// list looks at everything in one directory, as it is covered by mounts.
func (r *rootDir) list(name string) ([]oddFile, error) {
	fd, err := r.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, &os.PathError{Op: "open inside", Path: name, Err: err}
	}
	defer unix.Close(fd)
	names, err := listFd(fd, maxFiles, r.buf)
	if err != nil {
		return nil, &os.PathError{Op: "list inside", Path: name, Err: err}
	}
	var list []oddFile
	for _, n := range names {
		var st unix.Stat_t
		if err := unix.Fstatat(fd, n, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return nil, &os.PathError{Op: "stat inside", Path: path.Join(name, n), Err: err}
		}
		list = append(list, oddFile{path: path.Join(name, n), mode: typeOf(st.Mode), rdev: st.Rdev})
	}
	return list, nil
}

func typeOf(mode uint32) fs.FileMode {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return fs.ModeDir
	case unix.S_IFLNK:
		return fs.ModeSymlink
	case unix.S_IFCHR:
		return fs.ModeDevice | fs.ModeCharDevice
	case unix.S_IFBLK:
		return fs.ModeDevice
	case unix.S_IFIFO:
		return fs.ModeNamedPipe
	case unix.S_IFSOCK:
		return fs.ModeSocket
	case unix.S_IFREG:
		return 0
	}
	return fs.ModeIrregular
}

// systemTargets are the places of the machine that Spec.System shows.
var systemTargets = []string{
	"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
	"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives",
	"/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted",
	"/etc/localtime", "/etc/mime.types",
}

func isSystem(target string) bool { return slices.Contains(systemTargets, target) }

// artifactTarget is where Spec.Artifact is shown.
const artifactTarget = "/provider"

// quoteSome lists a few names for a person, escaped.
func quoteSome(names []string) string {
	const few = 4
	quoted := make([]string, 0, few+1)
	for i, n := range names {
		if i == few {
			quoted = append(quoted, fmt.Sprintf("and %d more", len(names)-few))
			break
		}
		quoted = append(quoted, strconv.Quote(n))
	}
	return strings.Join(quoted, ", ")
}
