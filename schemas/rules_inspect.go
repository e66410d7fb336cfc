package schemas

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// DecodeGraph reads the answer to every inspect method but impact.
func DecodeGraph(raw []byte, lim Limits) (*Graph, error) {
	return decodeMessage(raw, lim, func(g *Graph) error {
		c := &checker{}
		c.graph(g.Nodes, g.Edges, g.ValidAsOf)
		return c.result()
	})
}

// DecodeImpact reads the answer to sense/impact.
func DecodeImpact(raw []byte, lim Limits) (*Impact, error) {
	return decodeMessage(raw, lim, func(m *Impact) error {
		c := &checker{}
		c.graph(append(append([]Node{}, m.ChangedNodes...), m.ImpactedNodes...), m.Edges, m.ValidAsOf)
		for i, p := range m.ImpactedFiles {
			c.path(fmt.Sprintf("/impactedFiles/%d", i), p)
		}
		return c.result()
	})
}

func (c *checker) graph(nodes []Node, edges []Edge, v ValidAsOf) {
	c.nonEmpty("/validAsOf/rev", v.Rev)
	if v.Blobs == nil {
		c.fail("/validAsOf/blobs", "is missing")
	}
	for i, n := range nodes {
		at := fmt.Sprintf("/nodes/%d", i)
		c.nonEmpty(at+"/id", n.ID)
		oneOf(c, at+"/kind", n.Kind, "file", "module", "class", "function", "type", "test")
		c.path(at+"/location/path", n.Location.Path)
		c.rng(at+"/location/range", n.Location.Range)
	}
	for i, e := range edges {
		at := fmt.Sprintf("/edges/%d", i)
		oneOf(c, at+"/kind", e.Kind, "calls", "imports", "inherits", "implements", "contains", "tested-by", "depends-on")
		c.nonEmpty(at+"/from", e.From)
		c.nonEmpty(at+"/to", e.To)
		if e.Location != nil {
			c.path(at+"/location/path", e.Location.Path)
		}
	}
}

// InspectRequest is what host/queryInspect carries in its open request member:
// the inspect method with or without its sense/ prefix, and its params.
type InspectRequest struct {
	Method string
	Params any
}

// withoutMember copies an object but for one of its members.
func withoutMember(raw []byte, name string) (jsontext.Value, error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(raw))
	if d.PeekKind() != '{' {
		return raw, nil // not an object, as the caller's decoder will say
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	out := []byte{'{'}
	for d.PeekKind() != '}' {
		quoted, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		key, err := jsontext.AppendUnquote(nil, quoted)
		if err != nil {
			return nil, err
		}
		quoted = bytes.Clone(quoted)
		value, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		if string(key) == name {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, quoted...), ':'), value...)
	}
	return append(out, '}'), nil
}

// DecodeInspectRequest reads {verb, …params} or {method, params}.
func DecodeInspectRequest(raw []byte, lim Limits) (*InspectRequest, error) {
	var head struct {
		Verb   string         `json:"verb,omitzero"`
		Method string         `json:"method,omitzero"`
		Params jsontext.Value `json:"params,omitzero"`
	}
	if err := scan(raw, lim.withDefaults()); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, decodeError(err)
	}
	name, params := head.Verb, head.Params
	if head.Method != "" {
		name = strings.TrimPrefix(head.Method, "sense/")
	} else {
		var err error
		if params, err = withoutMember(raw, "verb"); err != nil {
			return nil, decodeError(err)
		}
	}
	if len(params) == 0 {
		params = jsontext.Value("{}")
	}
	r := &InspectRequest{Method: "sense/" + name}
	var err error
	switch r.Method {
	case MethodReferences:
		r.Params, err = decodeMessage[ReferencesParams](params, lim, nil)
	case MethodCallers, MethodCallees:
		r.Params, err = decodeMessage[CallsParams](params, lim, nil)
	case MethodSymbols:
		r.Params, err = decodeMessage[SymbolsParams](params, lim, nil)
	case MethodImpact:
		r.Params, err = decodeMessage(params, lim, func(p *ImpactParams) error { return ValidateChangeSet(&p.ChangeSet) })
	case MethodQuery:
		r.Params, err = decodeMessage[QueryParams](params, lim, nil)
	default:
		return nil, &DecodeError{Pointer: "/verb", Detail: fmt.Sprintf("is %.40q; use references, callers, callees, symbols, impact or query", name), Offset: -1}
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}
