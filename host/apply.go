package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/apply"
	"github.com/aspis-dev/aspis/overlay"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/policy"
	"github.com/aspis-dev/aspis/schemas"
)

// Apply is a plan that is to be published.
type Apply struct {
	Params schemas.ApplyParams
	Digest string // of the request; "" to have it computed
	// Person is who hands a plan in at the command line; nil over the outer seam,
	// where what a plan may do is for trusted policy alone to say.
	Person *Person
}

// Person is somebody whose own repository this is: what they say at the command
// line counts like trusted configuration, for the checks never.
type Person struct {
	Name string // for the evidence
	// Make makes the plan on the workspace as it is once nobody else publishes to
	// it, with the git modes by path that a plan cannot carry; nil where
	// Params.Proposal is it.
	Make      func(context.Context, Place, gitrepo.OID) (*schemas.EditPlan, map[string]uint32, error)
	Protected []string // globs of protected files that may be written
	OnDrift   string   // one of policy's; "" for what policy says
	DryRun    bool     // stop before anything is published
	Ref       string   // publish to this ref and not to the worktree
	WholeDir  bool     // exchange the worktree as a whole directory
	Message   string   // of the commit that a ref gets
}

// maxReproposals is how often a provider is asked again (asp-wire, host/applyProposal).
const maxReproposals = 2

// ApplyProposal answers host/applyProposal.
func (s *Service) ApplyProposal(ctx context.Context, p *schemas.ApplyParams, raw jsontext.Value) (*schemas.ApplyResult, error) {
	digest, err := schemas.DigestRaw(raw)
	if err != nil {
		return nil, inputError("the params cannot be digested", err)
	}
	return s.Apply(ctx, Apply{Params: *p, Digest: digest})
}

// Apply takes a plan from its form to a published workspace: one at a time in a
// workspace, checked on exactly the tree that is published, all or nothing. What
// stands in the way is a refusal in the result, and then nothing was written;
// the error is for a host that cannot answer.
func (s *Service) Apply(ctx context.Context, a Apply) (_ *schemas.ApplyResult, err error) {
	t, err := s.target(ctx, a)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	place, tree, err := t.current(ctx)
	if err != nil {
		return nil, err
	}
	var modes map[string]uint32
	if a.Person != nil && a.Person.Make != nil {
		if a.Params.Proposal, modes, err = a.Person.Make(ctx, place, tree); err != nil {
			return nil, err
		}
		a.Params.ProposalID = a.Params.Proposal.ProposalID
	}
	if a.Digest == "" {
		if a.Digest, err = schemas.Digest(a.Params); err != nil {
			return nil, fmt.Errorf("digest of the request: %w", err)
		}
	}
	at := &attempt{s: s, a: a, modes: modes, target: t, place: place, tree: tree, started: s.Host.now(),
		plan: s.Host.plan(a.Params.CallSite), mode: schemas.Advisory}
	for range maxReproposals + 1 {
		res, again, err := at.run(ctx)
		if err != nil || !again {
			return res, err
		}
		if at.place, at.tree, err = t.current(ctx); err != nil {
			return nil, err
		}
	}
	return at.refuse(ctx, &refusal{reason: "conflict", detail: fmt.Sprintf("the workspace moved again after each of %d new proposals", maxReproposals)})
}

// attempt is one plan on its way.
type attempt struct {
	s       *Service
	a       Apply
	target  target
	place   Place
	tree    gitrepo.OID
	started time.Time
	plan    plan

	prop     *proposal
	edit     *schemas.EditPlan
	provider *provider // nil where the plan was handed in by a person
	evidence schemas.AuthorityEvidence
	mode     schemas.AssuranceMode // of what made the plan
	notes    []string
	modes    map[string]uint32 // by path, where the plan's author could say them
	verdict  *schemas.Verdict
	asked    int
}

// refusal is why nothing is written; reason is one of the wire's.
type refusal struct {
	reason    string
	detail    string
	conflicts []schemas.ApplyConflict
}

func (r *refusal) Error() string { return r.reason + ": " + r.detail }

// run tries once. again asks for another try with the plan that was proposed anew.
func (at *attempt) run(ctx context.Context) (res *schemas.ApplyResult, again bool, err error) {
	var no *refusal
	first, err := at.identify(ctx)
	if err == nil && first != nil {
		return first, false, nil
	}
	if err == nil {
		err = at.authorize()
	}
	if err == nil {
		err = at.wellFormed()
	}
	var cs schemas.ChangeSet
	if err == nil {
		cs, again, err = at.change(ctx)
	}
	if again {
		return nil, true, nil
	}
	var base *overlay.Snapshot
	if err == nil {
		base, err = at.s.snapshot(ctx, at.tree)
	}
	var todo []move
	if err == nil {
		todo, err = at.allowed(ctx, cs, base)
	}
	var candidate gitrepo.OID
	if err == nil {
		candidate, err = at.judge(ctx, cs)
	}
	if errors.As(err, &no) {
		res, err = at.refuse(ctx, no)
		return res, false, err
	}
	if err != nil {
		return nil, false, err
	}
	if p := at.a.Person; p != nil && p.DryRun {
		res, err = at.rehearsed(ctx, todo)
		return res, false, err
	}
	done, err := at.target.publish(ctx, at, todo, candidate, base)
	if errors.As(err, &no) {
		res, err = at.refuse(ctx, no)
		return res, false, err
	}
	if err != nil {
		return nil, false, err
	}
	res, err = at.applied(ctx, done)
	return res, false, err
}

// identify finds out which plan is meant and who made it. A result comes back
// when the same proposal was applied before.
func (at *attempt) identify(ctx context.Context) (*schemas.ApplyResult, error) {
	p := &at.a.Params
	h := at.s.Host
	if at.edit != nil {
		return nil, nil // proposed anew
	}
	var err error
	if at.prop, err = h.proposalOf(ctx, at.place, p.ProposalID); err != nil {
		return nil, err
	}
	switch {
	case p.Proposal == nil && at.prop == nil:
		return nil, &refusal{reason: "precondition-failed", detail: fmt.Sprintf("no proposal with the id %.80q was made for this workspace; ask host/requestEditPlan for one", p.ProposalID)}
	case p.Proposal == nil:
		at.edit = &at.prop.Plan
	case p.Proposal.ProposalID != p.ProposalID:
		return nil, &refusal{reason: "malformed", detail: fmt.Sprintf("the proposal is called %.80q and not %.80q", p.Proposal.ProposalID, p.ProposalID)}
	case at.prop != nil && !same(p.Proposal, &at.prop.Plan):
		return nil, &refusal{reason: "malformed", detail: "the proposal differs from the one that the provider made"}
	default:
		at.edit = p.Proposal
	}
	if p.Edit != nil && (at.edit.WorkspaceEdit == nil || !same(p.Edit, at.edit.WorkspaceEdit)) {
		return nil, &refusal{reason: "malformed", detail: "edit differs from the proposal's workspaceEdit"}
	}
	var before schemas.ApplyResult
	known, err := h.outcomes().get(&before, at.place.Root, at.edit.Provider.ID, p.ProposalID)
	if err != nil {
		return nil, err
	}
	if known {
		return &before, nil
	}
	return nil, nil
}

// same compares by meaning.
func same(a, b any) bool {
	da, errA := schemas.Digest(a)
	db, errB := schemas.Digest(b)
	return errA == nil && errB == nil && da == db
}

// authorize finds out by whose authority the plan could be published. A plan is
// never its own: what it says of its provider is only compared.
func (at *attempt) authorize() error {
	h := at.s.Host
	at.evidence = schemas.AuthorityEvidence{Identity: "unknown", Integrity: "unknown", Conformance: "unproven", Isolation: schemas.Advisory,
		Authority: schemas.Authority{Requirement: "edit", CallSite: at.a.Params.CallSite, PolicyDigest: at.plan.digest}}
	if want := at.a.Params.BasePolicyDigest; want != "" && want != at.plan.digest {
		return &refusal{reason: "precondition-failed", detail: "the caller expects the policy " + want + "; the one in force is " + at.plan.digest}
	}
	signed := at.edit.Provider
	if at.prop != nil {
		at.evidence, at.mode = at.prop.Evidence, at.prop.Evidence.Isolation
		at.evidence.Authority.CallSite, at.evidence.Authority.PolicyDigest, at.evidence.Authority.Granted = at.a.Params.CallSite, at.plan.digest, false
	}
	if p := at.a.Person; p != nil && at.prop == nil {
		// Whoever may write the worktree may hand a plan in. Nothing is known of
		// how it came to be, and nothing is claimed of that.
		at.evidence.Identity, at.evidence.Authority.Granted, at.mode = "person:"+p.Name, true, schemas.Gated
		at.evidence.Isolation = at.mode
		at.notes = append(at.notes, "the plan was handed in at the command line; what confined its author is not known")
		return nil
	}
	if at.prop == nil && slices.Contains(h.opt.Policy.Apply().HandedIn, signed.ID) {
		at.evidence.Identity, at.evidence.Authority.Granted, at.mode = "handed-in:"+signed.ID, true, schemas.Gated
		at.evidence.Isolation = at.mode
		at.notes = append(at.notes, "the harness handed the plan in; what confined its author is not known")
		return nil
	}
	i := slices.IndexFunc(h.providers(), func(p provider) bool { return p.ID == signed.ID })
	if i < 0 {
		return &refusal{reason: "missing-authority", detail: fmt.Sprintf("the plan is signed by %.80q, which trusted configuration does not install; name it in apply.handedIn to take its plans from the harness", signed.ID)}
	}
	p := h.providers()[i]
	at.provider = &p
	at.evidence.Identity, at.evidence.Integrity, at.evidence.Conformance = p.Identity, p.Digest, p.Conformance
	if !slices.Contains(p.Capabilities, schemas.Edit) || !h.mayEdit(at.plan, p) {
		return &refusal{reason: "missing-authority", detail: fmt.Sprintf("trusted policy grants %q no requirement with the edit capability at %s", p.ID, at.a.Params.CallSite)}
	}
	switch {
	case at.prop == nil:
		return &refusal{reason: "insufficient-assurance", detail: "this host did not get the plan from the provider itself, so that what confined it is not known; ask host/requestEditPlan"}
	case at.prop.Evidence.Integrity != p.Digest || signed.Version != p.Version:
		return &refusal{reason: "precondition-failed", detail: fmt.Sprintf("the plan was made by another build of %q than the one installed now", p.ID)}
	case at.mode == schemas.Advisory || at.mode == schemas.Gated:
		return &refusal{reason: "direct-write-risk", detail: fmt.Sprintf("%q ran as %s when it made the plan: it could have written the worktree itself", p.ID, at.mode)}
	}
	for _, req := range at.plan.requirements {
		if slices.Contains(req.rule.Capabilities, schemas.Edit) && h.grant(at.plan, req, p).granted && req.accepts(at.mode) {
			at.evidence.Authority.Granted, at.evidence.Authority.Requirement = true, req.ID
			return nil
		}
	}
	return &refusal{reason: "insufficient-assurance", detail: fmt.Sprintf("%q ran as %s when it made the plan, which no requirement that it is granted accepts", p.ID, at.mode)}
}

// wellFormed looks at the plan by itself.
func (at *attempt) wellFormed() error {
	p := at.edit
	raw, err := schemas.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode the plan: %w", err)
	}
	if pointer, found := schemas.ForbiddenField(raw, true); found {
		return &refusal{reason: "malformed", detail: "the plan holds " + pointer + ", which only a host may say or which would be run"}
	}
	switch {
	case p.Status == schemas.StatusUnsupported:
		return &refusal{reason: "unsupported", detail: "the plan says that the provider cannot do it"}
	case p.Status != schemas.StatusComplete || p.WorkspaceEdit == nil:
		return &refusal{reason: "malformed", detail: fmt.Sprintf("the plan's status is %q; only a complete one can be applied", p.Status)}
	case len(p.WorkspaceEdit.DocumentChanges) == 0:
		return &refusal{reason: "malformed", detail: "the plan changes nothing"}
	case !p.ValidAsOf.Baseline.Same(p.Baseline), !p.WorkspaceEdit.Baseline.Same(p.Baseline):
		return &refusal{reason: "stale-baseline", detail: "the plan names several baselines"}
	}
	if at.prop == nil {
		return nil
	}
	for _, d := range p.WorkspaceEdit.DocumentChanges {
		for _, path := range []string{d.Path, d.To} {
			if path != "" && !inScope(at.prop.Scope, path) {
				return &refusal{reason: "missing-authority", detail: fmt.Sprintf("%q lies outside of the scope that the plan was asked for", path)}
			}
		}
	}
	return nil
}

// inScope reports whether a path is one of the scope's, below one, or matched.
func inScope(scope []string, path string) bool {
	return slices.ContainsFunc(scope, func(s string) bool {
		return s == path || strings.HasPrefix(path, strings.TrimSuffix(s, "/")+"/") || doublestar.MatchUnvalidated(s, path)
	})
}

// change makes of the plan the change to the workspace as it is now.
func (at *attempt) change(ctx context.Context) (cs schemas.ChangeSet, again bool, err error) {
	if at.edit.Baseline.Same(at.place.Baseline) {
		base, err := at.s.snapshot(ctx, at.tree)
		if err != nil {
			return cs, false, err
		}
		cs, err = at.fit(ctx, base)
		return cs, false, err
	}
	return at.drifted(ctx)
}

// fit holds the plan against a baseline, and normalises it.
func (at *attempt) fit(ctx context.Context, base *overlay.Snapshot) (schemas.ChangeSet, error) {
	err := apply.Check(ctx, at.edit, storeBase{at.s, at.s.baseContent(at.edit.Baseline, base)})
	if err == nil {
		var cs schemas.ChangeSet
		if cs, err = at.s.normalise(ctx, at.edit, base); err == nil {
			return cs, nil
		}
	}
	var problem *apply.Problem
	switch {
	case errors.As(err, &problem) && problem.Blob != "":
		return schemas.ChangeSet{}, &refusal{reason: "missing-blob", detail: problem.Error()}
	case errors.As(err, &problem) && problem.Stale:
		return schemas.ChangeSet{}, &refusal{reason: "precondition-failed", detail: problem.Error(), conflicts: []schemas.ApplyConflict{{Path: problem.Path, Detail: problem.Detail}}}
	case errors.As(err, &problem):
		return schemas.ChangeSet{}, &refusal{reason: "malformed", detail: problem.Error()}
	}
	return schemas.ChangeSet{}, err
}

// allowed compares the change with what may be written at all. Protected files
// are always named, also where they may be written.
func (at *attempt) allowed(ctx context.Context, cs schemas.ChangeSet, base *overlay.Snapshot) ([]move, error) {
	allow := at.s.Host.opt.Policy.Apply().Protected
	if p := at.a.Person; p != nil {
		allow = append(slices.Clone(allow), p.Protected...)
	}
	todo, err := moves(cs, at.modes, base)
	if err != nil {
		return nil, err
	}
	for _, m := range todo {
		if why := apply.Refusal(m.path); why != "" {
			return nil, &refusal{reason: "malformed", detail: fmt.Sprintf("%q may never be written: %s", m.path, why)}
		}
		if m.before.mode == gitrepo.ModeGitlink || m.after.mode == gitrepo.ModeGitlink {
			return nil, &refusal{reason: "unsupported", detail: fmt.Sprintf("%q is a submodule", m.path)}
		}
		if m.after.mode == gitrepo.ModeSymlink {
			target, err := at.s.read(ctx, base, m.after.blob)
			if err != nil {
				return nil, err
			}
			if why := apply.LinkRefusal(m.path, string(target)); why != "" {
				return nil, &refusal{reason: "unsupported", detail: fmt.Sprintf("%q would be a symlink that %s", m.path, why)}
			}
		}
		why := apply.Protected(m.path)
		if why == "" {
			continue
		}
		if !slices.ContainsFunc(allow, func(g string) bool { return doublestar.MatchUnvalidated(g, m.path) }) {
			return nil, &refusal{reason: "missing-authority", detail: fmt.Sprintf("%q is protected (%s); policy must allow it under apply.protected", m.path, why),
				conflicts: []schemas.ApplyConflict{{Path: m.path, Detail: "protected: " + why}}}
		}
		at.notes = append(at.notes, fmt.Sprintf("%q is protected (%s) and was allowed by policy", m.path, why))
	}
	return todo, nil
}

// driftRule is what becomes of a plan on an older baseline.
func (at *attempt) driftRule() string {
	if p := at.a.Person; p != nil && p.OnDrift != "" {
		return p.OnDrift
	}
	return at.s.Host.opt.Policy.Apply().OnDrift
}

// proposeAgain asks the provider for a plan on the workspace as it is now.
func (at *attempt) proposeAgain(ctx context.Context) (bool, error) {
	if at.driftRule() != policy.DriftRepropose || at.prop == nil || at.asked >= maxReproposals {
		return false, nil
	}
	at.asked++
	req := at.prop.Request
	req.Baseline, req.ProposalID = at.place.Baseline, at.a.Params.ProposalID
	raw, err := schemas.Marshal(req)
	if err != nil {
		return false, fmt.Errorf("encode the request for a plan: %w", err)
	}
	got, err := at.s.RequestEditPlan(ctx, &req, raw)
	var typed *schemas.Error
	if errors.As(err, &typed) {
		at.notes = append(at.notes, "the provider was asked again and made no plan: "+typed.Message)
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if at.prop, err = at.s.Host.proposalOf(ctx, at.place, req.ProposalID); err != nil || at.prop == nil {
		return false, errors.Join(err, errors.New("the new proposal was not kept"))
	}
	at.edit = &got.Proposal
	at.notes = append(at.notes, "the workspace had moved, and the provider made the plan anew")
	return true, nil
}
