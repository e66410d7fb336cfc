package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

// hostOwned are the names that a provider may never send.
var hostOwned = []string{"authority", "assurance", "decision", "disposition", "pass", "transactionGuarantee", "verdict",
	"applyReceipt", "receipt", "policyDigest", "policyRef", "policyReference", "authorityEvidence", "hostDecision", "applyAttempt", "applyResult"}

const errorText = "package main\n\n// TEST-ERROR\n"

func coreCases() []Case {
	return []Case{
		{ID: "CORE-HOST-STATUS", Run: hostStatus},
		{ID: "CORE-HOST-CAPABILITIES", Run: hostCapabilities},
		{ID: "CORE-HOST-EVALUATE", Scenarios: []Scenario{
			{Decision: schemas.Allow, Also: func(_ *World, v *schemas.Verdict, _ string) error {
				if !v.Coverage.Exhaustive || !slices.Equal(v.Coverage.Ran, []string{requirement}) {
					return fmt.Errorf("an allow with coverage %+v", v.Coverage)
				}
				return nil
			}},
			{Text: errorText, Decision: schemas.Deny, Reason: schemas.ReasonBlockingDiagnostic, Also: gatingFinding},
			{Behave: []string{"crash"}, Decision: schemas.Indeterminate, Reason: schemas.ReasonCrashed},
		}},
		{ID: "CORE-CHECK-ASSESSMENT", Scenarios: []Scenario{
			{Text: "TEST-WARNING\nTEST-INFO\n", Decision: schemas.Allow, Also: func(_ *World, v *schemas.Verdict, _ string) error {
				if n := findings(v, "test/marker"); n != 2 {
					return fmt.Errorf("%d of the 2 findings arrived", n)
				}
				for _, m := range []string{schemas.MethodInitialize, schemas.MethodInitialized, schemas.MethodCheckEvaluate, schemas.MethodReadBlob} {
					if recorded(v, m) == 0 {
						return fmt.Errorf("the provider was never sent %s", m)
					}
				}
				return nil
			}},
		}},
		{ID: "CORE-CHECK-CONFIGURATION", Scenarios: []Scenario{
			{Decision: schemas.Allow, Setup: configured},
			{Behave: []string{"wrong-config"}, Setup: configured, Reason: schemas.ReasonMalformed, State: schemas.StateMalformed},
		}},
		{ID: "CORE-PROVIDER-FORBIDDEN-FIELDS", Run: forbiddenFields},
		{ID: "CORE-STALE-VALID-AS-OF", Scenarios: reasons(schemas.ReasonStale, "", "stale-baseline", "stale-digest", "stale-blob-extra", "stale-blob-missing")},
		{ID: "CORE-MISSING-REQUIRED-PROVIDER", Scenarios: missingProvider()},
		{ID: "CORE-MISSING-AUTHORITY", Scenarios: missingAuthority()},
		{ID: "CORE-INSUFFICIENT-ASSURANCE", Scenarios: insufficient()},
		{ID: "CORE-PROVIDER-QUARANTINED", Run: quarantined},
		{ID: "CORE-PROVIDER-SKEWED", Scenarios: []Scenario{
			{Behave: []string{"version=2.0.0"}, Reason: schemas.ReasonSkewed, State: schemas.StateIncompatible},
			{Setup: otherDigest, Also: func(_ *World, v *schemas.Verdict, _ string) error {
				_, skewed := degraded(v, schemas.ReasonSkewed)
				if _, incompatible := degraded(v, schemas.ReasonIncompatible); !skewed && !incompatible {
					return fmt.Errorf("another build than the pinned one is neither skewed nor incompatible; %s", describe(v))
				}
				return nil
			}},
		}},
		{ID: "CORE-PROVIDER-FAIL-OPEN", Scenarios: []Scenario{
			{Behave: []string{"crash"}, Site: schemas.Interactive, Decision: schemas.Allow, Reason: schemas.ReasonFailOpen, Also: failOpenLogged},
			{Behave: []string{"crash"}, Site: schemas.Gate, Reason: schemas.ReasonCrashed, State: schemas.StateCrashed},
			{Behave: []string{"forge=pass"}, Site: schemas.Interactive, Reason: schemas.ReasonMalformed},
		}},
		{ID: "CORE-HOST-INITIALIZE-CONTRACT-REFUSAL", Scenarios: []Scenario{
			{Behave: []string{"refuse-version"}, Reason: schemas.ReasonSkewed, State: schemas.StateIncompatible, Also: func(_ *World, v *schemas.Verdict, _ string) error {
				if len(v.Receipt.ProviderProvenance) > 0 {
					return fmt.Errorf("the receipt has provenance of a provider that refused: %+v", v.Receipt.ProviderProvenance)
				}
				return nil
			}},
		}},
		{ID: "CORE-MALFORMED-REQUIRED-PROVIDER", Scenarios: reasons(schemas.ReasonMalformed, schemas.StateMalformed,
			"malformed-init", "missing-member", "unknown-member", "forge-evidence=receipt", "null")},
		{ID: "CORE-REQUIRED-COVERAGE-VISIBLE", Run: coverageVisible},
		{ID: "CORE-HOST-DECISION-AUTHORITATIVE", Scenarios: []Scenario{
			{Behave: []string{"forge=decision"}, Text: errorText, Reason: schemas.ReasonMalformed},
			{Behave: []string{"forge-evidence=hostDecision"}, Text: errorText, Reason: schemas.ReasonMalformed},
			{Behave: []string{"code=foreign/rule"}, Text: errorText, Reason: schemas.ReasonMalformed},
		}},
		{ID: "CORE-NO-FAST-PATH", Scenarios: reasons(schemas.ReasonMalformed, "", "pass", "forge=pass")},
	}
}

// reasons makes a scenario a behaviour, all with the same outcome.
func reasons(reason schemas.DegradationReason, state schemas.LifecycleState, behaviours ...string) []Scenario {
	var out []Scenario
	for _, b := range behaviours {
		out = append(out, Scenario{Behave: strings.Fields(b), Reason: reason, State: state})
	}
	return out
}

func findings(v *schemas.Verdict, code string) int {
	n := 0
	for _, f := range v.Findings {
		if f.Diagnostic.Code == code {
			n++
		}
	}
	return n
}

func gatingFinding(_ *World, v *schemas.Verdict, _ string) error {
	for _, f := range v.Findings {
		if f.Disposition == schemas.DispositionGating && f.Diagnostic.Location.Path == newFile && f.Diagnostic.Source == testID {
			return nil
		}
	}
	return errors.New("the deny has no gating finding about the new file")
}

func configured(_ *Lab, c *Config) {
	c.Providers[0].Configuration = jsontext.Value(`{"rules":["a","b"],"level":3}`)
}

func otherDigest(_ *Lab, c *Config) {
	wrong := "sha256:" + strings.Repeat("0", 64)
	c.Providers[0].Digest, c.Grants[0].Integrity = wrong, wrong
	c.Requirements[0].Authority.Providers[0].Integrity = wrong
}

func missingProvider() []Scenario {
	return []Scenario{
		{Reason: schemas.ReasonMissingRequiredProvider, Setup: func(_ *Lab, c *Config) {
			c.Providers, c.Grants = []Provider{}, []Grant{}
		}},
		{Reason: schemas.ReasonMissing, State: schemas.StateUnavailable, Setup: func(_ *Lab, c *Config) {
			c.Providers[0].Executable = "/nonexistent/provider"
		}},
	}
}

func missingAuthority() []Scenario {
	return []Scenario{
		{Reason: schemas.ReasonMissingAuthority, Setup: func(_ *Lab, c *Config) { c.Grants = []Grant{} }},
		{Reason: schemas.ReasonMissingAuthority, Setup: func(_ *Lab, c *Config) { c.Grants[0].CallSites = []schemas.CallSite{schemas.Sweep} }},
		{Reason: schemas.ReasonMissingAuthority, Setup: func(_ *Lab, c *Config) { c.Grants[0].Integrity = "sha256:" + strings.Repeat("1", 64) }},
		{Reason: schemas.ReasonMissingAuthority, Setup: func(_ *Lab, c *Config) {
			c.Requirements[0].Authority.Providers[0].ID = "somebody-else"
		}},
	}
}

func insufficient() []Scenario {
	return []Scenario{{Reason: schemas.ReasonInsufficientAssurance, Setup: unconfined(schemas.Isolated), Also: claimsLittle}}
}

// unconfined takes the walls away and says which mode the requirement accepts.
func unconfined(accept ...schemas.AssuranceMode) func(*Lab, *Config) {
	return func(_ *Lab, c *Config) {
		c.Providers[0].Runtime = "process"
		c.Requirements[0].Assurance = accept
	}
}

func claimsLittle(_ *World, v *schemas.Verdict, _ string) error {
	if v.Assurance.Mode.Rank() > schemas.Gated.Rank() {
		return fmt.Errorf("%s is claimed for a provider without walls", v.Assurance.Mode)
	}
	for _, e := range v.AuthorityEvidence {
		if e.Isolation.Rank() > schemas.Gated.Rank() {
			return fmt.Errorf("the authority evidence claims %s for a provider without walls", e.Isolation)
		}
	}
	return nil
}

func failOpenLogged(_ *World, v *schemas.Verdict, stderr string) error {
	if _, ok := degraded(v, schemas.ReasonCrashed); !ok {
		return errors.New("what failed open is not visible: no degradation crashed")
	}
	for _, word := range []string{"fail-open", testID, "health", "interactive"} {
		if !strings.Contains(stderr, word) {
			return fmt.Errorf("the log of the fail-open lacks %q: %s", word, lastLines(stderr, 3))
		}
	}
	return nil
}

func hostStatus(ctx context.Context, l *Lab) error {
	err := l.inWorld(ctx, l.NewConfig(), func(w *World) error {
		h, err := w.Serve()
		if err != nil {
			return err
		}
		for _, when := range []string{"before", "after"} {
			st, err := h.Status(ctx)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(st.Servers, func(s schemas.Server) bool { return s.ID == testID })
			switch {
			case i < 0:
				return fmt.Errorf("the provider is not among the servers %s an evaluation", when)
			case !slices.Contains(st.Gates.Gate.RequiredProviders, testID):
				return fmt.Errorf("the gate does not name its required provider")
			case st.Host.State != "ready" || !st.Gates.Gate.Available:
				return fmt.Errorf("%s an evaluation the host is %s, its gate %+v", when, st.Host.State, st.Gates.Gate)
			case !slices.Equal(st.Servers[i].RequiredFor, schemas.CallSites[:]):
				return fmt.Errorf("the provider is required for %v", st.Servers[i].RequiredFor)
			}
			if _, err := h.Evaluate(ctx, schemas.Gate, Change{newFile: text(cleanText)}, 0); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	c := l.NewConfig()
	c.Providers[0].Executable = "/nonexistent/provider"
	return l.inWorld(ctx, c, func(w *World) error {
		h, err := w.Serve()
		if err != nil {
			return err
		}
		st, err := h.Status(ctx)
		if err != nil {
			return err
		}
		if st.Host.State == "ready" || st.Gates.Gate.Available || len(st.Gates.Gate.Degraded) == 0 {
			return fmt.Errorf("a required provider is missing, yet the host is %s, its gate %+v", st.Host.State, st.Gates.Gate)
		}
		a, err := h.AuthorityStatus(ctx)
		if err == nil && len(a.Providers) != 1 {
			err = fmt.Errorf("host/authority/status lists %d providers", len(a.Providers))
		}
		return err
	})
}

func hostCapabilities(ctx context.Context, l *Lab) error {
	return l.inWorld(ctx, l.NewConfig(), func(w *World) error {
		h, err := w.Serve()
		if err != nil {
			return err
		}
		c, err := h.Capabilities(ctx)
		if err != nil {
			return err
		}
		switch {
		case !c.Capabilities.Check.Available || len(c.Capabilities.Check.Degraded) > 0 || !slices.Contains(c.Capabilities.Check.Providers, testID):
			return fmt.Errorf("check is not offered: %+v", c.Capabilities.Check)
		case c.Capabilities.Inspect.Available || len(c.Capabilities.Inspect.Degraded) == 0:
			return fmt.Errorf("inspect is not openly degraded: %+v", c.Capabilities.Inspect)
		case c.Capabilities.Edit.Available || len(c.Capabilities.Edit.Degraded) == 0:
			return fmt.Errorf("edit is not openly degraded: %+v", c.Capabilities.Edit)
		case !slices.Contains(c.Coverage.Required, requirement):
			return fmt.Errorf("the coverage does not require %s: %+v", requirement, c.Coverage)
		}
		return nil
	})
}

// forbiddenFields sends every host-owned name, at the top and deep down, each by
// a provider of its own.
func forbiddenFields(ctx context.Context, l *Lab) error {
	for _, behave := range []string{"forge=", "forge-evidence="} {
		c := l.NewConfig("forge-init=assuranceMode", "forge=pass")
		c.Providers[0].Args[0] = "forge-init=authority"
		for i, name := range hostOwned {
			l.Install(c, fmt.Sprintf("forger-%d", i), "r-"+name, true, behave+name)
		}
		err := l.inWorld(ctx, c, func(w *World) error {
			h, err := w.Serve()
			if err != nil {
				return err
			}
			v, err := h.Evaluate(ctx, schemas.Gate, Change{newFile: text(cleanText)}, 60_000)
			if err != nil {
				return err
			}
			for _, req := range v.Coverage.Required {
				if !slices.ContainsFunc(v.Coverage.Degraded, func(d schemas.Degradation) bool {
					return d.Requirement == req && d.Reason == schemas.ReasonMalformed
				}) {
					err = errors.Join(err, fmt.Errorf("%s%s was not taken for malformed", behave, req))
				}
			}
			if v.Decision == schemas.Allow {
				err = errors.Join(err, errors.New("the decision is allow"))
			}
			if err != nil {
				err = fmt.Errorf("%w; %s", err, describe(v))
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func quarantined(ctx context.Context, l *Lab) error {
	c := l.NewConfig("crash")
	two := 2
	c.Quarantine = &Quarantine{Failures: &two}
	return l.inWorld(ctx, c, func(w *World) error {
		// Each evaluation is by a new host: a quarantine must outlive it.
		for i := range 3 {
			h, err := w.Serve()
			if err != nil {
				return err
			}
			v, err := h.Evaluate(ctx, schemas.Gate, Change{newFile: text(cleanText)}, 0)
			if err != nil {
				return err
			}
			want := schemas.ReasonCrashed
			if i == 2 {
				want = schemas.ReasonQuarantined
			}
			if _, ok := degraded(v, want); !ok || v.Decision == schemas.Allow {
				return fmt.Errorf("evaluation %d: %s without %s; %s", i+1, v.Decision, want, describe(v))
			}
			st, err := h.Status(ctx)
			if err != nil {
				return err
			}
			if i == 2 && (st.Servers[0].State != "quarantined" || st.Servers[0].LifecycleState != schemas.StateQuarantined || st.Gates.Gate.Available) {
				return fmt.Errorf("the status does not tell of the quarantine: %+v", st.Servers[0])
			}
			if err := h.Close(30 * time.Second); err != nil {
				return err
			}
		}
		return nil
	})
}

// reachable are the degradation reasons that a conforming host's behaviour at
// check can be brought to.
var reachable = map[schemas.DegradationReason][]string{
	schemas.ReasonCrashed: {"crash"}, schemas.ReasonSkewed: {"version=3"}, schemas.ReasonStale: {"stale-digest"},
	schemas.ReasonIncomplete: {"status=incomplete"}, schemas.ReasonUnsupported: {"status=unsupported"}, schemas.ReasonError: {"status=error"},
	schemas.ReasonCancelled: {"status=cancelled"}, schemas.ReasonMalformed: {"missing-member"}, schemas.ReasonTimedOut: {"hang"},
}

// coverageVisible brings a dozen providers to as many degradations in one
// evaluation; each must be told, in the degradation of its own requirement.
func coverageVisible(ctx context.Context, l *Lab) error {
	c := l.NewConfig()
	for reason, behave := range reachable {
		l.Install(c, "p-"+string(reason), string(reason), true, behave...)
	}
	l.Install(c, "p-authority", string(schemas.ReasonMissingAuthority), true)
	c.Grants = c.Grants[:len(c.Grants)-1]
	l.Install(c, "p-assurance", string(schemas.ReasonInsufficientAssurance), true)
	c.Providers[len(c.Providers)-1].Runtime = "process"
	l.Install(c, "p-missing", string(schemas.ReasonMissing), true)
	c.Providers[len(c.Providers)-1].Executable = "/nonexistent/provider"
	l.Install(c, "p-optional", string(schemas.ReasonOptionalDegraded), false, "crash")
	c.Gates.Gate.RequiredRequirements = append(c.Gates.Gate.RequiredRequirements, string(schemas.ReasonMissingRequiredProvider))
	l.Install(c, "p-blocking", string(schemas.ReasonBlockingDiagnostic), true)
	return l.inWorld(ctx, c, func(w *World) error {
		h, err := w.Serve()
		if err != nil {
			return err
		}
		v, err := h.Evaluate(ctx, schemas.Gate, Change{newFile: text(errorText)}, 8000)
		if err != nil {
			return err
		}
		var missing []string
		for _, req := range slices.Concat(v.Coverage.Required, []string{string(schemas.ReasonOptionalDegraded)}) {
			if req == requirement {
				continue
			}
			if !slices.ContainsFunc(v.Coverage.Degraded, func(d schemas.Degradation) bool {
				return d.Requirement == req && d.Reason == schemas.DegradationReason(req)
			}) {
				missing = append(missing, req)
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("these reasons were not told: %s; %s", strings.Join(missing, ", "), describe(v))
		}
		return nil
	})
}
