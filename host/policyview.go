package host

import (
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/aspis-dev/aspis/policy"
	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/schemas"
)

// plan reads from policy what a call-site asks of check providers.
func (h *Host) plan(site schemas.CallSite) plan {
	p := plan{site: site, digest: h.opt.Policy.Digest(), budget: h.opt.Policy.Budget(site)}
	required, optional := h.opt.Policy.Requirements(site)
	add := func(list []policy.Requirement, isRequired bool) {
		for _, r := range list {
			req := requirement{ID: r.ID, required: isRequired, rule: r}
			for _, m := range schemas.AssuranceModes {
				if r.Accepts(m) {
					req.accept = append(req.accept, m)
				}
			}
			for _, pr := range h.opt.Policy.ProvidersFor(r, site) {
				req.providers = append(req.providers, h.view(pr))
			}
			p.requirements = append(p.requirements, req)
		}
	}
	add(required, true)
	add(optional, false)
	return p
}

// providers lists every provider of trusted configuration.
func (h *Host) providers() []provider {
	list := h.opt.Policy.Providers()
	out := make([]provider, 0, len(list))
	for _, p := range list {
		out = append(out, h.view(p))
	}
	return out
}

// Defaults of what a provider may use, where trusted configuration is silent.
const (
	defaultMemoryMB = 1024
	defaultCPUPct   = 200
	defaultFD       = 256
	defaultPids     = 128
	defaultTmpBytes = 256 << 20
)

// view turns trusted configuration into what the host works with.
func (h *Host) view(p policy.Provider) provider {
	v := provider{
		ID: p.ID, Version: p.Version, Identity: p.IdentityOrDefault(), Digest: p.Digest, Conformance: p.ConformanceOrDefault(),
		Capabilities: p.Capabilities, Executable: p.Executable, Args: p.Args, ArtifactDir: p.ArtifactDir, System: p.System,
		Snapshot: p.Workspace == "snapshot", Runtime: p.Runtime, Configuration: p.Configuration, Scope: p.Scope, least: h.least(p), rule: p,
	}
	if v.Runtime == "" {
		v.Runtime = "container"
	}
	for name, value := range p.Environment {
		v.Env = append(v.Env, name+"="+value)
	}
	sort.Strings(v.Env)
	if p.Permissions != nil {
		v.Ceiling = *p.Permissions
	}
	if v.Ceiling.Read == nil {
		v.Ceiling.Read = []string{"**"}
	}
	limits := schemas.ResourceLimits{}
	if v.Ceiling.ResourceLimits != nil {
		limits = *v.Ceiling.ResourceLimits
	}
	fill := func(at **int, value int) {
		if *at == nil {
			*at = &value
		}
	}
	fill(&limits.MemoryMB, defaultMemoryMB)
	fill(&limits.CPUPct, defaultCPUPct)
	fill(&limits.FD, defaultFD)
	fill(&limits.WallclockMs, int(h.opt.Policy.Budget(schemas.Sweep).Milliseconds()))
	v.Ceiling.ResourceLimits = &limits
	v.Limits = sandbox.Limits{
		MemoryBytes: int64(*limits.MemoryMB) << 20, CPUPercent: *limits.CPUPct, OpenFiles: *limits.FD, Pids: defaultPids,
		TmpBytes: defaultTmpBytes, FileBytes: defaultTmpBytes, WallClock: time.Duration(*limits.WallclockMs) * time.Millisecond,
	}
	return v
}

// least is the weakest mode at which a provider may run: the weakest that any
// requirement which names it accepts. A provider that no requirement names runs
// only isolated.
func (h *Host) least(p policy.Provider) sandbox.Mode {
	least := sandbox.ModeIsolated
	for _, site := range schemas.CallSites {
		required, optional := h.opt.Policy.Requirements(site)
		for _, r := range slices.Concat(required, optional) {
			if !slices.ContainsFunc(h.opt.Policy.ProvidersFor(r, site), func(q policy.Provider) bool { return q.ID == p.ID }) {
				continue
			}
			switch r.Least() {
			case schemas.Advisory, schemas.Gated:
				return sandbox.ModeGated
			case schemas.MediatedWrite:
				least = min(least, sandbox.ModeMediatedWrite)
			}
		}
	}
	return least
}

// grant asks policy for authority.
func (h *Host) grant(plan plan, req requirement, p provider) grantAnswer {
	g := h.opt.Policy.Grant(req.rule, plan.site, p.rule)
	return grantAnswer{granted: g.Granted, why: g.Why, cap: g.SeverityCap}
}

// mayEdit reports whether a provider is granted any requirement with the edit
// capability at the plan's call-site.
func (h *Host) mayEdit(plan plan, p provider) bool {
	for _, req := range plan.requirements {
		if slices.Contains(req.rule.Capabilities, schemas.Edit) && h.grant(plan, req, p).granted {
			return true
		}
	}
	return false
}

func (h *Host) failsOpen(class schemas.FailClass, site schemas.CallSite) bool {
	return policy.FailsOpen(class, site)
}

// policyStatus is the policy's part of host/status.
func (h *Host) policyStatus() schemas.PolicyStatus {
	st := schemas.PolicyStatus{Source: h.opt.Policy.Source(), Activation: "active", PolicyDigest: h.opt.Policy.Digest(), LocalOverride: h.opt.Policy.LocalOverride()}
	if _, pending := h.opt.Policy.Pending(); pending {
		st.Activation = "pending"
	}
	return st
}

func (h *Host) policyActivation() string {
	if _, pending := h.opt.Policy.Pending(); pending {
		return "candidate-pending"
	}
	return "base-active"
}

// selfAuthorization reports what a pending policy would weaken, as degradations
// of the evaluation that carries it (host-obligations §7).
func (h *Host) selfAuthorization() []schemas.Degradation {
	weak, _ := h.opt.Policy.Pending()
	return weakened(weak)
}

func weakened(weak []policy.Weakening) []schemas.Degradation {
	var out []schemas.Degradation
	for _, w := range weak {
		out = append(out, schemas.Degradation{Source: policy.RepositoryFile, Reason: schemas.ReasonPolicySelfAuthorization,
			Detail: fmt.Sprintf("the change's own policy may not judge it: %s", w.Detail)})
	}
	return out
}
