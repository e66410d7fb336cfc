package schemas

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Methods of the inner seam.
const (
	MethodInitialize         = "initialize"
	MethodInitialized        = "initialized"
	MethodShutdown           = "shutdown"
	MethodExit               = "exit"
	MethodCheckEvaluate      = "check/evaluate"
	MethodJudgeEvaluate      = "judge/evaluate"
	MethodEditPropose        = "edit/propose"
	MethodActPropose         = "act/propose"
	MethodListTree           = "workspace/listTree"
	MethodReadBlob           = "workspace/readBlob"
	MethodPutBlob            = "workspace/putBlob"
	MethodBaselineChanged    = "workspace/baselineChanged"
	MethodLogMessage         = "window/logMessage"
	MethodPublishDiagnostics = "judge/publishDiagnostics"
	MethodCancelRequest      = "$/cancelRequest"
	MethodProgress           = "$/progress"
)

// Inspect methods of the inner seam.
const (
	MethodReferences = "sense/references"
	MethodCallers    = "sense/callers"
	MethodCallees    = "sense/callees"
	MethodSymbols    = "sense/symbols"
	MethodImpact     = "sense/impact"
	MethodQuery      = "sense/query"
)

// InitializeParams opens a conversation with a provider.
type InitializeParams struct {
	ProtocolVersion  string         `json:"protocolVersion"`
	Host             NameVersion    `json:"host"`
	Workspace        Workspace      `json:"workspace"`
	HostCapabilities jsontext.Value `json:"hostCapabilities,omitzero"`
	AssuranceMode    AssuranceMode  `json:"assuranceMode,omitzero"`
	AuthorityMode    string         `json:"authorityMode,omitzero"`
	TrustTier        string         `json:"trustTier,omitzero"`
}

// NameVersion identifies a program to a reader; it proves nothing.
type NameVersion struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Workspace is the place a provider is asked about. Root is a path inside the
// provider's own view, never one of the host.
type Workspace struct {
	Root     string   `json:"root"`
	Baseline Baseline `json:"baseline"`
}

// InitializeResult is what a provider says of itself; none of it is trust.
type InitializeResult struct {
	ServerInfo           ServerInfo         `json:"serverInfo"`
	CapabilityFamilies   []CapabilityFamily `json:"capabilityFamilies"`
	Capabilities         Capabilities       `json:"capabilities"`
	Roles                []string           `json:"roles,omitzero"`
	RequestedPermissions *Permissions       `json:"requestedPermissions,omitzero"`
	Provenance           *Provenance        `json:"provenance,omitzero"`
}

// ServerInfo names a provider's build; Fingerprint is a content hash of it.
type ServerInfo struct {
	Name        string `json:"name"`
	Version     string `json:"version"`
	Fingerprint string `json:"fingerprint"`
}

// Provenance is a provider's own word on where it comes from.
type Provenance struct {
	Publisher string `json:"publisher,omitzero"`
	Signature string `json:"signature,omitzero"`
}

// Capabilities lists what a provider offers. Sense, Judge and Act are old names.
type Capabilities struct {
	Inspect   *InspectCapability `json:"inspect,omitzero"`
	Check     *CheckCapability   `json:"check,omitzero"`
	Edit      *EditCapability    `json:"edit,omitzero"`
	Sense     *InspectCapability `json:"sense,omitzero"`
	Judge     *CheckCapability   `json:"judge,omitzero"`
	Act       *EditCapability    `json:"act,omitzero"`
	Watch     *WatchCapability   `json:"watch,omitzero"`
	Transport []string           `json:"transport,omitzero"`
}

// WatchCapability tells whether a provider pushes ambient diagnostics.
type WatchCapability struct {
	Push *bool `json:"push,omitzero"`
}

// CheckCapability describes check/evaluate.
type CheckCapability struct {
	CapabilityVersion    string       `json:"capabilityVersion"`
	DiagnosticSources    []string     `json:"diagnosticSources"`
	Scopes               []string     `json:"scopes"`
	Comparisons          []Comparison `json:"comparisons"`
	PartialResults       bool         `json:"partialResults"`
	Incremental          bool         `json:"incremental"`
	UnsupportedReporting string       `json:"unsupportedReporting"`
	Fixes                *bool        `json:"fixes,omitzero"`
}

// EditCapability describes edit/propose.
type EditCapability struct {
	CapabilityVersion        string           `json:"capabilityVersion"`
	Operations               []string         `json:"operations"`
	OperationSupport         OperationSupport `json:"operationSupport"`
	TextEditSupport          bool             `json:"textEditSupport"`
	WholeResourceSupport     bool             `json:"wholeResourceSupport"`
	RenameMoveSupport        bool             `json:"renameMoveSupport"`
	PreconditionSupport      string           `json:"preconditionSupport"`
	BlobUploadSupport        string           `json:"blobUploadSupport"`
	PartialProposalSemantics string           `json:"partialProposalSemantics"`
	Scopes                   []string         `json:"scopes,omitzero"`
}

// OperationSupport tells which kinds of change an edit provider makes.
type OperationSupport struct {
	Create bool `json:"create"`
	Modify bool `json:"modify"`
	Delete bool `json:"delete"`
	Rename bool `json:"rename"`
	Move   bool `json:"move"`
}

// InspectCapability describes the sense/* methods.
type InspectCapability struct {
	Verbs          []string      `json:"verbs,omitzero"`
	Query          []string      `json:"query,omitzero"`
	Scopes         []string      `json:"scopes,omitzero"`
	PartialResults *bool         `json:"partialResults,omitzero"`
	Graph          *GraphSupport `json:"graph,omitzero"`
}

// GraphSupport lists the kinds of node and edge an inspect provider knows.
type GraphSupport struct {
	NodeKinds []string `json:"nodeKinds,omitzero"`
	EdgeKinds []string `json:"edgeKinds,omitzero"`
}

// Permissions is what a provider asks for, and what it is granted. In a grant
// ResourceLimits is always present.
type Permissions struct {
	Read             []string        `json:"read,omitzero"`
	Write            *bool           `json:"write,omitzero"`
	Network          *bool           `json:"network,omitzero"`
	NetworkAllowlist []Destination   `json:"networkAllowlist,omitzero"`
	ResourceLimits   *ResourceLimits `json:"resourceLimits,omitzero"`
}

// Destination is one allowed network peer.
type Destination struct {
	Host  string `json:"host"`
	Port  *int   `json:"port,omitzero"`
	Proto string `json:"proto,omitzero"`
}

// ResourceLimits bound a provider: per cent of one CPU, mebibytes,
// milliseconds, open files.
type ResourceLimits struct {
	CPUPct      *int `json:"cpuPct,omitzero"`
	MemoryMB    *int `json:"memoryMb,omitzero"`
	WallclockMs *int `json:"wallclockMs,omitzero"`
	FD          *int `json:"fd,omitzero"`
}

// InitializedParams closes the handshake with the grant.
type InitializedParams struct {
	GrantedPermissions Permissions `json:"grantedPermissions"`
	Baseline           Baseline    `json:"baseline"`
}

// Comparison tells which findings are wanted.
type Comparison string

const (
	Introduced Comparison = "introduced"
	All        Comparison = "all"
	Resolved   Comparison = "resolved"
)

// Scope is "changeset", "workspace" or {paths:[…]}: exactly one of the two
// members is set.
type Scope struct {
	Name  string
	Paths []string
}

// CheckParams asks for an Assessment of a change.
type CheckParams struct {
	ChangeSet         ChangeSet      `json:"changeset"`
	Scope             Scope          `json:"scope"`
	Comparison        Comparison     `json:"comparison"`
	Configuration     jsontext.Value `json:"configuration,omitzero"`
	DiagnosticSources []string       `json:"diagnosticSources,omitzero"`
	Rules             []string       `json:"rules,omitzero"`
	PriorDiagnostics  []Diagnostic   `json:"priorDiagnostics,omitzero"`
	PriorAssessments  []Assessment   `json:"priorAssessments,omitzero"`
}

// Assessment is a check provider's whole answer. It is evidence, not a decision.
type Assessment struct {
	Status      Status             `json:"status"`
	Diagnostics []Diagnostic       `json:"diagnostics"`
	Coverage    AssessmentCoverage `json:"coverage"`
	ValidAsOf   CheckValidAsOf     `json:"validAsOf"`
	Provider    CheckProvider      `json:"provider"`
	Timing      AssessmentTiming   `json:"timing"`
	Cache       Cache              `json:"cache"`
	Evidence    []EvidenceItem     `json:"evidence,omitzero"`
}

// AssessmentCoverage is what a provider says it looked at.
type AssessmentCoverage struct {
	Requested   CoveragePart  `json:"requested"`
	Covered     CoveragePart  `json:"covered"`
	Degraded    []Degradation `json:"degraded"`
	Unsupported []Degradation `json:"unsupported"`
	Exhaustive  bool          `json:"exhaustive"`
	Truncated   bool          `json:"truncated"`
}

// CoveragePart is one side of requested and covered.
type CoveragePart struct {
	Scope             Scope      `json:"scope"`
	DiagnosticSources []string   `json:"diagnosticSources"`
	Rules             []string   `json:"rules"`
	Comparison        Comparison `json:"comparison"`
}

// CheckValidAsOf binds an Assessment to what it was made from: Blobs are every
// one that the provider read.
type CheckValidAsOf struct {
	Baseline        Baseline  `json:"baseline"`
	ChangesetDigest string    `json:"changesetDigest"`
	Blobs           []BlobRef `json:"blobs"`
}

// CheckProvider is a provider's name for the build and configuration that answered.
type CheckProvider struct {
	ID                string           `json:"id"`
	Version           string           `json:"version"`
	ConfigDigest      string           `json:"configDigest"`
	CapabilityVersion string           `json:"capabilityVersion"`
	BuildDigest       string           `json:"buildDigest,omitzero"`
	ArtifactDigest    string           `json:"artifactDigest,omitzero"`
	CapabilityFamily  CapabilityFamily `json:"capabilityFamily,omitzero"`
}

// AssessmentTiming has elapsedMs, or startedAt with endedAt, or all three.
type AssessmentTiming struct {
	ElapsedMs *float64   `json:"elapsedMs,omitzero"`
	StartedAt *time.Time `json:"startedAt,omitzero"`
	EndedAt   *time.Time `json:"endedAt,omitzero"`
}

// Cache tells whether an answer was made anew.
type Cache struct {
	Status      string     `json:"status"`
	Key         string     `json:"key,omitzero"`
	Digest      string     `json:"digest,omitzero"`
	RefreshedAt *time.Time `json:"refreshedAt,omitzero"`
}

// EvidenceItem backs an Assessment; Data is open but may hold no host-owned field.
type EvidenceItem struct {
	Kind    string         `json:"kind"`
	ID      string         `json:"id,omitzero"`
	Digest  string         `json:"digest,omitzero"`
	URI     string         `json:"uri,omitzero"`
	Message string         `json:"message,omitzero"`
	Data    jsontext.Value `json:"data,omitzero"`
}

// Severity of a diagnostic.
type Severity string

const (
	SeverityError   Severity = "error"
	SeverityWarning Severity = "warning"
	SeverityInfo    Severity = "info"
)

// Diagnostic is one finding. Code is <diagnosticSource>/<rule>.
type Diagnostic struct {
	Code            string           `json:"code"`
	Severity        Severity         `json:"severity"`
	Source          string           `json:"source"`
	Message         string           `json:"message"`
	Location        Location         `json:"location"`
	Fingerprint     string           `json:"fingerprint"`
	Introduced      *bool            `json:"introduced,omitzero"`
	Help            string           `json:"help,omitzero"`
	CodeDescription *CodeDescription `json:"codeDescription,omitzero"`
	Fix             *Fix             `json:"fix,omitzero"`
}

// Location is a path and, where known, a range in it.
type Location struct {
	Path  string `json:"path"`
	Range *Range `json:"range,omitzero"`
}

// Range is half-open; lines and characters count from 0.
type Range struct {
	Start Position `json:"start"`
	End   Position `json:"end"`
}

// Position is a line and a character, both counted from 0.
type Position struct {
	Line int `json:"line"`
	Char int `json:"char"`
}

// CodeDescription points to a rule's documentation.
type CodeDescription struct {
	Href string `json:"href,omitzero"`
}

// Fix is exactly one of an edit reference, its old name, or an inline edit.
type Fix struct {
	EditRef       string         `json:"editRef,omitzero"`
	ActRef        string         `json:"actRef,omitzero"`
	Args          jsontext.Value `json:"args,omitzero"`
	WorkspaceEdit *WorkspaceEdit `json:"workspaceEdit,omitzero"`
}

// ListTreeParams asks for the entries inside the grant.
type ListTreeParams struct {
	Globs    []string  `json:"globs,omitzero"`
	Paths    []string  `json:"paths,omitzero"`
	Baseline *Baseline `json:"baseline,omitzero"`
}

// ListTreeResult is filtered to the grant; what is outside is not there.
type ListTreeResult struct {
	Entries   []TreeEntry `json:"entries"`
	Truncated *bool       `json:"truncated,omitzero"`
}

// TreeEntry is one path of a snapshot. Kind is file, dir or symlink.
type TreeEntry struct {
	Path   string  `json:"path"`
	BlobID BlobRef `json:"blobId"`
	Kind   string  `json:"kind"`
}

// ReadBlobParams asks for bytes.
type ReadBlobParams struct {
	Blobs []BlobRef `json:"blobs"`
}

// ReadBlobResult answers in the order asked.
type ReadBlobResult struct {
	Blobs []Blob `json:"blobs"`
}

// Blob carries bytes; Encoding is utf-8 or base64.
type Blob struct {
	ID       BlobRef `json:"id"`
	Encoding string  `json:"encoding"`
	Bytes    string  `json:"bytes"`
}

// PutBlobParams offers bytes for a proposal.
type PutBlobParams struct {
	Blobs []NewBlob `json:"blobs"`
}

// NewBlob is a blob whose id the host computes.
type NewBlob struct {
	Encoding string `json:"encoding"`
	Bytes    string `json:"bytes"`
}

// PutBlobResult names the stored blobs in the order given.
type PutBlobResult struct {
	IDs []BlobRef `json:"ids"`
}

// BaselineChangedParams moves a warm provider to another baseline.
type BaselineChangedParams struct {
	Baseline Baseline `json:"baseline"`
}

// LogMessageParams is a line for the host's log.
type LogMessageParams struct {
	Level   string `json:"level"`
	Message string `json:"message"`
}

// CancelParams names a request by its id, a string or an integer.
type CancelParams struct {
	ID jsontext.Value `json:"id"`
}

// ProgressParams is advice only; the terminal result is the truth.
type ProgressParams struct {
	Token jsontext.Value `json:"token"`
	Value ProgressValue  `json:"value"`
}

// ProgressValue has a kind of report, diagnostics or end.
type ProgressValue struct {
	Kind        string       `json:"kind"`
	Percentage  *float64     `json:"percentage,omitzero"`
	Message     string       `json:"message,omitzero"`
	Diagnostics []Diagnostic `json:"diagnostics,omitzero"`
}

// PublishDiagnosticsParams is ambient and never gates.
type PublishDiagnosticsParams struct {
	URI         string       `json:"uri"`
	ValidAsOf   ValidAsOf    `json:"validAsOf"`
	Diagnostics []Diagnostic `json:"diagnostics"`
}
