package integration

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aspis-dev/aspis/schemas"
)

// mustDegrade finds a reason in a verdict that must not be allow.
func mustDegrade(t *testing.T, v *schemas.Verdict, reason schemas.DegradationReason) schemas.Degradation {
	t.Helper()
	i := slices.IndexFunc(v.Coverage.Degraded, func(d schemas.Degradation) bool { return d.Reason == reason })
	if i < 0 || v.Decision == schemas.Allow {
		t.Fatalf("%s without %s\n%s", v.Decision, reason, details(v))
	}
	return v.Coverage.Degraded[i]
}

func TestAResultOfTheProvidersOwnMakingIsNamed(t *testing.T) {
	l := lab(t)
	v := judge(t, world(t, l, l.NewConfig("pass")))
	mustDegrade(t, v, schemas.ReasonLatticeFastPath)
	mustDegrade(t, v, schemas.ReasonMalformed)
}

// TestWithoutAnySandboxNothingRuns takes away what every sandbox is made of:
// capabilities, and user namespaces which could give them back.
func TestWithoutAnySandboxNothingRuns(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	if err := w.Write("src/new.go", "package main\n"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(deadline(t, time.Minute), "unshare", "--user", "--map-root-user", "sh", "-c",
		`echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --bounding-set -all --inh-caps -all "$@"`, "sh",
		filepath.Join(bin, "aspis"), "--config", w.Config, "check", "--worktree", "--format", "json")
	cmd.Dir = w.Repo
	cmd.Env = append(cmd.Environ(), "ASPIS_STATE_DIR="+w.State)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var v schemas.Verdict
	if jsonErr := json.Unmarshal(out, &v); jsonErr != nil {
		t.Fatalf("%v: %s%s", err, out, stderr.String())
	}
	d := mustDegrade(t, &v, schemas.ReasonUnsupportedAssurance)
	if !strings.Contains(d.Detail, "max_user_namespaces") || v.Assurance.Mode != schemas.Advisory {
		t.Errorf("%s: %q", v.Assurance.Mode, d.Detail)
	}
	if code := cmd.ProcessState.ExitCode(); code != 2 {
		t.Errorf("exit code %d", code)
	}
}

// TestStatusDoesNotWaitForAProviderThatHangs: it is told as initializing, and
// others as they are.
func TestStatusDoesNotWaitForAProviderThatHangs(t *testing.T) {
	l := lab(t)
	c := l.NewConfig()
	l.Install(c, "slow", "slow-check", false, "hang-init")
	h := serve(t, world(t, l, c))
	began := time.Now()
	raw, err := h.Call(deadline(t, time.Minute), schemas.MethodHostStatus, nil)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 9*time.Second { // a start may take 10
		t.Errorf("the status came after %v", took)
	}
	var s schemas.HostStatus
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	states := map[string]schemas.LifecycleState{}
	for _, server := range s.Servers {
		states[server.ID] = server.LifecycleState
	}
	if states["slow"] != schemas.StateInitializing || states["testprovider"] != schemas.StateActive {
		t.Errorf("%v", states)
	}
	if err := h.Close(20 * time.Second); err != nil {
		t.Error(err)
	}
}

// TestAGateForEditsDoesNotJudgeChanges: what asks for edits alone is not put to
// check providers, and does not stand in for a check.
func TestAGateForEditsDoesNotJudgeChanges(t *testing.T) {
	l := lab(t)
	c := l.NewConfig()
	c.Requirements = append(c.Requirements, schemas.Requirement{ID: "edits", Capabilities: []schemas.CapabilityFamily{schemas.Edit},
		Assurance: c.Requirements[0].Assurance, Authority: c.Requirements[0].Authority})
	c.Gates.Gate.RequiredRequirements = append(c.Gates.Gate.RequiredRequirements, "edits")
	if v := judge(t, world(t, l, c)); v.Decision != schemas.Allow {
		t.Errorf("%s\n%s", v.Decision, details(v))
	}
	c.Gates.Gate.RequiredRequirements = []string{"edits"}
	mustDegrade(t, judge(t, world(t, l, c)), schemas.ReasonMissingRequiredProvider)
}
