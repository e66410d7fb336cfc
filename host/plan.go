package host

import (
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/policy"
	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/schemas"
)

// plan is what policy asks of one call-site.
type plan struct {
	site         schemas.CallSite
	digest       string
	budget       time.Duration
	requirements []requirement
}

// requirement is one requirement with the providers that may satisfy it.
type requirement struct {
	ID        string
	required  bool
	accept    []schemas.AssuranceMode
	providers []provider
	rule      policy.Requirement
}

// accepts reports whether an achieved mode is enough.
func (r requirement) accepts(mode schemas.AssuranceMode) bool { return r.rule.Accepts(mode) }

// provider is a provider as trusted configuration describes it.
type provider struct {
	ID, Version   string
	Identity      string
	Digest        string
	Conformance   string
	Capabilities  []schemas.CapabilityFamily
	Executable    string
	Args          []string
	ArtifactDir   string
	Env           []string
	System        bool
	Snapshot      bool // candidate and baseline are mounted in its view
	Runtime       string
	Scope         string
	Configuration jsontext.Value
	Ceiling       schemas.Permissions
	Limits        sandbox.Limits
	least         sandbox.Mode
	fleeting      bool // started for one greeting or question, without its snapshot
	rule          policy.Provider
}

// judging is the plan without the requirements that no judgement of a change can
// meet: one for edits or for inspection alone is met when those are asked for.
func (p plan) judging() plan {
	p.requirements = slices.DeleteFunc(slices.Clone(p.requirements), func(r requirement) bool {
		return !slices.Contains(r.rule.Capabilities, schemas.Check)
	})
	return p
}

// withoutSnapshot is the provider for a greeting or a question that needs no
// view. A session that would see one at other times is not kept.
func (p provider) withoutSnapshot() provider {
	p.fleeting = p.fleeting || p.Snapshot
	p.Snapshot = false
	return p
}

// healthKey tells builds of one provider apart: a new build starts with a clean
// record.
func (p provider) healthKey() string { return p.ID + "@" + p.Digest }

// grantAnswer is what trusted policy says of a provider and a requirement.
type grantAnswer struct {
	granted bool
	why     string
	cap     schemas.Severity
}

// configuration returns what is sent to a provider and the digest it must echo.
func configuration(p provider) (jsontext.Value, string, error) {
	config := p.Configuration
	if len(config) == 0 {
		config = jsontext.Value("{}")
	}
	digest, err := schemas.DigestRaw(config)
	return config, digest, err
}
