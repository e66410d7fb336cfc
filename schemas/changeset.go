package schemas

// BlobRef is blob:sha256:<hex>; the hex is the sha256 of the bytes.
type BlobRef string

// ChangeKind tells what happened to a path.
type ChangeKind string

const (
	ChangeCreate ChangeKind = "create"
	ChangeModify ChangeKind = "modify"
	ChangeDelete ChangeKind = "delete"
	ChangeRename ChangeKind = "rename"
	// ChangeMove exists in edit plans only.
	ChangeMove ChangeKind = "move"
)

// ChangeSet is a baseline overlaid with changes; it never carries bytes.
type ChangeSet struct {
	Baseline Baseline `json:"baseline"`
	Changes  []Change `json:"changes"`
}

// Change is one changed path. Paths are repo-relative and /-separated.
type Change struct {
	Path   string     `json:"path"`
	Kind   ChangeKind `json:"kind"`
	From   string     `json:"from,omitzero"`
	Before BlobRef    `json:"before,omitzero"`
	After  BlobRef    `json:"after,omitzero"`
}
