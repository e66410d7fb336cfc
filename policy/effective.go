package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aspis-dev/aspis/schemas"
)

// Layers are the parsed parts of a policy. Nil means that a layer is not there.
type Layers struct {
	Floor      *Floor
	Config     *Config
	ConfigName string // where trusted configuration came from, for people
	Repository *schemas.RepositoryPolicy
	Local      *schemas.LocalOverride
	Pending    []Weakening // what a candidate policy would weaken
	Candidate  bool        // a candidate policy that differs in meaning is pending
}

// Effective is the policy in force. It is immutable.
type Effective struct {
	layers       Layers
	requirements map[string]Requirement
	digest       string
}

// Requirement is one requirement with every layer's definition of it.
type Requirement struct {
	ID           string
	Definitions  []schemas.Requirement // all must hold
	Capabilities []schemas.CapabilityFamily
}

// Accepts reports whether an achieved mode is enough for every definition: at
// least the weakest mode that each of them names.
func (r Requirement) Accepts(mode schemas.AssuranceMode) bool {
	for _, d := range r.Definitions {
		if !slices.ContainsFunc(d.Assurance, func(m schemas.AssuranceMode) bool { return m.Rank() >= 0 && mode.Rank() >= m.Rank() }) {
			return false
		}
	}
	return len(r.Definitions) > 0
}

// Least is the weakest mode that every definition accepts.
func (r Requirement) Least() schemas.AssuranceMode {
	for _, m := range schemas.AssuranceModes {
		if r.Accepts(m) {
			return m
		}
	}
	return schemas.Isolated
}

// Compose puts the layers together.
func Compose(l Layers) (*Effective, error) {
	if l.Config == nil {
		return nil, fmt.Errorf("there is no trusted configuration to compose")
	}
	e := &Effective{layers: l, requirements: map[string]Requirement{}}
	if l.Floor != nil {
		e.define(l.Floor.Requirements)
	}
	e.define(l.Config.Requirements)
	if l.Repository != nil {
		e.define(l.Repository.Requirements)
	}
	var err error
	if e.digest, err = schemas.Digest(e.normal()); err != nil {
		return nil, fmt.Errorf("digest of the policy: %w", err)
	}
	return e, nil
}

func (e *Effective) define(list []schemas.Requirement) {
	for _, d := range list {
		r := e.requirements[d.ID]
		r.ID = d.ID
		r.Definitions = append(r.Definitions, d)
		for _, c := range d.Capabilities {
			if !slices.Contains(r.Capabilities, c) {
				r.Capabilities = append(r.Capabilities, c)
			}
		}
		e.requirements[d.ID] = r
	}
}

// Digest identifies the policy in force by its meaning: the order of entries,
// white space and the split into files do not change it.
func (e *Effective) Digest() string { return e.digest }

// normal is the policy in an order that does not depend on its files.
func (e *Effective) normal() any {
	type gate struct {
		Required []string `json:"required"`
		Optional []string `json:"optional"`
	}
	gates := map[string]gate{}
	for _, site := range schemas.CallSites {
		var g gate
		g.Required, g.Optional = e.names(site)
		gates[string(site)] = g
	}
	var defs []schemas.Requirement
	for _, r := range e.requirements {
		for _, d := range r.Definitions {
			d.Capabilities = slices.Sorted(slices.Values(d.Capabilities))
			d.Assurance = slices.Sorted(slices.Values(d.Assurance))
			d.Authority.Providers = slices.SortedFunc(slices.Values(d.Authority.Providers), func(a, b schemas.PinnedProvider) int {
				return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Version, b.Version), strings.Compare(a.Integrity, b.Integrity))
			})
			defs = append(defs, d)
		}
	}
	slices.SortFunc(defs, func(a, b schemas.Requirement) int {
		da, _ := schemas.Digest(a)
		db, _ := schemas.Digest(b)
		return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(da, db))
	})
	// The same definition in two layers is one.
	defs = slices.CompactFunc(defs, func(a, b schemas.Requirement) bool {
		da, _ := schemas.Digest(a)
		db, _ := schemas.Digest(b)
		return da == db
	})
	grants := slices.Clone(e.layers.Config.Grants)
	for i := range grants {
		grants[i].CallSites = slices.Sorted(slices.Values(grants[i].CallSites))
	}
	slices.SortFunc(grants, func(a, b Grant) int {
		return cmp.Or(strings.Compare(a.Requirement, b.Requirement), strings.Compare(a.Provider, b.Provider),
			strings.Compare(a.Version, b.Version), strings.Compare(a.Integrity, b.Integrity))
	})
	providers := slices.SortedFunc(slices.Values(e.layers.Config.Providers), func(a, b Provider) int { return strings.Compare(a.ID, b.ID) })
	budgets := map[string]int64{}
	for _, site := range schemas.CallSites {
		budgets[string(site)] = e.Budget(site).Milliseconds()
	}
	return struct {
		Gates        map[string]gate       `json:"gates"`
		Requirements []schemas.Requirement `json:"requirements"`
		Grants       []Grant               `json:"grants"`
		Providers    []Provider            `json:"providers"`
		Budgets      map[string]int64      `json:"budgets"`
		Apply        Apply                 `json:"apply"`
	}{gates, defs, grants, providers, budgets, e.Apply()}
}

// names returns the ids that a call-site requires and those that are optional,
// sorted. What one layer requires no other makes optional.
func (e *Effective) names(site schemas.CallSite) (required, optional []string) {
	required, optional = []string{}, []string{}
	add := func(g *schemas.PolicyGates) {
		if g == nil {
			return
		}
		pg := map[schemas.CallSite]schemas.PolicyGate{schemas.Interactive: g.Interactive, schemas.Gate: g.Gate, schemas.Sweep: g.Sweep}[site]
		required = append(required, pg.RequiredRequirements...)
		optional = append(optional, pg.OptionalRequirements...)
	}
	if e.layers.Floor != nil {
		add(&e.layers.Floor.Gates)
	}
	add(e.layers.Config.Gates)
	if e.layers.Repository != nil {
		add(&e.layers.Repository.Gates)
	}
	slices.Sort(required)
	required = slices.Compact(required)
	slices.Sort(optional)
	optional = slices.DeleteFunc(slices.Compact(optional), func(id string) bool { return slices.Contains(required, id) })
	return required, optional
}

// Requirements returns what a call-site requires and what is optional, by id. A
// required id that no layer defines comes back without definitions: nothing
// satisfies it.
func (e *Effective) Requirements(site schemas.CallSite) (required, optional []Requirement) {
	names, extra := e.names(site)
	look := func(ids []string) (out []Requirement) {
		for _, id := range ids {
			r := e.requirements[id]
			r.ID = id
			out = append(out, r)
		}
		return out
	}
	return look(names), look(extra)
}

// Providers lists every provider of trusted configuration.
func (e *Effective) Providers() []Provider { return e.layers.Config.Providers }

// Apply says which edits may be published, in an order of its own.
func (e *Effective) Apply() Apply {
	a := Apply{OnDrift: DriftRefuse}
	if c := e.layers.Config.Apply; c != nil {
		a.HandedIn = slices.Compact(slices.Sorted(slices.Values(c.HandedIn)))
		a.Protected = slices.Compact(slices.Sorted(slices.Values(c.Protected)))
		a.OnDrift = cmp.Or(c.OnDrift, DriftRefuse)
	}
	return a
}

// ProvidersFor lists the installed providers that a grant or a pin names for a
// requirement at a call-site, in the order of trusted configuration.
func (e *Effective) ProvidersFor(r Requirement, site schemas.CallSite) []Provider {
	var out []Provider
	for _, p := range e.layers.Config.Providers {
		granted := slices.ContainsFunc(e.layers.Config.Grants, func(g Grant) bool {
			return g.Requirement == r.ID && g.Provider == p.ID && slices.Contains(g.CallSites, site)
		})
		pinned := slices.ContainsFunc(r.Definitions, func(d schemas.Requirement) bool {
			return slices.ContainsFunc(d.Authority.Providers, func(pin schemas.PinnedProvider) bool { return pin.ID == p.ID })
		})
		if granted || pinned {
			out = append(out, p)
		}
	}
	return out
}

// GrantResult is the answer to whether a provider has authority. Why says in a
// sentence what is missing.
type GrantResult struct {
	Granted     bool
	Why         string
	SeverityCap schemas.Severity
}

// Grant tells whether a build of a provider may satisfy a requirement at a
// call-site: trusted configuration grants exactly it, and every definition of
// the requirement pins it.
func (e *Effective) Grant(r Requirement, site schemas.CallSite, p Provider) GrantResult {
	if len(r.Definitions) == 0 {
		return GrantResult{Why: fmt.Sprintf("no layer of policy defines the requirement %q", r.ID)}
	}
	for _, d := range r.Definitions {
		if !slices.ContainsFunc(d.Authority.Providers, func(pin schemas.PinnedProvider) bool { return pins(pin, p) }) {
			return GrantResult{Why: fmt.Sprintf("the requirement %q does not pin %s %s with the digest %s", r.ID, p.ID, p.Version, p.Digest)}
		}
	}
	var best GrantResult
	best.Why = fmt.Sprintf("trusted configuration grants %s no authority for %q at the %s call-site", p.ID, r.ID, site)
	for _, g := range e.layers.Config.Grants {
		if g.Requirement != r.ID || g.Provider != p.ID || !slices.Contains(g.CallSites, site) {
			continue
		}
		if g.Version != p.Version || g.Integrity != p.Digest {
			best.Why = fmt.Sprintf("trusted configuration grants %s %s with the digest %s; %s with %s is installed", g.Provider, g.Version, g.Integrity, p.Version, p.Digest)
			continue
		}
		if !best.Granted || milder(g.SeverityCap, best.SeverityCap) {
			best = GrantResult{Granted: true, SeverityCap: g.SeverityCap}
		}
	}
	return best
}

// milder reports whether cap a lets through less than cap b. Of two grants the
// one that lets more findings block counts, so that a second grant cannot
// soften the first.
func milder(a, b schemas.Severity) bool {
	rank := map[schemas.Severity]int{schemas.SeverityInfo: 0, schemas.SeverityWarning: 1, schemas.SeverityError: 2, "": 3}
	return rank[a] > rank[b]
}

func pins(pin schemas.PinnedProvider, p Provider) bool {
	return pin.ID == p.ID && pin.Version == p.Version && pin.Integrity == p.Digest &&
		(pin.Identity == "" || pin.Identity == p.IdentityOrDefault())
}

// IdentityOrDefault is the identity axis of a provider.
func (p Provider) IdentityOrDefault() string {
	if p.Identity != "" {
		return p.Identity
	}
	return "local:" + p.ID
}

// ConformanceOrDefault is the conformance axis of a provider.
func (p Provider) ConformanceOrDefault() string {
	if p.Conformance != "" {
		return p.Conformance
	}
	return "unproven"
}

// Budgets where no layer says otherwise.
const (
	DefaultInteractive = 10 * time.Second
	DefaultGate        = 5 * time.Minute
	DefaultSweep       = 30 * time.Minute
)

// Budget is the ceiling of a whole evaluation at a call-site. A repository can
// lower it, not raise it.
func (e *Effective) Budget(site schemas.CallSite) time.Duration {
	d := map[schemas.CallSite]time.Duration{schemas.Interactive: DefaultInteractive, schemas.Gate: DefaultGate, schemas.Sweep: DefaultSweep}[site]
	of := func(b *schemas.PolicyBudgets) *int {
		if b == nil {
			return nil
		}
		return map[schemas.CallSite]*int{schemas.Interactive: b.InteractiveMs, schemas.Gate: b.GateMs, schemas.Sweep: b.SweepMs}[site]
	}
	if ms := of(e.layers.Config.Budgets); ms != nil {
		d = time.Duration(*ms) * time.Millisecond
	}
	if e.layers.Repository != nil {
		if ms := of(e.layers.Repository.Budgets); ms != nil {
			d = min(d, time.Duration(*ms)*time.Millisecond)
		}
	}
	return d
}

// Quarantine returns trusted configuration's rules; zero members mean defaults.
func (e *Effective) Quarantine() (failures int, window, duration time.Duration) {
	q := e.layers.Config.Quarantine
	if q == nil {
		return 0, 0, 0
	}
	ms := func(v *int) time.Duration {
		if v == nil {
			return 0
		}
		return time.Duration(*v) * time.Millisecond
	}
	if q.Failures != nil {
		failures = *q.Failures
	}
	return failures, ms(q.WindowMs), ms(q.DurationMs)
}

// Source says for people where the policy comes from.
func (e *Effective) Source() string {
	var parts []string
	if e.layers.Floor != nil {
		parts = append(parts, "organisation floor")
	}
	parts = append(parts, e.layers.ConfigName)
	if e.layers.Repository != nil {
		parts = append(parts, RepositoryFile+" at the baseline")
	}
	return strings.Join(parts, ", ")
}

// Pending lists what a candidate policy would weaken, and whether one that
// differs in meaning is waiting at all.
func (e *Effective) Pending() ([]Weakening, bool) { return e.layers.Pending, e.layers.Candidate }

// Judge lists what a change would weaken that brings its own .asp/asp.json: its
// text, or nothing when it removes the file. The policy in force is not changed
// by it.
func (e *Effective) Judge(candidate []byte, gone bool) ([]Weakening, error) {
	trusted, err := Compose(Layers{Floor: e.layers.Floor, Config: e.layers.Config, ConfigName: e.layers.ConfigName})
	if err != nil {
		return nil, err
	}
	weak, _ := pending(Sources{Candidate: candidate, CandidateGone: gone}, e.layers.Repository, trusted)
	return weak, nil
}

// LocalOverride reports .asp/local.json; nil where there is none.
func (e *Effective) LocalOverride() *schemas.LocalOverride { return e.layers.Local }
