package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/aspis-dev/aspis/schemas"
)

// programs is where aspis and aspis-tool lie side by side, as they are installed.
var programs string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "aspis-tool-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	programs = dir
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for name, env := range map[string]string{"aspis": "CGO_ENABLED=1", "aspis-tool": "CGO_ENABLED=0"} {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, name), "../"+name)
		cmd.Env = append(os.Environ(), env)
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", name, err, out)
			return 1
		}
	}
	return m.Run()
}

// files are a tree by path; a name that ends in "*" is executable.
type files map[string]string

func (f files) write(t *testing.T, dir string) {
	t.Helper()
	for name, text := range f {
		mode := os.FileMode(0o644)
		if strings.HasSuffix(name, "*") {
			name, mode = strings.TrimSuffix(name, "*"), 0o755
		}
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
}

// project is a git repository whose worktree holds a change.
type project struct {
	t          *testing.T
	dir, state string
	path       string // PATH
}

// newProject commits before and lays after in the worktree; what before has and
// after has not is removed. moved are renames.
func newProject(t *testing.T, before, after files) *project {
	t.Helper()
	p := &project{t: t, dir: t.TempDir(), state: t.TempDir(), path: os.Getenv("PATH")}
	p.git("init", "-q", "-b", "main")
	before.write(t, p.dir)
	p.git("add", "-A")
	p.git("-c", "user.name=n", "-c", "user.email=e@example.org", "commit", "-q", "-m", "one")
	for name := range before {
		if _, stays := after[name]; !stays {
			if err := os.Remove(filepath.Join(p.dir, strings.TrimSuffix(name, "*"))); err != nil {
				t.Fatal(err)
			}
		}
	}
	after.write(t, p.dir)
	return p
}

func (p *project) git(args ...string) {
	p.t.Helper()
	if out, err := exec.Command("git", append([]string{"-C", p.dir}, args...)...).CombinedOutput(); err != nil {
		p.t.Fatalf("git %q: %v\n%s", args, err, out)
	}
}

// aspis runs the real program.
func (p *project) aspis(args ...string) (code int, out, said string) {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), filepath.Join(programs, "aspis"), append([]string{"--repo", p.dir}, args...)...)
	cmd.Env = append(os.Environ(), "ASPIS_STATE_DIR="+p.state, "PATH="+p.path, "XDG_DATA_HOME="+filepath.Join(p.state, "data"))
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

// try gives the verdict of aspis tool try.
func (p *project) try(args ...string) (int, schemas.Verdict) {
	p.t.Helper()
	code, out, said := p.aspis(append([]string{"--format", "json", "tool", "try"}, args...)...)
	var v schemas.Verdict
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		p.t.Fatalf("aspis tool try %q: code %d, %v\n%s%s", args, code, err, out, said)
	}
	return code, v
}

// shown lists the findings as "path:line rule", sorted.
func shown(v schemas.Verdict) []string {
	out := []string{}
	for _, f := range v.Findings {
		line := 0
		if r := f.Diagnostic.Location.Range; r != nil {
			line = r.Start.Line + 1
		}
		_, rule, _ := strings.Cut(f.Diagnostic.Code, "/")
		out = append(out, fmt.Sprintf("%s:%d %s", f.Diagnostic.Location.Path, line, rule))
	}
	slices.Sort(out)
	return out
}

func degraded(v schemas.Verdict) string {
	var all []string
	for _, d := range v.Coverage.Degraded {
		all = append(all, string(d.Reason)+": "+d.Detail)
	}
	return strings.Join(all, "\n")
}
