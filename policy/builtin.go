package policy

import (
	"fmt"

	"github.com/aspis-dev/aspis/schemas"
)

// BuiltinRequirement is what the built-in policy requires.
const BuiltinRequirement = "hygiene"

// Shipped is the provider that comes with aspis, as it is installed.
type Shipped struct {
	ID         string
	Version    string
	Executable string
	Digest     string
}

// Builtin is the trusted configuration of a machine that has none: the shipped
// provider, pinned by its digest, is required at every call-site and must be
// kept at least from writing the worktree.
func Builtin(s Shipped) (*Config, error) {
	if !isDigest(s.Digest) {
		return nil, fmt.Errorf("the digest of the shipped provider is %q", s.Digest)
	}
	p := Provider{
		ID: s.ID, Version: s.Version, Executable: s.Executable, Digest: s.Digest,
		Identity: "aspis:" + s.ID, Conformance: "shipped with aspis",
		Capabilities: []schemas.CapabilityFamily{schemas.Check}, Workspace: "snapshot",
		Permissions: &schemas.Permissions{Read: []string{"**"}},
	}
	required := schemas.PolicyGate{RequiredRequirements: []string{BuiltinRequirement}, OptionalRequirements: []string{}}
	return &Config{
		Version: ConfigVersion, Providers: []Provider{p},
		Requirements: []schemas.Requirement{{
			ID: BuiltinRequirement, Capabilities: []schemas.CapabilityFamily{schemas.Check},
			Assurance: []schemas.AssuranceMode{schemas.MediatedWrite, schemas.Isolated},
			Authority: schemas.RequirementAuthority{Providers: []schemas.PinnedProvider{{
				ID: s.ID, Version: s.Version, Identity: p.Identity, Integrity: s.Digest, Conformance: p.Conformance}}},
		}},
		Gates:  &schemas.PolicyGates{Interactive: required, Gate: required, Sweep: required},
		Grants: []Grant{{Requirement: BuiltinRequirement, CallSites: schemas.CallSites[:], Provider: s.ID, Version: s.Version, Integrity: s.Digest}},
	}, nil
}
