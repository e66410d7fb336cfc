package decide

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/aspis-dev/aspis/schemas"
)

var rank = map[schemas.Decision]int{schemas.Deny: 0, schemas.Indeterminate: 1, schemas.Allow: 2}

// classes enumerates every class of state that one requirement can be in.
func classes() []Requirement {
	var all []Requirement
	for _, required := range []bool{true, false} {
		for _, satisfied := range []bool{true, false} {
			for _, blocking := range []int{0, 1, 2} {
				for _, tied := range []bool{false, true} {
					for _, losses := range [][]Loss{nil, {loss(FailClosed)}, {loss(FailOpen)}, {loss(FailOpen), loss(FailClosed)}} {
						all = append(all, Requirement{Required: required, Satisfied: satisfied, Blocking: blocking, Tied: tied, Losses: losses})
					}
				}
			}
		}
	}
	return all
}

func loss(m FailMode) Loss {
	return Loss{Mode: m, Degradation: schemas.Degradation{Source: "p", Reason: schemas.ReasonCrashed, Detail: "x"}}
}

// TestDecisionEnumerated walks all pairs of requirement classes at every
// call-site and checks the rule against an independent statement of it.
func TestDecisionEnumerated(t *testing.T) {
	n := 0
	for _, site := range schemas.CallSites {
		for _, a := range classes() {
			for _, b := range classes() {
				for _, host := range [][]schemas.Degradation{nil, {{Source: "host", Reason: schemas.ReasonStaleBaseline}}} {
					n++
					a.ID, b.ID = "a", "b"
					f := Facts{CallSite: site, Requirements: []Requirement{a, b}, HostLosses: host}
					checkOutcome(t, f, Decide(f))
				}
			}
		}
	}
	t.Logf("%d combinations", n)
}

func checkOutcome(t *testing.T, f Facts, out Outcome) {
	t.Helper()
	mayAllow := len(f.HostLosses) == 0
	required := 0
	for _, r := range f.Requirements {
		if !r.Required {
			continue
		}
		required++
		if r.Blocking > 0 || r.Tied || (!r.Satisfied && len(r.Losses) == 0) {
			mayAllow = false
		}
		for _, l := range r.Losses {
			if f.CallSite == schemas.Gate || l.Mode == FailClosed {
				mayAllow = false
			}
		}
	}
	if f.CallSite == schemas.Gate && required == 0 {
		mayAllow = false
	}
	if got := out.Decision == schemas.Allow; got != mayAllow {
		t.Fatalf("%+v: decision %s, may allow: %v", f, out.Decision, mayAllow)
	}
	if !slices.Equal(out.Coverage.Enrolled, out.Coverage.Required) {
		t.Fatalf("%+v: enrolled differs from required", f)
	}
	for _, id := range out.Coverage.Required {
		seen := slices.Contains(out.Coverage.Ran, id)
		for _, d := range out.Coverage.Degraded {
			seen = seen || d.Requirement == id || d.Source == id || d.Source == "p"
		}
		if !seen {
			t.Fatalf("%+v: %s is neither in ran nor in degraded", f, id)
		}
	}
	if f.CallSite == schemas.Gate && len(out.Coverage.Degraded) > 0 && out.Coverage.Exhaustive {
		t.Fatalf("%+v: degraded and exhaustive at a gate", f)
	}
	if f.CallSite == schemas.Gate && len(out.FailedOpen) > 0 {
		t.Fatalf("%+v: a gate failed open", f)
	}
}

// TestLossNeverMovesGateTowardsAllow adds one more loss, blocking finding, tie
// or host loss to arbitrary facts, or takes satisfaction away.
func TestLossNeverMovesGateTowardsAllow(t *testing.T) {
	all := classes()
	rapid.Check(t, func(t *rapid.T) {
		f := Facts{CallSite: schemas.Gate}
		n := rapid.IntRange(0, 5).Draw(t, "requirements")
		for i := range n {
			r := rapid.SampledFrom(all).Draw(t, "class")
			r.ID = fmt.Sprint("r", i)
			r.Losses = slices.Clone(r.Losses)
			f.Requirements = append(f.Requirements, r)
		}
		before := Decide(f).Decision
		worse := f
		worse.Requirements = slices.Clone(f.Requirements)
		what := rapid.IntRange(0, 4).Draw(t, "what")
		if n == 0 {
			what = 4
		}
		i := 0
		if n > 0 {
			i = rapid.IntRange(0, n-1).Draw(t, "which")
		}
		switch what {
		case 0:
			worse.Requirements[i].Losses = append(worse.Requirements[i].Losses, loss(FailMode(rapid.IntRange(0, 1).Draw(t, "mode"))))
		case 1:
			worse.Requirements[i].Blocking++
		case 2:
			worse.Requirements[i].Tied = true
		case 3:
			worse.Requirements[i].Satisfied = false
		case 4:
			worse.HostLosses = append(slices.Clone(f.HostLosses), schemas.Degradation{Source: "host", Reason: schemas.ReasonStaleBaseline})
		}
		if after := Decide(worse).Decision; rank[after] > rank[before] {
			t.Fatalf("%+v gave %s; worse %+v gave %s", f, before, worse, after)
		}
	})
}
