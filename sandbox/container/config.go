package container

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/internal/supervise"
)

const (
	// providerID is the user and group that the program runs as inside, where
	// enough ids are mapped; otherwise it runs as 0 of a namespace in which 0
	// is the calling user.
	providerID = 1000
	// idCount is how many ids a sandbox gets.
	idCount = 65536
	// hostname is what uname tells inside, on every machine the same.
	hostname = "aspis"
)

// ids is who a sandbox runs as.
type ids struct {
	userNS bool
	uids   []configs.IDMap // with a user namespace
	gids   []configs.IDMap
	user   int // user and group inside, with a user namespace
	owner  int // what user is outside, as this process sees it
}

// chooseIDs decides the mapping. A machine's root maps an unprivileged range
// far from every account; a caller in its own user namespace maps what it has.
func chooseIDs(who Identity, base uint32, userNS bool) (ids, error) {
	if !who.UserNS {
		m := []configs.IDMap{{HostID: int64(base), Size: idCount}}
		return ids{userNS: userNS, uids: m, gids: m, user: providerID, owner: int(base) + providerID}, nil
	}
	u, err := readIDMap("/proc/self/uid_map")
	if err != nil {
		return ids{}, err
	}
	g, err := readIDMap("/proc/self/gid_map")
	if err != nil {
		return ids{}, err
	}
	n := min(contiguous(u), contiguous(g), idCount+1)
	if n-1 > providerID {
		// From 1 up: 0 is whoever started us, perhaps the machine's own root,
		// and not even the sandbox's root may be that.
		return ids{userNS: userNS, uids: mapFrom(u, 1, n-1), gids: mapFrom(g, 1, n-1), user: providerID, owner: providerID + 1}, nil
	}
	n = min(n, idCount)
	return ids{userNS: userNS, uids: mapFrom(u, 0, n), gids: mapFrom(g, 0, n)}, nil
}

// runAs maps one user and one group of the host's and nothing else. Inside they
// are 0, for the kernel lets a namespace with a single id have no other root.
func (i ids) runAs(want sandbox.IDs) ids {
	i.uids = []configs.IDMap{{HostID: int64(want.User), Size: 1}}
	i.gids = []configs.IDMap{{HostID: int64(want.Group), Size: 1}}
	i.user, i.owner = 0, want.User
	return i
}

// mapFrom maps n ids inside, from 0 up, to those from first up here. The
// kernel wants each line of a map to lie within one line of the map around it.
func mapFrom(around []idRange, first, n int64) []configs.IDMap {
	var m []configs.IDMap
	for _, r := range around {
		from, to := max(r.inside, first), min(r.inside+r.count, first+n)
		if from < to {
			m = append(m, configs.IDMap{ContainerID: from - first, HostID: from, Size: to - from})
		}
	}
	return m
}

var maskedPaths = []string{
	"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys",
	"/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
	"/proc/kallsyms", "/proc/key-users", "/proc/vmallocinfo", "/proc/kmsg", "/proc/driver",
}

var readOnlyPaths = []string{
	"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger",
}

// Places in the list of mounts that are left to libcontainer.
const (
	procMount = iota
	devMount
)

// namespaces of every sandbox, with the wall that each one is.
var namespaces = []struct {
	wall sandbox.WallName
	ns   configs.NamespaceType
}{
	{sandbox.WallUserNamespace, configs.NEWUSER},
	{sandbox.WallMountNamespace, configs.NEWNS},
	{sandbox.WallPIDNamespace, configs.NEWPID},
	{sandbox.WallIPCNamespace, configs.NEWIPC},
	{sandbox.WallUTSNamespace, configs.NEWUTS},
	{sandbox.WallNetworkNamespace, configs.NEWNET},
	{sandbox.WallCgroupNamespace, configs.NEWCGROUP},
}

// buildConfig says to libcontainer what the Spec asks for. The root file
// system at rootfs is complete but for /proc and /dev. shared tells that a
// control group holds the share of processor time, so that no total need be
// set instead.
func buildConfig(spec *sandbox.Spec, rootfs, dev string, id ids, shared bool, without map[sandbox.WallName]bool) *configs.Config {
	c := &configs.Config{
		Rootfs:          rootfs,
		Readonlyfs:      !without[sandbox.WallRootFilesystem],
		NoNewPrivileges: !without[sandbox.WallNoNewPrivileges],
		NoNewKeyring:    without[sandbox.WallSessionKeyring],
		Capabilities:    &configs.Capabilities{},
		// libcontainer must not make control groups of its own: see startContainer.
		RootlessCgroups: true,
		Cgroups:         &cgroups.Cgroup{Rootless: true, Resources: &cgroups.Resources{}},
		Mounts: []*configs.Mount{
			procMount: {Device: "proc", Source: "proc", Destination: "/proc", Flags: quiet},
			// A complete one, which keeps libcontainer from making its own
			// device files, terminals and links.
			devMount: {Device: "bind", Source: dev, Destination: "/dev", Flags: unix.MS_BIND | unix.MS_REC},
		},
		ParentDeathSignal: int(unix.SIGKILL),
	}
	for _, n := range namespaces {
		if !id.userNS && n.ns == configs.NEWUSER || breaks(without, n.wall) {
			continue
		}
		c.Namespaces.Add(n.ns, "")
		switch n.ns {
		case configs.NEWUSER:
			c.UIDMappings, c.GIDMappings = id.uids, id.gids
			if without[sandbox.WallUserIDs] {
				c.UIDMappings = []configs.IDMap{{Size: 1}}
				c.GIDMappings = c.UIDMappings
			}
		case configs.NEWUTS:
			c.Hostname = hostname
		}
	}
	if !without[sandbox.WallProcMasked] && c.Namespaces.Contains(configs.NEWNS) {
		c.MaskPaths = maskedPaths
		c.ReadonlyPaths = readOnlyPaths
	}
	breachConfig(c, without)
	c.Rlimits = rlimits(spec.Limits, shared, without)
	return c
}

// rlimits that a child can be born with. A hard limit above our own needs
// CAP_SYS_RESOURCE, so ours is the most that is given.
func rlimits(lim sandbox.Limits, shared bool, without map[sandbox.WallName]bool) []configs.Rlimit {
	want := []configs.Rlimit{{Type: unix.RLIMIT_CORE}}
	same := func(what int, n int64) {
		want = append(want, configs.Rlimit{Type: what, Soft: uint64(n), Hard: uint64(n)})
	}
	if lim.OpenFiles > 0 && !without[sandbox.WallOpenFilesLimit] {
		same(unix.RLIMIT_NOFILE, int64(lim.OpenFiles))
	}
	if lim.FileBytes > 0 {
		same(unix.RLIMIT_FSIZE, lim.FileBytes)
	}
	if l, ok := supervise.CPULimit(lim); ok && !shared && !without[sandbox.WallCPULimit] {
		want = append(want, configs.Rlimit{Type: unix.RLIMIT_CPU, Soft: l.Cur, Hard: l.Max})
	}
	for i, w := range want {
		var own unix.Rlimit
		if err := unix.Getrlimit(w.Type, &own); err == nil {
			want[i].Hard = min(w.Hard, own.Max)
			want[i].Soft = min(w.Soft, own.Max)
		}
	}
	return want
}

// environment is the Spec's, with a HOME, which libcontainer would otherwise
// look up by itself.
func environment(spec *sandbox.Spec, without map[sandbox.WallName]bool) []string {
	env := append([]string{}, spec.Env...)
	if !hasEnv(env, "HOME") {
		env = append(env, "HOME="+providerHome)
	}
	if without[sandbox.WallEnvironment] {
		env = append(env, "ASPIS_LEAKED="+os.Getenv("PATH"))
	}
	return env
}

func hasEnv(env []string, name string) bool {
	for _, e := range env {
		if strings.HasPrefix(e, name+"=") {
			return true
		}
	}
	return false
}

// noGroup is outside every hierarchy, so that libcontainer can make nothing
// there; told that it is rootless, it goes on without.
const noGroup = "/aspis-no-control-group"

// loadContainer gives a container whose control group manager does what we
// say. libcontainer.Create always makes groups in every controller; a
// container loaded from a state file takes the groups named there as given.
// On version 1 we name none that it knows, because the starting thread is in
// them already; on version 2 we name ours, and libcontainer moves the child.
func loadContainer(dir, id string, c *configs.Config, g *group) (*libcontainer.Container, error) {
	paths := map[string]string{"none": noGroup}
	if g.h.unified {
		paths = map[string]string{"": noGroup}
		if leaf := g.dirs[""]; leaf != "" {
			paths[""] = leaf
		}
	}
	state := libcontainer.State{
		BaseState:   libcontainer.BaseState{ID: id, Config: *c},
		CgroupPaths: paths,
	}
	b, err := json.Marshal(&state)
	if err != nil {
		return nil, fmt.Errorf("encode container state: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, id), 0o711); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, id, "state.json"), b, 0o600); err != nil {
		return nil, err
	}
	return libcontainer.Load(dir, id)
}
