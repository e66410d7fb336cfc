package host

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/host/supervise"
	"github.com/aspis-dev/aspis/schemas"
)

// inspectAnswer is one inspect provider's part.
type inspectAnswer struct {
	provider provider
	raw      jsontext.Value
	failure  *supervise.Failure
}

// QueryInspect routes a question to every inspect provider. The host owns
// freshness: the question is put on the baseline given, and an answer about
// another one is stale. When no provider could answer, the error says so: an
// empty answer would look like there was nothing to find.
func (h *Host) QueryInspect(ctx context.Context, site schemas.CallSite, req *schemas.InspectRequest, place Place, content supervise.Content, requestDigest string) (*schemas.QueryInspectResult, error) {
	started := h.now()
	plan := h.plan(site)
	ctx, cancel := context.WithTimeoutCause(ctx, plan.budget, context.DeadlineExceeded)
	defer cancel()
	bindBaseline(req, place.Baseline)
	var asked []*inspectAnswer
	var wg sync.WaitGroup
	for _, p := range h.providers() {
		if !slices.Contains(p.Capabilities, schemas.Inspect) {
			continue
		}
		a := &inspectAnswer{provider: p}
		asked = append(asked, a)
		wg.Go(func() { h.inspectOne(ctx, a, req, place, content) })
	}
	wg.Wait()

	cov := emptyCoverage()
	res := &schemas.QueryInspectResult{Data: schemas.InspectData{Results: []schemas.InspectAnswer{}}, ValidAsOf: schemas.ValidAsOf{Rev: place.Baseline.Rev}}
	ids := []string{}
	for _, a := range asked {
		ids = append(ids, a.provider.ID)
		if a.failure != nil {
			cov.Degraded = append(cov.Degraded, a.failure.Degradation(a.provider.ID, "", schemas.Inspect))
			continue
		}
		cov.Ran = append(cov.Ran, a.provider.ID)
		res.Data.Results = append(res.Data.Results, schemas.InspectAnswer{Provider: a.provider.ID, Result: a.raw})
	}
	if len(asked) == 0 {
		cov.Degraded = append(cov.Degraded, schemas.Degradation{Source: "aspis", Reason: schemas.ReasonMissing, Capability: schemas.Inspect,
			ProviderState: schemas.StateUnavailable, Detail: "trusted configuration installs no provider with the inspect capability"})
	}
	cov.Exhaustive = len(cov.Degraded) == 0
	res.Coverage = cov
	res.Receipt = h.draft(outline{kind: schemas.ReceiptInspect, family: schemas.Inspect, site: site, request: requestDigest, policy: plan.digest,
		baseline: place.Baseline, coverage: cov, assurance: nothingDone("inspect never decides"), started: started})
	res.Receipt.ProviderIDs = ids
	if err := h.keep(ctx, res.Receipt); err != nil {
		return nil, err
	}
	if len(res.Data.Results) == 0 {
		return nil, &schemas.Error{Code: schemas.CodeHealthNotReady, Message: "no inspect provider could answer",
			Data: &schemas.ErrorData{FailClass: schemas.FailHealth, Detail: fmt.Sprintf("%s: %s (receipt %s)",
				cov.Degraded[0].Reason, cov.Degraded[0].Detail, res.Receipt.ReceiptID)}}
	}
	return res, nil
}

// bindBaseline puts the question on the host's baseline, whatever it named.
func bindBaseline(req *schemas.InspectRequest, b schemas.Baseline) {
	switch p := req.Params.(type) {
	case *schemas.ReferencesParams:
		p.Baseline = &b
	case *schemas.CallsParams:
		p.Baseline = &b
	case *schemas.SymbolsParams:
		p.Baseline = &b
	case *schemas.ImpactParams:
		p.Baseline = &b
	case *schemas.QueryParams:
		p.Baseline = &b
	}
}

func (h *Host) inspectOne(ctx context.Context, a *inspectAnswer, req *schemas.InspectRequest, place Place, content supervise.Content) {
	p := a.provider
	if a.failure = h.barred(p); a.failure != nil {
		return
	}
	p = p.withoutSnapshot()
	r := &run{provider: p}
	defer func() {
		r.trace.State, r.result.Failure = schemas.StateActive, a.failure
		if a.failure != nil {
			r.trace.State = a.failure.State
		}
		h.observe(ctx, schemas.Interactive, r)
	}()
	s, release, f := h.session(ctx, Evaluation{ChangeSet: schemas.ChangeSet{Baseline: place.Baseline}}, r)
	if f != nil {
		a.failure = f
		return
	}
	defer release()
	r.families = s.Info().CapabilityFamilies
	for range 2 { // a stale answer is asked for once more
		ans := s.Ask(ctx, schemas.Inspect, req.Method, req.Params, content, nil)
		a.raw, a.failure = ans.Raw, ans.Failure
		if a.failure == nil {
			a.failure = checkInspect(req.Method, ans.Raw, place.Baseline)
		}
		if a.failure == nil || a.failure.Reason != schemas.ReasonStale || ctx.Err() != nil {
			break
		}
	}
	if a.failure != nil {
		a.raw = nil
	}
}

// checkInspect validates a graph's shape and freshness.
func checkInspect(method string, raw jsontext.Value, b schemas.Baseline) *supervise.Failure {
	var rev string
	var err error
	if method == schemas.MethodImpact {
		var m *schemas.Impact
		if m, err = schemas.DecodeImpact(raw, schemas.Limits{}); err == nil {
			rev = m.ValidAsOf.Rev
		}
	} else {
		var g *schemas.Graph
		if g, err = schemas.DecodeGraph(raw, schemas.Limits{}); err == nil {
			rev = g.ValidAsOf.Rev
		}
	}
	switch {
	case err != nil:
		return &supervise.Failure{Reason: schemas.ReasonMalformed, Class: schemas.FailContract, State: schemas.StateMalformed,
			Detail: fmt.Sprintf("the answer to %s is not valid: %v", method, err)}
	case rev != b.Rev:
		return &supervise.Failure{Reason: schemas.ReasonStale, Class: schemas.FailHealth, State: schemas.StateDegraded,
			Detail: fmt.Sprintf("the answer is about %.80q, the question was on %s", rev, b.Rev)}
	}
	return nil
}
