package kernel

import (
	"fmt"
	"io/fs"
	"path"
	"strconv"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// rootTypes are file systems that a sandbox's root may be: its own memory, or
// an image.
var rootTypes = map[string]bool{"tmpfs": true, "overlay": true, "erofs": true, "squashfs": true}

// mountNamespace is the host's in none of its threads.
func (f *facts) mountNamespace() verdict {
	if f.spaces.err != nil {
		return unknown(f.spaces.err)
	}
	for _, space := range f.spaces.v {
		if f.ns["mnt"].v == space.id {
			return falls("it is in a namespace of the host's threads, mnt:[%d]", space.id.ino)
		}
	}
	return ownNamespace("mnt")(f)
}

func (f *facts) rootFilesystem() verdict {
	if err := f.tables(); err != nil {
		return unknown(err)
	}
	if f.root.err != nil {
		return unknown(f.root.err)
	}
	if f.hostRoot.err != nil {
		return unknown(f.hostRoot.err)
	}
	if f.root.v == f.hostRoot.v {
		return falls("its root directory is the host's")
	}
	roots := 0
	for i, m := range f.mounts.v {
		k := f.kinds[i]
		if k == kindRoot {
			roots++
		}
		if problem := f.mountProblem(m, k); problem != "" {
			return falls("mount %q (%s): %s", m.Mountpoint, m.FSType, problem)
		}
	}
	if roots != 1 {
		return falls("%d mounts are its root", roots)
	}
	for target, s := range f.shown {
		if target != artifactTarget && !isSystem(target) {
			continue // a snapshot, which is a wall of its own
		}
		if s.err != nil {
			return falls("%q: %v", target, s.err)
		}
		if !s.match {
			return falls("%q is not what the host has there", target)
		}
	}
	return stands("%s, read-only, %d mounts, all known", f.mounts.v[0].FSType, len(f.mounts.v))
}

// mountProblem is what is wrong with one mount, or nothing.
func (f *facts) mountProblem(m *mountinfo.Info, k kind) string {
	if m.Optional != "" && m.Optional != "unbindable" {
		return fmt.Sprintf("mounts of others can appear in it (%s)", m.Optional)
	}
	var need []string
	switch k {
	case kindUnknown:
		return "nobody asked for it"
	case kindRoot:
		if !rootTypes[m.FSType] || !f.private(m) && !f.givenRoot(m) {
			return "it is a file system of the host's"
		}
		need = []string{"ro", "nosuid", "nodev"}
	case kindShown:
		need = []string{"ro", "nosuid", "nodev"}
	case kindWork:
		if problem := f.workProblem(m); problem != "" {
			return problem
		}
		need = []string{"nosuid", "nodev"}
	case kindTmp:
		if problem := f.sizeProblem(m); problem != "" {
			return problem
		}
		need = []string{"nosuid", "nodev"}
	case kindDev:
		if !readOnly(m) {
			return "it can be written"
		}
		need = []string{"nosuid"}
	case kindDevice:
		need = []string{"nosuid"}
	case kindProc:
		need = []string{"nosuid", "nodev", "noexec"}
	case kindSys:
		need = []string{"ro", "nosuid", "nodev"}
	case kindProcCover, kindSysCover:
	}
	for _, o := range need {
		if !hasOption(m.Options, o) {
			return "it is not " + o
		}
	}
	return ""
}

// workProblem is what keeps a mount from being a work area that the host has
// made: an overlay, which holds back what is written there.
func (f *facts) workProblem(m *mountinfo.Info) string {
	s := f.shown[m.Mountpoint]
	switch {
	case m.FSType != "overlay":
		return "it is no overlay, so that writes there go to what it shows"
	case s.err != nil:
		return s.err.Error()
	case !s.match:
		return "it is not the work area that the host has made"
	}
	return ""
}

// givenRoot tells whether the root is the very overlay that a daemon has mounted
// for it on the host.
func (f *facts) givenRoot(m *mountinfo.Info) bool {
	var st unix.Stat_t
	return f.ex.Root != "" && m.FSType == "overlay" && m.Root == "/" && f.root.err == nil &&
		unix.Stat(f.ex.Root, &st) == nil && (fileID{st.Dev, st.Ino}) == f.root.v
}

// sizeProblem checks that memory-backed space has an end.
func (f *facts) sizeProblem(m *mountinfo.Info) string {
	s, ok := option(m.VFSOptions, "size")
	if !ok {
		return "its size is not limited"
	}
	size, err := parseSize(s)
	if err != nil {
		return fmt.Sprintf("its size is %q", s)
	}
	if want := f.ex.Spec.Limits.TmpBytes; want > 0 && size > roundUp(uint64(want)) {
		return fmt.Sprintf("it holds %d bytes, more than %d", size, want)
	}
	return ""
}

// roundUp to the kernel's page, as it does.
func roundUp(n uint64) uint64 {
	page := uint64(unix.Getpagesize())
	return (n + page - 1) / page * page
}

// parseSize reads a size as tmpfs prints it, in KiB: "1024k".
func parseSize(s string) (uint64, error) {
	unit := uint64(1)
	if n := len(s); n > 0 && s[n-1] == 'k' {
		s, unit = s[:n-1], 1024
	}
	n, err := strconv.ParseUint(s, 10, 48)
	return n * unit, err
}

func (f *facts) snapshotReadOnly() verdict {
	if len(f.ex.Spec.Mounts) == 0 {
		return stands("no snapshot is mounted; content is handed over by the host")
	}
	if err := f.tables(); err != nil {
		return unknown(err)
	}
	for _, want := range f.ex.Spec.Mounts {
		s := f.shown[want.Target]
		if s.err != nil {
			return falls("%q: %v", want.Target, s.err)
		}
		if !s.match {
			return falls("%q is not %q of the host", want.Target, want.Source)
		}
		found := false
		for _, m := range f.mounts.v {
			if _, in := below(m.Mountpoint, want.Target); !in {
				continue
			}
			if m.Mountpoint == want.Target {
				found = true
			}
			if !readOnly(m) {
				return falls("%q can be written", m.Mountpoint)
			}
		}
		if !found {
			return falls("nothing is mounted at %q", want.Target)
		}
	}
	return stands("%d mounted, read-only, the host's own", len(f.ex.Spec.Mounts))
}

func (f *facts) worktreeUnreachable() verdict {
	if v := f.mountNamespace(); !v.standing {
		return v
	}
	if err := f.tables(); err != nil {
		return unknown(err)
	}
	if f.protected.err != nil {
		return unknown(f.protected.err)
	}
	if len(f.protected.v) == 0 {
		return falls("the host named no protected path that exists")
	}
	if f.root.err != nil || f.hostRoot.err != nil || f.root.v == f.hostRoot.v {
		return falls("its root directory is the host's, or cannot be seen")
	}
	for i, m := range f.mounts.v {
		for _, p := range f.protected.v {
			if shows(m, p) {
				return falls("mount %q leads to the protected %q", m.Mountpoint, p.path)
			}
			// What lies inside a protected directory may be shown on purpose:
			// an artifact or a snapshot in the state directory. The null device
			// is part of a /dev that may be.
			switch f.kinds[i] {
			case kindShown, kindDevice, kindProcCover, kindSysCover:
				continue
			}
			if partOf(m, p) {
				return falls("mount %q shows a part of the protected %q", m.Mountpoint, p.path)
			}
		}
	}
	if problem := f.foreignProc(); problem != "" {
		return falls("%s, so that /proc leads to the roots of other processes", problem)
	}
	return stands("none of %d mounts leads to %d protected places", len(f.mounts.v), len(f.protected.v))
}

func (f *facts) hostPathsUnwritable() verdict {
	if v := f.mountNamespace(); !v.standing {
		return v
	}
	if err := f.tables(); err != nil {
		return unknown(err)
	}
	var writable, areas []string
	for i, m := range f.mounts.v {
		if readOnly(m) {
			continue
		}
		switch k := f.kinds[i]; {
		case k == kindDevice, isCover(m):
			continue // writes to these go nowhere
		case k == kindProc && f.foreignProc() == "":
			continue
		case (k == kindRoot && m.FSType == "tmpfs" || k == kindTmp) && f.private(m):
			writable = append(writable, m.Mountpoint)
			continue
		case k == kindWork && f.workProblem(m) == "":
			areas = append(areas, m.Mountpoint)
			continue
		}
		return falls("mount %q (%s) can be written and is not private", m.Mountpoint, m.FSType)
	}
	if len(areas) > 0 {
		return stands("only the work area %s, which holds writes back, and %s in private memory", quoteSome(areas), quoteSome(writable))
	}
	if len(writable) == 0 {
		return stands("nothing can be written")
	}
	return stands("only %s can be written, in private memory", quoteSome(writable))
}

func (f *facts) devices() verdict {
	if err := f.tables(); err != nil {
		return unknown(err)
	}
	if f.tree.err != nil {
		return unknown(f.tree.err)
	}
	for i, m := range f.mounts.v {
		switch f.kinds[i] {
		case kindDev, kindDevice, kindProcCover, kindSysCover:
			continue
		}
		if m.FSType == "devtmpfs" || m.FSType == "devpts" {
			return falls("mount %q is of the host's devices (%s)", m.Mountpoint, m.FSType)
		}
		if !hasOption(m.Options, "nodev") {
			return falls("device files work in mount %q", m.Mountpoint)
		}
	}
	n := 0
	for _, d := range f.tree.v.devices {
		switch {
		case d.mode == fs.ModeSymlink:
		case d.mode == fs.ModeDevice|fs.ModeCharDevice && allowedDevices[path.Base(d.path)] == d.rdev:
			n++
		default:
			return falls("%q is in /dev (%v, %d:%d)", d.path, d.mode, unix.Major(d.rdev), unix.Minor(d.rdev))
		}
	}
	for _, o := range f.tree.v.odd {
		if o.mode&fs.ModeDevice != 0 {
			return falls("%q is a device", o.path)
		}
	}
	return stands("%d harmless devices and no others", n)
}
