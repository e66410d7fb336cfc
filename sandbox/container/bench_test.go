package container

import (
	"crypto/rand"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
		var all times
		for b.Loop() {
			begin := all.begin()
			p, err := rt.Start(ctx, probeSpec())
			if err != nil {
				b.Fatal(err)
			}
			if err := p.Release(ctx); err != nil {
				b.Fatal(err)
			}
			if err := firstByte(p.Stdout()); err != nil {
				b.Fatal(err)
			}
			all.end(begin)
			if err := p.Close(ctx); err != nil {
				b.Fatal(err)
			}
		}
		all.report(b)
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

// times are measured here and not by the benchmark's timer, which stops the
// whole program to be stopped.
type times []time.Duration

func (t *times) begin() time.Time {
	time.Sleep(60 * time.Millisecond)
	return time.Now()
}

func (t *times) end(begin time.Time) { *t = append(*t, time.Since(begin)) }

func (t *times) report(b *testing.B) {
	slices.Sort(*t)
	n := len(*t)
	b.ReportMetric(0, "ns/op") // with the pauses, so of no interest
	b.ReportMetric(float64((*t)[n/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64((*t)[n*95/100].Microseconds())/1000, "p95-ms")
}

func firstByte(r io.Reader) error {
	var one [1]byte
	_, err := io.ReadFull(r, one[:])
	return err
}

// commands measures a program that runs the probe, if it is installed.
func commands(b *testing.B, name, needs string, argv func(id string) []string) {
	b.Run(name, func(b *testing.B) {
		if needs != "" {
			if _, err := exec.LookPath(needs); err != nil {
				b.Skipf("SKIPPED: %s is not installed", needs)
			}
		}
		var all times
		for b.Loop() {
			args := argv("bench-" + rand.Text())
			cmd := exec.Command(args[0], args[1:]...)
			out, err := cmd.StdoutPipe()
			if err != nil {
				b.Fatal(err)
			}
			var said strings.Builder
			cmd.Stderr = &said
			begin := all.begin()
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			err = firstByte(out)
			all.end(begin)
			if werr := cmd.Wait(); err != nil || werr != nil {
				b.Skipf("SKIPPED: %s does not run here: %q", name, said.String())
			}
		}
		all.report(b)
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
