// Package decide computes the decision of an evaluation (host-obligations §1,
// §2). It is one pure function of plain data: no clock, no I/O, no randomness,
// and no knowledge of providers as processes, of git or of containers. That is
// what lets a test enumerate it and show that no loss of evidence ever moves a
// gate towards allow.
package decide

import (
	"slices"
	"strconv"

	"github.com/aspis-dev/aspis/schemas"
)

// FailMode is what trusted policy says of a lost requirement at a call-site.
type FailMode int

const (
	// FailClosed is the zero value: what is not said to be open is closed.
	FailClosed FailMode = iota
	// FailOpen lets the change pass with a visible fail-open degradation. A gate
	// never fails open, whatever is asked here.
	FailOpen
)

// Requirement is what is known of one requirement after its providers ran.
type Requirement struct {
	ID string
	// Required is false for an optional requirement.
	Required bool
	// Satisfied is true when an authorized provider of it answered complete,
	// fresh, well-formed and sufficiently confined.
	Satisfied bool
	// Blocking counts findings of effective severity error from providers with
	// authority for this requirement.
	Blocking int
	// Tied is true when providers of equal authority contradict each other.
	Tied bool
	// Losses are the reasons why it is not satisfied, or is only in part.
	Losses []Loss
}

// Loss is a degradation with what policy says of its kind at this call-site.
type Loss struct {
	Degradation schemas.Degradation
	// Class is whose fault it is; it is for the log of a fail-open and decides nothing.
	Class schemas.FailClass
	Mode  FailMode
}

// Facts is everything the decision depends on.
type Facts struct {
	CallSite     schemas.CallSite
	Requirements []Requirement
	// HostLosses concern the evaluation as a whole: a stale baseline, a policy
	// that authorizes itself. They never fail open.
	HostLosses []schemas.Degradation
}

// Outcome is the decision with the coverage that goes with it.
type Outcome struct {
	Decision schemas.Decision
	Coverage schemas.HostCoverage
	// FailedOpen lists what a fail-open let through; the host must log each.
	FailedOpen []Loss
}

// Decide applies the rule of host-obligations §1: allow only when every
// required requirement ran and none of its coverage is degraded, nothing
// blocks, and nothing is missing, stale or unproved. A blocking finding denies;
// anything else that stands in the way is indeterminate, since it says nothing
// about the change.
func Decide(f Facts) Outcome {
	var out Outcome
	c := &out.Coverage
	c.Required, c.Ran, c.Degraded = []string{}, []string{}, []schemas.Degradation{}
	blocked, uncertain := false, len(f.HostLosses) > 0
	c.Degraded = append(c.Degraded, f.HostLosses...)

	for _, r := range f.Requirements {
		if !r.Required {
			for _, l := range r.Losses {
				d := l.Degradation
				d.Detail = string(d.Reason) + ": " + d.Detail
				d.Reason = schemas.ReasonOptionalDegraded
				c.Degraded = append(c.Degraded, d)
			}
			if r.Satisfied && len(r.Losses) == 0 {
				c.Ran = append(c.Ran, r.ID)
			}
			continue
		}
		c.Required = append(c.Required, r.ID)
		if r.Satisfied {
			c.Ran = append(c.Ran, r.ID)
		}
		if r.Blocking > 0 {
			blocked = true
			c.Degraded = append(c.Degraded, schemas.Degradation{
				Source: r.ID, Reason: schemas.ReasonBlockingDiagnostic, Requirement: r.ID,
				Capability: schemas.Check, Detail: blockingDetail(r.Blocking),
			})
		}
		if r.Tied {
			uncertain = true
			c.Degraded = append(c.Degraded, schemas.Degradation{
				Source: r.ID, Reason: schemas.ReasonIncomplete, Requirement: r.ID, Capability: schemas.Check,
				Detail: "providers of equal authority contradict each other; both answers are shown",
			})
		}
		for _, l := range r.Losses {
			c.Degraded = append(c.Degraded, l.Degradation)
			if l.Mode == FailOpen && f.CallSite != schemas.Gate {
				d := l.Degradation
				d.Detail = string(d.Reason) + ": " + d.Detail
				d.Reason = schemas.ReasonFailOpen
				c.Degraded = append(c.Degraded, d)
				out.FailedOpen = append(out.FailedOpen, Loss{Degradation: d, Class: l.Class, Mode: l.Mode})
				continue
			}
			uncertain = true
		}
		if !r.Satisfied && len(r.Losses) == 0 {
			// A requirement that did not run and gives no reason is itself a loss.
			uncertain = true
			c.Degraded = append(c.Degraded, schemas.Degradation{
				Source: r.ID, Reason: schemas.ReasonMissing, Requirement: r.ID,
				Detail: "no provider answered for this requirement",
			})
		}
	}
	if f.CallSite == schemas.Gate && len(c.Required) == 0 {
		// A gate that requires nothing would allow everything.
		uncertain = true
		c.Degraded = append(c.Degraded, schemas.Degradation{
			Source: "policy", Reason: schemas.ReasonMissingRequiredProvider,
			Detail: "the policy in force requires nothing at this gate; name at least one required requirement",
		})
	}
	c.Enrolled = slices.Clone(c.Required)
	c.Exhaustive = len(c.Ran) >= len(c.Required) && len(c.Degraded) == 0

	switch {
	case blocked:
		out.Decision = schemas.Deny
	case uncertain:
		out.Decision = schemas.Indeterminate
	default:
		out.Decision = schemas.Allow
	}
	return out
}

func blockingDetail(n int) string {
	if n == 1 {
		return "1 finding of effective severity error"
	}
	return strconv.Itoa(n) + " findings of effective severity error"
}
