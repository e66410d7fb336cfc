package schemas

import "github.com/go-json-experiment/json/jsontext"

// Symbol is {id} or {path, position}.
type Symbol struct {
	ID       string    `json:"id,omitzero"`
	Path     string    `json:"path,omitzero"`
	Position *Position `json:"position,omitzero"`
}

// ReferencesParams is sense/references.
type ReferencesParams struct {
	Symbol   Symbol    `json:"symbol"`
	Scope    *Scope    `json:"scope,omitzero"`
	Baseline *Baseline `json:"baseline,omitzero"`
}

// CallsParams is sense/callers and sense/callees.
type CallsParams struct {
	Symbol   Symbol    `json:"symbol"`
	Depth    *int      `json:"depth,omitzero"`
	Baseline *Baseline `json:"baseline,omitzero"`
}

// SymbolsParams is sense/symbols.
type SymbolsParams struct {
	Query    string    `json:"query"`
	Kinds    []string  `json:"kinds,omitzero"`
	Baseline *Baseline `json:"baseline,omitzero"`
}

// ImpactParams is sense/impact.
type ImpactParams struct {
	ChangeSet ChangeSet `json:"changeset"`
	Scope     Scope     `json:"scope"`
	Depth     *int      `json:"depth,omitzero"`
	Baseline  *Baseline `json:"baseline,omitzero"`
}

// QueryParams is sense/query.
type QueryParams struct {
	Verb     string         `json:"verb"`
	Args     jsontext.Value `json:"args"`
	Baseline *Baseline      `json:"baseline,omitzero"`
}

// Graph answers every inspect method but impact.
type Graph struct {
	Nodes     []Node         `json:"nodes,omitzero"`
	Edges     []Edge         `json:"edges,omitzero"`
	Data      jsontext.Value `json:"data,omitzero"`
	ValidAsOf ValidAsOf      `json:"validAsOf"`
}

// Impact answers sense/impact.
type Impact struct {
	ChangedNodes  []Node    `json:"changedNodes"`
	ImpactedNodes []Node    `json:"impactedNodes"`
	ImpactedFiles []string  `json:"impactedFiles"`
	Edges         []Edge    `json:"edges,omitzero"`
	Truncated     *bool     `json:"truncated,omitzero"`
	ValidAsOf     ValidAsOf `json:"validAsOf"`
}

// Node is a thing in the code.
type Node struct {
	ID       string   `json:"id"`
	Kind     string   `json:"kind"`
	Name     string   `json:"name"`
	Location Location `json:"location"`
	Exported *bool    `json:"exported,omitzero"`
	Test     *bool    `json:"test,omitzero"`
}

// Edge relates two nodes.
type Edge struct {
	Kind     string    `json:"kind"`
	From     string    `json:"from"`
	To       string    `json:"to"`
	Location *Location `json:"location,omitzero"`
}
