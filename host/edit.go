package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/aspis-dev/aspis/apply"
	"github.com/aspis-dev/aspis/host/receipt"
	"github.com/aspis-dev/aspis/host/supervise"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// RequestEditPlan asks the edit providers that trusted policy grants, in the
// order of configuration, and returns the first valid plan. It writes nothing:
// a plan is a proposal, and blobs that come with it wait in the store.
func (h *Host) RequestEditPlan(ctx context.Context, p *schemas.RequestEditPlanParams, place Place, tree gitrepo.OID, content supervise.Content, put supervise.Putter, requestDigest string) (*schemas.RequestEditPlanResult, error) {
	started := h.now()
	if !p.Baseline.Same(place.Baseline) {
		yes := true
		return nil, &schemas.Error{Code: schemas.CodeStaleBaseline, Message: "the request is on another baseline",
			Data: &schemas.ErrorData{FailClass: schemas.FailHealth, Retryable: &yes,
				Detail: fmt.Sprintf("the host is at %s; ask host/status and try again", place.Baseline.Rev)}}
	}
	plan := h.plan(p.CallSite)
	ctx, cancel := context.WithTimeoutCause(ctx, plan.budget, context.DeadlineExceeded)
	defer cancel()
	params := schemas.ProposeParams{Operation: p.Operation, Baseline: place.Baseline, ProposalID: p.ProposalID, Args: p.Args}
	if params.ProposalID == "" {
		params.ProposalID = "proposal-" + receipt.NewID()
	}
	if p.Scope != nil {
		params.Scope = *p.Scope
	} else {
		params.Scope = schemas.EditScope{Paths: []string{"**"}}
	}
	var failures []schemas.Degradation
	for _, pr := range h.providers() {
		if !slices.Contains(pr.Capabilities, schemas.Edit) {
			continue
		}
		evidence := schemas.AuthorityEvidence{Identity: pr.Identity, Integrity: pr.Digest, Conformance: pr.Conformance, Isolation: schemas.Advisory,
			Authority: schemas.Authority{Requirement: "edit", CallSite: p.CallSite, PolicyDigest: plan.digest}}
		if !h.mayEdit(plan, pr) {
			failures = append(failures, schemas.Degradation{Source: pr.ID, Reason: schemas.ReasonMissingAuthority, Capability: schemas.Edit,
				Detail: "trusted policy grants it no requirement with the edit capability at this call-site"})
			continue
		}
		got, f := h.proposeOne(ctx, pr, params, place, content, put)
		evidence.Isolation = got.mode
		if f != nil {
			failures = append(failures, f.Degradation(pr.ID, "", schemas.Edit))
			continue
		}
		evidence.Authority.Granted = true
		if err := h.keepProposal(place, proposal{Plan: got.plan, Evidence: evidence, CallSite: p.CallSite, Scope: params.Scope.Paths,
			Tree: string(tree), At: started, Request: *p}); err != nil {
			return nil, err
		}
		return h.sealPlan(ctx, p, place, plan, pr, got, evidence, failures, requestDigest, started)
	}
	if len(failures) == 0 {
		failures = []schemas.Degradation{{Source: "aspis", Reason: schemas.ReasonMissing, Capability: schemas.Edit,
			Detail: "trusted configuration installs no provider with the edit capability"}}
	}
	class := schemas.FailHealth
	if failures[0].Reason == schemas.ReasonMissingAuthority {
		class = schemas.FailPolicy
	}
	return nil, &schemas.Error{Code: schemas.CodeHealthNotReady, Message: "no edit provider made a plan",
		Data: &schemas.ErrorData{FailClass: class, Detail: fmt.Sprintf("%s: %s: %s", failures[0].Source, failures[0].Reason, failures[0].Detail)}}
}

// proposed is a plan that came back with what was seen of its provider.
type proposed struct {
	plan schemas.EditPlan
	mode schemas.AssuranceMode
}

func (h *Host) proposeOne(ctx context.Context, p provider, params schemas.ProposeParams, place Place, content supervise.Content, put supervise.Putter) (got proposed, f *supervise.Failure) {
	got.mode = schemas.Advisory
	if f := h.barred(p); f != nil {
		return got, f
	}
	p = p.withoutSnapshot()
	r := &run{provider: p}
	defer func() {
		r.trace.State, r.result.Failure = schemas.StateActive, f
		if f != nil {
			r.trace.State = f.State
		}
		h.observe(ctx, schemas.Interactive, r)
	}()
	s, release, f := h.session(ctx, Evaluation{ChangeSet: schemas.ChangeSet{Baseline: place.Baseline}}, r)
	if f != nil {
		return got, f
	}
	defer release()
	got.mode, r.families = r.trace.Mode, s.Info().CapabilityFamilies
	a := s.Ask(ctx, schemas.Edit, schemas.MethodEditPropose, params, content, put)
	if a.Failure != nil {
		return got, a.Failure
	}
	got.plan, f = checkPlan(ctx, a, p, params, content)
	return got, f
}

// checkPlan validates a plan against the request it answers.
func checkPlan(ctx context.Context, a supervise.Answer, p provider, params schemas.ProposeParams, content supervise.Content) (schemas.EditPlan, *supervise.Failure) {
	bad := func(reason schemas.DegradationReason, format string, args ...any) (schemas.EditPlan, *supervise.Failure) {
		state := schemas.StateMalformed
		if reason == schemas.ReasonStale {
			state = schemas.StateDegraded
		}
		return schemas.EditPlan{}, &supervise.Failure{Reason: reason, Class: schemas.FailContract, State: state, Detail: fmt.Sprintf(format, args...)}
	}
	res, err := schemas.DecodeProposeResult(a.Raw, schemas.Limits{})
	if err != nil {
		return bad(schemas.ReasonMalformed, "the plan is not valid: %v", err)
	}
	plan := res.Proposal
	switch {
	case plan.ProposalID != params.ProposalID:
		return bad(schemas.ReasonMalformed, "the plan is for the proposal %.80q, not %q", plan.ProposalID, params.ProposalID)
	case plan.Provider.ID != p.ID || plan.Provider.Version != p.Version:
		return bad(schemas.ReasonMalformed, "the plan is signed by %.80q %.40q", plan.Provider.ID, plan.Provider.Version)
	case !plan.Baseline.Same(params.Baseline), !plan.ValidAsOf.Baseline.Same(params.Baseline):
		return bad(schemas.ReasonStale, "the plan is on another baseline")
	case plan.WorkspaceEdit != nil && !plan.WorkspaceEdit.Baseline.Same(params.Baseline):
		return bad(schemas.ReasonStale, "the plan's edit is on another baseline")
	}
	err = apply.Check(ctx, &plan, planBase{content: content, offered: a.Offered})
	var problem *apply.Problem
	switch {
	case errors.As(err, &problem) && problem.Stale:
		return bad(schemas.ReasonStale, "the plan does not fit the baseline: %v", problem)
	case errors.As(err, &problem):
		return bad(schemas.ReasonMalformed, "the plan cannot be taken: %v", problem)
	case err != nil:
		return bad(schemas.ReasonUnavailable, "the plan could not be checked: %v", err)
	}
	return plan, nil
}

// planBase is the baseline with the blobs that came with a plan.
type planBase struct {
	content supervise.Content
	offered []schemas.BlobRef
}

func (b planBase) Blob(ctx context.Context, path string) (schemas.BlobRef, bool, error) {
	e, ok, err := b.content.Entry(ctx, path)
	return e.BlobID, ok, err
}

func (b planBase) Open(ctx context.Context, ref schemas.BlobRef) (io.ReadCloser, bool, error) {
	if !slices.Contains(b.offered, ref) {
		if paths, err := b.content.Paths(ctx, ref); err != nil || len(paths) == 0 {
			return nil, false, err
		}
	}
	r, _, err := b.content.Open(ctx, ref)
	return r, err == nil, err
}

func (h *Host) sealPlan(ctx context.Context, p *schemas.RequestEditPlanParams, place Place, plan plan, pr provider, got proposed, evidence schemas.AuthorityEvidence, failures []schemas.Degradation, requestDigest string, started time.Time) (*schemas.RequestEditPlanResult, error) {
	cov := emptyCoverage(failures...)
	cov.Ran = []string{pr.ID}
	r := h.draft(outline{kind: schemas.ReceiptEditRequest, family: schemas.Edit, site: p.CallSite, request: requestDigest, policy: plan.digest,
		baseline: place.Baseline, coverage: cov, started: started,
		assurance: schemas.Assurance{Mode: got.mode, TransactionGuarantee: schemas.GuaranteeNone, Detail: "a plan was made; nothing was written"}})
	r.ProviderIDs = []string{pr.ID}
	r.ProviderProvenance = []schemas.ProviderProvenance{{Provider: pr.ID, Capability: schemas.Edit, Identity: pr.Identity, Integrity: pr.Digest, Conformance: pr.Conformance}}
	r.AuthorityEvidence = []schemas.AuthorityEvidence{evidence}
	r.ProposalID = got.plan.ProposalID
	if err := h.keep(ctx, r); err != nil {
		return nil, err
	}
	return &schemas.RequestEditPlanResult{Proposal: got.plan, Receipt: r}, nil
}
