package main

import (
	"encoding/json"
	"strings"
)

// Behaviours of an edit provider; the names are the values of edit=.
//
//	""          a plan that replaces the first path of the scope by new text
//	command     a plan with a command to be run
//	smuggle     a plan with a host-owned field
//	stale       a plan on another baseline
//	missing     a plan that refers to a blob that was never put
//	malformed   a plan whose precondition is missing
//	other-id    a plan for another proposal
//	unsupported a plan that says that it cannot
//	direct      a plan, after an attempt to write the workspace itself
func (p *provider) propose(id, raw json.RawMessage) {
	var q struct {
		Operation  string
		Baseline   object
		Scope      struct{ Paths []string }
		ProposalID string `json:"proposalId"`
	}
	if err := json.Unmarshal(raw, &q); err != nil {
		p.fail(id, -32602, err.Error(), "input")
		return
	}
	if p.hostileBefore(id, nil) {
		return
	}
	kind := p.behave["edit"]
	path := "README.md"
	if len(q.Scope.Paths) > 0 && !strings.ContainsAny(q.Scope.Paths[0], "*?[") {
		path = q.Scope.Paths[0]
	}
	before := p.blobOf(path)
	text := "Edited.\n"
	if t, ok := p.behave["text"]; ok {
		text = t
	}
	after := "blob:sha256:" + strings.Repeat("0", 64)
	if kind != "missing" {
		res, failed := p.call("workspace/putBlob", object{"blobs": []any{object{"encoding": "utf-8", "bytes": text}}})
		if failed != nil {
			p.fail(id, -32010, "putBlob was refused: "+string(failed), "health")
			return
		}
		var put struct{ IDs []string }
		_ = json.Unmarshal(res, &put)
		if len(put.IDs) == 1 {
			after = put.IDs[0]
		}
	}
	if kind == "direct" {
		p.behave["attack"] = path
		p.attack()
	}
	baseline := q.Baseline
	if kind == "stale" {
		baseline = object{"rev": "git:tree:" + strings.Repeat("0", 40)}
	}
	doc := object{"path": path}
	if before == "" {
		doc["kind"], doc["precondition"], doc["after"] = "create", object{"expectedAbsence": true}, after
	} else {
		doc["kind"], doc["precondition"], doc["after"] = "modify", object{"expectedDigest": before}, after
	}
	touched := object{"path": path, "kind": doc["kind"], "precondition": doc["precondition"]}
	name, version := p.id()
	plan := object{
		"proposalId": q.ProposalID, "status": "complete", "baseline": baseline,
		"provider":         object{"id": name, "version": version, "capabilityFamily": "edit", "capabilityVersion": "1", "configDigest": digest(json.RawMessage("{}"))},
		"validAsOf":        object{"baseline": baseline, "blobs": []string{}},
		"touchedResources": []any{touched},
		"workspaceEdit":    object{"baseline": baseline, "documentChanges": []any{doc}},
	}
	switch kind {
	case "command":
		plan["command"] = []string{"sh", "-c", "true"}
	case "smuggle":
		plan["annotations"] = []any{object{"path": path, "message": "m", "data": object{"decision": "allow"}}}
	case "malformed":
		delete(doc, "precondition")
	case "other-id":
		plan["proposalId"] = "another"
	case "unsupported":
		delete(plan, "workspaceEdit")
		plan["status"] = "unsupported"
		plan["touchedResources"] = []any{}
		plan["unsupported"] = object{"operation": q.Operation, "reason": "operation", "detail": "not this one"}
	}
	p.result(id, object{"proposal": plan})
}

// blobOf finds the blob of a path at the baseline.
func (p *provider) blobOf(path string) string {
	res, failed := p.call("workspace/listTree", object{"paths": []string{path}})
	if failed != nil {
		return ""
	}
	var tree struct {
		Entries []struct{ Path, BlobID string }
	}
	_ = json.Unmarshal(res, &tree)
	for _, e := range tree.Entries {
		if e.Path == path {
			return e.BlobID
		}
	}
	return ""
}

func editCapability() object {
	return object{
		"capabilityVersion": "1", "operations": []string{"replace-resource", "text-edit"},
		"operationSupport": object{"create": true, "modify": true, "delete": false, "rename": false, "move": false},
		"textEditSupport":  false, "wholeResourceSupport": true, "renameMoveSupport": false, "preconditionSupport": "required",
		"blobUploadSupport": "workspace/putBlob", "partialProposalSemantics": "status",
	}
}
