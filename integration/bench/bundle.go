package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"
	profile "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/aspis-dev/aspis/sandbox"
)

// limits are the same for every contender that can keep them.
var limits = sandbox.Limits{
	MemoryBytes: 256 << 20, Pids: 64, OpenFiles: 128, CPUPercent: 100, TmpBytes: 8 << 20,
}

// bundle makes an OCI bundle that runs the program as container engines do by
// default: own namespaces, read-only root, masked /proc, no capabilities, and,
// where asked for, their system call filter and limits.
func bundle(dir, artifact string, filter, limited bool) error {
	root := filepath.Join(dir, "rootfs")
	for _, d := range []string{"provider", "proc", "dev", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return fmt.Errorf("make a bundle: %w", err)
		}
	}
	spec := specs.Spec{
		Version:  "1.0.2", // which all runtimes in use know
		Root:     &specs.Root{Path: root, Readonly: true},
		Hostname: "bench",
		Process: &specs.Process{
			Args: []string{"/provider/bench-byte"}, Cwd: "/", Env: []string{"PATH=/"},
			NoNewPrivileges: true, Capabilities: &specs.LinuxCapabilities{},
			Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: uint64(limits.OpenFiles), Hard: uint64(limits.OpenFiles)}},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755", "size=64k"}},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", fmt.Sprintf("size=%d", limits.TmpBytes)}},
			{Destination: "/provider", Type: "bind", Source: artifact, Options: []string{"bind", "ro"}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.MountNamespace}, {Type: specs.CgroupNamespace},
			},
			MaskedPaths:   []string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/interrupts"},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	if filter {
		var err error
		if spec.Linux.Seccomp, err = profile.GetDefaultProfile(&spec); err != nil {
			return fmt.Errorf("make the engines' default filter: %w", err)
		}
	}
	if limited {
		pids, memory, period := int64(limits.Pids), limits.MemoryBytes, uint64(100_000)
		quota := int64(period) * int64(limits.CPUPercent) / 100
		spec.Linux.Resources = &specs.LinuxResources{
			Pids:   &specs.LinuxPids{Limit: &pids},
			Memory: &specs.LinuxMemory{Limit: &memory},
			CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period},
		}
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode a bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644); err != nil {
		return fmt.Errorf("make a bundle: %w", err)
	}
	return nil
}
