package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// ParseMounts reads the format of /proc/<pid>/mountinfo.
func ParseMounts(text string) ([]*mountinfo.Info, error) {
	return mountinfo.GetMountsFromReader(strings.NewReader(text), nil)
}

func hasOption(options, want string) bool {
	for o := range strings.SplitSeq(options, ",") {
		if o == want {
			return true
		}
	}
	return false
}

// option gives the value of "name=value" among options.
func option(options, name string) (string, bool) {
	for o := range strings.SplitSeq(options, ",") {
		if v, ok := strings.CutPrefix(o, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// readOnly is true of a mount that is read-only itself. That of the file
// system is not enough: it may be shared and changed elsewhere.
func readOnly(m *mountinfo.Info) bool { return hasOption(m.Options, "ro") }

// device is the number that mount tables give a file system. Two mounts with
// the same one show the same files.
type device struct{ major, minor int }

func deviceOf(m *mountinfo.Info) device { return device{m.Major, m.Minor} }

// place is a directory or file named by its file system, which is the same
// from every mount namespace.
type place struct {
	dev  device
	path string // within the file system
}

// shows tells whether a mount makes the place visible, wholly.
func shows(m *mountinfo.Info, p place) bool {
	if deviceOf(m) != p.dev {
		return false
	}
	_, in := below(p.path, m.Root)
	return in
}

// partOf tells whether a mount shows something inside the place.
func partOf(m *mountinfo.Info, p place) bool {
	if deviceOf(m) != p.dev {
		return false
	}
	_, in := below(m.Root, p.path)
	return in
}

// table is a mount table of the host.
type table struct {
	mounts []*mountinfo.Info
	byID   map[int]*mountinfo.Info
	devs   map[device]bool
}

func newTable(mounts []*mountinfo.Info) *table {
	t := &table{mounts: mounts, byID: make(map[int]*mountinfo.Info, len(mounts)), devs: make(map[device]bool, len(mounts))}
	for _, m := range mounts {
		t.byID[m.ID] = m
		t.devs[deviceOf(m)] = true
	}
	return t
}

// places gives every place that a protected path stands for: the path itself,
// and whatever else is mounted below it. Links in the path are followed. A
// path that does not exist has nothing to protect yet; the nearest directory
// above it that exists is no part of it.
func (t *table) places(path string) ([]place, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("protected path: %w", err)
	}
	if !filepath.IsAbs(resolved) {
		return nil, fmt.Errorf("protected path %q is not absolute", path)
	}
	m, err := t.mountOf(resolved)
	if err != nil {
		return nil, err
	}
	rest, ok := below(resolved, m.Mountpoint)
	if !ok {
		return nil, fmt.Errorf("protected path %q is not below its mount %q", resolved, m.Mountpoint)
	}
	list := []place{{deviceOf(m), filepath.Join(m.Root, rest)}}
	for _, sub := range t.mounts {
		if _, in := below(sub.Mountpoint, resolved); in && sub.ID != m.ID && !kernelFS[sub.FSType] {
			list = append(list, place{deviceOf(sub), sub.Root})
		}
	}
	return list, nil
}

// kernelFS are file systems that hold no user's files. A protected "/" has
// them all below it, and a sandbox has some of them of its own.
var kernelFS = map[string]bool{
	"proc": true, "sysfs": true, "devtmpfs": true, "devpts": true, "mqueue": true, "cgroup": true, "cgroup2": true,
	"securityfs": true, "debugfs": true, "tracefs": true, "bpf": true, "pstore": true, "efivarfs": true,
	"configfs": true, "fusectl": true, "binfmt_misc": true, "autofs": true, "hugetlbfs": true, "nsfs": true,
}

// mountOf finds the mount that a path without links is on.
func (t *table) mountOf(path string) (*mountinfo.Info, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st)
	if err == nil && st.Mask&unix.STATX_MNT_ID != 0 {
		if m := t.byID[int(st.Mnt_id)]; m != nil {
			return m, nil
		}
	}
	// Before Linux 5.8: the deepest mount point above the path, the latest
	// where several lie over each other.
	var best *mountinfo.Info
	for _, m := range t.mounts {
		if _, in := below(path, m.Mountpoint); in && (best == nil || len(m.Mountpoint) >= len(best.Mountpoint)) {
			best = m
		}
	}
	if best == nil {
		return nil, fmt.Errorf("no mount shows %q", path)
	}
	return best, nil
}
