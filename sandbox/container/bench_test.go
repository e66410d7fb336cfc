package container

import (
	"crypto/rand"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	profile "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// BenchmarkColdStart measures from the wish to the program's first byte, for
// this runtime and for what else is installed, all with the same static
// program. Removal is not counted. This runtime's time has the evidence in it.
// Each waits a little first: a busy machine hides what some kernel calls cost.
func BenchmarkColdStart(b *testing.B) {
	b.Run("aspis", func(b *testing.B) {
		rt := newRuntime(b)
		ctx := testContext(b)
		for b.Loop() {
			pause(b)
			p, err := rt.Start(ctx, probeSpec())
			if err != nil {
				b.Fatal(err)
			}
			if err := p.Release(ctx); err != nil {
				b.Fatal(err)
			}
			firstByte(b, p.Stdout())
			b.StopTimer()
			if err := p.Close(ctx); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	probe := filepath.Join(artifact, "probe")
	commands(b, "fork-exec", "", func(string) []string { return []string{probe} })
	commands(b, "unshare", "unshare", func(string) []string {
		return []string{"unshare", "--mount", "--pid", "--fork", "--ipc", "--uts", "--net", "--cgroup", "--user", "--map-root-user", probe}
	})
	commands(b, "bwrap", "bwrap", func(string) []string {
		return []string{"bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", artifact, "/provider", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "/provider/probe"}
	})
	full, bare := bundle(b, true), bundle(b, false)
	commands(b, "crun-bare", "crun", func(id string) []string {
		return []string{"crun", "--cgroup-manager=disabled", "run", "--bundle", bare, id}
	})
	commands(b, "runc-bare", "runc", func(id string) []string { return []string{"runc", "run", "--bundle", bare, id} })
	commands(b, "runc-full", "runc", func(id string) []string { return []string{"runc", "run", "--bundle", full, id} })
}

func pause(b *testing.B) {
	b.StopTimer()
	time.Sleep(60 * time.Millisecond)
	b.StartTimer()
}

func firstByte(b *testing.B, r io.Reader) {
	var one [1]byte
	if _, err := io.ReadFull(r, one[:]); err != nil {
		b.Fatal(err)
	}
}

// commands measures a program that runs the probe, if it is installed.
func commands(b *testing.B, name, needs string, argv func(id string) []string) {
	b.Run(name, func(b *testing.B) {
		if needs != "" {
			if _, err := exec.LookPath(needs); err != nil {
				b.Skipf("SKIPPED: %s is not installed", needs)
			}
		}
		for b.Loop() {
			pause(b)
			args := argv("bench-" + rand.Text())
			cmd := exec.Command(args[0], args[1:]...)
			out, err := cmd.StdoutPipe()
			if err != nil {
				b.Fatal(err)
			}
			var said strings.Builder
			cmd.Stderr = &said
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			var one [1]byte
			_, err = io.ReadFull(out, one[:])
			b.StopTimer()
			if werr := cmd.Wait(); err != nil || werr != nil {
				b.Skipf("SKIPPED: %s does not run here: %q", name, said.String())
			}
			b.StartTimer()
		}
	})
}

// bundle makes an OCI bundle that runs the probe: with the filter and limits
// that container managers give by default, or without any.
func bundle(b *testing.B, full bool) string {
	b.Helper()
	dir := b.TempDir()
	root := filepath.Join(dir, "rootfs")
	for _, d := range []string{"provider", "proc", "dev", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			b.Fatal(err)
		}
	}
	pids, memory, quota, period := int64(64), int64(256<<20), int64(100_000), uint64(100_000)
	spec := specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: root, Readonly: true},
		Process: &specs.Process{Args: []string{"/provider/probe"}, Cwd: "/", Env: []string{"PATH=/"}, NoNewPrivileges: true, Capabilities: &specs.LinuxCapabilities{}},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev"}},
			{Destination: "/provider", Type: "bind", Source: artifact, Options: []string{"bind", "ro"}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.MountNamespace}, {Type: specs.CgroupNamespace},
			},
			MaskedPaths: maskedPaths, ReadonlyPaths: readOnlyPaths,
		},
	}
	if full {
		filter, err := profile.GetDefaultProfile(&spec)
		if err != nil {
			b.Fatal(err)
		}
		spec.Linux.Seccomp = filter
		spec.Linux.Resources = &specs.LinuxResources{
			Pids: &specs.LinuxPids{Limit: &pids}, Memory: &specs.LinuxMemory{Limit: &memory},
			CPU: &specs.LinuxCPU{Quota: &quota, Period: &period},
		}
	}
	text, err := json.Marshal(spec)
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644); err != nil {
		b.Fatal(err)
	}
	return dir
}
