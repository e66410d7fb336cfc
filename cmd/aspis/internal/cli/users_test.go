package cli

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/schemas"
)

// asAspis makes the test program be aspis.
const asAspis = "ASPIS_TEST_AS_ASPIS"

func TestMain(m *testing.M) {
	if os.Getenv(asAspis) != "" {
		os.Exit(Main("dev", os.Args[1:]))
	}
	os.Exit(m.Run())
}

// person is somebody who runs aspis, with a home, a repository in it, and the
// programs where everybody can read them.
type person struct {
	t    *testing.T
	dir  string
	attr *syscall.SysProcAttr
	wrap []string // what runs the program
}

const ordinary = 64998 // an id that is nobody's

func newPerson(t *testing.T, uid int) *person {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root to be several users")
	}
	dir, err := os.MkdirTemp("", "aspis-users-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p := &person{t: t, dir: dir, attr: &syscall.SysProcAttr{}}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.in("aspis"), self, 0o755); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", p.in("aspis-hygiene"), "../../../aspis-hygiene")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the provider: %v: %s", err, out)
	}
	if err := os.Mkdir(p.in("home"), 0o700); err != nil {
		t.Fatal(err)
	}
	if uid != 0 {
		if err := os.Chown(p.in("home"), uid, uid); err != nil {
			t.Fatal(err)
		}
		p.attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
	script := `set -e; cd "$HOME"; git init -q -b main repo; cd repo; git config user.name n; git config user.email e@example.org
echo one >a; git add -A; git commit -q -m one; echo two >a; git commit -q -am two`
	if out, err := p.command("sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return p
}

func (p *person) in(name string) string { return filepath.Join(p.dir, name) }

func (p *person) command(args ...string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = p.dir
	cmd.Env = []string{"HOME=" + p.in("home"), "PATH=" + os.Getenv("PATH"), "ASPIS_STATE_DIR=" + p.in("home/state")}
	cmd.SysProcAttr = p.attr
	return cmd
}

// aspis runs a command that answers in JSON.
func (p *person) aspis(answer any, args ...string) (code int) {
	p.t.Helper()
	cmd := p.command(append(append(p.wrap, p.in("aspis"), "--repo", p.in("home/repo"), "--format", "json"), args...)...)
	cmd.Env = append(cmd.Env, asAspis+"=1")
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	_ = cmd.Wait() // its code is the answer
	if err := json.Unmarshal(out.Bytes(), answer); err != nil {
		p.t.Fatalf("aspis %q, code %d: %v\n%s%s", args, cmd.ProcessState.ExitCode(), err, out.String(), said.String())
	}
	if said.Len() > 0 {
		p.t.Errorf("aspis %q says %s", args, said.String())
	}
	return cmd.ProcessState.ExitCode()
}

// TestUsersGetWhatTheyCan runs the gate and doctor as root and as an ordinary
// user, which both get sandboxes where the machine gives user namespaces.
func TestUsersGetWhatTheyCan(t *testing.T) {
	for name, uid := range map[string]int{"root": 0, "ordinary": ordinary} {
		t.Run(name, func(t *testing.T) {
			p := newPerson(t, uid)
			var report doctorReport
			code := p.aspis(&report, "doctor")
			if len(report.Machine) == 0 {
				t.Error("doctor tells nothing of the machine")
			}
			if report.WhyNot != "" {
				t.Skip("SKIPPED: ", report.WhyNot)
			}
			if report.Mode != sandbox.ModeIsolated || code != ExitAllow || len(report.Walls) == 0 {
				t.Errorf("doctor: code %d, %v, %+v", code, report.Mode, report.Walls)
			}
			for range 2 {
				var v schemas.Verdict
				if code := p.aspis(&v, "check", "--base", "HEAD~1"); code != ExitAllow || v.Assurance.Mode != schemas.Isolated {
					t.Errorf("check: code %d, %s, %+v", code, v.Assurance.Mode, v.Coverage.Degraded)
				}
			}
		})
	}
}

// TestNothingCanBeBuilt runs them where no user namespace can be made.
func TestNothingCanBeBuilt(t *testing.T) {
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("SKIPPED: needs setpriv (package util-linux)")
	}
	p := newPerson(t, ordinary)
	// Inside a namespace in which no more are allowed, with the same ids.
	all := []syscall.SysProcIDMap{{Size: 1 << 31}}
	p.attr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: all, GidMappings: all, GidMappingsEnableSetgroups: true}
	p.wrap = []string{"sh", "-c", fmt.Sprintf(`echo 0 >/proc/sys/user/max_user_namespaces && exec %s --reuid %d --regid %d --clear-groups --bounding-set=-all -- "$@"`, setpriv, ordinary, ordinary), "sh"}
	const remedy = "sysctl user.max_user_namespaces"

	var report doctorReport
	if code := p.aspis(&report, "doctor"); code != ExitIndeterminate || report.Mode != sandbox.ModeGated || !strings.Contains(report.WhyNot, remedy) || len(report.Machine) == 0 {
		t.Errorf("doctor: code %d, %+v", code, report)
	}
	var v schemas.Verdict
	if code := p.aspis(&v, "check", "--base", "HEAD~1"); code != ExitIndeterminate || v.Decision != schemas.Indeterminate {
		t.Errorf("check: code %d, %s", code, v.Decision)
	}
	told, explained := false, false
	for _, d := range v.Coverage.Degraded {
		told = told || d.Reason == schemas.ReasonInsufficientAssurance
		explained = explained || strings.Contains(d.Detail, remedy)
	}
	if !told || !explained {
		t.Errorf("degraded: %+v", v.Coverage.Degraded)
	}

	// Where trusted configuration says so, the provider runs without walls, and
	// the verdict says that as well.
	var config map[string]any
	if code := p.aspis(&config, "policy", "init"); code != 0 {
		t.Fatal("policy init: code ", code)
	}
	provider := config["providers"].([]any)[0].(map[string]any)
	provider["runtime"], provider["workspace"] = "process", "callbacks"
	config["requirements"].([]any)[0].(map[string]any)["assurance"] = []string{"gated"}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.in("trusted.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	v = schemas.Verdict{}
	p.aspis(&v, "--config", p.in("trusted.json"), "check", "--base", "HEAD~1")
	risk := false
	for _, d := range v.Coverage.Degraded {
		risk = risk || d.Reason == schemas.ReasonDirectWriteRisk
	}
	if v.Assurance.Mode != schemas.Gated || !risk || v.Decision == schemas.Allow {
		t.Errorf("%s, %s, %+v", v.Decision, v.Assurance.Mode, v.Coverage.Degraded)
	}
}
