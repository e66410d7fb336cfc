package policy

import (
	"fmt"
	"maps"
	"slices"

	"github.com/aspis-dev/aspis/schemas"
)

// Weakening is one way in which a candidate policy would ask for less than the
// policy at the baseline, or would choose its own judge (host-obligations §7).
type Weakening struct {
	Kind    string `json:"kind"`
	Pointer string `json:"pointer"`
	Detail  string `json:"detail"`
}

// Change is one difference of meaning between two policies.
type Change struct {
	Weakening
	Weakens bool `json:"weakens"`
}

// Compare lists how a candidate repository policy differs in meaning from the
// one at the baseline; nil stands for a file that is not there. Order, white
// space and wording are not differences. trusted is the policy in force without
// the repository's part: a first policy that only names providers which
// trusted configuration already grants authorizes nobody new.
func Compare(base, cand *schemas.RepositoryPolicy, trusted *Effective) []Change {
	var out []Change
	add := func(weakens bool, kind, pointer, format string, args ...any) {
		out = append(out, Change{Weakening{kind, pointer, fmt.Sprintf(format, args...)}, weakens})
	}
	if cand == nil {
		if base != nil {
			add(true, "policy-removed", "", "%s would be removed, and with it every requirement in it", RepositoryFile)
		}
		return out
	}
	was := map[string]schemas.Requirement{}
	if base != nil {
		was = byID(base.Requirements)
	}
	is := byID(cand.Requirements)
	for _, id := range slices.Sorted(maps.Keys(was)) {
		if _, kept := is[id]; !kept {
			add(true, "requirement-removed", "/requirements", "the requirement %q would no longer be defined", id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(is)) {
		old, existed := was[id]
		at := fmt.Sprintf("/requirements/%d", slices.IndexFunc(cand.Requirements, func(r schemas.Requirement) bool { return r.ID == id }))
		if !existed {
			compareNew(is[id], at, trusted, add)
			continue
		}
		compareRequirement(old, is[id], at, add)
	}
	compareGates(base, cand, add)
	return out
}

type adder func(weakens bool, kind, pointer, format string, args ...any)

func byID(list []schemas.Requirement) map[string]schemas.Requirement {
	m := map[string]schemas.Requirement{}
	for _, r := range list {
		m[r.ID] = r
	}
	return m
}

// compareNew judges a requirement that the baseline does not have. Defining one
// is asking for more, unless it pins a provider that trusted configuration does
// not grant: then the change would bring its own judge.
func compareNew(r schemas.Requirement, at string, trusted *Effective, add adder) {
	add(false, "requirement-added", at, "the requirement %q would be new", r.ID)
	for j, pin := range r.Authority.Providers {
		if !grantedSomewhere(pin, trusted) {
			add(true, "provider-authorized", fmt.Sprintf("%s/authority/providers/%d", at, j),
				"%s %s with the digest %s would gain authority, which trusted configuration does not grant it", pin.ID, pin.Version, pin.Integrity)
		}
	}
}

func grantedSomewhere(pin schemas.PinnedProvider, trusted *Effective) bool {
	if trusted == nil {
		return false
	}
	return slices.ContainsFunc(trusted.layers.Config.Grants, func(g Grant) bool {
		return g.Provider == pin.ID && g.Version == pin.Version && g.Integrity == pin.Integrity
	})
}

func compareRequirement(old, now schemas.Requirement, at string, add adder) {
	for j, pin := range now.Authority.Providers {
		if !slices.ContainsFunc(old.Authority.Providers, func(p schemas.PinnedProvider) bool { return samePin(p, pin) }) {
			add(true, "provider-authorized", fmt.Sprintf("%s/authority/providers/%d", at, j),
				"%s %s with the digest %s would gain authority for %q", pin.ID, pin.Version, pin.Integrity, now.ID)
		}
	}
	for _, pin := range old.Authority.Providers {
		if !slices.ContainsFunc(now.Authority.Providers, func(p schemas.PinnedProvider) bool { return samePin(p, pin) }) {
			add(false, "provider-dropped", at+"/authority/providers", "%s %s would lose authority for %q", pin.ID, pin.Version, now.ID)
		}
	}
	if weakest(now.Assurance) < weakest(old.Assurance) {
		add(true, "assurance-lowered", at+"/assurance", "%q would accept a weaker mode than before", now.ID)
	} else if weakest(now.Assurance) > weakest(old.Assurance) {
		add(false, "assurance-raised", at+"/assurance", "%q would accept stronger modes only", now.ID)
	}
	for _, c := range old.Capabilities {
		if !slices.Contains(now.Capabilities, c) {
			add(true, "capability-removed", at+"/capabilities", "%q would no longer need the %s capability", now.ID, c)
		}
	}
}

func samePin(a, b schemas.PinnedProvider) bool {
	return a.ID == b.ID && a.Version == b.Version && a.Identity == b.Identity && a.Integrity == b.Integrity
}

func weakest(modes []schemas.AssuranceMode) int {
	w := len(schemas.AssuranceModes)
	for _, m := range modes {
		w = min(w, m.Rank())
	}
	return w
}

func compareGates(base, cand *schemas.RepositoryPolicy, add adder) {
	gate := func(p *schemas.RepositoryPolicy, site schemas.CallSite) schemas.PolicyGate {
		if p == nil {
			return schemas.PolicyGate{}
		}
		return map[schemas.CallSite]schemas.PolicyGate{schemas.Interactive: p.Gates.Interactive, schemas.Gate: p.Gates.Gate, schemas.Sweep: p.Gates.Sweep}[site]
	}
	for _, site := range schemas.CallSites {
		old, now := gate(base, site), gate(cand, site)
		at := "/gates/" + string(site)
		for _, id := range old.RequiredRequirements {
			if !slices.Contains(now.RequiredRequirements, id) {
				add(true, "gate-weakened", at+"/requiredRequirements", "%q would no longer be required at the %s call-site", id, site)
			}
		}
		for _, id := range now.RequiredRequirements {
			if !slices.Contains(old.RequiredRequirements, id) {
				add(false, "gate-strengthened", at+"/requiredRequirements", "%q would be required at the %s call-site", id, site)
			}
		}
		for _, id := range old.OptionalRequirements {
			if !slices.Contains(now.OptionalRequirements, id) && !slices.Contains(now.RequiredRequirements, id) {
				add(true, "gate-weakened", at+"/optionalRequirements", "%q would no longer run at the %s call-site", id, site)
			}
		}
	}
	if base == nil {
		return
	}
	for _, m := range []struct{ site, old, now string }{
		{"interactive", base.Policy.MissingHost.Interactive, cand.Policy.MissingHost.Interactive},
		{"sweep", base.Policy.MissingHost.Sweep, cand.Policy.MissingHost.Sweep},
	} {
		if m.old == "fail-closed" && m.now != "fail-closed" {
			add(true, "missing-host-weakened", "/policy/missingHost/"+m.site, "a missing host would no longer be fail-closed at the %s call-site", m.site)
		}
	}
}

// Weakenings keeps the changes that weaken.
func Weakenings(changes []Change) []Weakening {
	var out []Weakening
	for _, c := range changes {
		if c.Weakens {
			out = append(out, c.Weakening)
		}
	}
	return out
}
