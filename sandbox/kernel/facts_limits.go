package kernel

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// held is the tightest limit that the process's own control groups put on one
// resource.
type held struct {
	value uint64
	err   error // why there is none
}

// errHostGroup says that a limit would bind the host as well.
var errHostGroup = errors.New("the process is in the host's own control group")

func (f *facts) gatherLimits(p *process) {
	f.limits = read(p, "limits", maxText, ParseLimits)
	f.groups = read(p, "cgroup", maxText, ParseMembership)
	f.processors = runtime.NumCPU()
	f.memory = f.held("memory", controlFiles.memory)
	f.pids = f.held("pids", controlFiles.pids)
	f.cpu = f.held("cpu", controlFiles.cpu)
}

// held reads one controller's limit in the group that the kernel says the
// process is in, and in the groups above that are not the host's too.
func (f *facts) held(controller string, value func(controlFiles) (uint64, error)) held {
	if err := errors.Join(f.groups.err, f.hostGroups.err, f.hostMounts.err); err != nil {
		return held{err: err}
	}
	m, unified, ok := group(f.groups.v, controller)
	if !ok {
		return held{err: errors.New("the kernel lists no control group")}
	}
	paths := own(m, f.hostGroups.v)
	if len(paths) == 0 {
		return held{err: errHostGroup}
	}
	h := held{value: Unlimited}
	for i, p := range paths {
		m.Path = p
		dir, ok := groupDir(f.hostMounts.v.mounts, m)
		if !ok && i == 0 {
			dir, ok = f.givenDir(controller, unified)
		}
		if !ok {
			h.err = errors.Join(h.err, fmt.Errorf("no mount shows the control group %q", p))
			continue
		}
		v, err := value(controlFiles{dir, unified})
		if err != nil {
			h.err = errors.Join(h.err, err)
			continue
		}
		h.value = min(h.value, v)
	}
	if h.value != Unlimited {
		h.err = nil
	} else if h.err == nil {
		h.err = errors.New("the control group sets no limit")
	}
	return h
}

// givenDir takes the host's word for where the group is, if the kernel lists
// the process there.
func (f *facts) givenDir(controller string, unified bool) (string, bool) {
	if unified {
		controller = ""
	}
	dir := f.ex.CgroupPaths[controller]
	if dir == "" {
		return "", false
	}
	procs, err := readText(filepath.Join(dir, "cgroup.procs"), maxText)
	if err != nil {
		return "", false
	}
	for line := range strings.FieldsSeq(procs) {
		if line == strconv.Itoa(f.pid) {
			return dir, true
		}
	}
	return "", false
}

// gatherMounts reads the mount table and what can be seen through the root.
func (f *facts) gatherMounts(p *process) {
	f.mounts = read(p, "mountinfo", maxMounts, ParseMounts)
	for _, m := range f.mounts.v {
		f.kinds = append(f.kinds, f.kindOf(m))
	}
	f.protected = f.places()
	f.otherDevs = f.devsElsewhere()
	id, err := idAt(p.fd, "root")
	f.root = fact[fileID]{id, err}
	root, err := openRoot(p)
	if err != nil {
		f.tree.err, f.proc.err = err, err
		return
	}
	defer root.close()
	f.tree = root.walk(f.mounts.v)
	f.proc = root.proc()
	f.shown = f.sources(root)
}

// places resolves the protected paths in the host's own mount table.
func (f *facts) places() fact[[]place] {
	if f.hostMounts.err != nil {
		return fact[[]place]{err: f.hostMounts.err}
	}
	var all []place
	for _, p := range f.ex.Spec.Protect {
		list, err := f.hostMounts.v.places(p)
		if err != nil {
			return fact[[]place]{err: err}
		}
		all = append(all, list...)
	}
	return fact[[]place]{v: all}
}

// devsElsewhere gives the file systems that our other mount namespaces show.
// One of them that is writable inside would be shared with others.
func (f *facts) devsElsewhere() fact[map[device]bool] {
	devs := map[device]bool{}
	for _, space := range f.spaces.v {
		if space.id == f.hostNS["mnt"].v {
			continue // read already
		}
		text, err := readText(path.Dir(space.root)+"/mountinfo", maxMounts)
		if err != nil {
			return fact[map[device]bool]{err: err}
		}
		mounts, err := ParseMounts(text)
		if err != nil {
			return fact[map[device]bool]{err: err}
		}
		for _, m := range mounts {
			devs[deviceOf(m)] = true
		}
	}
	return fact[map[device]bool]{devs, f.spaces.err}
}

func threadDir(tid int) string {
	return "/proc/" + strconv.Itoa(os.Getpid()) + "/task/" + strconv.Itoa(tid)
}
