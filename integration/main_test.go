// Package integration drives the real binaries on real repositories: every
// behaviour id by a test of its name, bad input, concurrency and soak.
package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/aspis-dev/aspis/integration/conformance"
)

// bin is where the binaries under test lie.
var bin string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "aspis-integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	// Another user runs the binary in the rootless tests.
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if bin = os.Getenv("ASPIS_BIN"); bin == "" {
		bin = dir
	}
	if bin, err = filepath.Abs(bin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := build(bin); err != nil {
		fmt.Fprintln(os.Stderr, "build the binaries under test:", err)
		return 1
	}
	return m.Run()
}

// build makes what is not there yet, with the Makefile's flags.
func build(dir string) error {
	const ldflags = "-s -w -X main.version=test"
	for _, b := range []struct {
		name, pkg, cgo string
		flags          []string
	}{
		{"aspis", "../cmd/aspis", "1", []string{"-tags", "netgo osusergo", "-ldflags", ldflags + " -linkmode external -extldflags -static"}},
		{"aspis-hygiene", "../cmd/aspis-hygiene", "0", []string{"-ldflags", ldflags}},
		{"aspis-testprovider", "./testprovider", "0", []string{"-ldflags", ldflags}},
	} {
		out := filepath.Join(dir, b.name)
		if _, err := os.Stat(out); err == nil {
			continue
		}
		cmd := exec.Command("go", append(append([]string{"build", "-trimpath"}, b.flags...), "-o", out, b.pkg)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED="+b.cgo)
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", b.pkg, err, text)
		}
	}
	return nil
}

func options(t *testing.T) conformance.HostOptions {
	t.Helper()
	return conformance.HostOptions{Bin: filepath.Join(bin, "aspis"), TestProvider: filepath.Join(bin, "aspis-testprovider"), Dir: t.TempDir()}
}

func lab(t *testing.T) *conformance.Lab {
	t.Helper()
	l, err := conformance.NewLab(options(t))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func deadline(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// prove runs a behaviour id over both seams.
func prove(t *testing.T, id string) {
	t.Helper()
	t.Parallel()
	c, ok := conformance.HostCase(id)
	if !ok {
		t.Fatalf("there is no case %s", id)
	}
	l := lab(t)
	l.AlsoCheck = true
	if err := c.Prove(deadline(t, 2*time.Minute), l); err != nil {
		t.Error(err)
	}
}

// world makes a repository with state of its own.
func world(t *testing.T, l *conformance.Lab, c *conformance.Config) *conformance.World {
	t.Helper()
	w, err := l.World(deadline(t, time.Minute), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func serve(t *testing.T, w *conformance.World, extra ...string) *conformance.Host {
	t.Helper()
	h, err := w.Serve(extra...)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// needRoot skips what cannot be shown as an ordinary user.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
}
