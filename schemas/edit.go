package schemas

import "github.com/go-json-experiment/json/jsontext"

// ProposeParams asks an edit provider for a plan.
type ProposeParams struct {
	Operation      string         `json:"operation"`
	Baseline       Baseline       `json:"baseline"`
	Scope          EditScope      `json:"scope"`
	ProposalID     string         `json:"proposalId"`
	IdempotencyKey string         `json:"idempotencyKey,omitzero"`
	Args           jsontext.Value `json:"args,omitzero"`
	PriorContext   jsontext.Value `json:"priorContext,omitzero"`
}

// EditScope bounds where a plan may touch.
type EditScope struct {
	Paths            []string `json:"paths"`
	OperationProfile string   `json:"operationProfile,omitzero"`
}

// ProposeResult carries the plan.
type ProposeResult struct {
	Proposal EditPlan `json:"proposal"`
}

// EditPlan is what an edit provider proposes. It writes nothing.
type EditPlan struct {
	ProposalID       string           `json:"proposalId"`
	Provider         EditProvider     `json:"provider"`
	Status           Status           `json:"status"`
	Baseline         Baseline         `json:"baseline"`
	ValidAsOf        EditValidAsOf    `json:"validAsOf"`
	TouchedResources []Touched        `json:"touchedResources"`
	WorkspaceEdit    *WorkspaceEdit   `json:"workspaceEdit,omitzero"`
	Incomplete       *EditIncomplete  `json:"incomplete,omitzero"`
	Unsupported      *EditUnsupported `json:"unsupported,omitzero"`
	Refusal          *EditRefusal     `json:"refusal,omitzero"`
	Error            *EditError       `json:"error,omitzero"`
	ConflictHints    []ConflictHint   `json:"conflictHints,omitzero"`
	Annotations      []EditAnnotation `json:"annotations,omitzero"`
	Confidence       *float64         `json:"confidence,omitzero"`
	Rationale        string           `json:"rationale,omitzero"`
	Warnings         []string         `json:"warnings,omitzero"`
}

// EditProvider is an edit provider's name for its build and configuration.
type EditProvider struct {
	ID                string           `json:"id"`
	Version           string           `json:"version"`
	CapabilityFamily  CapabilityFamily `json:"capabilityFamily"`
	CapabilityVersion string           `json:"capabilityVersion"`
	ConfigDigest      string           `json:"configDigest"`
	BuildDigest       string           `json:"buildDigest,omitzero"`
}

// EditValidAsOf binds a plan to what it was made from.
type EditValidAsOf struct {
	Baseline Baseline  `json:"baseline"`
	Blobs    []BlobRef `json:"blobs"`
}

// Touched is one resource a plan changes, with what must hold before.
type Touched struct {
	Path         string       `json:"path"`
	Kind         ChangeKind   `json:"kind"`
	To           string       `json:"to,omitzero"`
	Precondition Precondition `json:"precondition"`
}

// Precondition is exactly one of the two.
type Precondition struct {
	ExpectedDigest  BlobRef `json:"expectedDigest,omitzero"`
	ExpectedAbsence bool    `json:"expectedAbsence,omitzero"`
}

// WorkspaceEdit is the edit itself, bound to a baseline.
type WorkspaceEdit struct {
	Baseline        Baseline    `json:"baseline"`
	DocumentChanges []DocChange `json:"documentChanges"`
}

// DocChange is one document's change.
type DocChange struct {
	Path         string          `json:"path"`
	Kind         ChangeKind      `json:"kind"`
	Precondition Precondition    `json:"precondition"`
	To           string          `json:"to,omitzero"`
	After        BlobRef         `json:"after,omitzero"`
	Edits        []TextEdit      `json:"edits,omitzero"`
	Annotations  []DocAnnotation `json:"annotations,omitzero"`
}

// DocAnnotation is a remark on a document change.
type DocAnnotation struct {
	Message string         `json:"message"`
	Range   *Range         `json:"range,omitzero"`
	Data    jsontext.Value `json:"data,omitzero"`
}

// TextEdit replaces a range; char counts UTF-16 code units.
type TextEdit struct {
	Range            Range   `json:"range"`
	RangeBasis       BlobRef `json:"rangeBasis"`
	CoordinateSystem string  `json:"coordinateSystem"`
	NewText          string  `json:"newText"`
}

// EditIncomplete says why a plan is partial.
type EditIncomplete struct {
	Reason      string `json:"reason"`
	Detail      string `json:"detail"`
	Recoverable *bool  `json:"recoverable,omitzero"`
}

// EditUnsupported says what the provider cannot do.
type EditUnsupported struct {
	Operation           string   `json:"operation"`
	Reason              string   `json:"reason"`
	Detail              string   `json:"detail"`
	SupportedOperations []string `json:"supportedOperations,omitzero"`
}

// EditRefusal says why the provider made no plan.
type EditRefusal struct {
	Reason string         `json:"reason"`
	Detail string         `json:"detail"`
	Data   jsontext.Value `json:"data,omitzero"`
}

// EditError is a provider's own account of a failure.
type EditError struct {
	Code    string         `json:"code"`
	Message string         `json:"message"`
	Data    jsontext.Value `json:"data,omitzero"`
}

// ConflictHint is a provider's guess at where the plan may clash.
type ConflictHint struct {
	Path   string         `json:"path"`
	Kind   string         `json:"kind"`
	Detail string         `json:"detail"`
	Data   jsontext.Value `json:"data,omitzero"`
}

// EditAnnotation is a remark on a plan.
type EditAnnotation struct {
	Path     string         `json:"path"`
	Message  string         `json:"message"`
	Range    *Range         `json:"range,omitzero"`
	Severity Severity       `json:"severity,omitzero"`
	Data     jsontext.Value `json:"data,omitzero"`
}
