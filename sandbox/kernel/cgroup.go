package kernel

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Membership is one line of /proc/<pid>/cgroup: the group of one hierarchy
// that the process is in.
type Membership struct {
	Controllers []string // of a version 1 hierarchy; empty for version 2
	Path        string   // from the root of the reader's cgroup namespace
}

// ParseMembership reads the format of cgroups(7).
func ParseMembership(text string) ([]Membership, error) {
	var list []Membership
	for line := range strings.Lines(text) {
		// hierarchy-id:controllers:path, where a path may have colons
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 || !strings.HasPrefix(f[2], "/") {
			return nil, fmt.Errorf("control group line %q", line)
		}
		m := Membership{Path: strings.TrimSuffix(f[2], " (deleted)")}
		if f[1] != "" {
			m.Controllers = strings.Split(f[1], ",")
		}
		list = append(list, m)
	}
	return list, nil
}

// group finds the membership that a controller's limits come from: the
// version 1 hierarchy that has it, else version 2.
func group(list []Membership, controller string) (m Membership, unified, ok bool) {
	for _, l := range list {
		for _, c := range l.Controllers {
			if c == controller {
				return l, false, true
			}
		}
	}
	for _, l := range list {
		if l.Controllers == nil {
			return l, true, true
		}
	}
	return Membership{}, false, false
}

// groupDir is where a mount shows a group, as far as one does.
func groupDir(mounts []*mountinfo.Info, m Membership) (string, bool) {
	for _, mnt := range mounts {
		if m.Controllers == nil {
			if mnt.FSType != "cgroup2" {
				continue
			}
		} else if mnt.FSType != "cgroup" || !hasOption(mnt.VFSOptions, m.Controllers[0]) {
			continue
		}
		rel, ok := below(m.Path, mnt.Root)
		if ok {
			return filepath.Join(mnt.Mountpoint, rel), true
		}
	}
	return "", false
}

// below gives the rest of a path under a directory, both clean and absolute.
func below(p, dir string) (rest string, ok bool) {
	if p == dir {
		return "", true
	}
	if dir == "/" {
		return strings.TrimPrefix(p, "/"), strings.HasPrefix(p, "/")
	}
	return strings.CutPrefix(p, dir+"/")
}

// own gives the group and those above it, as long as the host is in none of
// them: a limit that the host itself is under was not made for this process.
func own(m Membership, host []Membership) []string {
	var hostPath string
	for _, h := range host {
		if sameHierarchy(h, m) {
			hostPath = h.Path
		}
	}
	if hostPath == "" {
		return nil
	}
	var list []string
	for p := m.Path; ; p = path.Dir(p) {
		if _, in := below(hostPath, p); in {
			return list
		}
		list = append(list, p)
	}
}

func sameHierarchy(a, b Membership) bool {
	return strings.Join(a.Controllers, ",") == strings.Join(b.Controllers, ",")
}

// ParseControl reads a control file that holds one number, or "max". Version 1
// writes "no limit" as the largest number of pages or as -1.
func ParseControl(text string) (uint64, error) {
	s := strings.TrimSpace(text)
	if s == "max" || s == "-1" {
		return Unlimited, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("control file: %w", err)
	}
	if n >= 1<<62 {
		return Unlimited, nil
	}
	return n, nil
}

// ParseCPUMax reads the version 2 cpu.max, "quota period" in microseconds, and
// gives per cent of one processor.
func ParseCPUMax(text string) (percent uint64, err error) {
	f := strings.Fields(text)
	if len(f) != 2 {
		return 0, fmt.Errorf("cpu.max %q", text)
	}
	quota, err := ParseControl(f[0])
	if err != nil {
		return 0, err
	}
	period, err := ParseControl(f[1])
	if err != nil {
		return 0, err
	}
	return cpuPercent(quota, period)
}

// cpuPercent rounds up, so that a limit never looks smaller than it is.
func cpuPercent(quota, period uint64) (uint64, error) {
	if quota == Unlimited {
		return Unlimited, nil
	}
	if period == 0 || period > 1_000_000_000 || quota > 1<<40 {
		return 0, fmt.Errorf("quota of %d in a period of %d microseconds", quota, period)
	}
	return (quota*100 + period - 1) / period, nil
}

// controlFiles reads limits out of a group's directory.
type controlFiles struct {
	dir     string
	unified bool
}

const maxControl = 4096

func (c controlFiles) read(name string) (string, error) {
	return readText(filepath.Join(c.dir, name), maxControl)
}

func (c controlFiles) number(name string) (uint64, error) {
	s, err := c.read(name)
	if err != nil {
		return 0, err
	}
	return ParseControl(s)
}

// memory is the limit on memory and swap together, or on memory alone where
// the kernel does not count swap.
func (c controlFiles) memory() (uint64, error) {
	if c.unified {
		mem, err := c.number("memory.max")
		if err != nil || mem == Unlimited {
			return mem, err
		}
		swap, err := c.number("memory.swap.max")
		if errors.Is(err, os.ErrNotExist) {
			return mem, nil
		}
		if err != nil || swap == Unlimited {
			return swap, err
		}
		return mem + swap, nil
	}
	mem, err := c.number("memory.limit_in_bytes")
	if err != nil {
		return 0, err
	}
	both, err := c.number("memory.memsw.limit_in_bytes")
	if errors.Is(err, os.ErrNotExist) {
		return mem, nil
	}
	return both, err
}

func (c controlFiles) pids() (uint64, error) { return c.number("pids.max") }

func (c controlFiles) cpu() (uint64, error) {
	if c.unified {
		s, err := c.read("cpu.max")
		if err != nil {
			return 0, err
		}
		return ParseCPUMax(s)
	}
	quota, err := c.number("cpu.cfs_quota_us")
	if err != nil {
		return 0, err
	}
	period, err := c.number("cpu.cfs_period_us")
	if err != nil {
		return 0, err
	}
	return cpuPercent(quota, period)
}
