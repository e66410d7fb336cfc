package kernel

import (
	"errors"
	"path"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// kind is what a mount inside is there for.
type kind int

const (
	kindUnknown kind = iota
	kindRoot
	kindTmp
	kindDev
	kindDevice
	kindProc
	kindProcCover
	kindSys
	kindSysCover
	kindShown // an artifact, a snapshot, a part of the system or the first stage
	kindWork  // a writable work area
)

// allowedDevices by name, with their numbers: they hold and do nothing.
var allowedDevices = map[string]uint64{
	"null": unix.Mkdev(1, 3), "zero": unix.Mkdev(1, 5), "full": unix.Mkdev(1, 7),
	"random": unix.Mkdev(1, 8), "urandom": unix.Mkdev(1, 9),
}

// kindOf tells what a mount can only be, by where and what it is.
func (f *facts) kindOf(m *mountinfo.Info) kind {
	at := m.Mountpoint
	if at == "/" {
		return kindRoot
	}
	if _, in := below(at, "/proc"); in {
		switch {
		case at == "/proc" && m.FSType == "proc" && m.Root == "/":
			return kindProc
		case at != "/proc" && (isCover(m) || m.FSType == "proc" && readOnly(m)):
			return kindProcCover
		}
		return kindUnknown
	}
	if _, in := below(at, "/sys"); in {
		switch {
		case at == "/sys" && m.FSType == "sysfs" && m.Root == "/":
			return kindSys
		case at != "/sys" && isCover(m):
			return kindSysCover
		}
		return kindUnknown
	}
	if _, in := below(at, "/dev"); in {
		name := path.Base(at)
		switch {
		case at == "/dev" && m.FSType == "tmpfs":
			return kindDev
		case path.Dir(at) == "/dev" && m.FSType == "devtmpfs" && m.Root == "/"+name && allowedDevices[name] != 0:
			return kindDevice
		case path.Dir(at) == "/dev" && m.FSType == "tmpfs" && path.Base(m.Root) == name && allowedDevices[name] != 0:
			return kindDevice // a host whose own /dev is memory-backed, as in a container
		}
		return kindUnknown
	}
	if at == "/tmp" && m.FSType == "tmpfs" && m.Root == "/" {
		return kindTmp
	}
	for _, w := range f.ex.Spec.Work {
		if at == w.Target {
			return kindWork
		}
	}
	if f.isShown(at) {
		return kindShown
	}
	return kindUnknown
}

// isCover is true of what hides a file or a directory: the null device, or
// memory that nobody can put anything into.
func isCover(m *mountinfo.Info) bool {
	switch m.FSType {
	case "devtmpfs":
		return m.Root == "/null"
	case "tmpfs":
		return readOnly(m) && m.Root == "/" || m.Root == "/null"
	}
	return false
}

// isShown is true at and below the targets that the Spec asks for.
func (f *facts) isShown(at string) bool {
	stage := f.ex.StageDir
	if stage == "" {
		stage = "/.aspis"
	}
	targets := []string{stage}
	if f.ex.Spec.Artifact != "" {
		targets = append(targets, artifactTarget)
	}
	for _, m := range f.ex.Spec.Mounts {
		targets = append(targets, m.Target)
	}
	if f.ex.Spec.System {
		targets = append(targets, systemTargets...)
	}
	for _, t := range targets {
		if _, in := below(at, t); in {
			return true
		}
	}
	return false
}

// private is true of a file system that no namespace of the host's shows.
func (f *facts) private(m *mountinfo.Info) bool {
	return !f.hostMounts.v.devs[deviceOf(m)] && !f.otherDevs.v[deviceOf(m)]
}

// tables joins the reasons why mounts cannot be judged.
func (f *facts) tables() error {
	for _, err := range []error{f.mounts.err, f.hostMounts.err, f.otherDevs.err} {
		if err != nil {
			return err
		}
	}
	if len(f.mounts.v) == 0 {
		return errors.New("its mount table is empty")
	}
	return nil
}
