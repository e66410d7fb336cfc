package host

import (
	"fmt"
	"slices"
	"strings"

	"github.com/aspis-dev/aspis/schemas"
)

// judged is a diagnostic after arbitration.
type judged struct {
	finding  schemas.Finding
	blocking bool
}

// authority is what policy says of one provider for one requirement.
type authority struct {
	granted  bool
	cap      schemas.Severity // "" means no cap
	evidence schemas.AuthorityEvidence
}

// severityRank orders severities from info to error.
func severityRank(s schemas.Severity) int {
	return slices.Index([]schemas.Severity{schemas.SeverityInfo, schemas.SeverityWarning, schemas.SeverityError}, s)
}

// arbitrate turns one provider's diagnostics into findings (host-obligations
// §4): one a fingerprint within its source, foreign codes relabelled, severity
// capped by authority, every gating finding with a next step. foreign counts
// the relabelled ones.
func arbitrate(provider string, sources []string, diagnostics []schemas.Diagnostic, a authority, comparison schemas.Comparison) (out []judged, foreign int) {
	seen := map[string]int{}
	for _, d := range diagnostics {
		var notes []string
		source, _, _ := strings.Cut(d.Code, "/")
		if !slices.Contains(sources, source) {
			foreign++
			notes = append(notes, fmt.Sprintf("the code was %q, which is outside the sources that the provider declared", d.Code))
			d.Code = provider + "/" + strings.ReplaceAll(d.Code, "/", ".")
			source = provider
		}
		d.Source = provider
		effective, note := effectiveSeverity(d, a, comparison)
		if note != "" {
			notes = append(notes, note)
		}
		reported := d.Severity
		d.Severity = effective
		j := judged{
			blocking: effective == schemas.SeverityError && a.granted,
			finding: schemas.Finding{
				Diagnostic: d, Authority: a.evidence, Disposition: schemas.DispositionAdvisory,
				SeverityNote: strings.Join(notes, "; "),
			},
		}
		if j.blocking {
			j.finding.Disposition = schemas.DispositionGating
		}
		j.finding.NextStep, j.finding.NextStepOrigin = nextStep(d)
		// Dedup inside a source only, and never towards the milder of two.
		key := source + "\x00" + d.Fingerprint
		if at, dup := seen[key]; dup {
			if severityRank(reported) > severityRank(out[at].finding.Diagnostic.Severity) {
				out[at] = j
			}
			continue
		}
		seen[key] = len(out)
		out = append(out, j)
	}
	return out, foreign
}

// effectiveSeverity caps what a provider reports: a finding cannot block
// without authority, above the grant's cap, or when it was there before.
func effectiveSeverity(d schemas.Diagnostic, a authority, comparison schemas.Comparison) (schemas.Severity, string) {
	sev := d.Severity
	var notes []string
	lower := func(to schemas.Severity, why string) {
		if severityRank(sev) > severityRank(to) {
			notes = append(notes, fmt.Sprintf("lowered from %s to %s: %s", sev, to, why))
			sev = to
		}
	}
	if !a.granted {
		lower(schemas.SeverityWarning, "trusted policy grants this provider no authority here")
	}
	if a.cap != "" {
		lower(a.cap, "trusted policy caps this provider's findings")
	}
	if comparison == schemas.Introduced && d.Introduced != nil && !*d.Introduced {
		lower(schemas.SeverityInfo, "it was there before this change")
	}
	return sev, strings.Join(notes, "; ")
}

// nextStep takes the provider's own advice, or makes one up.
func nextStep(d schemas.Diagnostic) (step, origin string) {
	switch {
	case d.Help != "":
		return d.Help, "server"
	case d.Fix != nil && d.Fix.WorkspaceEdit != nil:
		return "Apply the fix that the provider offers.", "server"
	case d.Fix != nil && d.Fix.EditRef != "":
		return "Apply the provider's fix " + d.Fix.EditRef + ".", "server"
	case d.Fix != nil && d.Fix.ActRef != "":
		return "Apply the provider's fix " + d.Fix.ActRef + ".", "server"
	case d.CodeDescription != nil && d.CodeDescription.Href != "":
		return "Read " + d.CodeDescription.Href + ".", "server"
	}
	where := d.Location.Path
	if d.Location.Range != nil {
		where = fmt.Sprintf("%s, line %d", where, d.Location.Range.Start.Line+1)
	}
	return fmt.Sprintf("Change %s so that %s no longer applies, or ask the owner of the policy about this rule.", where, d.Code), "synthesized"
}
