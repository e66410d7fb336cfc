package schemas

import "github.com/go-json-experiment/json/jsontext"

// RepositoryPolicy is .asp/asp.json: logical only, never a way to launch anything.
type RepositoryPolicy struct {
	Schema       string          `json:"$schema,omitzero"`
	ASPVersion   string          `json:"aspVersion"`
	Requirements []Requirement   `json:"requirements"`
	Gates        PolicyGates     `json:"gates"`
	Policy       PolicyRules     `json:"policy"`
	Budgets      *PolicyBudgets  `json:"budgets,omitzero"`
	Adapters     *PolicyAdapters `json:"adapters,omitzero"`
}

// Requirement is something that must be covered, and by whom it may be.
type Requirement struct {
	ID           string               `json:"id"`
	Capabilities []CapabilityFamily   `json:"capabilities"`
	Assurance    []AssuranceMode      `json:"assurance"`
	Authority    RequirementAuthority `json:"authority"`
}

// RequirementAuthority lists the pinned providers of a requirement.
type RequirementAuthority struct {
	Providers []PinnedProvider `json:"providers"`
}

// PinnedProvider pins a provider by identity, version and digest.
type PinnedProvider struct {
	ID          string `json:"id"`
	Version     string `json:"version"`
	Identity    string `json:"identity"`
	Integrity   string `json:"integrity"`
	Conformance string `json:"conformance"`
	Package     string `json:"package,omitzero"`
}

// PolicyGates is the requirements of each call-site.
type PolicyGates struct {
	Interactive PolicyGate `json:"interactive"`
	Gate        PolicyGate `json:"gate"`
	Sweep       PolicyGate `json:"sweep"`
}

// PolicyGate names requirements by id.
type PolicyGate struct {
	RequiredRequirements []string `json:"requiredRequirements"`
	OptionalRequirements []string `json:"optionalRequirements"`
}

// PolicyRules is the fixed part of a policy.
type PolicyRules struct {
	AuthorityModel           string      `json:"authorityModel"`
	PolicyChangeActivation   string      `json:"policyChangeActivation"`
	CandidatePolicyAuthority string      `json:"candidatePolicyAuthority"`
	MissingHost              MissingHost `json:"missingHost"`
}

// MissingHost tells what to do where no host runs: warn-open or fail-closed;
// a gate is always fail-closed.
type MissingHost struct {
	Interactive string `json:"interactive"`
	Gate        string `json:"gate"`
	Sweep       string `json:"sweep"`
}

// PolicyBudgets are milliseconds.
type PolicyBudgets struct {
	InteractiveMs *int `json:"interactiveMs,omitzero"`
	GateMs        *int `json:"gateMs,omitzero"`
	SweepMs       *int `json:"sweepMs,omitzero"`
}

// PolicyAdapters switches the other bindings.
type PolicyAdapters struct {
	MCP *PolicyAdapter `json:"mcp,omitzero"`
	ACP *PolicyAdapter `json:"acp,omitzero"`
}

// PolicyAdapter is one binding.
type PolicyAdapter struct {
	Enabled bool   `json:"enabled"`
	Mode    string `json:"mode,omitzero"`
}

// Manifest is asp-server.json: a launch hint, never trust.
type Manifest struct {
	Schema             string             `json:"$schema,omitzero"`
	ManifestVersion    string             `json:"manifestVersion"`
	Server             ManifestServer     `json:"server"`
	ProtocolVersions   []string           `json:"protocolVersions"`
	Capabilities       []CapabilityFamily `json:"capabilities"`
	Entrypoint         Entrypoint         `json:"entrypoint"`
	Artifact           Artifact           `json:"artifact"`
	Provenance         ManifestProvenance `json:"provenance"`
	AccessExpectations AccessExpectations `json:"accessExpectations"`
	Roles              []string           `json:"roles,omitzero"`
	CapabilityProfiles jsontext.Value     `json:"capabilityProfiles,omitzero"`
}

// ManifestServer names the provider.
type ManifestServer struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Entrypoint is how to start it: Bin is absolute, Args is an argv array.
type Entrypoint struct {
	Transport string   `json:"transport"`
	Bin       string   `json:"bin"`
	Args      []string `json:"args"`
}

// Artifact is the digest of what is installed.
type Artifact struct {
	Fingerprint string     `json:"fingerprint"`
	Checksums   []Checksum `json:"checksums,omitzero"`
}

// Checksum is one file's digest.
type Checksum struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
}

// ManifestProvenance is a publisher's word.
type ManifestProvenance struct {
	Publisher string `json:"publisher"`
	Source    string `json:"source"`
	License   string `json:"license"`
	Signature string `json:"signature,omitzero"`
}

// AccessExpectations is what a provider says it needs; it grants nothing.
type AccessExpectations struct {
	Filesystem  FilesystemExpectation  `json:"filesystem"`
	Network     NetworkExpectation     `json:"network"`
	Secrets     SecretsExpectation     `json:"secrets"`
	Environment EnvironmentExpectation `json:"environment"`
	DataClasses []string               `json:"dataClasses"`
}

// FilesystemExpectation lists globs.
type FilesystemExpectation struct {
	Read  []string `json:"read"`
	Write []string `json:"write"`
}

// NetworkExpectation tells whether it calls out, and where.
type NetworkExpectation struct {
	Outbound  bool          `json:"outbound"`
	Allowlist []Destination `json:"allowlist"`
}

// SecretsExpectation names secrets.
type SecretsExpectation struct {
	Names []string `json:"names"`
}

// EnvironmentExpectation names variables; Inherit is always false.
type EnvironmentExpectation struct {
	Inherit   bool     `json:"inherit"`
	Variables []string `json:"variables"`
}
