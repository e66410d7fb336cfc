package container

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
)

// coverProc hides a part of /proc from everything born in the space, as a
// container engine does.
func coverProc(t *testing.T, s *MountSpace) {
	t.Helper()
	const part = "/proc/acpi"
	if _, err := os.Stat(part); err != nil {
		t.Skip("SKIPPED: this machine has no ", part)
	}
	err := s.Do(func() error { return unix.Mount("none", part, "tmpfs", unix.MS_RDONLY, "size=4k") })
	if err != nil {
		t.Skip("SKIPPED: ", part, " cannot be covered: ", err)
	}
}

// TestCoveredProc starts where parts of /proc are covered, with a new /proc
// beside it and without.
func TestCoveredProc(t *testing.T) {
	for name, uncovered := range map[string]bool{"own": true, "old": false} {
		t.Run(name, func(t *testing.T) {
			rt := newRuntime(t)
			rt.covered = true
			coverProc(t, rt.opt.Space)
			if uncovered {
				if err := rt.opt.Space.Do(func() error { return uncover(rt.opt.Space.Dir() + "/proc") }); err != nil {
					t.Skip("SKIPPED: no new /proc may be mounted by this user: ", err)
				}
			}
			spec := probeSpec("see")
			spec.Protect = []string{t.TempDir()}
			p, err := rt.Start(testContext(t), spec)
			if err != nil {
				t.Fatal(err)
			}
			defer closeProcess(t, p)
			mode, missing := p.Evidence().Mode()
			if uncovered {
				if mode != sandbox.ModeIsolated {
					t.Errorf("%v, missing %v", mode, missing)
				}
				return
			}
			if mode != sandbox.ModeGated || !rt.procShut.Load() {
				t.Errorf("%v, missing %v", mode, missing)
			}
			for _, w := range missing {
				if w.Fix != fixCovered {
					t.Errorf("%s is missing (%s) with the remedy %q", w.Name, w.Seen, w.Fix)
				}
			}
		})
	}
}
