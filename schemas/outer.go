package schemas

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Methods of the outer seam.
const (
	MethodHostStatus            = "host/status"
	MethodHostCapabilities      = "host/capabilities"
	MethodHostEvaluateChangeset = "host/evaluateChangeset"
	MethodHostQueryInspect      = "host/queryInspect"
	MethodHostRequestEditPlan   = "host/requestEditPlan"
	MethodHostApplyProposal     = "host/applyProposal"
	MethodHostAuthorityStatus   = "host/authority/status"
)

// HostStatus answers host/status.
type HostStatus struct {
	Host                  HostInfo        `json:"host"`
	Workspace             StatusWorkspace `json:"workspace"`
	Policy                PolicyStatus    `json:"policy"`
	Servers               []Server        `json:"servers"`
	Gates                 GateStates      `json:"gates"`
	Capabilities          HostCaps        `json:"capabilities"`
	AssuranceCapabilities []AssuranceMode `json:"assuranceCapabilities"`
	Receipt               Receipt         `json:"receipt"`
}

// HostInfo names the host. State is ready, degraded or unavailable.
type HostInfo struct {
	Name             string `json:"name"`
	Version          string `json:"version"`
	OuterProtocol    string `json:"outerProtocol"`
	State            string `json:"state"`
	BindingCandidate string `json:"bindingCandidate"`
}

// StatusWorkspace is the workspace as the host last saw it.
type StatusWorkspace struct {
	Root        string   `json:"root"`
	Baseline    Baseline `json:"baseline"`
	ValidAsOf   Baseline `json:"validAsOf"`
	StaleReason string   `json:"staleReason,omitzero"`
}

// PolicyStatus tells which policy is active. Activation is active, pending or rejected.
type PolicyStatus struct {
	Source        string         `json:"source"`
	Activation    string         `json:"activation"`
	PolicyDigest  string         `json:"policyDigest"`
	LocalOverride *LocalOverride `json:"localOverride,omitzero"`
}

// LocalOverride reports .asp/local.json, which never has authority.
type LocalOverride struct {
	Present         bool           `json:"present"`
	Path            jsontext.Value `json:"path,omitzero"`
	AuthorityEffect string         `json:"authorityEffect"`
	Detail          string         `json:"detail,omitzero"`
}

// Server is a provider as the host sees it.
type Server struct {
	ID                         string             `json:"id"`
	Capabilities               []CapabilityFamily `json:"capabilities"`
	State                      string             `json:"state"`
	LifecycleState             LifecycleState     `json:"lifecycleState"`
	CapabilityStates           CapabilityStates   `json:"capabilityStates"`
	RequiredFor                []CallSite         `json:"requiredFor"`
	EnrollmentState            string             `json:"enrollmentState"`
	AuthorityEvidence          AuthorityEvidence  `json:"authorityEvidence"`
	Role                       string             `json:"role,omitzero"`
	Category                   string             `json:"category,omitzero"`
	Coverage                   *HostCoverage      `json:"coverage,omitzero"`
	Manifest                   string             `json:"manifest,omitzero"`
	ManifestState              string             `json:"manifestState,omitzero"`
	AccessExpectationsDeclared *bool              `json:"accessExpectationsDeclared,omitzero"`
	ManifestDetail             *ManifestDetail    `json:"manifestDetail,omitzero"`
	Roles                      []string           `json:"roles,omitzero"`
	Detail                     string             `json:"detail,omitzero"`
}

// ManifestDetail tells where an installed manifest lies; it is metadata only.
type ManifestDetail struct {
	Path            string `json:"path"`
	TrustEffect     string `json:"trustEffect"`
	LaunchAuthority bool   `json:"launchAuthority"`
	GateAuthority   bool   `json:"gateAuthority"`
	Detail          string `json:"detail,omitzero"`
}

// CapabilityStates is a provider's health, family by family.
type CapabilityStates struct {
	Inspect Health `json:"inspect"`
	Check   Health `json:"check"`
	Edit    Health `json:"edit"`
}

// Health is one capability family of one provider.
type Health struct {
	Capability     CapabilityFamily `json:"capability"`
	Advertised     bool             `json:"advertised"`
	Available      bool             `json:"available"`
	LifecycleState LifecycleState   `json:"lifecycleState"`
	Degraded       []Degradation    `json:"degraded"`
}

// GateStates is the readiness of each call-site.
type GateStates struct {
	Interactive GateState `json:"interactive"`
	Gate        GateState `json:"gate"`
	Sweep       GateState `json:"sweep"`
}

// GateState is one call-site's readiness.
type GateState struct {
	Available            bool               `json:"available"`
	RequiredProviders    []string           `json:"requiredProviders"`
	RequiredCapabilities []CapabilityFamily `json:"requiredCapabilities"`
	Degraded             []Degradation      `json:"degraded"`
}

// HostCaps is the composed capabilities of all providers.
type HostCaps struct {
	Inspect Cap `json:"inspect"`
	Check   Cap `json:"check"`
	Edit    Cap `json:"edit"`
}

// Cap is one capability family over all providers.
type Cap struct {
	Available        bool              `json:"available"`
	Providers        []string          `json:"providers"`
	Degraded         []Degradation     `json:"degraded"`
	CapabilityStates []CapabilityState `json:"capabilityStates"`
	RequiredFor      []CallSite        `json:"requiredFor,omitzero"`
	LegacyAliases    []string          `json:"legacyAliases,omitzero"`
}

// CapabilityState is one provider's part in a capability family.
type CapabilityState struct {
	Provider       string           `json:"provider"`
	Role           string           `json:"role"`
	Capability     CapabilityFamily `json:"capability"`
	Advertised     bool             `json:"advertised"`
	Available      bool             `json:"available"`
	LifecycleState LifecycleState   `json:"lifecycleState"`
	Degraded       []Degradation    `json:"degraded"`
}

// HostCapabilities answers host/capabilities.
type HostCapabilities struct {
	Capabilities HostCaps     `json:"capabilities"`
	Sources      []Server     `json:"sources"`
	Coverage     HostCoverage `json:"coverage"`
	LegacyRoles  *LegacyRoles `json:"legacyRoles,omitzero"`
	Receipt      Receipt      `json:"receipt"`
}

// LegacyRoles repeats the families under their old names.
type LegacyRoles struct {
	Sense bool `json:"sense"`
	Judge bool `json:"judge"`
	Act   bool `json:"act"`
}

// EvaluateParams is host/evaluateChangeset.
type EvaluateParams struct {
	CallSite         CallSite   `json:"callSite"`
	ChangeSet        ChangeSet  `json:"changeset"`
	Comparison       Comparison `json:"comparison,omitzero"`
	TimeoutMs        *int       `json:"timeoutMs,omitzero"`
	BasePolicyDigest string     `json:"basePolicyDigest,omitzero"`
}

// Verdict is the decision envelope. Pass is true if and only if Decision is allow.
type Verdict struct {
	Pass              bool                `json:"pass"`
	Decision          Decision            `json:"decision"`
	CallSite          CallSite            `json:"callSite"`
	RequestDigest     string              `json:"requestDigest"`
	Findings          []Finding           `json:"findings"`
	Coverage          HostCoverage        `json:"coverage"`
	PolicyDigest      string              `json:"policyDigest"`
	AuthorityEvidence []AuthorityEvidence `json:"authorityEvidence"`
	ValidAsOf         ValidAsOf           `json:"validAsOf"`
	Assurance         Assurance           `json:"assurance"`
	Receipt           Receipt             `json:"receipt"`
	ChangesetDigest   string              `json:"changesetDigest,omitzero"`
}

// Finding is a diagnostic with what the host makes of it.
type Finding struct {
	Diagnostic     Diagnostic        `json:"diagnostic"`
	Authority      AuthorityEvidence `json:"authority"`
	Disposition    string            `json:"disposition"`
	NextStep       string            `json:"nextStep,omitzero"`
	NextStepOrigin string            `json:"nextStepOrigin,omitzero"`
	SeverityNote   string            `json:"severityNote,omitzero"`
}

// Dispositions of a finding.
const (
	DispositionGating   = "gating"
	DispositionAdvisory = "advisory"
)

// HostCoverage tells what was required and what ran. Enrolled always equals
// Required; every required entry is in Ran or in Degraded.
type HostCoverage struct {
	Exhaustive bool          `json:"exhaustive"`
	Required   []string      `json:"required"`
	Enrolled   []string      `json:"enrolled"`
	Ran        []string      `json:"ran"`
	Degraded   []Degradation `json:"degraded"`
}

// ReceiptKind tells what a receipt is for.
type ReceiptKind string

const (
	ReceiptStatus          ReceiptKind = "status"
	ReceiptCapabilities    ReceiptKind = "capabilities"
	ReceiptEvaluate        ReceiptKind = "evaluate"
	ReceiptInspect         ReceiptKind = "inspect"
	ReceiptEditRequest     ReceiptKind = "edit-request"
	ReceiptApplyAttempt    ReceiptKind = "apply-attempt"
	ReceiptAuthorityStatus ReceiptKind = "authority-status"
	ReceiptProviderFailure ReceiptKind = "provider-failure"
)

// Receipt lets an answer be audited later. PrivateOnly and Experimental are
// always true, TrustArtifact always false: a receipt proves nothing to others.
type Receipt struct {
	ReceiptID          string               `json:"receiptId"`
	IssuedAt           time.Time            `json:"issuedAt"`
	Kind               ReceiptKind          `json:"kind"`
	Host               NameVersion          `json:"host"`
	CapabilityFamily   CapabilityFamily     `json:"capabilityFamily"`
	RequestDigest      string               `json:"requestDigest"`
	ProviderIDs        []string             `json:"providerIds"`
	ProviderProvenance []ProviderProvenance `json:"providerProvenance"`
	PolicyDigest       string               `json:"policyDigest"`
	Baseline           Baseline             `json:"baseline"`
	ValidAsOf          ValidAsOf            `json:"validAsOf"`
	Coverage           HostCoverage         `json:"coverage"`
	AuthorityEvidence  []AuthorityEvidence  `json:"authorityEvidence"`
	Assurance          Assurance            `json:"assurance"`
	Timing             Timing               `json:"timing"`
	Failures           []Degradation        `json:"failures"`
	PrivateOnly        bool                 `json:"privateOnly"`
	Experimental       bool                 `json:"experimental"`
	TrustArtifact      bool                 `json:"trustArtifact"`
	CallSite           CallSite             `json:"callSite,omitzero"`
	ChangesetDigest    string               `json:"changesetDigest,omitzero"`
	ProposalID         string               `json:"proposalId,omitzero"`
}

// ProviderProvenance is one provider's part in a receipt.
type ProviderProvenance struct {
	Provider    string           `json:"provider"`
	Capability  CapabilityFamily `json:"capability"`
	Identity    string           `json:"identity"`
	Integrity   string           `json:"integrity"`
	Conformance string           `json:"conformance,omitzero"`
}

// Timing of an answer, in milliseconds where a number.
type Timing struct {
	StartedAt time.Time `json:"startedAt"`
	EndedAt   time.Time `json:"endedAt"`
	ElapsedMs float64   `json:"elapsedMs"`
}

// QueryInspectParams is host/queryInspect; Request is open.
type QueryInspectParams struct {
	CallSite  CallSite       `json:"callSite"`
	Request   jsontext.Value `json:"request"`
	Baseline  *Baseline      `json:"baseline,omitzero"`
	TimeoutMs *int           `json:"timeoutMs,omitzero"`
}

// QueryInspectResult answers host/queryInspect.
type QueryInspectResult struct {
	Data      InspectData  `json:"data"`
	ValidAsOf ValidAsOf    `json:"validAsOf"`
	Coverage  HostCoverage `json:"coverage"`
	Receipt   Receipt      `json:"receipt"`
}

// InspectData has one entry a provider that answered.
type InspectData struct {
	Results []InspectAnswer `json:"results"`
}

// InspectAnswer is one provider's graph.
type InspectAnswer struct {
	Provider string         `json:"provider"`
	Result   jsontext.Value `json:"result"`
}

// RequestEditPlanParams is host/requestEditPlan.
type RequestEditPlanParams struct {
	CallSite   CallSite       `json:"callSite"`
	Operation  string         `json:"operation"`
	Baseline   Baseline       `json:"baseline"`
	Args       jsontext.Value `json:"args,omitzero"`
	Scope      *EditScope     `json:"scope,omitzero"`
	ProposalID string         `json:"proposalId,omitzero"`
}

// RequestEditPlanResult answers host/requestEditPlan.
type RequestEditPlanResult struct {
	Proposal EditPlan `json:"proposal"`
	Receipt  Receipt  `json:"receipt"`
}

// ApplyParams is host/applyProposal. Intent is user, agent or harness.
type ApplyParams struct {
	CallSite         CallSite       `json:"callSite"`
	ProposalID       string         `json:"proposalId"`
	Intent           string         `json:"intent"`
	Proposal         *EditPlan      `json:"proposal,omitzero"`
	Edit             *WorkspaceEdit `json:"edit,omitzero"`
	BasePolicyDigest string         `json:"basePolicyDigest,omitzero"`
}

// ApplyResult answers host/applyProposal. BaselineAfter is null unless applied.
type ApplyResult struct {
	Applied        bool          `json:"applied"`
	ProposalID     string        `json:"proposalId"`
	BaselineBefore Baseline      `json:"baselineBefore"`
	BaselineAfter  *Baseline     `json:"baselineAfter"`
	Assurance      Assurance     `json:"assurance"`
	Receipt        Receipt       `json:"receipt"`
	Decision       *Verdict      `json:"decision,omitzero"`
	Refusal        *ApplyRefusal `json:"refusal,omitzero"`
}

// ApplyRefusal says why nothing was written.
type ApplyRefusal struct {
	Reason    string          `json:"reason"`
	Detail    string          `json:"detail"`
	Conflicts []ApplyConflict `json:"conflicts,omitzero"`
}

// ApplyConflict is one path that stood in the way.
type ApplyConflict struct {
	Path   string `json:"path"`
	Detail string `json:"detail"`
}

// AuthorityStatus answers host/authority/status.
type AuthorityStatus struct {
	PolicyActivation string   `json:"policyActivation"`
	PolicyDigest     string   `json:"policyDigest"`
	Providers        []Server `json:"providers"`
	Receipt          Receipt  `json:"receipt"`
}
