package policy

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

// Versions of the files of trusted configuration.
const (
	ConfigVersion = "aspis-config/1"
	FloorVersion  = "aspis-floor/1"
)

// Config is trusted configuration: config.json.
type Config struct {
	Schema       string                 `json:"$schema,omitzero"`
	Version      string                 `json:"version"`
	Providers    []Provider             `json:"providers,omitzero"`
	Requirements []schemas.Requirement  `json:"requirements,omitzero"`
	Gates        *schemas.PolicyGates   `json:"gates,omitzero"`
	Grants       []Grant                `json:"grants,omitzero"`
	Budgets      *schemas.PolicyBudgets `json:"budgets,omitzero"`
	Quarantine   *Quarantine            `json:"quarantine,omitzero"`
	Apply        *Apply                 `json:"apply,omitzero"`
}

// Apply says which edits may be published. The default is the strictest of all.
type Apply struct {
	// HandedIn are the providers whose plans are taken from a harness though this
	// host did not ask for them: nothing is known of what confined their author.
	HandedIn []string `json:"handedIn,omitzero"`
	// Protected are globs of files that make machines run code by being there and
	// may be written all the same.
	Protected []string `json:"protected,omitzero"`
	// OnDrift is what becomes of a plan when the workspace has moved since:
	// refuse (the default), merge where each touched file merges cleanly, or
	// repropose, which merges and else asks the provider again, at most twice.
	OnDrift string `json:"onDrift,omitzero"`
}

// Provider says how an installed provider is launched and what it may have.
type Provider struct {
	ID            string                     `json:"id"`
	Version       string                     `json:"version"`
	Identity      string                     `json:"identity,omitzero"`
	Conformance   string                     `json:"conformance,omitzero"`
	Capabilities  []schemas.CapabilityFamily `json:"capabilities"`
	Executable    string                     `json:"executable"`
	Args          []string                   `json:"args,omitzero"`
	ArtifactDir   string                     `json:"artifactDir,omitzero"`
	Digest        string                     `json:"digest"`
	Environment   map[string]string          `json:"environment,omitzero"`
	Configuration jsontext.Value             `json:"configuration,omitzero"`
	Permissions   *schemas.Permissions       `json:"permissions,omitzero"`
	// Runtime is container, or process for no walls at all; it can only ask for less.
	Runtime string `json:"runtime,omitzero"`
	// Workspace is snapshot (candidate and baseline are mounted read-only) or
	// callbacks (bytes come by workspace/readBlob only, and the provider can stay
	// warm between evaluations). The default is callbacks.
	Workspace string `json:"workspace,omitzero"`
	// Scope is changeset (the default), workspace, or impacted: the changed files
	// and those that inspect providers say depend on them.
	Scope string `json:"scope,omitzero"`
	// System gives it the machine's programs and libraries, read-only.
	System bool `json:"system,omitzero"`
}

// Grant gives one build of one provider authority for one requirement.
type Grant struct {
	Requirement string             `json:"requirement"`
	CallSites   []schemas.CallSite `json:"callSites"`
	Provider    string             `json:"provider"`
	Version     string             `json:"version"`
	Integrity   string             `json:"integrity"`
	SeverityCap schemas.Severity   `json:"severityCap,omitzero"`
}

// Quarantine is when a failing provider is set aside.
type Quarantine struct {
	Failures   *int `json:"failures,omitzero"`
	WindowMs   *int `json:"windowMs,omitzero"`
	DurationMs *int `json:"durationMs,omitzero"`
}

// Floor is the organisation's policy: floor.json. It can only add.
type Floor struct {
	Schema       string                `json:"$schema,omitzero"`
	Version      string                `json:"version"`
	Requirements []schemas.Requirement `json:"requirements"`
	Gates        schemas.PolicyGates   `json:"gates"`
}

// ParseConfig reads trusted configuration; name is for errors.
func ParseConfig(name string, raw []byte) (*Config, error) {
	var c Config
	if err := parse(name, raw, &c); err != nil {
		return nil, err
	}
	k := &checks{}
	k.require("/version", c.Version == ConfigVersion, "is %q; this aspis reads %q", c.Version, ConfigVersion)
	ids := map[string]bool{}
	for i, p := range c.Providers {
		at := fmt.Sprintf("/providers/%d", i)
		k.provider(at, p)
		k.require(at+"/id", !ids[p.ID], "names a provider twice")
		ids[p.ID] = true
	}
	k.requirements("/requirements", c.Requirements)
	for i, g := range c.Grants {
		at := fmt.Sprintf("/grants/%d", i)
		k.require(at+"/requirement", g.Requirement != "", "is empty; name the requirement that is granted")
		k.require(at+"/callSites", len(g.CallSites) > 0, "is empty; name at least one of interactive, gate, sweep")
		for j, s := range g.CallSites {
			k.require(fmt.Sprintf("%s/callSites/%d", at, j), slices.Contains(schemas.CallSites[:], s), "is %q; use interactive, gate or sweep", s)
		}
		k.require(at+"/provider", ids[g.Provider], "is %q, which no entry of providers installs", g.Provider)
		k.require(at+"/integrity", isDigest(g.Integrity), "is %q; use sha256:<64 hex digits>", g.Integrity)
		k.require(at+"/severityCap", g.SeverityCap == "" || isSeverity(g.SeverityCap), "is %q; use error, warning or info", g.SeverityCap)
	}
	k.gates("/gates", c.Gates, c.Requirements, false)
	k.budgets("/budgets", c.Budgets)
	k.apply("/apply", c.Apply)
	return &c, k.result(name, raw)
}

// Values of Apply.OnDrift.
const (
	DriftRefuse    = "refuse"
	DriftMerge     = "merge"
	DriftRepropose = "repropose"
)

func (k *checks) apply(at string, a *Apply) {
	if a == nil {
		return
	}
	for i, id := range a.HandedIn {
		k.require(fmt.Sprintf("%s/handedIn/%d", at, i), id != "", "is empty; name the provider that such plans are signed by")
	}
	for i, g := range a.Protected {
		k.require(fmt.Sprintf("%s/protected/%d", at, i), g != "" && doublestar.ValidatePattern(g), "is %q, which is no glob", g)
	}
	k.require(at+"/onDrift", a.OnDrift == "" || slices.Contains([]string{DriftRefuse, DriftMerge, DriftRepropose}, a.OnDrift), "is %q; use refuse, merge or repropose", a.OnDrift)
}

// ParseFloor reads the organisation's floor.
func ParseFloor(name string, raw []byte) (*Floor, error) {
	var f Floor
	if err := parse(name, raw, &f); err != nil {
		return nil, err
	}
	k := &checks{}
	k.require("/version", f.Version == FloorVersion, "is %q; this aspis reads %q", f.Version, FloorVersion)
	k.requirements("/requirements", f.Requirements)
	k.gates("/gates", &f.Gates, f.Requirements, true)
	return &f, k.result(name, raw)
}

// launchNames are the members by which a policy could start something. A
// repository's policy may hold none of them at any depth (asp-wire, Files).
var launchNames = []string{"host", "hostImplementation", "requiredHost", "command", "commands", "shell", "script", "scripts", "bash",
	"npmScript", "makeTarget", "hook", "hooks", "executable", "launch", "exec", "args", "argv", "entrypoint", "bin", "env", "environment"}

// ParseRepository reads .asp/asp.json.
func ParseRepository(name string, raw []byte) (*schemas.RepositoryPolicy, error) {
	if pointer, found := memberNamed(raw, launchNames); found {
		return nil, errorAt(name, raw, pointer, "a repository's policy may not say what to run or which host to use; that belongs into trusted configuration")
	}
	var p schemas.RepositoryPolicy
	if err := parse(name, raw, &p); err != nil {
		return nil, err
	}
	k := &checks{}
	k.require("/aspVersion", p.ASPVersion == schemas.ProtocolVersion, "is %q; this aspis reads %q", p.ASPVersion, schemas.ProtocolVersion)
	k.require("/requirements", len(p.Requirements) > 0, "is empty; name at least one requirement")
	k.requirements("/requirements", p.Requirements)
	k.gates("/gates", &p.Gates, p.Requirements, true)
	k.require("/policy/authorityModel", p.Policy.AuthorityModel == "explicit-pinned-provider", "is %q; use explicit-pinned-provider", p.Policy.AuthorityModel)
	k.require("/policy/policyChangeActivation", p.Policy.PolicyChangeActivation == "base-policy-two-phase", "is %q; use base-policy-two-phase", p.Policy.PolicyChangeActivation)
	k.require("/policy/candidatePolicyAuthority", p.Policy.CandidatePolicyAuthority == "trusted-base-or-organization-floor", "is %q; use trusted-base-or-organization-floor", p.Policy.CandidatePolicyAuthority)
	m := p.Policy.MissingHost
	k.require("/policy/missingHost/gate", m.Gate == "fail-closed", "is %q; a gate without a host is always fail-closed", m.Gate)
	for site, v := range map[string]string{"interactive": m.Interactive, "sweep": m.Sweep} {
		k.require("/policy/missingHost/"+site, v == "fail-closed" || v == "warn-open", "is %q; use warn-open or fail-closed", v)
	}
	k.budgets("/budgets", p.Budgets)
	if a := p.Adapters; a != nil {
		for name, ad := range map[string]*schemas.PolicyAdapter{"mcp": a.MCP, "acp": a.ACP} {
			if ad != nil && ad.Mode != "" {
				k.require("/adapters/"+name+"/mode", slices.Contains([]string{"inspect-status-only", "full-outer-seam", "mcp-extension-candidate"}, ad.Mode), "is %q", ad.Mode)
			}
		}
	}
	return &p, k.result(name, raw)
}

func (k *checks) provider(at string, p Provider) {
	k.require(at+"/id", p.ID != "" && !strings.ContainsAny(p.ID, "/ \t\n\x00") && len(p.ID) <= 100, "is %q; use a short name without spaces and slashes", p.ID)
	k.require(at+"/version", p.Version != "", "is empty; pin the version that the provider reports")
	k.require(at+"/executable", filepath.IsAbs(p.Executable), "is %q; give an absolute path, nothing is looked up in PATH", p.Executable)
	k.require(at+"/artifactDir", p.ArtifactDir == "" || filepath.IsAbs(p.ArtifactDir), "is %q; give an absolute path", p.ArtifactDir)
	k.require(at+"/digest", isDigest(p.Digest), "is %q; use sha256:<64 hex digits> (aspis provider pin prints it)", p.Digest)
	k.require(at+"/capabilities", len(p.Capabilities) > 0, "is empty; name at least one of inspect, check, edit")
	for i, c := range p.Capabilities {
		k.require(fmt.Sprintf("%s/capabilities/%d", at, i), slices.Contains(schemas.CapabilityFamilies[:], c), "is %q; use inspect, check or edit", c)
	}
	k.require(at+"/runtime", p.Runtime == "" || p.Runtime == "container" || p.Runtime == "process", "is %q; use container, or process for no walls", p.Runtime)
	k.require(at+"/workspace", p.Workspace == "" || p.Workspace == "snapshot" || p.Workspace == "callbacks", "is %q; use snapshot or callbacks", p.Workspace)
	k.require(at+"/scope", p.Scope == "" || p.Scope == "changeset" || p.Scope == "workspace" || p.Scope == "impacted", "is %q; use changeset, workspace or impacted", p.Scope)
	for name := range p.Environment {
		k.require(at+"/environment", name != "" && !strings.ContainsAny(name, "=\x00"), "has the name %q", name)
	}
	if len(p.Configuration) > 0 {
		k.require(at+"/configuration", p.Configuration.Kind() == '{', "is not an object")
	}
	if p.Permissions != nil && p.Permissions.Network != nil && *p.Permissions.Network {
		k.require(at+"/permissions/networkAllowlist", len(p.Permissions.NetworkAllowlist) > 0, "is empty although network is true; name the destinations")
	}
}

func (k *checks) requirements(at string, list []schemas.Requirement) {
	ids := map[string]bool{}
	for i, r := range list {
		p := fmt.Sprintf("%s/%d", at, i)
		k.require(p+"/id", r.ID != "", "is empty")
		k.require(p+"/id", !ids[r.ID], "defines the requirement %q twice", r.ID)
		ids[r.ID] = true
		k.require(p+"/capabilities", len(r.Capabilities) > 0, "is empty; name at least one of inspect, check, edit")
		for j, c := range r.Capabilities {
			k.require(fmt.Sprintf("%s/capabilities/%d", p, j), slices.Contains(schemas.CapabilityFamilies[:], c), "is %q; use inspect, check or edit", c)
		}
		k.require(p+"/assurance", len(r.Assurance) > 0, "is empty; name at least one mode that is acceptable")
		for j, m := range r.Assurance {
			k.require(fmt.Sprintf("%s/assurance/%d", p, j), m.Rank() >= 0, "is %q; use advisory, gated, mediated-write or isolated", m)
		}
		k.require(p+"/authority/providers", len(r.Authority.Providers) > 0, "is empty; pin at least one provider")
		for j, pin := range r.Authority.Providers {
			q := fmt.Sprintf("%s/authority/providers/%d", p, j)
			k.require(q+"/id", pin.ID != "", "is empty")
			k.require(q+"/version", pin.Version != "", "is empty; pin a version")
			k.require(q+"/integrity", isDigest(pin.Integrity), "is %q; use sha256:<64 hex digits>", pin.Integrity)
		}
	}
}

// gates checks that what a gate names is defined in the same file; own is false
// for trusted configuration, whose gates may name a repository's requirements.
func (k *checks) gates(at string, g *schemas.PolicyGates, defined []schemas.Requirement, own bool) {
	if g == nil {
		return
	}
	ids := map[string]bool{}
	for _, r := range defined {
		ids[r.ID] = true
	}
	for site, gate := range map[string]schemas.PolicyGate{"interactive": g.Interactive, "gate": g.Gate, "sweep": g.Sweep} {
		for kind, list := range map[string][]string{"requiredRequirements": gate.RequiredRequirements, "optionalRequirements": gate.OptionalRequirements} {
			for i, id := range list {
				k.require(fmt.Sprintf("%s/%s/%s/%d", at, site, kind, i), !own || ids[id], "names the requirement %q, which is not defined", id)
			}
		}
	}
}

func (k *checks) budgets(at string, b *schemas.PolicyBudgets) {
	if b == nil {
		return
	}
	for name, v := range map[string]*int{"interactiveMs": b.InteractiveMs, "gateMs": b.GateMs, "sweepMs": b.SweepMs} {
		k.require(at+"/"+name, v == nil || (*v >= 1 && *v <= 24*3600*1000), "is out of range; use 1 to 86400000 milliseconds")
	}
}

func isDigest(s string) bool {
	h, ok := strings.CutPrefix(s, "sha256:")
	return ok && len(h) == 64 && strings.Trim(h, "0123456789abcdef") == ""
}

func isSeverity(s schemas.Severity) bool {
	return s == schemas.SeverityError || s == schemas.SeverityWarning || s == schemas.SeverityInfo
}
