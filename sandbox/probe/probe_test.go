package probe_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/container"
	"github.com/aspis-dev/aspis/sandbox/probe"
)

// helperEnv makes the test program the host of a probe, as another user.
const helperEnv = "ASPIS_TEST_PROBE"

var program string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if program = os.Getenv(helperEnv); program != "" {
		return helper()
	}
	dir, err := os.MkdirTemp("", "aspis-probe-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	program = filepath.Join(dir, "aspis-probe")
	build := exec.Command("go", "build", "-o", program, "../../cmd/aspis-probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// helper enters a user namespace, probes, and prints what is open.
func helper() int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	e, err := container.Enter(ctx, nil)
	if err != nil || e.Child {
		fmt.Println("entered", err)
		return e.Code
	}
	if e.WhyNot != "" {
		fmt.Println("not:", e.WhyNot)
		return 0
	}
	r, err := run(ctx, filepath.Join(os.Getenv("ASPIS_TEST_DIR"), "state"), filepath.Join(os.Getenv("ASPIS_TEST_DIR"), "probe"), probe.Options{})
	if err != nil {
		fmt.Println("helper:", err)
		return 1
	}
	for _, res := range r.Results {
		fmt.Printf("%s %s %s\n", res.State, res.Name, res.Seen)
	}
	fmt.Printf("counted %d blocked %d open, mode %v\n", r.Count(probe.Blocked), r.Count(probe.Open), r.Mode)
	return 9
}

func run(ctx context.Context, state, dir string, opt probe.Options) (_ probe.Report, err error) {
	space, err := container.NewSpace("")
	if err != nil {
		return probe.Report{}, err
	}
	defer func() { _ = space.Close() }()
	rt, err := container.New(container.Options{StateDir: state, Space: space})
	if err != nil {
		return probe.Report{}, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return probe.Report{}, err
	}
	opt.Runtime, opt.Program, opt.Dir = rt, program, dir
	return probe.Run(ctx, opt)
}

// here probes as this user, with a directory that everybody may pass.
func here(t *testing.T, opt probe.Options) probe.Report {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs: root, or see TestRootless")
	}
	dir, err := os.MkdirTemp(filepath.Dir(program), "run-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	r, err := run(ctx, t.TempDir(), filepath.Join(dir, "probe"), opt)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestNothingIsOpen(t *testing.T) {
	r := here(t, probe.Options{})
	for _, res := range r.Results {
		t.Logf("%-14s %-28s %s", res.State, res.Name, res.Seen)
		if res.State == probe.Open {
			t.Errorf("%s is open: %s", res.Name, res.Seen)
		}
	}
	if n := r.Count(probe.Blocked); n < 60 {
		t.Errorf("%d blocked", n)
	}
	if r.Mode != sandbox.ModeIsolated {
		t.Errorf("mode %v", r.Mode)
	}
}

// TestRootless probes as an ordinary user.
func TestRootless(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs: root, to become an ordinary user")
	}
	dir, err := os.MkdirTemp(filepath.Dir(program), "user-")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	test := filepath.Join(dir, "test")
	if err := os.WriteFile(test, text, 0o755); err != nil {
		t.Fatal(err)
	}
	const user = 64998
	for _, change := range []error{os.Chmod(dir, 0o755), os.Chown(dir, user, user)} {
		if change != nil {
			t.Fatal(change)
		}
	}
	cmd := exec.CommandContext(t.Context(), test)
	cmd.Dir = "/"
	cmd.Env = []string{helperEnv + "=" + program, "ASPIS_TEST_DIR=" + dir, "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "not: ") {
		t.Skipf("needs: unprivileged user namespaces, %s", out)
	}
	if cmd.ProcessState.ExitCode() != 9 {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%s", out)
	var blocked, open int
	i := strings.Index(string(out), "counted ")
	if _, err := fmt.Sscanf(string(out[max(i, 0):]), "counted %d blocked %d open", &blocked, &open); err != nil || open != 0 || blocked < 60 {
		t.Errorf("%d blocked, %d open (%v)", blocked, open, err)
	}
}

// TestTheProbeCanFail takes walls away: the attempt that each was to stop must
// get through, and the mode must fall.
func TestTheProbeCanFail(t *testing.T) {
	for _, c := range []struct {
		wall  sandbox.WallName
		opens []string
	}{
		{sandbox.WallSeccomp, []string{"filter-is-there", "keyring-add", "netlink-route", "clone-user-namespace", "personality"}},
		{sandbox.WallCapabilities, []string{"capabilities"}},
		{sandbox.WallNoNewPrivileges, []string{"new-privileges"}},
		{sandbox.WallUserIDs, []string{"machine-root"}},
		{sandbox.WallSnapshotReadOnly, []string{"write-snapshot", "host-saw-canaries"}},
		{sandbox.WallWorktreeUnreachable, []string{"write-worktree", "host-saw-canaries"}},
		{sandbox.WallHostPathsUnwritable, []string{"write-host-tmp", "host-saw-canaries"}},
		{sandbox.WallDevices, []string{"devices"}},
		{sandbox.WallSysMasked, []string{"see-sys"}},
		{sandbox.WallPIDNamespace, []string{"see-host-processes", "pidfd-of-host"}},
		{sandbox.WallIPCNamespace, []string{"host-shared-memory"}},
		{sandbox.WallUTSNamespace, []string{"machine-name"}},
		{sandbox.WallCgroupNamespace, []string{"place-in-cgroups"}},
		{sandbox.WallNetworkNamespace, []string{"host-abstract-socket", "interfaces", "host-saw-connections"}},
		{sandbox.WallFileDescriptors, []string{"inherited-files"}},
		{sandbox.WallEnvironment, []string{"environment"}},
		{sandbox.WallPidsLimit, []string{"fork-bomb"}},
		{sandbox.WallMemoryLimit, []string{"memory"}},
		{sandbox.WallOpenFilesLimit, []string{"open-files"}},
		{sandbox.WallClockLimit, []string{"time"}},
	} {
		t.Run(string(c.wall), func(t *testing.T) {
			r := here(t, probe.Options{Without: []sandbox.WallName{c.wall}, Only: c.opens})
			for _, res := range r.Results {
				if res.State != probe.Open {
					t.Errorf("%s is %s: %s", res.Name, res.State, res.Seen)
				}
			}
			if len(r.Results) != len(c.opens) || r.Mode == sandbox.ModeIsolated {
				t.Errorf("%d results, mode %v", len(r.Results), r.Mode)
			}
		})
	}
}
