package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

func hostileCases() []Case {
	return []Case{
		{ID: "HOSTILE-MALFORMED-INITIALIZE", Scenarios: reasons(schemas.ReasonMalformed, schemas.StateMalformed, "malformed-init", "not-json", "forge-init=authority", "ask-network")},
		{ID: "HOSTILE-MALFORMED-ASSESSMENT", Scenarios: reasons(schemas.ReasonMalformed, schemas.StateMalformed,
			"missing-member", "unknown-member", "bad-severity", "escape-path", "deep", "doubled", "bad-utf8", "batch", "wrong-id", "wrong-answer-version")},
		{ID: "HOSTILE-FORGED-HOST-FIELDS", Scenarios: reasons(schemas.ReasonMalformed, schemas.StateMalformed, "forge=verdict", "forge-evidence=transactionGuarantee")},
		{ID: "HOSTILE-STALE-ASSESSMENT", Scenarios: reasons(schemas.ReasonStale, schemas.StateDegraded, "stale-baseline", "rpc-stale")},
		{ID: "HOSTILE-MISSING-REQUIRED-PROVIDER", Scenarios: missingProvider()},
		{ID: "HOSTILE-OPTIONAL-DEGRADED-PROVIDER", Scenarios: []Scenario{{Decision: schemas.Allow, Reason: schemas.ReasonOptionalDegraded, State: schemas.StateCrashed,
			Setup: func(l *Lab, c *Config) { l.Install(c, "extra", "extra-check", false, "crash") },
			Also: func(_ *World, v *schemas.Verdict, _ string) error {
				if v.Coverage.Exhaustive || slices.Contains(v.Coverage.Ran, "extra-check") {
					return errors.New("optional loss is reported as full coverage")
				}
				return nil
			}}}},
		{ID: "HOSTILE-UNSUPPORTED-REQUIRED-CAPABILITY", Scenarios: reasons(schemas.ReasonUnsupported, "", "no-check", "status=unsupported", "no-method")},
		{ID: "HOSTILE-INCOMPLETE-REQUIRED-COVERAGE", Scenarios: reasons(schemas.ReasonIncomplete, "", "status=incomplete", "truncated", "not-exhaustive")},
		{ID: "HOSTILE-PROVIDER-ERROR", Scenarios: reasons(schemas.ReasonError, "", "status=error", "rpc-error=health", "rpc-error=input")},
		{ID: "HOSTILE-CANCELLED-PROVIDER-REQUEST", Scenarios: reasons(schemas.ReasonCancelled, "", "status=cancelled", "rpc-cancelled"), Run: cancelled},
		{ID: "HOSTILE-SLOW-PROVIDER-TIMEOUT", Scenarios: []Scenario{
			{Behave: []string{"hang"}, TimeoutMs: 2000, Reason: schemas.ReasonTimedOut, State: schemas.StateTimedOut},
			{Behave: []string{"hang-init"}, TimeoutMs: 2000, Reason: schemas.ReasonTimedOut, State: schemas.StateTimedOut},
		}},
		{ID: "HOSTILE-PROVIDER-CRASH", Scenarios: reasons(schemas.ReasonCrashed, schemas.StateCrashed, "crash-init", "crash", "crash-initialized", "crash-signal")},
		{ID: "HOSTILE-QUARANTINED-PROVIDER", Run: quarantined},
		{ID: "HOSTILE-MISSING-AUTHORITY", Scenarios: missingAuthority()[:1]},
		{ID: "HOSTILE-INSUFFICIENT-ASSURANCE", Scenarios: insufficient()},
		{ID: "HOSTILE-POLICY-SELF-AUTHORIZATION", Run: selfAuthorization},
		{ID: "HOSTILE-DIRECT-WRITE-RISK", Scenarios: []Scenario{
			{Reason: schemas.ReasonDirectWriteRisk, Setup: unconfined(schemas.MediatedWrite), Also: claimsLittle},
		}},
		{ID: "HOSTILE-COMMAND-LIKE-EDIT-OUTPUT", Run: refusedPlan("command")},
		{ID: "HOSTILE-NO-FAST-PATH", Scenarios: reasons(schemas.ReasonMalformed, "", "pass")},
		{ID: "HOSTILE-FLOODS", Scenarios: []Scenario{
			{Behave: []string{"callback-flood"}, TimeoutMs: 3000}, {Behave: []string{"callback-loop"}, TimeoutMs: 3000},
			{Behave: []string{"progress-flood"}, TimeoutMs: 20_000}, {Behave: []string{"log-flood"}, TimeoutMs: 20_000},
			{Behave: []string{"stderr-flood"}, Decision: schemas.Allow},
		}},
		{ID: "HOSTILE-OVERSIZE", Scenarios: reasons(schemas.ReasonMalformed, "", "huge", "endless", "noise")},
		{ID: "HOSTILE-UNASKED", Scenarios: []Scenario{
			{Behave: []string{"unasked"}, TimeoutMs: 5000}, {Behave: []string{"answer-twice"}, Decision: Any}, {Behave: []string{"apply-edit"}, Decision: schemas.Allow},
		}},
		{ID: "HOSTILE-HOGS", Scenarios: []Scenario{
			{Behave: []string{"memory-hog"}, TimeoutMs: 30_000, Reason: schemas.ReasonCrashed, Setup: limited},
			{Behave: []string{"disk-hog"}, TimeoutMs: 30_000, Decision: Any, Setup: limited},
			{Behave: []string{"fd-hog"}, TimeoutMs: 30_000, Decision: Any},
			{Behave: []string{"fork-bomb"}, TimeoutMs: 30_000, Decision: Any, Setup: limited},
		}},
		{ID: "HOSTILE-OUTLIVERS", Scenarios: []Scenario{
			{Behave: []string{"orphan"}, Decision: schemas.Allow}, {Behave: []string{"ignore-term"}, Decision: schemas.Allow}, {Behave: []string{"outlive"}, Decision: schemas.Allow},
		}},
	}
}

// limited keeps what a hog can take small.
func limited(_ *Lab, c *Config) {
	mb := 64
	c.Providers[0].Permissions = &schemas.Permissions{Read: []string{"**"}, ResourceLimits: &schemas.ResourceLimits{MemoryMB: &mb}}
}

// cancelled cancels an evaluation by $/cancelRequest; the answer is a typed
// error or a verdict that is no allow, and the host goes on.
func cancelled(ctx context.Context, l *Lab) error {
	return l.inWorld(ctx, l.NewConfig("hang"), func(w *World) error {
		h, err := w.Serve()
		if err != nil {
			return err
		}
		st, err := h.Status(ctx)
		if err != nil {
			return err
		}
		cs, texts := w.ChangeSet(st.Workspace.Baseline, Change{newFile: text(cleanText)})
		if err := h.PutBlobs(ctx, texts...); err != nil {
			return err
		}
		id, reply, err := h.Go(schemas.MethodHostEvaluateChangeset, schemas.EvaluateParams{CallSite: schemas.Gate, ChangeSet: cs})
		if err != nil {
			return err
		}
		select {
		case <-reply:
			return errors.New("a provider that hangs gave an answer")
		case <-time.After(1500 * time.Millisecond):
		}
		if err := h.Notify(schemas.MethodCancelRequest, schemas.CancelParams{ID: jsontext.Value(id)}); err != nil {
			return err
		}
		patience, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		raw, err := h.await(patience, schemas.MethodHostEvaluateChangeset, reply)
		var typed *schemas.Error
		if errors.As(err, &typed) {
			if typed.Code != schemas.CodeCancelled || typed.Data == nil || typed.Data.FailClass != schemas.FailHealth {
				return fmt.Errorf("the cancelled request was answered with %q (%d)", typed.Message, typed.Code)
			}
		} else if err != nil {
			return err
		} else if v, err := ParseVerdict(raw); err != nil || v.Decision == schemas.Allow {
			return fmt.Errorf("a cancelled request was answered %s: %w", raw, err)
		}
		_, err = h.Status(ctx)
		return err
	})
}

// repositoryPolicy is .asp/asp.json with the requirements given, all required
// at every call-site.
func repositoryPolicy(reqs ...schemas.Requirement) (string, error) {
	p := schemas.RepositoryPolicy{ASPVersion: schemas.ProtocolVersion, Requirements: reqs,
		Policy: schemas.PolicyRules{AuthorityModel: "explicit-pinned-provider", PolicyChangeActivation: "base-policy-two-phase",
			CandidatePolicyAuthority: "trusted-base-or-organization-floor", MissingHost: schemas.MissingHost{Interactive: "fail-closed", Gate: "fail-closed", Sweep: "fail-closed"}}}
	for _, g := range []*schemas.PolicyGate{&p.Gates.Interactive, &p.Gates.Gate, &p.Gates.Sweep} {
		g.OptionalRequirements, g.RequiredRequirements = []string{}, []string{}
		for _, r := range reqs {
			g.RequiredRequirements = append(g.RequiredRequirements, r.ID)
		}
	}
	b, err := schemas.Marshal(p)
	if err == nil {
		err = schemas.ValidateSchema("repository-policy", b)
	}
	return string(b), err
}

const policyFile = ".asp/asp.json"

// selfAuthorization changes the repository's policy in the very change that it
// would judge. Each weakening is a policy-self-authorization; a change of layout
// is none.
func selfAuthorization(ctx context.Context, l *Lab) error {
	req := func(id string, change func(*schemas.Requirement)) schemas.Requirement {
		r := schemas.Requirement{ID: id, Capabilities: []schemas.CapabilityFamily{schemas.Check}, Assurance: Confined(),
			Authority: schemas.RequirementAuthority{Providers: []schemas.PinnedProvider{l.Pin(testID)}}}
		if change != nil {
			change(&r)
		}
		return r
	}
	base, err := repositoryPolicy(req(requirement, nil))
	if err != nil {
		return err
	}
	lower, err1 := repositoryPolicy(req(requirement, func(r *schemas.Requirement) { r.Assurance = []schemas.AssuranceMode{schemas.Advisory} }))
	own, err2 := repositoryPolicy(req(requirement, func(r *schemas.Requirement) {
		r.Authority.Providers = append(r.Authority.Providers, l.Pin("friend"))
	}))
	other, err3 := repositoryPolicy(req("another", nil))
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	cases := map[string]struct {
		after   *string
		harmful bool
	}{
		"lower assurance": {text(lower), true}, "own provider": {text(own), true}, "requirement removed": {text(other), true},
		"policy removed": {nil, true}, "not a policy": {text("{}"), true}, "host selection": {text(`{"host":"mine",` + base[1:]), true},
		"layout only": {text(base + "\n\n"), false},
	}
	w, err := l.World(ctx, l.NewConfig())
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Write(policyFile, base); err != nil {
		return err
	}
	w.Files[policyFile] = base
	if err := w.Commit(ctx, "Add a policy"); err != nil {
		return err
	}
	h, err := w.Serve()
	if err != nil {
		return err
	}
	var errs []error
	for name, c := range cases {
		v, err := h.Evaluate(ctx, schemas.Gate, Change{policyFile: c.after, newFile: text(cleanText)}, 0)
		if err != nil {
			errs = append(errs, fmt.Errorf("[%s] %w", name, err))
			continue
		}
		_, told := degraded(v, schemas.ReasonPolicySelfAuthorization)
		switch {
		case c.harmful && (v.Decision == schemas.Allow || !told):
			errs = append(errs, fmt.Errorf("[%s] %s; %s", name, v.Decision, describe(v)))
		case !c.harmful && (v.Decision != schemas.Allow || told):
			errs = append(errs, fmt.Errorf("[%s] was punished: %s; %s", name, v.Decision, describe(v)))
		}
	}
	return errors.Join(append(errs, h.Breaches())...)
}
