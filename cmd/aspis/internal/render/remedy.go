package render

import "github.com/aspis-dev/aspis/schemas"

// remedy says what can be done about a degradation. docs/troubleshooting.md
// tells more.
func remedy(r schemas.DegradationReason) string {
	switch r {
	case schemas.ReasonMissingRequiredProvider:
		return "install what the policy requires: aspis provider add MANIFEST; aspis policy show tells what that is"
	case schemas.ReasonMissing:
		return "install its executable again, or take it out: aspis provider remove ID"
	case schemas.ReasonIncompatible:
		return "look at the build that is installed, then pin it: aspis provider pin EXECUTABLE"
	case schemas.ReasonSkewed:
		return "install the version that is pinned, or pin the new one: aspis provider pin EXECUTABLE"
	case schemas.ReasonMissingAuthority:
		return "grant it this requirement in trusted configuration; aspis provider show ID tells what is lacking"
	case schemas.ReasonInsufficientAssurance, schemas.ReasonUnsupportedAssurance, schemas.ReasonUnavailable:
		return "aspis doctor shows what this machine lacks and how to mend it"
	case schemas.ReasonDirectWriteRisk:
		return "let it run in a container: aspis doctor shows whether this machine can"
	case schemas.ReasonTimedOut:
		return "try it alone with aspis provider test ID, or raise budgets in trusted configuration"
	case schemas.ReasonQuarantined:
		return "mend it, then lift the quarantine: aspis provider release ID"
	case schemas.ReasonStaleBaseline:
		return "run it again: the workspace moved meanwhile"
	case schemas.ReasonPolicySelfAuthorization:
		return "land the change of the policy by itself, judged by somebody who may"
	case schemas.ReasonCrashed, schemas.ReasonMalformed, schemas.ReasonError, schemas.ReasonIncomplete,
		schemas.ReasonUnsupported, schemas.ReasonCancelled, schemas.ReasonStale, schemas.ReasonLatticeFastPath:
		return "try it alone with aspis provider test ID; it is for its author to mend"
	}
	return "" // nothing is to be done, or the findings say it
}
