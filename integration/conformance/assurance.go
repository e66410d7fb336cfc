package conformance

import (
	"context"
	"errors"
	"fmt"

	"github.com/aspis-dev/aspis/schemas"
)

func assuranceCases() []Case {
	return []Case{
		{ID: "ASSURANCE-ADVISORY-REPORTING", Scenarios: []Scenario{
			{Decision: Any, Setup: unconfined(schemas.Advisory), Also: claimsLittle},
			{Reason: schemas.ReasonMissingAuthority, Setup: func(_ *Lab, c *Config) { c.Grants = []Grant{} }, Text: errorText, Also: advisoryOnly},
		}},
		{ID: "ASSURANCE-GATED-BOUNDARY", Scenarios: []Scenario{
			{Decision: Any, Reason: schemas.ReasonDirectWriteRisk, Setup: unconfined(schemas.Gated), Also: claimsLittle},
			{Decision: schemas.Deny, Setup: unconfined(schemas.Gated), Text: errorText, Also: claimsLittle},
		}},
		{ID: "ASSURANCE-MEDIATED-WRITE-DOWNGRADE", Scenarios: []Scenario{{Reason: schemas.ReasonInsufficientAssurance, Setup: unconfined(schemas.MediatedWrite), Also: claimsLittle}}},
		{ID: "ASSURANCE-ISOLATED-DOWNGRADE", Scenarios: []Scenario{{Reason: schemas.ReasonInsufficientAssurance, Setup: unconfined(schemas.Isolated), Also: claimsLittle}}},
		{ID: "ASSURANCE-DIRECT-WRITE-REFUSAL", Run: directWrite},
		{ID: "ASSURANCE-TRANSACTION-GUARANTEE-BOUND", Run: positiveApply, Scenarios: []Scenario{{Decision: schemas.Allow, Also: func(_ *World, v *schemas.Verdict, _ string) error {
			if v.Assurance.TransactionGuarantee != schemas.GuaranteeNone {
				return fmt.Errorf("an evaluation claims %s", v.Assurance.TransactionGuarantee)
			}
			return nil
		}}}},
		{ID: "ASSURANCE-FAILED-APPLY-NO-SUCCESSFUL-RECEIPT", Run: both(unknownProposal,
			refusedApply(applying{Behave: []string{"text=TEST-ERROR\n"}, Reasons: []string{"validation-denied"}, Decision: schemas.Deny}))},
	}
}

func advisoryOnly(_ *World, v *schemas.Verdict, _ string) error {
	for _, f := range v.Findings {
		if f.Disposition != schemas.DispositionAdvisory {
			return fmt.Errorf("a finding without authority is %s", f.Disposition)
		}
		if f.Diagnostic.Code == "test/marker" && f.SeverityNote == "" {
			return errors.New("a lowered severity has no severityNote")
		}
	}
	return nil
}

// directWrite has a provider without walls plan an edit and try to write the
// workspace itself: where a confined one is needed, no plan of its is taken.
func directWrite(ctx context.Context, l *Lab) error {
	c := l.editConfig("edit")
	c.Providers[0].Runtime = "process"
	return l.inWorld(ctx, c, func(w *World) error {
		h, err := w.Serve()
		if err != nil {
			return err
		}
		_, err = requestPlan(ctx, w, h)
		return wantRefusal(err, "")
	})
}
