package conformance

import (
	"context"
	"errors"
	"fmt"

	"github.com/aspis-dev/aspis/schemas"
)

// editConfig installs the test provider for check and edit.
func (l *Lab) editConfig(behave ...string) *Config {
	c := l.NewConfig(behave...)
	both := []schemas.CapabilityFamily{schemas.Check, schemas.Edit}
	c.Providers[0].Capabilities, c.Requirements[0].Capabilities = both, both
	return c
}

func editCases() []Case {
	const readme = "README.md"
	return []Case{
		{ID: "EDIT-HOST-REQUEST-PLAN-NO-WRITE", Run: planWritesNothing},
		{ID: "EDIT-HOST-POSITIVE-APPLY", Run: positiveApply},
		{ID: "EDIT-HOST-STALE-PLAN", Run: both(refusedPlan("stale"), refusedApply(applying{Meanwhile: func(_ context.Context, w *World) error { return w.Write(readme, "Changed meanwhile.\n") }, Reasons: []string{"stale-baseline", "conflict", "precondition-failed"}}))},
		{ID: "EDIT-HOST-CAS-CONFLICT", Run: both(
			refusedApply(applying{Meanwhile: func(_ context.Context, w *World) error { return w.Write(readme, "") }, Reasons: []string{"stale-baseline", "conflict", "precondition-failed"}}),
			refusedApply(applying{Params: otherPrecondition, Reasons: []string{"stale-baseline", "conflict", "precondition-failed", "malformed", "missing-authority", "insufficient-assurance"}}))},
		{ID: "EDIT-HOST-PATH-POLICY", Run: pathPolicy},
		{ID: "EDIT-HOST-UNKNOWN-PROPOSAL", Run: unknownProposal},
		{ID: "EDIT-HOST-DENIED-VALIDATION", Run: refusedApply(applying{Behave: []string{"text=TEST-ERROR\n"}, Reasons: []string{"validation-denied"}, Decision: schemas.Deny})},
		{ID: "EDIT-HOST-INDETERMINATE-VALIDATION", Run: both(
			refusedApply(applying{Behave: []string{"status=incomplete"}, Reasons: []string{"validation-indeterminate"}, Decision: schemas.Indeterminate}),
			refusedApply(applying{Setup: checker("crash"), Reasons: []string{"validation-indeterminate"}, Decision: schemas.Indeterminate}))},
		{ID: "EDIT-HOST-COMMAND-LIKE-OUTPUT", Run: refusedPlan("command")},
		{ID: "EDIT-HOST-DIRECT-WRITE-RISK", Run: directWrite},
		{ID: "EDIT-HOST-MALFORMED-OUTPUT", Run: both(refusedPlan("malformed"), refusedPlan("missing"), refusedPlan("other-id"))},
		{ID: "EDIT-HOST-HOST-FIELD-SMUGGLING", Run: refusedPlan("smuggle")},
		{ID: "EDIT-HOST-MISSING-AUTHORITY", Run: withoutGrant},
		{ID: "EDIT-HOST-INSUFFICIENT-ASSURANCE", Run: refusedUnconfined},
		{ID: "EDIT-HOST-CONCURRENT-APPLY", Run: concurrentApply},
		{ID: "EDIT-HOST-NO-FAST-PATH", Run: refusedApply(applying{Setup: checker("pass"), Reasons: []string{"validation-indeterminate"}, Decision: schemas.Indeterminate})},
	}
}

// checker requires a second provider, which behaves in some way.
func checker(behave string) func(*Lab, *Config) {
	return func(l *Lab, c *Config) { l.Install(c, "checker", "checks", true, behave) }
}

// both runs one after the other.
func both(runs ...func(context.Context, *Lab) error) func(context.Context, *Lab) error {
	return func(ctx context.Context, l *Lab) error {
		var errs []error
		for _, run := range runs {
			errs = append(errs, run(ctx, l))
		}
		return errors.Join(errs...)
	}
}

// requestPlan asks for a plan; the repository must stay as it is.
func requestPlan(ctx context.Context, w *World, h *Host) (res *schemas.RequestEditPlanResult, err error) {
	st, err := h.Status(ctx)
	if err != nil {
		return nil, err
	}
	var asked error
	err = w.unchanged(func() error {
		res, asked = ask[schemas.RequestEditPlanResult](ctx, h, schemas.MethodHostRequestEditPlan, schemas.RequestEditPlanParams{
			CallSite: schemas.Gate, Operation: "replace-resource", Baseline: st.Workspace.Baseline, Scope: &schemas.EditScope{Paths: []string{"README.md"}}})
		return nil
	})
	return res, errors.Join(err, asked)
}

func planWritesNothing(ctx context.Context, l *Lab) error {
	err := l.inWorld(ctx, l.editConfig("edit"), func(w *World) error {
		h, err := w.Serve()
		if err != nil {
			return err
		}
		res, err := requestPlan(ctx, w, h)
		if err != nil {
			return err
		}
		r := res.Receipt
		switch {
		case res.Proposal.Status != schemas.StatusComplete || res.Proposal.ProposalID == "":
			return fmt.Errorf("the plan is %+v", res.Proposal)
		case r.ProposalID != res.Proposal.ProposalID || r.Assurance.TransactionGuarantee != schemas.GuaranteeNone:
			return fmt.Errorf("the receipt is for %q with %s", r.ProposalID, r.Assurance.TransactionGuarantee)
		}
		return errors.Join(wantKind(r, schemas.ReceiptEditRequest), mirror(r))
	})
	if err != nil {
		return err
	}
	c := l.editConfig("edit")
	c.Grants = []Grant{}
	return l.inWorld(ctx, c, func(w *World) error {
		h, err := w.Serve()
		if err != nil {
			return err
		}
		_, err = requestPlan(ctx, w, h)
		return wantRefusal(err, schemas.FailPolicy)
	})
}

func wantRefusal(err error, class schemas.FailClass) error {
	var typed *schemas.Error
	switch {
	case err == nil:
		return errors.New("it was not refused")
	case !errors.As(err, &typed):
		return err
	case typed.Data == nil || (class != "" && typed.Data.FailClass != class):
		return fmt.Errorf("the refusal is %q (%d) of class %+v, not %s", typed.Message, typed.Code, typed.Data, class)
	}
	return nil
}

// refusedPlan asks an edit provider that answers badly: the host gives no plan.
func refusedPlan(kind string) func(context.Context, *Lab) error {
	return func(ctx context.Context, l *Lab) error {
		err := l.inWorld(ctx, l.editConfig("edit="+kind), func(w *World) error {
			h, err := w.Serve()
			if err != nil {
				return err
			}
			_, err = requestPlan(ctx, w, h)
			return wantRefusal(err, "")
		})
		if err != nil {
			return fmt.Errorf("[edit=%s] %w", kind, err)
		}
		return nil
	}
}

// apply asks for a proposal to be applied; the result must claim nothing unless
// something was applied.
func apply(ctx context.Context, h *Host, p schemas.ApplyParams) (*schemas.ApplyResult, error) {
	res, err := ask[schemas.ApplyResult](ctx, h, schemas.MethodHostApplyProposal, p)
	if err != nil {
		return nil, err
	}
	err = errors.Join(wantKind(res.Receipt, schemas.ReceiptApplyAttempt), mirror(res.Receipt))
	if !res.Applied && (res.Assurance.TransactionGuarantee != schemas.GuaranteeNone || res.Receipt.Assurance.TransactionGuarantee != schemas.GuaranteeNone) {
		err = errors.Join(err, fmt.Errorf("nothing was applied, with the guarantee %s", res.Assurance.TransactionGuarantee))
	}
	return res, err
}

// unknownProposal asks for what was never proposed: refused, in whole.
func unknownProposal(ctx context.Context, l *Lab) error {
	return l.inWorld(ctx, l.editConfig("edit"), func(w *World) error {
		h, err := w.Serve()
		if err != nil {
			return err
		}
		return w.unchanged(func() error {
			res, err := apply(ctx, h, schemas.ApplyParams{CallSite: schemas.Gate, ProposalID: "never-proposed", Intent: "user"})
			var typed *schemas.Error
			if errors.As(err, &typed) {
				return nil
			}
			if err == nil && res.Applied {
				err = errors.New("an unknown proposal was applied")
			}
			return err
		})
	})
}
