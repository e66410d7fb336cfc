package main

import (
	"encoding/json"
	"strings"
)

// inspect answers every sense/ method with one node a file of the baseline.
// inspect=stale answers about another baseline, inspect=malformed wrongly.
func (p *provider) inspect(id json.RawMessage, method string, raw json.RawMessage) {
	if p.hostileBefore(id, nil) {
		return
	}
	var q struct {
		Baseline  object
		Changeset struct{ Changes []change }
	}
	_ = json.Unmarshal(raw, &q)
	rev, _ := q.Baseline["rev"].(string)
	if p.behave["inspect"] == "stale" {
		rev = "git:tree:" + strings.Repeat("0", 40)
	}
	valid := object{"rev": rev, "blobs": []string{}}
	if p.behave["inspect"] == "malformed" {
		p.result(id, object{"nodes": "many", "validAsOf": valid})
		return
	}
	if method == "sense/impact" {
		files := []string{}
		for _, c := range q.Changeset.Changes {
			files = append(files, c.Path)
		}
		p.result(id, object{"changedNodes": []any{}, "impactedNodes": []any{}, "impactedFiles": files, "validAsOf": valid})
		return
	}
	res, failed := p.call("workspace/listTree", object{})
	if failed != nil {
		p.fail(id, -32010, "listTree was refused", "health")
		return
	}
	var tree struct{ Entries []struct{ Path, Kind string } }
	_ = json.Unmarshal(res, &tree)
	nodes := []any{}
	for _, e := range tree.Entries {
		if e.Kind == "file" {
			nodes = append(nodes, object{"id": e.Path, "kind": "file", "name": e.Path, "location": object{"path": e.Path}})
		}
	}
	p.result(id, object{"nodes": nodes, "edges": []any{}, "validAsOf": valid})
}
