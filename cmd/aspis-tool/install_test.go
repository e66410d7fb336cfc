package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/policy"
	"github.com/aspis-dev/aspis/schemas"
)

// TestAddGrantsNothing installs a tool, sees that it has no authority, pastes
// what was printed, and has a gate.
func TestAddGrantsNothing(t *testing.T) {
	about, dir := liar(t, "#!/bin/sh\ncase $1 in --version) echo liar 1.0.0; exit 0;; esac\nif grep -Hn BAD \"$@\" | sed 's/$/ is bad/'; test -n \"$(grep -l BAD \"$@\")\"; then exit 1; fi\nexit 0\n",
		strings.Replace(strings.Replace(describe(`,"severity":{"default":"error"}`), `"format":"sarif"`, `"format":"errorformat","errorformat":["%f:%l:%m"]`, 1), "192", "256", 1))
	p := newProject(t, files{"a.txt": "BAD\n"}, files{"a.txt": "good\nBAD\n"})
	config := filepath.Join(t.TempDir(), "config.json")
	code, out, said := p.aspis("--config", config, "tool", "add", about, "--files", dir)
	if code != 0 || !strings.Contains(out, "It has no authority yet.") {
		t.Fatalf("code %d\n%s%s", code, out, said)
	}
	raw, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := policy.ParseConfig(config, raw)
	if err != nil || len(c.Providers) != 1 || len(c.Grants) != 0 || len(c.Requirements) != 0 {
		t.Fatalf("%v: %s", err, raw)
	}
	if code, _, said := p.aspis("--config", config, "tool", "add", about, "--files", dir); code != 3 || !strings.Contains(said, "already") {
		t.Errorf("twice: code %d, %s", code, said)
	}

	i := c.Providers[0]
	pin := schemas.PinnedProvider{ID: i.ID, Version: i.Version, Identity: i.IdentityOrDefault(), Integrity: i.Digest, Conformance: i.ConformanceOrDefault()}
	printed, err := json.Marshal(pin.Integrity)
	if err != nil || !strings.Contains(out, string(printed)) {
		t.Errorf("the digest is not printed: %s", out)
	}
	required := schemas.PolicyGate{RequiredRequirements: []string{"lint"}, OptionalRequirements: []string{}}
	c.Requirements = []schemas.Requirement{{ID: "lint", Capabilities: i.Capabilities, Assurance: []schemas.AssuranceMode{schemas.Isolated},
		Authority: schemas.RequirementAuthority{Providers: []schemas.PinnedProvider{pin}}}}
	c.Gates = &schemas.PolicyGates{Interactive: required, Gate: required, Sweep: required}
	var more []string
	check := func(grants ...policy.Grant) (int, schemas.Verdict) {
		t.Helper()
		c.Grants = grants
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(config, text, 0o644); err != nil {
			t.Fatal(err)
		}
		code, out, said := p.aspis(append([]string{"--config", config, "--format", "json", "check"}, more...)...)
		var v schemas.Verdict
		if err := json.Unmarshal([]byte(out), &v); err != nil {
			t.Fatalf("code %d, %v\n%s%s", code, err, out, said)
		}
		return code, v
	}
	if code, v := check(); code != 2 || v.Decision != schemas.Indeterminate {
		t.Errorf("without a grant: code %d, %s", code, v.Decision)
	}
	grant := policy.Grant{Requirement: "lint", CallSites: schemas.CallSites[:], Provider: i.ID, Version: i.Version, Integrity: i.Digest}
	// What was there before is moved, and is not held against the change.
	if code, v := check(grant); code != 0 || v.Decision != schemas.Allow || len(v.Findings) != 0 {
		t.Errorf("what was there before: code %d, %s, %q\n%s", code, v.Decision, shown(v), degraded(v))
	}
	files{"a.txt": "good\nBAD\nBAD again\n"}.write(t, p.dir)
	if code, v := check(grant); code != 1 || v.Decision != schemas.Deny || len(v.Findings) != 1 || v.Findings[0].Diagnostic.Location.Range.Start.Line != 2 {
		t.Errorf("one more: code %d, %s, %q\n%s", code, v.Decision, shown(v), degraded(v))
	}
	more = []string{"--all"}
	if _, v := check(grant); len(v.Findings) != 2 || *v.Findings[0].Diagnostic.Introduced == *v.Findings[1].Diagnostic.Introduced {
		t.Errorf("all: %q\n%s", shown(v), degraded(v))
	}
	more = nil
	// The tool is changed where it is installed: it is another build.
	if err := os.WriteFile(filepath.Join(i.ArtifactDir, "liar"), []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if code, v := check(grant); code != 2 || v.Decision != schemas.Indeterminate || !strings.Contains(degraded(v), "digest") {
		t.Errorf("changed: code %d, %s\n%s", code, v.Decision, degraded(v))
	}
}

func TestListAndMissing(t *testing.T) {
	p := newProject(t, files{"a": "a\n"}, files{"a": "b\n"})
	code, out, said := p.aspis("--format", "json", "tool", "ls")
	var list []struct {
		Name      string `json:"name"`
		Installed bool   `json:"installed"`
	}
	if err := json.Unmarshal([]byte(out), &list); code != 0 || err != nil || len(list) < 24 {
		t.Errorf("code %d, %v, %d tools: %s", code, err, len(list), said)
	}
	p.path = t.TempDir()
	if git := "/usr/bin/git"; os.Symlink(git, filepath.Join(p.path, "git")) != nil {
		t.Fatal("no link to git")
	}
	for name, words := range map[string]string{"semgrep": "not installed", "no-such-tool": "no preset"} {
		if code, _, said := p.aspis("tool", "try", name); code != 3 || !strings.Contains(said, words) {
			t.Errorf("%s: code %d, %s", name, code, said)
		}
	}
}

// TestAnotherProgram: the description pins a program of the machine's, and what is
// there is another; or it is gone.
func TestAnotherProgram(t *testing.T) {
	if _, err := exec.LookPath("shellcheck"); err != nil {
		t.Skip("needs: shellcheck in PATH")
	}
	p := newProject(t, files{"a.sh": "#!/bin/sh\n"}, files{"a.sh": "#!/bin/sh\necho hi\n"})
	config := filepath.Join(t.TempDir(), "config.json")
	if code, out, said := p.aspis("--config", config, "tool", "add", "shellcheck"); code != 0 {
		t.Fatalf("code %d\n%s%s", code, out, said)
	}
	raw, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := policy.ParseConfig(config, raw)
	if err != nil {
		t.Fatal(err)
	}
	i := &c.Providers[0]
	if i.ArtifactDir != "" || !i.System {
		t.Errorf("a program of the machine's is copied: %+v", i)
	}
	required := schemas.PolicyGate{RequiredRequirements: []string{"lint"}, OptionalRequirements: []string{}}
	c.Requirements = []schemas.Requirement{{ID: "lint", Capabilities: i.Capabilities, Assurance: []schemas.AssuranceMode{schemas.Isolated},
		Authority: schemas.RequirementAuthority{Providers: []schemas.PinnedProvider{{ID: i.ID, Version: i.Version, Identity: i.IdentityOrDefault(), Integrity: i.Digest, Conformance: i.ConformanceOrDefault()}}}}}
	c.Gates = &schemas.PolicyGates{Interactive: required, Gate: required, Sweep: required}
	c.Grants = []policy.Grant{{Requirement: "lint", CallSites: schemas.CallSites[:], Provider: i.ID, Version: i.Version, Integrity: i.Digest}}
	if err := i.Configuration.Compact(); err != nil {
		t.Fatal(err)
	}
	whole := string(i.Configuration)
	for name, tc := range map[string]struct {
		old, now, says string
		code           int
	}{
		"as pinned":      {"", "", "", 0},
		"another digest": {`"digest":"sha256:`, `"digest":"sha256:0000`, "another than was pinned", 2},
		"gone":           {`/shellcheck"`, `/shellcheck-gone"`, "not installed", 2},
		"no description": {whole, "{}", "no tool is described", 2},
		"a bad one":      {`"scope":"changed"`, `"scope":"everything"`, "scope", 2},
	} {
		if !strings.Contains(whole, tc.old) {
			t.Fatalf("%s: there is no %s in %s", name, tc.old, whole)
		}
		i.Configuration = jsontext.Value(strings.Replace(whole, tc.old, tc.now, 1))
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(config, text, 0o644); err != nil {
			t.Fatal(err)
		}
		code, out, said := p.aspis("--config", config, "--format", "json", "check")
		var v schemas.Verdict
		if err := json.Unmarshal([]byte(out), &v); err != nil {
			t.Fatalf("%s: code %d, %v\n%s%s", name, code, err, out, said)
		}
		if code != tc.code || v.Pass != (tc.code == 0) || !strings.Contains(degraded(v), tc.says) {
			t.Errorf("%s: code %d, %s\n%s", name, code, v.Decision, degraded(v))
		}
	}
}

// TestStaticToolGetsItselfAlone: a program that needs nothing is shown nothing of
// the machine. Its failure there shows that it ran.
func TestStaticToolGetsItselfAlone(t *testing.T) {
	dir := t.TempDir()
	program, err := os.ReadFile(filepath.Join(programs, "aspis-tool"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "still"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	files{"still.json": strings.NewReplacer(`"liar"`, `"still"`, `"system"`, `"static"`).Replace(describe(""))}.write(t, dir)
	p := newProject(t, files{"a": "a\n"}, files{"a": "b\n"})
	p.path = dir + ":" + p.path
	config := filepath.Join(t.TempDir(), "config.json")
	if code, out, said := p.aspis("--config", config, "tool", "add", filepath.Join(dir, "still.json")); code != 0 {
		t.Fatalf("code %d\n%s%s", code, out, said)
	}
	raw, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := policy.ParseConfig(config, raw)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(c.Providers[0].ArtifactDir)
	if err != nil || len(entries) != 2 || c.Providers[0].System {
		t.Errorf("%v, %q, system %v", err, entries, c.Providers[0].System)
	}
	for range 5 { // and it is not set aside for failing
		code, v := p.try(filepath.Join(dir, "still.json"))
		if code != 2 || !strings.Contains(degraded(v), "exit code 2") || !strings.Contains(degraded(v), "unexpected argument") {
			t.Errorf("code %d\n%s", code, degraded(v))
		}
	}
}
