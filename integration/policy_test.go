package integration

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aspis-dev/aspis/integration/conformance"
	"github.com/aspis-dev/aspis/schemas"
)

// repoPolicy is .asp/asp.json with one requirement that pins the test provider.
func repoPolicy(t *testing.T, l *conformance.Lab, change func(*schemas.RepositoryPolicy)) string {
	t.Helper()
	gate := schemas.PolicyGate{RequiredRequirements: []string{"test-check"}, OptionalRequirements: []string{}}
	p := schemas.RepositoryPolicy{ASPVersion: schemas.ProtocolVersion,
		Requirements: []schemas.Requirement{{ID: "test-check", Capabilities: []schemas.CapabilityFamily{schemas.Check}, Assurance: conformance.Confined(),
			Authority: schemas.RequirementAuthority{Providers: []schemas.PinnedProvider{l.Pin("testprovider")}}}},
		Gates: schemas.PolicyGates{Interactive: gate, Gate: gate, Sweep: gate},
		Policy: schemas.PolicyRules{AuthorityModel: "explicit-pinned-provider", PolicyChangeActivation: "base-policy-two-phase",
			CandidatePolicyAuthority: "trusted-base-or-organization-floor", MissingHost: schemas.MissingHost{Interactive: "fail-closed", Gate: "fail-closed", Sweep: "fail-closed"}}}
	if change != nil {
		change(&p)
	}
	b, err := schemas.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestPolicySelfAuthorization judges changes of the policy by `aspis check`: the
// worktree, the index and a commit.
func TestPolicySelfAuthorization(t *testing.T) {
	l := lab(t)
	weaken := func(p *schemas.RepositoryPolicy) { p.Gates.Gate.RequiredRequirements = []string{} }
	cases := map[string]struct {
		after    string
		remove   bool
		harmless bool
	}{
		"gate weakened": {after: repoPolicy(t, l, weaken)},
		"missing host":  {after: repoPolicy(t, l, func(p *schemas.RepositoryPolicy) { p.Policy.MissingHost.Sweep = "warn-open" })},
		"lower assurance": {after: repoPolicy(t, l, func(p *schemas.RepositoryPolicy) {
			p.Requirements[0].Assurance = []schemas.AssuranceMode{schemas.Gated}
		})},
		"own provider": {after: repoPolicy(t, l, func(p *schemas.RepositoryPolicy) {
			p.Requirements[0].Authority.Providers[0] = l.Pin("friend")
		})},
		"host selection": {after: `{"hostImplementation":"mine",` + repoPolicy(t, l, nil)[1:]},
		"not JSON":       {after: "{"},
		"removed":        {remove: true},
		"layout":         {after: strings.ReplaceAll(repoPolicy(t, l, nil), ",", ",\n  "), harmless: true},
		"stronger": {after: repoPolicy(t, l, func(p *schemas.RepositoryPolicy) {
			p.Requirements[0].Assurance = []schemas.AssuranceMode{schemas.Isolated}
		}), harmless: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := world(t, l, l.NewConfig())
			ctx := deadline(t, time.Minute)
			file := ".asp/asp.json"
			if err := w.Write(file, repoPolicy(t, l, nil)); err != nil {
				t.Fatal(err)
			}
			if err := w.Commit(ctx, "Add a policy"); err != nil {
				t.Fatal(err)
			}
			var err error
			if c.remove {
				err = os.Remove(w.Repo + "/" + file)
			} else {
				err = w.Write(file, c.after)
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, selection := range []string{"--worktree", "--staged", "--base=HEAD~1"} {
				switch selection {
				case "--staged":
					_, err = w.Git(ctx, "add", "-A")
				case "--base=HEAD~1":
					err = w.Commit(ctx, "Change the policy")
				}
				if err != nil {
					t.Fatal(err)
				}
				v, _, err := w.Check(ctx, schemas.Gate, 0, selection)
				if err != nil {
					t.Fatal(err)
				}
				told := strings.Contains(details(v), string(schemas.ReasonPolicySelfAuthorization))
				if c.harmless != (v.Decision == schemas.Allow) || c.harmless == told {
					t.Errorf("%s: %s\n%s", selection, v.Decision, details(v))
				}
			}
		})
	}
}

// TestLocalOverrideHasNoAuthority tries to weaken the gate by .asp/local.json.
func TestLocalOverrideHasNoAuthority(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	if err := w.Write("src/bad.go", "// TEST-ERROR\n"); err != nil {
		t.Fatal(err)
	}
	if err := w.Write(".asp/local.json", `{"gates":{"gate":{"requiredRequirements":[]}},"missingHost":"warn-open"}`); err != nil {
		t.Fatal(err)
	}
	v := judge(t, w)
	if v.Decision != schemas.Deny {
		t.Errorf("%s\n%s", v.Decision, details(v))
	}
	h := serve(t, w)
	st, err := h.Status(deadline(t, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if o := st.Policy.LocalOverride; o == nil || !o.Present || o.AuthorityEffect != "none" || !strings.Contains(o.Detail, "refused") {
		t.Errorf("the override is reported as %+v", o)
	}
}

// TestFailOpenIsLogged shows each way in which an interactive call-site lets a
// change pass: visible in the verdict and in the log; what is no ill health is
// closed, and a gate never opens.
func TestFailOpenIsLogged(t *testing.T) {
	l := lab(t)
	for behave, open := range map[string]bool{"crash": true, "hang": true, "status=error": true, "status=incomplete": true, "forge=pass": false, "version=9": false, "status=unsupported": false} {
		t.Run(behave, func(t *testing.T) {
			t.Parallel()
			for _, site := range []schemas.CallSite{schemas.Interactive, schemas.Gate} {
				w := world(t, l, l.NewConfig(behave))
				if err := w.Write("src/new.go", "package main\n"); err != nil {
					t.Fatal(err)
				}
				v, stderr, err := w.Check(deadline(t, time.Minute), site, 1500)
				if err != nil {
					t.Fatal(err)
				}
				passes := open && site == schemas.Interactive
				logged := strings.Contains(stderr, "fail-open") && strings.Contains(stderr, "testprovider") && strings.Contains(stderr, "failClass=health") && strings.Contains(stderr, "callSite=interactive")
				visible := strings.Contains(details(v), string(schemas.ReasonFailOpen))
				if (v.Decision == schemas.Allow) != passes || logged != passes || visible != passes {
					t.Errorf("%s: %s, logged %v, visible %v\n%s%s", site, v.Decision, logged, visible, details(v), stderr)
				}
				if v.Coverage.Exhaustive {
					t.Errorf("%s: the coverage calls itself exhaustive", site)
				}
			}
		})
	}
}
