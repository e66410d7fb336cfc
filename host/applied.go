package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/aspis-dev/aspis/host/receipt"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// judge runs the required checks on exactly the tree that would be published,
// and gives that tree. Anything but a plain allow is a refusal: what a call-site
// lets through in doubt is good enough for a hint, never for a write.
func (at *attempt) judge(ctx context.Context, cs schemas.ChangeSet) (tree gitrepo.OID, err error) {
	w, err := at.s.hypothetical(ctx, cs, at.tree)
	var typed *schemas.Error
	if errors.As(err, &typed) {
		return "", &refusal{reason: map[bool]string{true: "missing-blob", false: "malformed"}[typed.Code == schemas.CodeBlobUnavailable], detail: describe(typed)}
	}
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	w.modes = at.modes
	w.moved = at.target.moved(at)
	change, err := w.captured(ctx)
	var edit *gitrepo.EditError
	if errors.As(err, &edit) {
		return "", &refusal{reason: "precondition-failed", detail: edit.Error()}
	}
	if err != nil {
		return "", err
	}
	losses, err := at.s.policyLosses(ctx, cs, at.place.Baseline.Rev, w.base)
	if err != nil {
		return "", err
	}
	if at.verdict, err = at.s.Host.Evaluate(ctx, Evaluation{CallSite: at.a.Params.CallSite, ChangeSet: cs, Comparison: schemas.Introduced,
		RequestDigest: at.a.Digest, Workspace: w, HostLosses: losses}); err != nil {
		return "", err
	}
	v := at.verdict
	switch {
	case v.Decision == schemas.Deny:
		return "", &refusal{reason: "validation-denied", detail: fmt.Sprintf("the checks deny what the plan would make: %d findings gate", gating(v))}
	case v.Decision != schemas.Allow:
		return "", &refusal{reason: "validation-indeterminate", detail: "the checks could not judge what the plan would make" + firstDetail(v.Coverage.Degraded)}
	case len(v.Coverage.Required) == 0:
		return "", &refusal{reason: "validation-indeterminate", detail: fmt.Sprintf("policy requires no check at %s, so that nothing has judged what the plan would make", at.a.Params.CallSite)}
	}
	if i := slices.IndexFunc(v.Coverage.Degraded, func(d schemas.Degradation) bool { return d.Reason == schemas.ReasonFailOpen }); i >= 0 {
		return "", &refusal{reason: "validation-indeterminate", detail: fmt.Sprintf("a check failed, which %s lets pass and a write does not: %s", at.a.Params.CallSite, v.Coverage.Degraded[i].Detail)}
	}
	return change.Capture.CandidateTree, nil
}

func gating(v *schemas.Verdict) (n int) {
	for _, f := range v.Findings {
		if f.Disposition == schemas.DispositionGating {
			n++
		}
	}
	return n
}

func describe(e *schemas.Error) string {
	if e.Data != nil && e.Data.Detail != "" {
		return e.Message + ": " + e.Data.Detail
	}
	return e.Message
}

// refusalReasons are what a refusal is among degradations.
var refusalReasons = map[string]schemas.DegradationReason{
	"missing-authority": schemas.ReasonMissingAuthority, "insufficient-assurance": schemas.ReasonInsufficientAssurance,
	"direct-write-risk": schemas.ReasonDirectWriteRisk, "unsupported": schemas.ReasonUnsupported, "stale-baseline": schemas.ReasonStaleBaseline,
	"conflict": schemas.ReasonStaleBaseline, "validation-denied": schemas.ReasonBlockingDiagnostic, "validation-indeterminate": schemas.ReasonIncomplete,
	"malformed": schemas.ReasonMalformed, "missing-blob": schemas.ReasonMissing, "precondition-failed": schemas.ReasonStale,
}

// receipt drafts the receipt of this attempt.
func (at *attempt) receipt(cov schemas.HostCoverage, assurance schemas.Assurance) schemas.Receipt {
	h := at.s.Host
	r := h.draft(outline{kind: schemas.ReceiptApplyAttempt, family: schemas.Edit, site: at.a.Params.CallSite, request: at.a.Digest, policy: at.plan.digest,
		baseline: at.place.Baseline, coverage: cov, assurance: assurance, started: at.started})
	r.ProposalID = at.a.Params.ProposalID
	if at.edit != nil {
		r.ProviderIDs = []string{at.edit.Provider.ID}
		r.ProviderProvenance = []schemas.ProviderProvenance{{Provider: at.edit.Provider.ID, Capability: schemas.Edit,
			Identity: at.evidence.Identity, Integrity: at.evidence.Integrity, Conformance: at.evidence.Conformance}}
		r.AuthorityEvidence = []schemas.AuthorityEvidence{at.evidence}
	}
	if v := at.verdict; v != nil {
		r.ChangesetDigest = v.ChangesetDigest
		for _, id := range v.Receipt.ProviderIDs {
			if !slices.Contains(r.ProviderIDs, id) {
				r.ProviderIDs = append(r.ProviderIDs, id)
			}
		}
		r.ProviderProvenance = append(r.ProviderProvenance, v.Receipt.ProviderProvenance...)
		r.AuthorityEvidence = append(r.AuthorityEvidence, v.AuthorityEvidence...)
	}
	return r
}

// refuse is the answer when nothing is written. It claims nothing.
func (at *attempt) refuse(ctx context.Context, no *refusal) (*schemas.ApplyResult, error) {
	cov := emptyCoverage(schemas.Degradation{Source: "aspis", Reason: refusalReasons[no.reason], Capability: schemas.Edit, Detail: no.detail})
	if v := at.verdict; v != nil && strings.HasPrefix(no.reason, "validation-") {
		cov = v.Coverage
	}
	assurance := schemas.Assurance{Mode: at.mode, TransactionGuarantee: schemas.GuaranteeNone, Detail: at.detail("nothing was written")}
	r := at.receipt(cov, assurance)
	if err := at.s.Host.keep(ctx, r); err != nil {
		return nil, err
	}
	return &schemas.ApplyResult{Applied: false, ProposalID: at.a.Params.ProposalID, BaselineBefore: at.place.Baseline,
		Assurance: assurance, Receipt: r, Decision: at.verdict,
		Refusal: &schemas.ApplyRefusal{Reason: no.reason, Detail: no.detail, Conflicts: no.conflicts}}, nil
}

// detail joins what is to be said beside a mode.
func (at *attempt) detail(first string) string {
	return strings.Join(append([]string{first}, at.notes...), "; ")
}

// rehearsed is the answer to somebody who only wants to know: everything held,
// and nothing was written.
func (at *attempt) rehearsed(ctx context.Context, todo []move) (*schemas.ApplyResult, error) {
	at.notes = append(at.notes, "the checks ran "+string(at.verdict.Assurance.Mode))
	return at.refuse(ctx, &refusal{reason: "unsupported", detail: fmt.Sprintf("%s: %d paths would be written", DryRun, len(todo))})
}

// DryRun begins the detail of a refusal that only says that nothing was to be written.
const DryRun = "dry run"

// published is what came of a publish.
type published struct {
	guarantee schemas.TransactionGuarantee
	after     schemas.Baseline
	limits    []string // why the guarantee is not a better one
	undo      string   // how it can be taken back
	// failed undoes what was published, for when not even its receipt can be kept.
	failed func(context.Context) error
}

// applied is the answer after a publish. The mode is the weakest of what made
// the plan and what checked it.
func (at *attempt) applied(ctx context.Context, done *published) (*schemas.ApplyResult, error) {
	mode := at.mode
	if m := at.verdict.Assurance.Mode; m.Rank() < mode.Rank() {
		mode = m
	}
	at.notes = append(at.notes, done.limits...)
	assurance := schemas.Assurance{Mode: mode, TransactionGuarantee: done.guarantee, Detail: at.detail("published; the checks ran " + string(at.verdict.Assurance.Mode))}
	cov := at.verdict.Coverage
	if at.mode == schemas.Gated || at.mode == schemas.Advisory {
		cov.Degraded = append(slices.Clone(cov.Degraded), schemas.Degradation{Source: at.edit.Provider.ID, Reason: schemas.ReasonDirectWriteRisk, Capability: schemas.Edit,
			Detail: "whoever made the plan could have written the worktree directly"})
		cov.Exhaustive = false
	}
	r := at.receipt(cov, assurance)
	r.ValidAsOf = schemas.ValidAsOf{Rev: done.after.Rev}
	res := &schemas.ApplyResult{Applied: true, ProposalID: at.a.Params.ProposalID, BaselineBefore: at.place.Baseline, BaselineAfter: &done.after,
		Assurance: assurance, Receipt: r, Decision: at.verdict}
	h := at.s.Host
	record := receipt.Record{Receipt: r, Verdict: at.verdict}
	if err := h.receipts.Append(context.WithoutCancel(ctx), record, ApplyEvidence{ReceiptID: r.ReceiptID, Checks: at.verdict.Receipt.ReceiptID, Baseline: at.place.Baseline, After: done.after, Undo: done.undo, Limits: done.limits}); err != nil {
		// A write without a receipt is no write of ours.
		return nil, fmt.Errorf("the edit was published, but its receipt could not be kept, and it was taken back: %w", errors.Join(err, done.failed(context.WithoutCancel(ctx))))
	}
	if err := h.outcomes().put(res, at.place.Root, at.edit.Provider.ID, at.a.Params.ProposalID); err != nil {
		h.log.Error("that a proposal was applied could not be remembered", "proposal", at.a.Params.ProposalID, "error", err)
	}
	return res, nil
}

// ApplyEvidence is what is kept on the host's side of a publish.
type ApplyEvidence struct {
	ReceiptID string           `json:"receiptId"`
	Checks    string           `json:"checksReceiptId"` // its evidence tells what confined the checks
	Baseline  schemas.Baseline `json:"baselineBefore"`
	After     schemas.Baseline `json:"baselineAfter"`
	Undo      string           `json:"undo,omitzero"`
	Limits    []string         `json:"limits,omitzero"`
}
