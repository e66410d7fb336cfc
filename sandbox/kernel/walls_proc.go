package kernel

import (
	"fmt"
	"path"

	"github.com/moby/sys/mountinfo"
)

func (f *facts) procMasked() verdict {
	if err := f.tables(); err != nil {
		return unknown(err)
	}
	if f.proc.err != nil {
		return unknown(f.proc.err)
	}
	if problem := f.foreignProc(); problem != "" {
		return falls("%s", problem)
	}
	if !f.proc.there {
		return stands("there is no /proc")
	}
	if !f.proc.isProc {
		return falls("/proc is not the kernel's process file system")
	}
	var whole *mountinfo.Info
	over := map[string]*mountinfo.Info{}
	for i, m := range f.mounts.v {
		switch f.kinds[i] {
		case kindProc:
			whole = m
		case kindProcCover:
			over[path.Base(m.Mountpoint)] = m
		}
	}
	if whole == nil {
		return falls("/proc is not a mount of its own")
	}
	if v, _ := option(whole.VFSOptions, "subset"); v == "pid" {
		return stands("/proc shows processes only")
	}
	for _, n := range coveredFiles {
		if m := over[n]; f.proc.present[n] && (m == nil || m.Mountpoint != "/proc/"+n || !isCover(m)) {
			return falls("/proc/%s is not hidden", n)
		}
	}
	for _, n := range fixedFiles {
		if m := over[n]; f.proc.present[n] && !readOnly(whole) && (m == nil || m.Mountpoint != "/proc/"+n || !readOnly(m) && !isCover(m)) {
			return falls("/proc/%s is not read-only", n)
		}
	}
	return stands("of its own pid namespace, %d files hidden or fixed", len(over))
}

// sysKernel are file systems that reach into the kernel.
var sysKernel = map[string]bool{
	"debugfs": true, "tracefs": true, "securityfs": true, "bpf": true, "configfs": true, "efivarfs": true,
	"pstore": true, "cgroup": true, "cgroup2": true, "fusectl": true, "binfmt_misc": true, "selinuxfs": true, "smackfs": true,
}

// hiddenSys must be covered in a /sys that is shown.
var hiddenSys = []string{"/sys/firmware", "/sys/devices/virtual/powercap"}

func (f *facts) sysMasked() verdict {
	if err := f.tables(); err != nil {
		return unknown(err)
	}
	covers := map[string]bool{}
	there := false
	for i, m := range f.mounts.v {
		if sysKernel[m.FSType] {
			return falls("mount %q reaches into the kernel (%s)", m.Mountpoint, m.FSType)
		}
		switch k := f.kinds[i]; {
		case k == kindSysCover:
			covers[m.Mountpoint] = true
		case k == kindSys && !readOnly(m):
			return falls("/sys can be written")
		case k == kindSys:
			there = true
		case m.FSType == "sysfs":
			return falls("mount %q is of the kernel's device tree", m.Mountpoint)
		}
	}
	if !there {
		return stands("there is no /sys")
	}
	for _, p := range hiddenSys {
		if !covers[p] {
			return falls("%s is not hidden", p)
		}
	}
	return stands("/sys is read-only with %d parts hidden", len(covers))
}

// foreignProc says how a process file system inside is not of its own pid
// namespace, where every process's root directory is a way out.
func (f *facts) foreignProc() string {
	if f.proc.err != nil {
		return fmt.Sprintf("/proc cannot be judged: %v", f.proc.err)
	}
	var dev *device
	for _, m := range f.mounts.v {
		if m.FSType != "proc" {
			continue
		}
		d := deviceOf(m)
		if f.hostMounts.v.devs[d] {
			return fmt.Sprintf("mount %q is the host's process file system", m.Mountpoint)
		}
		if dev != nil && *dev != d {
			return "there is more than one process file system"
		}
		dev = &d
	}
	if dev == nil {
		return ""
	}
	if !f.proc.isProc {
		return "the process file system is not at /proc"
	}
	if f.proc.first.err != nil {
		return fmt.Sprintf("the first process in /proc cannot be seen: %v", f.proc.first.err)
	}
	if f.ns["pid"].err != nil || f.proc.first.v != f.ns["pid"].v {
		return "the process file system is of another pid namespace"
	}
	return ""
}
