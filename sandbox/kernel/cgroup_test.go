package kernel

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
)

// layOut writes control files and gives the facts of a process in a group,
// with the hierarchies mounted below dir.
func layOut(t *testing.T, member, host string, mounts map[string]string, files map[string]string) *facts {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var list []*mountinfo.Info
	for at, controller := range maps.All(mounts) {
		m := &mountinfo.Info{Root: "/", Mountpoint: filepath.Join(dir, at), FSType: "cgroup", VFSOptions: "rw," + controller}
		if controller == "" {
			m.FSType, m.VFSOptions = "cgroup2", "rw"
		}
		list = append(list, m)
	}
	f := &facts{hostMounts: fact[*table]{v: newTable(list)}}
	var err1, err2 error
	f.groups.v, err1 = ParseMembership(member)
	f.hostGroups.v, err2 = ParseMembership(host)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestHeldLimits(t *testing.T) {
	v2 := map[string]string{"u": ""}
	v1 := map[string]string{"memory": "memory", "pids": "pids", "cpu": "cpu,cpuacct"}
	hybrid := map[string]string{"memory": "memory", "u": ""}
	for name, c := range map[string]struct {
		member, host string
		mounts       map[string]string
		files        map[string]string
		controller   string
		read         func(controlFiles) (uint64, error)
		want         uint64 // 0 for none, with why
		why          string
	}{
		"version 2 memory and swap": {
			"0::/s\n", "0::/\n", v2, map[string]string{"u/s/memory.max": "1000\n", "u/s/memory.swap.max": "24\n"}, "memory", controlFiles.memory, 1024, "",
		},
		"version 2 unlimited swap": {
			"0::/s\n", "0::/\n", v2, map[string]string{"u/s/memory.max": "1000\n", "u/s/memory.swap.max": "max\n"}, "memory", controlFiles.memory, 0, "sets no limit",
		},
		"version 2 without swap": {
			"0::/s\n", "0::/\n", v2, map[string]string{"u/s/memory.max": "1000\n"}, "memory", controlFiles.memory, 1000, "",
		},
		"version 2 limit above the group": {
			"0::/a/s\n", "0::/b\n", v2, map[string]string{"u/a/s/memory.max": "max\n", "u/a/memory.max": "500\n", "u/memory.max": "1\n"}, "memory", controlFiles.memory, 500, "",
		},
		"version 2 limit of the host": {
			"0::/a/s\n", "0::/a/h\n", v2, map[string]string{"u/a/s/memory.max": "max\n", "u/a/memory.max": "500\n"}, "memory", controlFiles.memory, 0, "sets no limit",
		},
		"version 2 controller off": {
			"0::/s\n", "0::/\n", v2, map[string]string{"u/s/pids.max": "9\n"}, "cpu", controlFiles.cpu, 0, "cpu.max",
		},
		"version 2 cpu":  {"0::/s\n", "0::/\n", v2, map[string]string{"u/s/cpu.max": "150000 100000\n"}, "cpu", controlFiles.cpu, 150, ""},
		"version 2 pids": {"0::/s\n", "0::/\n", v2, map[string]string{"u/s/pids.max": "9\n"}, "pids", controlFiles.pids, 9, ""},
		"host's group":   {"0::/s\n", "0::/s\n", v2, nil, "pids", controlFiles.pids, 0, "the host's own"},
		"garbage":        {"0::/s\n", "0::/\n", v2, map[string]string{"u/s/pids.max": "many\n"}, "pids", controlFiles.pids, 0, "many"},
		"version 1 memory and swap": {
			"4:memory:/s\n", "4:memory:/\n", v1, map[string]string{"memory/s/memory.limit_in_bytes": "100\n", "memory/s/memory.memsw.limit_in_bytes": "120\n"}, "memory", controlFiles.memory, 120, "",
		},
		"version 1 memory alone": {
			"4:memory:/s\n", "4:memory:/\n", v1, map[string]string{"memory/s/memory.limit_in_bytes": "100\n"}, "memory", controlFiles.memory, 100, "",
		},
		"version 1 no limit": {
			"4:memory:/s\n", "4:memory:/\n", v1, map[string]string{"memory/s/memory.limit_in_bytes": "9223372036854771712\n"}, "memory", controlFiles.memory, 0, "sets no limit",
		},
		"version 1 cpu": {
			"3:cpu,cpuacct:/s\n", "3:cpu,cpuacct:/\n", v1, map[string]string{"cpu/s/cpu.cfs_quota_us": "50000\n", "cpu/s/cpu.cfs_period_us": "100000\n"}, "cpu", controlFiles.cpu, 50, "",
		},
		"hybrid takes version 1": {
			"4:memory:/s\n0::/x\n", "4:memory:/\n0::/\n", hybrid, map[string]string{"memory/s/memory.limit_in_bytes": "100\n", "u/x/memory.max": "1\n"}, "memory", controlFiles.memory, 100, "",
		},
		"not mounted": {"4:memory:/s\n", "4:memory:/\n", v2, nil, "memory", controlFiles.memory, 0, "no mount shows"},
		"no groups":   {"", "", v2, nil, "memory", controlFiles.memory, 0, "lists no control group"},
	} {
		t.Run(name, func(t *testing.T) {
			h := layOut(t, c.member, c.host, c.mounts, c.files).held(c.controller, c.read)
			switch {
			case c.want != 0 && (h.err != nil || h.value != c.want):
				t.Errorf("%+v, want %d", h, c.want)
			case c.want == 0 && (h.err == nil || !strings.Contains(h.err.Error(), c.why)):
				t.Errorf("%+v, want an error about %q", h, c.why)
			}
		})
	}
}
