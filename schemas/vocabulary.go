package schemas

import "time"

// ProtocolVersion and OuterProtocol are the only versions this module speaks;
// there is no partial compatibility (asp-wire, Transport).
const (
	ProtocolVersion = "asp/1.0"
	OuterProtocol   = "asp-outer/1.0"
	ManifestVersion = "asp-server/1.0"
)

// CapabilityFamily is inspect, check or edit.
type CapabilityFamily string

const (
	Inspect CapabilityFamily = "inspect"
	Check   CapabilityFamily = "check"
	Edit    CapabilityFamily = "edit"
)

// CapabilityFamilies lists every family in the order in which it is reported.
var CapabilityFamilies = [...]CapabilityFamily{Inspect, Check, Edit}

// CallSite tells where a decision is used.
type CallSite string

const (
	Interactive CallSite = "interactive"
	Gate        CallSite = "gate"
	Sweep       CallSite = "sweep"
)

// CallSites lists every call-site in the order in which it is reported.
var CallSites = [...]CallSite{Interactive, Gate, Sweep}

// Decision is what the host concluded. Only the host makes one.
type Decision string

const (
	Allow         Decision = "allow"
	Deny          Decision = "deny"
	Indeterminate Decision = "indeterminate"
)

// AssuranceMode tells how strongly a provider was confined.
type AssuranceMode string

const (
	Advisory      AssuranceMode = "advisory"
	Gated         AssuranceMode = "gated"
	MediatedWrite AssuranceMode = "mediated-write"
	Isolated      AssuranceMode = "isolated"
)

// AssuranceModes lists the modes from weakest to strongest.
var AssuranceModes = [...]AssuranceMode{Advisory, Gated, MediatedWrite, Isolated}

// Rank orders modes from 0 (advisory) to 3 (isolated); an unknown mode is -1,
// so that it satisfies nothing.
func (m AssuranceMode) Rank() int {
	for i, x := range AssuranceModes {
		if x == m {
			return i
		}
	}
	return -1
}

// TransactionGuarantee tells what a publish was proved to keep.
type TransactionGuarantee string

const (
	GuaranteeNone                   TransactionGuarantee = "none"
	GuaranteeRollbackAttempted      TransactionGuarantee = "rollback_attempted"
	GuaranteeTextOnlyTransactional  TransactionGuarantee = "text_only_transactional"
	GuaranteeWorkspaceTransactional TransactionGuarantee = "workspace_transactional"
	GuaranteeStagedSnapshot         TransactionGuarantee = "staged_snapshot"
)

// Status is the status of an Assessment or an EditPlan.
type Status string

const (
	StatusComplete    Status = "complete"
	StatusIncomplete  Status = "incomplete"
	StatusUnsupported Status = "unsupported"
	StatusError       Status = "error"
	StatusCancelled   Status = "cancelled"
)

// LifecycleState is where a provider stands in its life.
type LifecycleState string

const (
	StateLaunched     LifecycleState = "launched"
	StateInitializing LifecycleState = "initializing"
	StateInitialized  LifecycleState = "initialized"
	StateActive       LifecycleState = "active"
	StateCancelled    LifecycleState = "cancelled"
	StateShuttingDown LifecycleState = "shutting-down"
	StateExited       LifecycleState = "exited"
	StateCrashed      LifecycleState = "crashed"
	StateTimedOut     LifecycleState = "timed-out"
	StateIncompatible LifecycleState = "incompatible"
	StateMalformed    LifecycleState = "malformed"
	StateUnavailable  LifecycleState = "unavailable"
	StateQuarantined  LifecycleState = "quarantined"
	StateDegraded     LifecycleState = "degraded"
)

// DegradationReason names why coverage is less than it should be.
type DegradationReason string

const (
	ReasonFailOpen                DegradationReason = "fail-open"
	ReasonQuarantined             DegradationReason = "quarantined"
	ReasonCrashed                 DegradationReason = "crashed"
	ReasonSkewed                  DegradationReason = "skewed"
	ReasonMissing                 DegradationReason = "missing"
	ReasonStale                   DegradationReason = "stale"
	ReasonMissingRequiredProvider DegradationReason = "missing-required-provider"
	ReasonStaleBaseline           DegradationReason = "stale-baseline"
	ReasonBlockingDiagnostic      DegradationReason = "blocking-diagnostic"
	ReasonMissingAuthority        DegradationReason = "missing-authority"
	ReasonInsufficientAssurance   DegradationReason = "insufficient-assurance"
	ReasonIncomplete              DegradationReason = "incomplete"
	ReasonUnsupported             DegradationReason = "unsupported"
	ReasonError                   DegradationReason = "error"
	ReasonCancelled               DegradationReason = "cancelled"
	ReasonMalformed               DegradationReason = "malformed"
	ReasonTimedOut                DegradationReason = "timed-out"
	ReasonOptionalDegraded        DegradationReason = "optional-degraded"
	ReasonUnavailable             DegradationReason = "unavailable"
	ReasonIncompatible            DegradationReason = "incompatible"
	ReasonUnsupportedAssurance    DegradationReason = "unsupported-assurance"
	ReasonPolicySelfAuthorization DegradationReason = "policy-self-authorization"
	ReasonDirectWriteRisk         DegradationReason = "direct-write-risk"
	ReasonLatticeFastPath         DegradationReason = "lattice-fast-path"
)

// Degradation is one visible loss of coverage.
type Degradation struct {
	Source        string            `json:"source"`
	Reason        DegradationReason `json:"reason"`
	Detail        string            `json:"detail"`
	Requirement   string            `json:"requirement,omitzero"`
	Capability    CapabilityFamily  `json:"capability,omitzero"`
	ProviderState LifecycleState    `json:"providerState,omitzero"`
}

// Baseline names an immutable snapshot; only the host issues one. Rev is a
// content-addressed tree id such as git:tree:<oid>; Dirty is a digest of what
// lies uncommitted on top of it.
type Baseline struct {
	Rev       string     `json:"rev"`
	Dirty     string     `json:"dirty,omitzero"`
	StampedAt *time.Time `json:"stampedAt,omitzero"`
}

// Same reports whether both name the same snapshot. The time of issue is not
// part of the identity.
func (b Baseline) Same(o Baseline) bool { return b.Rev == o.Rev && b.Dirty == o.Dirty }

// ValidAsOf is the freshness of an answer on the outer seam and in receipts.
type ValidAsOf struct {
	Rev   string    `json:"rev"`
	Blobs []BlobRef `json:"blobs,omitzero"`
}

// AuthorityEvidence tells, axis by axis, what is known of a provider and
// whether policy granted it a requirement.
type AuthorityEvidence struct {
	Identity    string        `json:"identity"`
	Integrity   string        `json:"integrity"`
	Conformance string        `json:"conformance"`
	Isolation   AssuranceMode `json:"isolation"`
	Authority   Authority     `json:"authority"`
}

// Authority is a grant made, or not made, by trusted policy.
type Authority struct {
	Granted      bool     `json:"granted"`
	Requirement  string   `json:"requirement"`
	CallSite     CallSite `json:"callSite,omitzero"`
	PolicyDigest string   `json:"policyDigest,omitzero"`
}

// Assurance is what was achieved, never what was configured.
type Assurance struct {
	Mode                 AssuranceMode        `json:"mode"`
	TransactionGuarantee TransactionGuarantee `json:"transactionGuarantee"`
	Detail               string               `json:"detail,omitzero"`
}

// FailClass sorts an error by whose fault it is.
type FailClass string

const (
	FailHealth   FailClass = "health"
	FailContract FailClass = "contract"
	FailPolicy   FailClass = "policy"
	FailInput    FailClass = "input"
)

// JSON-RPC error codes of ASP 1.0. The failClass is what counts; the code is advice.
const (
	CodeHealthNotReady     = -32010
	CodeStaleBaseline      = -32011
	CodeScopeDenied        = -32012
	CodeInvalidChangeset   = -32013
	CodeUnsupportedVersion = -32014
	CodeBlobUnavailable    = -32015
	CodeCancelled          = -32016
)

// Error is the error object of both seams.
type Error struct {
	Code    int        `json:"code"`
	Message string     `json:"message"`
	Data    *ErrorData `json:"data,omitzero"`
}

// ErrorData carries the class by which an error is handled.
type ErrorData struct {
	FailClass FailClass `json:"failClass"`
	Retryable *bool     `json:"retryable,omitzero"`
	Detail    string    `json:"detail,omitzero"`
}

func (e *Error) Error() string { return e.Message }
