package host

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/aspis-dev/aspis/host/supervise"
	"github.com/aspis-dev/aspis/schemas"
)

// standing is what was last seen of a provider: by a probe, or in an evaluation.
type standing struct {
	state      schemas.LifecycleState
	mode       schemas.AssuranceMode
	started    bool
	advertised []schemas.CapabilityFamily
	failure    *supervise.Failure
}

// standings remembers them for the life of the host.
type standings struct {
	mu  sync.Mutex
	all map[string]standing
}

func (s *standings) set(p provider, st standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[string]standing{}
	}
	s.all[p.healthKey()] = st
}

func (s *standings) get(p provider) (standing, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.all[p.healthKey()]
	return st, ok
}

// Place is the workspace that a status is about.
type Place struct {
	Root        string
	Baseline    schemas.Baseline
	StaleReason string
}

// Bounds on finding out how providers are.
const (
	// statusWait is how long a status waits for providers that are being greeted.
	// One that takes longer is told as initializing, and goes on being greeted.
	statusWait = 3 * time.Second
	// probeBudget is how long a greeting may take in all.
	probeBudget = 20 * time.Second
)

// probes are the greetings under way.
type probes struct {
	mu      sync.Mutex
	under   map[string]chan struct{} // by provider; closed at its end
	running sync.WaitGroup
	life    context.Context // ends with the host
	end     context.CancelFunc
}

func newProbes() *probes {
	life, end := context.WithCancel(context.Background())
	return &probes{under: map[string]chan struct{}{}, life: life, end: end}
}

func (p *probes) close() {
	p.end()
	p.running.Wait()
}

// greet makes sure that a provider is being greeted, and gives what is closed
// at the end of that.
func (h *Host) greet(p provider, place Place) <-chan struct{} {
	h.probes.mu.Lock()
	defer h.probes.mu.Unlock()
	key := p.healthKey()
	if done, under := h.probes.under[key]; under {
		return done
	}
	done := make(chan struct{})
	h.probes.under[key] = done
	h.standings.set(p, standing{state: schemas.StateInitializing, mode: schemas.Advisory})
	h.probes.running.Go(func() {
		ctx, cancel := context.WithTimeoutCause(h.probes.life, probeBudget, context.DeadlineExceeded)
		defer cancel()
		h.standings.set(p, h.probeOne(ctx, p, place))
		h.probes.mu.Lock()
		defer h.probes.mu.Unlock()
		delete(h.probes.under, key)
		close(done)
	})
	return done
}

// probe starts every provider that has not been seen yet, shakes hands and
// stops it again: a provider is only called ready when it was seen to be.
func (h *Host) probe(ctx context.Context, place Place) map[string]standing {
	ctx, cancel := context.WithTimeout(ctx, statusWait)
	defer cancel()
	var waits []<-chan struct{}
	for _, p := range h.providers() {
		st, seen := h.standings.get(p)
		if seen && st.state != schemas.StateInitializing && h.barred(p) == nil {
			continue
		}
		waits = append(waits, h.greet(p, place))
	}
	for _, done := range waits {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	out := map[string]standing{}
	for _, p := range h.providers() {
		out[p.ID], _ = h.standings.get(p)
	}
	return out
}

func (h *Host) probeOne(ctx context.Context, p provider, place Place) standing {
	st := standing{state: schemas.StateUnavailable, mode: schemas.Advisory}
	if st.failure = h.barred(p); st.failure != nil {
		st.state = st.failure.State
		return st
	}
	p = p.withoutSnapshot()
	r := &run{provider: p}
	s, release, f := h.session(ctx, Evaluation{ChangeSet: schemas.ChangeSet{Baseline: place.Baseline}}, r)
	if f != nil {
		st.failure, st.state = f, f.State
		if r.trace.Started {
			st.mode = r.trace.Mode
		}
		return st
	}
	st.started, st.mode, st.state = true, r.trace.Mode, schemas.StateActive
	st.advertised = s.Info().CapabilityFamilies
	release()
	if !s.Alive() {
		st.state = schemas.StateExited
	}
	return st
}

// learned keeps what an evaluation showed of a provider.
func (h *Host) learned(r *run) {
	st, _ := h.standings.get(r.provider)
	st.state, st.failure = r.trace.State, r.result.Failure
	if r.trace.Started {
		st.started, st.mode = true, r.trace.Mode
	}
	if len(r.families) > 0 {
		st.advertised = r.families
	}
	h.standings.set(r.provider, st)
}

// Status answers host/status.
func (h *Host) Status(ctx context.Context, place Place) (*schemas.HostStatus, error) {
	started := h.now()
	seen := h.probe(ctx, place)
	servers := h.servers(seen)
	gates := h.gates(seen)
	state := "ready"
	for _, g := range []schemas.GateState{gates.Interactive, gates.Gate, gates.Sweep} {
		if !g.Available {
			state = "degraded"
		}
	}
	coverage := h.coverage(schemas.Gate, seen)
	r, err := h.report(ctx, schemas.ReceiptStatus, place, coverage, servers, started)
	if err != nil {
		return nil, err
	}
	return &schemas.HostStatus{
		Host: schemas.HostInfo{Name: "aspis", Version: h.opt.Version, OuterProtocol: schemas.OuterProtocol,
			State: state, BindingCandidate: "json-rpc-stdio"},
		Workspace:             schemas.StatusWorkspace{Root: place.Root, Baseline: place.Baseline, ValidAsOf: place.Baseline, StaleReason: place.StaleReason},
		Policy:                h.policyStatus(),
		Servers:               servers,
		Gates:                 gates,
		Capabilities:          h.caps(seen),
		AssuranceCapabilities: h.modes(seen),
		Receipt:               r,
	}, nil
}

// Capabilities answers host/capabilities.
func (h *Host) Capabilities(ctx context.Context, place Place) (*schemas.HostCapabilities, error) {
	started := h.now()
	seen := h.probe(ctx, place)
	servers := h.servers(seen)
	coverage := h.coverage(schemas.Gate, seen)
	r, err := h.report(ctx, schemas.ReceiptCapabilities, place, coverage, servers, started)
	if err != nil {
		return nil, err
	}
	caps := h.caps(seen)
	return &schemas.HostCapabilities{Capabilities: caps, Sources: servers, Coverage: coverage, Receipt: r,
		LegacyRoles: &schemas.LegacyRoles{Sense: caps.Inspect.Available, Judge: caps.Check.Available, Act: caps.Edit.Available}}, nil
}

// AuthorityStatus answers host/authority/status.
func (h *Host) AuthorityStatus(ctx context.Context, place Place) (*schemas.AuthorityStatus, error) {
	started := h.now()
	seen := h.probe(ctx, place)
	servers := h.servers(seen)
	r, err := h.report(ctx, schemas.ReceiptAuthorityStatus, place, h.coverage(schemas.Gate, seen), servers, started)
	if err != nil {
		return nil, err
	}
	return &schemas.AuthorityStatus{PolicyActivation: h.policyActivation(), PolicyDigest: h.plan(schemas.Gate).digest, Providers: servers, Receipt: r}, nil
}

// servers describes every provider of trusted configuration.
func (h *Host) servers(seen map[string]standing) []schemas.Server {
	out := []schemas.Server{}
	for _, p := range h.providers() {
		st := seen[p.ID]
		s := schemas.Server{
			ID: p.ID, Capabilities: p.Capabilities, LifecycleState: st.state, State: serverState(st),
			CapabilityStates: schemas.CapabilityStates{
				Inspect: capHealth(p, st, schemas.Inspect), Check: capHealth(p, st, schemas.Check), Edit: capHealth(p, st, schemas.Edit)},
			RequiredFor: []schemas.CallSite{}, EnrollmentState: "installed-not-enrolled", Role: "advisory",
		}
		s.AuthorityEvidence = schemas.AuthorityEvidence{Identity: p.Identity, Integrity: p.Digest, Conformance: p.Conformance, Isolation: st.mode,
			Authority: schemas.Authority{Requirement: "none"}}
		for _, site := range schemas.CallSites {
			plan := h.plan(site)
			for _, req := range plan.requirements {
				if !slices.ContainsFunc(req.providers, func(q provider) bool { return q.ID == p.ID }) {
					continue
				}
				s.EnrollmentState = "enrolled"
				if req.required && !slices.Contains(s.RequiredFor, site) {
					s.RequiredFor = append(s.RequiredFor, site)
				}
				if g := h.grant(plan, req, p); g.granted && (!s.AuthorityEvidence.Authority.Granted || site == schemas.Gate) {
					s.AuthorityEvidence.Authority = schemas.Authority{Granted: true, Requirement: req.ID, CallSite: site, PolicyDigest: plan.digest}
				}
			}
		}
		switch {
		case st.state == schemas.StateQuarantined:
			s.EnrollmentState = "quarantined"
		case st.state == schemas.StateIncompatible:
			s.EnrollmentState = "incompatible"
		case st.failure != nil && st.failure.Reason == schemas.ReasonMissing:
			s.EnrollmentState = "missing"
		}
		if len(s.RequiredFor) > 0 {
			s.Role = "required"
		} else if s.EnrollmentState == "enrolled" {
			s.Role = "optional"
		}
		if st.failure != nil {
			s.Detail = st.failure.Detail
		}
		out = append(out, s)
	}
	return out
}

// serverState maps what was seen to the wire's coarse state.
func serverState(st standing) string {
	switch st.state {
	case schemas.StateQuarantined:
		return "quarantined"
	case schemas.StateIncompatible:
		return "incompatible"
	case schemas.StateActive, schemas.StateInitialized, schemas.StateExited:
		if st.failure == nil && st.started {
			return "ready"
		}
	}
	if st.failure != nil && (st.failure.Reason == schemas.ReasonMissing || st.failure.Reason == schemas.ReasonUnavailable) {
		return "unavailable"
	}
	return "degraded"
}

func capHealth(p provider, st standing, family schemas.CapabilityFamily) schemas.Health {
	hl := schemas.Health{Capability: family, LifecycleState: st.state, Degraded: []schemas.Degradation{}}
	configured := slices.Contains(p.Capabilities, family)
	hl.Advertised = slices.Contains(st.advertised, family) || (len(st.advertised) == 0 && configured)
	if !configured {
		hl.Advertised = false
		return hl
	}
	hl.Available = st.failure == nil && st.started && slices.Contains(st.advertised, family)
	switch {
	case st.failure != nil:
		hl.Degraded = append(hl.Degraded, st.failure.Degradation(p.ID, "", family))
	case !hl.Available:
		hl.Degraded = append(hl.Degraded, schemas.Degradation{Source: p.ID, Reason: schemas.ReasonUnsupported, Capability: family,
			ProviderState: st.state, Detail: fmt.Sprintf("configured for %s, which it does not advertise", family)})
	}
	return hl
}

// gates tells for each call-site whether it could allow anything now.
func (h *Host) gates(seen map[string]standing) schemas.GateStates {
	one := func(site schemas.CallSite) schemas.GateState {
		g := schemas.GateState{RequiredProviders: []string{}, RequiredCapabilities: []schemas.CapabilityFamily{}, Degraded: h.readiness(site, seen)}
		for _, req := range h.plan(site).requirements {
			if !req.required {
				continue
			}
			for _, p := range req.providers {
				if !slices.Contains(g.RequiredProviders, p.ID) {
					g.RequiredProviders = append(g.RequiredProviders, p.ID)
				}
			}
			if !slices.Contains(g.RequiredCapabilities, schemas.Check) {
				g.RequiredCapabilities = append(g.RequiredCapabilities, schemas.Check)
			}
		}
		g.Available = len(g.Degraded) == 0
		return g
	}
	return schemas.GateStates{Interactive: one(schemas.Interactive), Gate: one(schemas.Gate), Sweep: one(schemas.Sweep)}
}

// readiness lists what would keep a call-site from allowing, as far as that is
// known without a change.
func (h *Host) readiness(site schemas.CallSite, seen map[string]standing) []schemas.Degradation {
	out := []schemas.Degradation{}
	plan := h.plan(site)
	for _, req := range plan.requirements {
		if !req.required {
			continue
		}
		if len(req.providers) == 0 {
			out = append(out, schemas.Degradation{Source: req.ID, Reason: schemas.ReasonMissingRequiredProvider, Requirement: req.ID,
				Capability: schemas.Check, ProviderState: schemas.StateUnavailable, Detail: "trusted configuration installs no provider for this requirement"})
		}
		for _, p := range req.providers {
			st := seen[p.ID]
			add := func(reason schemas.DegradationReason, detail string) {
				out = append(out, schemas.Degradation{Source: p.ID, Reason: reason, Requirement: req.ID, Capability: schemas.Check,
					ProviderState: st.state, Detail: detail})
			}
			if st.failure != nil {
				out = append(out, st.failure.Degradation(p.ID, req.ID, schemas.Check))
			}
			if g := h.grant(plan, req, p); !g.granted {
				add(schemas.ReasonMissingAuthority, g.why)
			}
			if st.started && !req.accepts(st.mode) && st.failure == nil {
				add(schemas.ReasonInsufficientAssurance, fmt.Sprintf("%s was achieved; the requirement accepts %s", st.mode, joinModes(req.accept)))
			}
			if st.failure == nil && st.started && !slices.Contains(st.advertised, schemas.Check) {
				add(schemas.ReasonUnsupported, "it does not advertise the check capability")
			}
		}
	}
	return out
}

// coverage is the coverage that a call-site would have now.
func (h *Host) coverage(site schemas.CallSite, seen map[string]standing) schemas.HostCoverage {
	c := schemas.HostCoverage{Required: []string{}, Ran: []string{}, Degraded: h.readiness(site, seen)}
	for _, req := range h.plan(site).requirements {
		if !req.required {
			continue
		}
		c.Required = append(c.Required, req.ID)
		if !slices.ContainsFunc(c.Degraded, func(d schemas.Degradation) bool { return d.Requirement == req.ID }) {
			c.Ran = append(c.Ran, req.ID)
		}
	}
	c.Enrolled = slices.Clone(c.Required)
	c.Exhaustive = len(c.Degraded) == 0
	return c
}

// caps composes the capabilities of all providers.
func (h *Host) caps(seen map[string]standing) schemas.HostCaps {
	one := func(family schemas.CapabilityFamily, legacy string) schemas.Cap {
		c := schemas.Cap{Providers: []string{}, Degraded: []schemas.Degradation{}, CapabilityStates: []schemas.CapabilityState{}, LegacyAliases: []string{legacy}}
		for _, p := range h.providers() {
			if !slices.Contains(p.Capabilities, family) {
				continue
			}
			hl := capHealth(p, seen[p.ID], family)
			c.Providers = append(c.Providers, p.ID)
			c.Available = c.Available || hl.Available
			c.Degraded = append(c.Degraded, hl.Degraded...)
			c.CapabilityStates = append(c.CapabilityStates, schemas.CapabilityState{Provider: p.ID, Role: h.role(p), Capability: family,
				Advertised: hl.Advertised, Available: hl.Available, LifecycleState: hl.LifecycleState, Degraded: hl.Degraded})
		}
		if len(c.Providers) == 0 {
			c.Degraded = append(c.Degraded, schemas.Degradation{Source: "aspis", Reason: schemas.ReasonUnavailable, Capability: family,
				ProviderState: schemas.StateUnavailable, Detail: fmt.Sprintf("no provider with the %s capability is installed", family)})
		}
		return c
	}
	return schemas.HostCaps{Inspect: one(schemas.Inspect, "sense"), Check: one(schemas.Check, "judge"), Edit: one(schemas.Edit, "act")}
}

// role is the strongest role that a provider has at any call-site.
func (h *Host) role(p provider) string {
	role := "advisory"
	for _, site := range schemas.CallSites {
		for _, req := range h.plan(site).requirements {
			if !slices.ContainsFunc(req.providers, func(q provider) bool { return q.ID == p.ID }) {
				continue
			}
			if req.required {
				return "required"
			}
			role = "optional"
		}
	}
	return role
}

// modes lists every mode up to the strongest that was seen.
func (h *Host) modes(seen map[string]standing) []schemas.AssuranceMode {
	best := 0
	for _, st := range seen {
		if st.started {
			best = max(best, st.mode.Rank())
		}
	}
	return slices.Clone(schemas.AssuranceModes[:best+1])
}

// report writes the receipt of an answer that judges no change.
func (h *Host) report(ctx context.Context, kind schemas.ReceiptKind, place Place, c schemas.HostCoverage, servers []schemas.Server, started time.Time) (schemas.Receipt, error) {
	digest, err := schemas.Digest(map[string]string{"kind": string(kind), "root": place.Root})
	if err != nil {
		return schemas.Receipt{}, fmt.Errorf("digest of the request: %w", err)
	}
	r := h.draft(outline{kind: kind, family: schemas.Check, request: digest, policy: h.plan(schemas.Gate).digest,
		baseline: place.Baseline, coverage: c, assurance: nothingDone("nothing was evaluated"), started: started})
	for _, s := range servers {
		r.ProviderIDs = append(r.ProviderIDs, s.ID)
		r.AuthorityEvidence = append(r.AuthorityEvidence, s.AuthorityEvidence)
		if s.State == "ready" {
			r.ProviderProvenance = append(r.ProviderProvenance, schemas.ProviderProvenance{Provider: s.ID, Capability: s.Capabilities[0],
				Identity: s.AuthorityEvidence.Identity, Integrity: s.AuthorityEvidence.Integrity, Conformance: s.AuthorityEvidence.Conformance})
		}
	}
	if err := h.keep(ctx, r); err != nil {
		return schemas.Receipt{}, err
	}
	return r, nil
}
