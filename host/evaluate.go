package host

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aspis-dev/aspis/host/decide"
	"github.com/aspis-dev/aspis/host/receipt"
	"github.com/aspis-dev/aspis/host/supervise"
	"github.com/aspis-dev/aspis/schemas"
)

// Evaluation is a change to be judged.
type Evaluation struct {
	CallSite   schemas.CallSite
	ChangeSet  schemas.ChangeSet
	Comparison schemas.Comparison
	Timeout    time.Duration // 0 means the policy's budget; never more than that
	// BasePolicyDigest is the policy the caller expects; empty means any.
	BasePolicyDigest string
	// RequestDigest identifies the question in the receipt.
	RequestDigest string
	// Workspace gives the snapshots of the change.
	Workspace Workspace
	// HostLosses are degradations found before the evaluation began.
	HostLosses []schemas.Degradation
}

// Workspace is the content of one change.
type Workspace interface {
	// Content is what callbacks are served from.
	Content(ctx context.Context) (supervise.Content, error)
	// Mounts prepares read-only views of candidate and baseline for a provider
	// that is to see them, as host paths; release undoes them.
	Mounts(ctx context.Context) (candidate, baseline string, release func() error, err error)
	// Moved reports in a sentence how the repository has moved since the change
	// was captured, or "" when it has not.
	Moved(ctx context.Context) (string, error)
}

// run is one provider's part in an evaluation.
type run struct {
	provider provider
	result   supervise.CheckResult
	sources  []string
	families []schemas.CapabilityFamily
	trace    ProviderTrace
	// hurried is true when the caller gives less time than policy does: running
	// out of it says nothing of the provider's health.
	hurried bool
}

// Evaluate judges a change: every provider that a requirement of this call-site
// names runs, side by side, within the budget; then the decision is computed
// from what came back. The error is for a host that cannot answer at all; a
// provider that cannot is a degradation in the verdict.
func (h *Host) Evaluate(ctx context.Context, ev Evaluation) (*schemas.Verdict, error) {
	started := h.now()
	plan := h.plan(ev.CallSite).judging()
	digest, err := schemas.Digest(ev.ChangeSet)
	if err != nil {
		return nil, fmt.Errorf("digest of the changeset: %w", err)
	}
	if ev.Comparison == "" {
		ev.Comparison = schemas.Introduced
	}
	budget := plan.budget
	if ev.Timeout > 0 && ev.Timeout < budget {
		budget = ev.Timeout
	}
	work, cancel := context.WithTimeoutCause(ctx, budget, context.DeadlineExceeded)
	defer cancel()

	losses := append(slices.Clone(ev.HostLosses), h.selfAuthorization()...)
	if ev.BasePolicyDigest != "" && ev.BasePolicyDigest != plan.digest {
		losses = append(losses, schemas.Degradation{Source: "policy", Reason: schemas.ReasonStale,
			Detail: "the caller expects the policy " + ev.BasePolicyDigest + "; the one in force is " + plan.digest})
	}
	impact := &impact{}
	runs := h.runAll(work, ev, plan, digest, impact)
	if moved, err := ev.Workspace.Moved(context.WithoutCancel(ctx)); err != nil || moved != "" {
		if err != nil {
			moved = "whether the repository moved could not be told: " + err.Error()
		}
		losses = append(losses, schemas.Degradation{Source: "workspace", Reason: schemas.ReasonStaleBaseline, Detail: moved})
	}
	facts, findings, authorities := h.weigh(ev, plan, runs)
	facts.HostLosses = losses
	facts.Requirements = append(facts.Requirements, impact.losses(h, ev.CallSite)...)
	outcome := decide.Decide(facts)
	for _, l := range outcome.FailedOpen {
		d := l.Degradation
		h.log.Warn("fail-open", "provider", d.Source, "failClass", l.Class, "callSite", ev.CallSite, "requirement", d.Requirement, "detail", d.Detail)
	}
	return h.seal(ctx, ev, plan, sealed{
		started: started, changeset: digest, outcome: outcome, findings: findings,
		authorities: authorities, runs: runs,
	})
}

// runAll runs every provider of the plan once, side by side.
func (h *Host) runAll(ctx context.Context, ev Evaluation, plan plan, digest string, impact *impact) map[string]*run {
	runs := map[string]*run{}
	for _, r := range plan.requirements {
		for _, p := range r.providers {
			if runs[p.ID] == nil {
				runs[p.ID] = &run{provider: p, hurried: ev.Timeout > 0 && ev.Timeout < plan.budget}
			}
		}
	}
	var all sync.WaitGroup
	for _, r := range runs {
		all.Go(func() { h.runOne(ctx, ev, r, digest, impact) })
	}
	all.Wait()
	return runs
}

// weigh puts what the providers answered against what policy requires.
func (h *Host) weigh(ev Evaluation, plan plan, runs map[string]*run) (decide.Facts, []schemas.Finding, []schemas.AuthorityEvidence) {
	facts := decide.Facts{CallSite: ev.CallSite}
	var authorities []schemas.AuthorityEvidence
	best := map[string]judged{} // provider, code, fingerprint: the sternest reading of one finding
	var order []string
	for _, req := range plan.requirements {
		r := decide.Requirement{ID: req.ID, Required: req.required}
		if len(req.providers) == 0 {
			r.Losses = append(r.Losses, h.loss(ev.CallSite, schemas.FailPolicy, schemas.Degradation{
				Source: req.ID, Reason: schemas.ReasonMissingRequiredProvider, Requirement: req.ID, Capability: schemas.Check,
				ProviderState: schemas.StateUnavailable, Detail: "trusted configuration installs no provider for this requirement",
			}))
		}
		clean, dirty, satisfied := 0, 0, 0
		for _, p := range req.providers {
			w := h.weighOne(ev, plan, req, runs[p.ID])
			authorities = append(authorities, w.evidence)
			r.Losses = append(r.Losses, w.losses...)
			r.Blocking += w.blocking
			if w.satisfied {
				satisfied++
				if w.blocking > 0 {
					dirty++
				} else {
					clean++
				}
			}
			for _, j := range w.findings {
				key := p.ID + "\x00" + j.finding.Diagnostic.Code + "\x00" + j.finding.Diagnostic.Fingerprint
				old, seen := best[key]
				if !seen {
					order = append(order, key)
				}
				if !seen || (j.blocking && !old.blocking) {
					best[key] = j
				}
			}
		}
		r.Satisfied = satisfied > 0 && satisfied == len(req.providers)
		r.Tied = clean > 0 && dirty > 0
		facts.Requirements = append(facts.Requirements, r)
	}
	findings := make([]schemas.Finding, 0, len(order))
	for _, key := range order {
		findings = append(findings, best[key].finding)
	}
	slices.SortStableFunc(findings, compareFindings)
	return facts, findings, authorities
}

// compareFindings puts gating before advisory, then orders by place.
func compareFindings(a, b schemas.Finding) int {
	if a.Disposition != b.Disposition {
		if a.Disposition == schemas.DispositionGating {
			return -1
		}
		return 1
	}
	if c := strings.Compare(a.Diagnostic.Location.Path, b.Diagnostic.Location.Path); c != 0 {
		return c
	}
	return startLine(a) - startLine(b)
}

func startLine(f schemas.Finding) int {
	if f.Diagnostic.Location.Range == nil {
		return -1
	}
	return f.Diagnostic.Location.Range.Start.Line
}

// weight is one provider's contribution to one requirement.
type weight struct {
	evidence  schemas.AuthorityEvidence
	losses    []decide.Loss
	findings  []judged
	blocking  int
	satisfied bool
}

func (h *Host) weighOne(ev Evaluation, plan plan, req requirement, r *run) weight {
	p := r.provider
	grant := h.grant(plan, req, p)
	var w weight
	w.evidence = schemas.AuthorityEvidence{
		Identity: p.Identity, Integrity: p.Digest, Conformance: p.Conformance, Isolation: r.trace.Mode,
		Authority: schemas.Authority{Granted: grant.granted, Requirement: req.ID, CallSite: ev.CallSite, PolicyDigest: plan.digest},
	}
	state := r.trace.State
	lose := func(class schemas.FailClass, reason schemas.DegradationReason, detail string) {
		w.losses = append(w.losses, h.loss(ev.CallSite, class, schemas.Degradation{
			Source: p.ID, Reason: reason, Detail: detail, Requirement: req.ID, Capability: schemas.Check, ProviderState: state,
		}))
	}
	if f := r.result.Failure; f != nil {
		w.losses = append(w.losses, h.loss(ev.CallSite, f.Class, f.Degradation(p.ID, req.ID, schemas.Check)))
		if f.FastPath {
			lose(schemas.FailContract, schemas.ReasonLatticeFastPath, "a result of the provider's own making does not count; the host decides")
		}
	}
	if !grant.granted {
		lose(schemas.FailPolicy, schemas.ReasonMissingAuthority, grant.why)
	}
	if r.trace.NoSandbox != "" {
		lose(schemas.FailPolicy, schemas.ReasonUnsupportedAssurance, "no sandbox can be built on this machine: "+r.trace.NoSandbox)
	}
	if r.trace.Started && !req.accepts(r.trace.Mode) {
		detail := fmt.Sprintf("%s was achieved; the requirement accepts %s", r.trace.Mode, joinModes(req.accept))
		if r.trace.Missing != "" {
			detail += "; " + r.trace.Missing
		}
		if r.result.Failure == nil || r.result.Failure.Reason != schemas.ReasonInsufficientAssurance {
			lose(schemas.FailPolicy, schemas.ReasonInsufficientAssurance, detail)
		}
	}
	if r.trace.Started && (r.trace.Mode == schemas.Gated || r.trace.Mode == schemas.Advisory) {
		// Whatever the requirement accepts: coverage must be marked
		// (host-obligations §3), and marked coverage is no full coverage.
		lose(schemas.FailPolicy, schemas.ReasonDirectWriteRisk, "the provider could have written the worktree directly")
	}
	a := r.result.Assessment
	if a == nil {
		return w
	}
	for _, l := range assessmentLosses(a) {
		lose(l.class, l.reason, l.detail)
	}
	findings, foreign := arbitrate(p.ID, r.sources, a.Diagnostics,
		authority{granted: grant.granted, cap: grant.cap, evidence: w.evidence}, ev.Comparison)
	if foreign > 0 {
		lose(schemas.FailContract, schemas.ReasonMalformed,
			fmt.Sprintf("%d of its findings have codes outside the sources it declared; they are shown under its own name", foreign))
	}
	w.findings = findings
	for _, j := range findings {
		if j.blocking {
			w.blocking++
		}
	}
	w.satisfied = len(w.losses) == 0
	return w
}

type assessmentLoss struct {
	class  schemas.FailClass
	reason schemas.DegradationReason
	detail string
}

// assessmentLosses lists why an assessment of the right shape is still not full
// coverage. Unsupported is a gap in what the provider can do, error a failure
// in doing it; they are kept apart (host-obligations §2).
func assessmentLosses(a *schemas.Assessment) []assessmentLoss {
	var out []assessmentLoss
	switch a.Status {
	case schemas.StatusComplete:
	case schemas.StatusIncomplete:
		out = append(out, assessmentLoss{schemas.FailHealth, schemas.ReasonIncomplete, "the provider looked at a part only" + firstDetail(a.Coverage.Degraded)})
	case schemas.StatusUnsupported:
		out = append(out, assessmentLoss{schemas.FailContract, schemas.ReasonUnsupported, "the provider does not support what was asked" + firstDetail(a.Coverage.Unsupported)})
	case schemas.StatusCancelled:
		out = append(out, assessmentLoss{schemas.FailHealth, schemas.ReasonCancelled, "the provider says that it was cancelled"})
	default:
		out = append(out, assessmentLoss{schemas.FailHealth, schemas.ReasonError, "the provider tried and failed" + firstDetail(a.Coverage.Degraded)})
	}
	if a.Status != schemas.StatusComplete {
		return out
	}
	c := a.Coverage
	switch {
	case len(c.Degraded) > 0:
		out = append(out, assessmentLoss{schemas.FailHealth, schemas.ReasonIncomplete, "complete by its own word, yet degraded" + firstDetail(c.Degraded)})
	case len(c.Unsupported) > 0:
		out = append(out, assessmentLoss{schemas.FailContract, schemas.ReasonUnsupported, "complete by its own word, yet unsupported" + firstDetail(c.Unsupported)})
	case c.Truncated || !c.Exhaustive:
		out = append(out, assessmentLoss{schemas.FailHealth, schemas.ReasonIncomplete, "complete by its own word, yet not exhaustive"})
	}
	return out
}

func firstDetail(ds []schemas.Degradation) string {
	if len(ds) == 0 {
		return ""
	}
	return ": " + ds[0].Detail
}

func joinModes(modes []schemas.AssuranceMode) string {
	words := make([]string, len(modes))
	for i, m := range modes {
		words[i] = string(m)
	}
	return strings.Join(words, ", ")
}

// loss adds what the fail policy says of a degradation at this call-site.
func (h *Host) loss(site schemas.CallSite, class schemas.FailClass, d schemas.Degradation) decide.Loss {
	mode := decide.FailClosed
	if h.failsOpen(class, site) {
		mode = decide.FailOpen
	}
	return decide.Loss{Degradation: d, Class: class, Mode: mode}
}

// sealed is what goes into a verdict.
type sealed struct {
	started     time.Time
	changeset   string
	outcome     decide.Outcome
	findings    []schemas.Finding
	authorities []schemas.AuthorityEvidence
	runs        map[string]*run
}

// seal builds the verdict, writes its receipt and the evidence behind it. An
// answer whose receipt cannot be written is no answer.
func (h *Host) seal(ctx context.Context, ev Evaluation, plan plan, s sealed) (*schemas.Verdict, error) {
	if s.authorities == nil {
		s.authorities = []schemas.AuthorityEvidence{}
	}
	v := &schemas.Verdict{
		Pass: s.outcome.Decision == schemas.Allow, Decision: s.outcome.Decision, CallSite: ev.CallSite,
		RequestDigest: ev.RequestDigest, Findings: s.findings, Coverage: s.outcome.Coverage,
		PolicyDigest: plan.digest, AuthorityEvidence: s.authorities,
		ValidAsOf: schemas.ValidAsOf{Rev: ev.ChangeSet.Baseline.Rev}, Assurance: assuranceOf(plan, s.runs),
		ChangesetDigest: s.changeset,
	}
	v.Receipt = h.draft(outline{kind: schemas.ReceiptEvaluate, family: schemas.Check, site: ev.CallSite, request: ev.RequestDigest, policy: plan.digest,
		baseline: ev.ChangeSet.Baseline, coverage: v.Coverage, assurance: v.Assurance, started: s.started})
	v.Receipt.AuthorityEvidence = v.AuthorityEvidence
	v.Receipt.ChangesetDigest = s.changeset
	v.Receipt.ProviderIDs, v.Receipt.ProviderProvenance = provenance(s.runs)
	traces := make([]ProviderTrace, 0, len(s.runs))
	for _, id := range sortedIDs(s.runs) {
		traces = append(traces, s.runs[id].trace)
	}
	record := receipt.Record{Receipt: v.Receipt, Verdict: v}
	if err := h.receipts.Append(context.WithoutCancel(ctx), record, EvidenceRecord{ReceiptID: v.Receipt.ReceiptID, Providers: traces}); err != nil {
		return nil, fmt.Errorf("the verdict was %s, but its receipt could not be kept: %w", v.Decision, err)
	}
	return v, nil
}

// assuranceOf is the weakest mode among the providers that a requirement of
// this call-site needs. A provider that never started enforced nothing.
func assuranceOf(plan plan, runs map[string]*run) schemas.Assurance {
	a := schemas.Assurance{Mode: schemas.Isolated, TransactionGuarantee: schemas.GuaranteeNone}
	var details []string
	n := 0
	for _, req := range plan.requirements {
		if !req.required {
			continue
		}
		for _, p := range req.providers {
			n++
			t := runs[p.ID].trace
			if t.Mode.Rank() < a.Mode.Rank() {
				a.Mode = t.Mode
			}
			if d := t.summary(); !slices.Contains(details, d) {
				details = append(details, d)
			}
		}
	}
	if n == 0 {
		a.Mode = schemas.Advisory
		details = []string{"no required provider ran"}
	}
	a.Detail = strings.Join(details, "; ")
	return a
}

// provenance leaves out providers that refused the handshake: nothing they say
// of themselves is repeated.
func provenance(runs map[string]*run) ([]string, []schemas.ProviderProvenance) {
	ids, out := []string{}, []schemas.ProviderProvenance{}
	for _, id := range sortedIDs(runs) {
		r := runs[id]
		ids = append(ids, id)
		if !r.trace.Handshake {
			continue
		}
		out = append(out, schemas.ProviderProvenance{Provider: id, Capability: schemas.Check,
			Identity: r.provider.Identity, Integrity: r.provider.Digest, Conformance: r.provider.Conformance})
	}
	return ids, out
}

func sortedIDs(runs map[string]*run) []string {
	ids := make([]string, 0, len(runs))
	for id := range runs {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
