package containerd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/internal/stage"
)

const (
	providerID = 1000 // user and group inside
	idCount    = 65536
	home       = "/tmp/home"

	defaultTmpSize = 64 << 20
	cpuPeriod      = 100_000 // microseconds, the kernel's default
	artifactTarget = "/provider"
)

var maskedPaths = []string{
	"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys",
	"/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
	"/proc/kallsyms", "/proc/key-users", "/proc/vmallocinfo", "/proc/kmsg", "/proc/driver",
}

var readOnlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

// deviceNames give nothing away, and programs cannot do without them.
var deviceNames = []string{"null", "zero", "full", "random", "urandom"}

// ociSpec says in the terms of the OCI runtime specification what a Spec asks
// for. The number of processes is limited later, since the start needs some.
func ociSpec(spec *sandbox.Spec, opt Options, id string) *specs.Spec {
	env := append([]string{}, spec.Env...)
	if !hasEnv(env, "HOME") {
		env = append(env, "HOME="+home)
	}
	ids := []specs.LinuxIDMapping{{HostID: opt.UIDBase, Size: idCount}}
	return &specs.Spec{
		Version: "1.0.2",
		Process: &specs.Process{
			User:            specs.User{UID: providerID, GID: providerID},
			Args:            []string{stage.Path, stage.Marker},
			Env:             env,
			Cwd:             spec.Dir,
			Capabilities:    &specs.LinuxCapabilities{},
			Rlimits:         rlimits(spec.Limits),
			NoNewPrivileges: true,
		},
		Root:     &specs.Root{Path: "rootfs", Readonly: true},
		Hostname: "aspis",
		Mounts:   mounts(spec, opt),
		Linux: &specs.Linux{
			UIDMappings: ids, GIDMappings: ids,
			CgroupsPath: "/" + opt.Namespace + "/" + id,
			Resources:   resources(spec.Limits),
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.UserNamespace}, {Type: specs.MountNamespace}, {Type: specs.PIDNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.CgroupNamespace}, {Type: specs.NetworkNamespace},
			},
			MaskedPaths: maskedPaths, ReadonlyPaths: readOnlyPaths,
		},
	}
}

func hasEnv(env []string, name string) bool {
	for _, e := range env {
		if strings.HasPrefix(e, name+"=") {
			return true
		}
	}
	return false
}

func rlimits(lim sandbox.Limits) []specs.POSIXRlimit {
	list := []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}}
	if n := uint64(max(lim.OpenFiles, 0)); n > 0 {
		list = append(list, specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: n, Hard: n})
	}
	if n := uint64(max(lim.FileBytes, 0)); n > 0 {
		list = append(list, specs.POSIXRlimit{Type: "RLIMIT_FSIZE", Soft: n, Hard: n})
	}
	return list
}

func resources(lim sandbox.Limits) *specs.LinuxResources {
	res := &specs.LinuxResources{}
	if n := lim.MemoryBytes; n > 0 {
		res.Memory = &specs.LinuxMemory{Limit: &n, Swap: &n} // memory and swap together
	}
	if lim.CPUPercent > 0 {
		quota, period := int64(cpuPeriod)*int64(lim.CPUPercent)/100, uint64(cpuPeriod)
		res.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	return res
}

// mounts are all that is seen besides the image. A complete /dev keeps runc
// from making its own device files and terminals.
func mounts(spec *sandbox.Spec, opt Options) []specs.Mount {
	tmp := spec.Limits.TmpBytes
	if tmp <= 0 {
		tmp = defaultTmpSize
	}
	list := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "nodev", "noexec"}},
		{Destination: "/dev", Type: "bind", Source: opt.DeviceDir, Options: []string{"bind", "ro", "nosuid", "noexec", "nodev", "private"}},
		{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "noexec", "mode=1777", fmt.Sprintf("size=%d", tmp)}},
		shown(opt.Stage, stage.Path),
	}
	for _, name := range deviceNames {
		list = append(list, specs.Mount{Destination: "/dev/" + name, Type: "bind", Source: "/dev/" + name, Options: []string{"bind", "nosuid", "noexec", "private"}})
	}
	if spec.Artifact != "" {
		list = append(list, shown(spec.Artifact, artifactTarget))
	}
	for _, m := range spec.Mounts {
		list = append(list, shown(m.Source, m.Target))
	}
	return list
}

// shown is a read-only view of something on the host.
func shown(source, target string) specs.Mount {
	return specs.Mount{Destination: target, Type: "bind", Source: source, Options: []string{"rbind", "ro", "nosuid", "nodev", "private"}}
}

// makeMountPoints makes what mounts need in the snapshot's own layer, before it
// is mounted anywhere: links of the image are hidden by it, not followed, and
// the sandbox's root, who could not make them, need not.
func makeMountPoints(upper string, list []specs.Mount) error {
	// The image's own program directories stay as they are.
	for _, m := range list {
		target := filepath.Join(upper, filepath.Clean("/"+m.Destination))
		dir := m.Type != "bind"
		if !dir {
			info, err := os.Stat(m.Source)
			if err != nil {
				return err
			}
			dir = info.IsDir()
		}
		parent := target
		if !dir {
			parent = filepath.Dir(target)
		}
		if filepath.Dir(m.Destination) == "/dev" {
			continue // in the devices' own directory
		}
		if err := os.MkdirAll(parent, 0o755); err != nil {
			return err
		}
		if dir {
			continue
		}
		if err := os.WriteFile(target, nil, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// makeDevices makes the directory that is shown as /dev. The device files are
// bound over its empty files.
func makeDevices(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range deviceNames {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil && !os.IsExist(err) {
			return err
		}
	}
	return nil
}
