package kernel_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/container"
	"github.com/aspis-dev/aspis/sandbox/kernel"
)

// enterEnv makes the test program go on in a user namespace, as the real one
// does for an ordinary user.
const enterEnv = "ASPIS_TEST_ENTER"

func TestMain(m *testing.M) {
	if err := kernel.Restrict(); err != nil {
		fmt.Println("restrict:", err)
		os.Exit(1)
	}
	if os.Getenv(enterEnv) != "" {
		e, err := container.Enter(context.Background(), nil)
		if err != nil || e.WhyNot != "" {
			fmt.Println("enter:", err, e.WhyNot)
			os.Exit(1)
		}
		if e.Child {
			os.Exit(e.Code)
		}
	}
	os.Exit(m.Run())
}

// TestOrdinaryUser takes evidence of a sandbox that an ordinary user built
// (ISO-ROOTLESS), and of each mutant of it.
func TestOrdinaryUser(t *testing.T) {
	out := kernel.AsNobody(t, "TestAsNobody", enterEnv+"=1", "GOCACHE="+t.TempDir(), "ASPIS_TEST_IDLE="+buildIdle(t))
	t.Log(out)
	if !strings.Contains(out, "mode ") {
		t.Error("nothing was tested")
	}
}

// TestOrdinaryUserWithRange is the same for one who has a range of ids.
func TestOrdinaryUserWithRange(t *testing.T) {
	out := kernel.AsMapped(t, "TestAsNobody", enterEnv+"=1", "ASPIS_TEST_IDLE="+buildIdle(t))
	t.Log(out)
	if !strings.Contains(out, "mode ") {
		t.Error("nothing was tested")
	}
	if strings.Contains(out, "the only id there is") {
		t.Error("the range was not used")
	}
}

// TestInsideContainer is as in Docker, where the host's own devices are files in
// memory.
func TestInsideContainer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can make devices")
	}
	t.Log(kernel.Restricted(t, "memory-dev", "TestIsolated", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}))
}

// TestAsNobody is run by the two tests above.
func TestAsNobody(t *testing.T) {
	if os.Getenv(enterEnv) == "" {
		return // by itself it is no test: the two above run it as somebody else
	}
	b := newBench(t)
	ev, err := evidence(t, b.runtime, b.spec())
	if err != nil {
		t.Fatal(err)
	}
	mode, missing := ev.Mode()
	t.Logf("mode %v\n%s", mode, describe(ev))
	if mode < sandbox.ModeMediatedWrite {
		t.Errorf("mode %v, missing %v", mode, missing)
	}
	before := map[sandbox.WallName]bool{}
	for _, w := range missing {
		before[w.Name] = true
		switch w.Name {
		case sandbox.WallMemoryLimit, sandbox.WallPidsLimit, sandbox.WallCPULimit:
		default:
			t.Errorf("%s is missing: %s", w.Name, w.Seen)
		}
	}
	for _, row := range sandbox.Table() {
		switch row.Name {
		case sandbox.WallUserNamespace, sandbox.WallUserIDs, sandbox.WallSessionKeyring:
			continue // there is no other way for an ordinary user; see TestMutants
		}
		t.Run(string(row.Name), func(t *testing.T) {
			spec := b.spec()
			spec.Without = []sandbox.WallName{row.Name}
			ev, err := evidence(t, b.runtime, spec)
			if err != nil {
				t.Logf("cannot be built: %v", err)
				return
			}
			if mode, missing := ev.Mode(); mode >= row.Needed {
				t.Errorf("mode %v without it, missing %v", mode, missing)
			}
		})
	}
}
