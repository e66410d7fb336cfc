package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/aspis-dev/aspis/schemas"
)

// applying is a plan on its way to the workspace, with what must come of it.
type applying struct {
	Behave []string
	Setup  func(l *Lab, c *Config)
	// Meanwhile happens between the plan and its being applied.
	Meanwhile func(ctx context.Context, w *World) error
	// Params changes what is asked.
	Params func(p *schemas.ApplyParams)
	// Reasons are the refusals that will do; none means that it must be applied.
	Reasons  []string
	Decision schemas.Decision // of the checks, unless empty
}

const edited = "Edited.\n"

// run asks for a plan for README.md, has it applied, and looks at what happened.
func (a applying) run(ctx context.Context, l *Lab) error {
	cfg := l.editConfig(append([]string{"edit"}, a.Behave...)...)
	if a.Setup != nil {
		a.Setup(l, cfg)
	}
	return l.inWorld(ctx, cfg, func(w *World) error {
		h, err := w.Serve()
		if err != nil {
			return err
		}
		plan, err := requestPlan(ctx, w, h)
		if err != nil {
			return err
		}
		if a.Meanwhile != nil {
			if err := a.Meanwhile(ctx, w); err != nil {
				return err
			}
		}
		p := schemas.ApplyParams{CallSite: schemas.Gate, ProposalID: plan.Proposal.ProposalID, Intent: "user", Proposal: &plan.Proposal}
		if a.Params != nil {
			a.Params(&p)
		}
		if len(a.Reasons) > 0 {
			if err := w.unchanged(func() error { return a.refused(ctx, h, p) }); err != nil {
				return err
			}
		} else if err := applied(ctx, w, h, p); err != nil {
			return err
		}
		return errors.Join(h.Close(30*time.Second), h.Breaches())
	})
}

func (a applying) refused(ctx context.Context, h *Host, p schemas.ApplyParams) error {
	res, err := apply(ctx, h, p)
	if err != nil {
		return err
	}
	switch {
	case res.Applied || res.BaselineAfter != nil || res.Refusal == nil:
		return fmt.Errorf("it was not refused: %+v", res)
	case !slices.Contains(a.Reasons, res.Refusal.Reason):
		return fmt.Errorf("the refusal is %s (%s), not one of %v", res.Refusal.Reason, res.Refusal.Detail, a.Reasons)
	case a.Decision != "" && (res.Decision == nil || res.Decision.Decision != a.Decision):
		return fmt.Errorf("the decision is not %s: %+v", a.Decision, res.Decision)
	}
	return nil
}

func refusedApply(a applying) func(context.Context, *Lab) error {
	return func(ctx context.Context, l *Lab) error {
		if err := a.run(ctx, l); err != nil {
			return fmt.Errorf("%v: %w", a.Behave, err)
		}
		return nil
	}
}

// strength orders guarantees.
var strength = []schemas.TransactionGuarantee{schemas.GuaranteeNone, schemas.GuaranteeRollbackAttempted, schemas.GuaranteeTextOnlyTransactional,
	schemas.GuaranteeWorkspaceTransactional, schemas.GuaranteeStagedSnapshot}

// applied applies a plan, and sees that the file, the answer and the next status
// say the same.
func applied(ctx context.Context, w *World, h *Host, p schemas.ApplyParams) error {
	res, err := apply(ctx, h, p)
	if err != nil {
		return err
	}
	if !res.Applied || res.Refusal != nil || res.BaselineAfter == nil {
		return fmt.Errorf("it was not applied: %+v", res.Refusal)
	}
	got, err := os.ReadFile(filepath.Join(w.Repo, "README.md"))
	if err != nil || string(got) != edited {
		return fmt.Errorf("README.md holds %q (%w)", got, err)
	}
	st, err := h.Status(ctx)
	if err != nil {
		return err
	}
	r := res.Receipt
	switch {
	case !st.Workspace.Baseline.Same(*res.BaselineAfter):
		return fmt.Errorf("baselineAfter is %+v, the status says %+v", res.BaselineAfter, st.Workspace.Baseline)
	case res.BaselineBefore.Same(*res.BaselineAfter):
		return errors.New("the baseline did not move")
	case res.Decision == nil || res.Decision.Decision != schemas.Allow:
		return errors.New("the checks' decision is missing")
	case r.ProposalID != p.ProposalID || r.PolicyDigest == "" || len(r.ProviderProvenance) == 0 || len(r.AuthorityEvidence) == 0:
		return fmt.Errorf("the receipt leaves something out: %+v", r)
	case r.Assurance != res.Assurance || !slices.Contains(strength, res.Assurance.TransactionGuarantee) || res.Assurance.TransactionGuarantee == schemas.GuaranteeNone:
		return fmt.Errorf("the guarantee is %s, the receipt's %s", res.Assurance.TransactionGuarantee, r.Assurance.TransactionGuarantee)
	case (res.Assurance.Mode == schemas.Gated || res.Assurance.Mode == schemas.Advisory) && res.Assurance.TransactionGuarantee == schemas.GuaranteeStagedSnapshot:
		return fmt.Errorf("%s by a provider at %s", res.Assurance.TransactionGuarantee, res.Assurance.Mode)
	}
	// The same proposal again: the first one's result, and nothing happens.
	return w.unchanged(func() error {
		again, err := apply(ctx, h, p)
		if err == nil && (!again.Applied || again.Receipt.ReceiptID != r.ReceiptID) {
			err = fmt.Errorf("the second time the answer is another: %+v", again)
		}
		return err
	})
}

func positiveApply(ctx context.Context, l *Lab) error {
	return both(applying{}.run, applying{Params: func(p *schemas.ApplyParams) { p.Proposal = nil }}.run,
		applying{Params: func(p *schemas.ApplyParams) { p.Edit = p.Proposal.WorkspaceEdit }}.run)(ctx, l)
}

// otherPrecondition hands in a plan that expects another content.
func otherPrecondition(p *schemas.ApplyParams) {
	plan := *p.Proposal
	pre := schemas.Precondition{ExpectedDigest: schemas.BlobRefOf([]byte("never there"))}
	plan.TouchedResources = slices.Clone(plan.TouchedResources)
	plan.TouchedResources[0].Precondition = pre
	edit := *plan.WorkspaceEdit
	edit.DocumentChanges = slices.Clone(edit.DocumentChanges)
	edit.DocumentChanges[0].Precondition = pre
	plan.WorkspaceEdit = &edit
	p.Proposal = &plan
}

// pathPolicy has plans for paths that must never be written, or that make
// machines run code by being there.
func pathPolicy(ctx context.Context, l *Lab) error {
	for _, path := range []string{".git/hooks/post-commit", ".GIT/config", "sub/.git/config", ".github/workflows/ci.yml", ".asp/asp.json", ".envrc", ".vscode/tasks.json"} {
		err := l.inWorld(ctx, l.editConfig("edit"), func(w *World) error {
			h, err := w.Serve()
			if err != nil {
				return err
			}
			st, err := h.Status(ctx)
			if err != nil {
				return err
			}
			return w.unchanged(func() error {
				plan, err := ask[schemas.RequestEditPlanResult](ctx, h, schemas.MethodHostRequestEditPlan, schemas.RequestEditPlanParams{
					CallSite: schemas.Gate, Operation: "replace-resource", Baseline: st.Workspace.Baseline, Scope: &schemas.EditScope{Paths: []string{path}}})
				var typed *schemas.Error
				if errors.As(err, &typed) {
					return nil
				}
				if err != nil {
					return err
				}
				return applying{Reasons: []string{"missing-authority", "malformed", "unsupported"}}.refused(ctx, h,
					schemas.ApplyParams{CallSite: schemas.Gate, ProposalID: plan.Proposal.ProposalID, Intent: "user", Proposal: &plan.Proposal})
			})
		})
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// withoutGrant hands in a plan that is well formed, by a provider that policy
// grants nothing.
func withoutGrant(ctx context.Context, l *Lab) error {
	return refusedHandedIn(ctx, l, []string{"missing-authority"}, func(c *Config) { c.Grants = []Grant{} })
}

// refusedUnconfined hands in a plan of a provider that this host never asked:
// what confined it is not known, and so not enough.
func refusedUnconfined(ctx context.Context, l *Lab) error {
	return refusedHandedIn(ctx, l, []string{"insufficient-assurance", "direct-write-risk"}, func(*Config) {})
}

func refusedHandedIn(ctx context.Context, l *Lab, reasons []string, setup func(*Config)) error {
	c := l.editConfig("edit")
	setup(c)
	return l.inWorld(ctx, c, func(w *World) error {
		h, err := w.Serve()
		if err != nil {
			return err
		}
		st, err := h.Status(ctx)
		if err != nil {
			return err
		}
		if err := h.PutBlobs(ctx, edited); err != nil {
			return err
		}
		pre := schemas.Precondition{ExpectedDigest: schemas.BlobRefOf([]byte(w.Files["README.md"]))}
		plan := &schemas.EditPlan{ProposalID: "made-elsewhere", Status: schemas.StatusComplete, Baseline: st.Workspace.Baseline,
			Provider: schemas.EditProvider{ID: testID, Version: testVersion, CapabilityFamily: schemas.Edit, CapabilityVersion: "1",
				ConfigDigest: "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"},
			ValidAsOf:        schemas.EditValidAsOf{Baseline: st.Workspace.Baseline, Blobs: []schemas.BlobRef{}},
			TouchedResources: []schemas.Touched{{Path: "README.md", Kind: schemas.ChangeModify, Precondition: pre}},
			WorkspaceEdit: &schemas.WorkspaceEdit{Baseline: st.Workspace.Baseline, DocumentChanges: []schemas.DocChange{
				{Path: "README.md", Kind: schemas.ChangeModify, Precondition: pre, After: schemas.BlobRefOf([]byte(edited))}}}}
		return w.unchanged(func() error {
			return applying{Reasons: reasons}.refused(ctx, h, schemas.ApplyParams{CallSite: schemas.Gate, ProposalID: plan.ProposalID, Intent: "harness", Proposal: plan})
		})
	})
}

// concurrentApply has eight plans for the same file applied at once: the first
// one committed wins, the others are refused.
func concurrentApply(ctx context.Context, l *Lab) error {
	return l.inWorld(ctx, l.editConfig("edit"), func(w *World) error {
		h, err := w.Serve()
		if err != nil {
			return err
		}
		const n = 8
		var plans []*schemas.RequestEditPlanResult
		for range n {
			plan, err := requestPlan(ctx, w, h)
			if err != nil {
				return err
			}
			plans = append(plans, plan)
		}
		results := make([]*schemas.ApplyResult, n)
		errs := make([]error, n)
		var all sync.WaitGroup
		for i, plan := range plans {
			all.Go(func() {
				results[i], errs[i] = apply(ctx, h, schemas.ApplyParams{CallSite: schemas.Gate, ProposalID: plan.Proposal.ProposalID, Intent: "agent"})
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		won := 0
		for _, r := range results {
			if r.Applied {
				won++
			} else if !slices.Contains([]string{"stale-baseline", "conflict", "precondition-failed"}, r.Refusal.Reason) {
				return fmt.Errorf("one is refused for %s: %s", r.Refusal.Reason, r.Refusal.Detail)
			}
		}
		if won != 1 {
			return fmt.Errorf("%d of %d plans for the same file were applied", won, n)
		}
		return nil
	})
}
