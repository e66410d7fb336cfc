package schemas

import (
	"encoding/base64"
	"errors"
	"fmt"
	"unicode/utf8"
)

// DecodeChangeSet reads a ChangeSet.
func DecodeChangeSet(raw []byte, lim Limits) (*ChangeSet, error) {
	return decodeMessage(raw, lim, ValidateChangeSet)
}

// ValidateChangeSet checks the rules of asp-wire, ChangeSet.
func ValidateChangeSet(cs *ChangeSet) error {
	c := &checker{}
	c.changeSet("", cs)
	return c.result()
}

func (c *checker) changeSet(at string, cs *ChangeSet) {
	c.baseline(at+"/baseline", cs.Baseline)
	seen := map[string]bool{}
	once := func(ptr, p string) {
		if seen[p] {
			c.fail(ptr, "is touched by two changes")
		}
		seen[p] = true
	}
	for i, ch := range cs.Changes {
		ptr := fmt.Sprintf("%s/changes/%d", at, i)
		c.path(ptr+"/path", ch.Path)
		once(ptr+"/path", ch.Path)
		needs := func(name string, have, want bool) {
			if have != want && want {
				c.fail(ptr, "a %s needs %s", ch.Kind, name)
			} else if have != want {
				c.fail(ptr, "a %s has no %s", ch.Kind, name)
			}
		}
		switch ch.Kind {
		case ChangeCreate:
			needs("before", ch.Before != "", false)
			needs("after", ch.After != "", true)
			needs("from", ch.From != "", false)
		case ChangeModify:
			needs("before", ch.Before != "", true)
			needs("after", ch.After != "", true)
			needs("from", ch.From != "", false)
		case ChangeDelete:
			needs("before", ch.Before != "", true)
			needs("after", ch.After != "", false)
			needs("from", ch.From != "", false)
		case ChangeRename:
			needs("from", ch.From != "", true)
			needs("before", ch.Before != "", true)
			if ch.From != "" {
				c.path(ptr+"/from", ch.From)
				once(ptr+"/from", ch.From)
			}
		default:
			oneOf(c, ptr+"/kind", ch.Kind, ChangeCreate, ChangeModify, ChangeDelete, ChangeRename)
		}
		if ch.Before != "" {
			c.blob(ptr+"/before", ch.Before)
		}
		if ch.After != "" {
			c.blob(ptr+"/after", ch.After)
		}
	}
}

// DecodeProposeResult reads an edit provider's answer.
func DecodeProposeResult(raw []byte, lim Limits) (*ProposeResult, error) {
	return decodeMessage(raw, lim, func(r *ProposeResult) error { return ValidateEditPlan(&r.Proposal) })
}

// ValidateEditPlan checks the rules of asp-wire, EditPlan.
func ValidateEditPlan(p *EditPlan) error {
	c := &checker{}
	c.editPlan("", p)
	return c.result()
}

func (c *checker) editPlan(at string, p *EditPlan) {
	c.nonEmpty(at+"/proposalId", p.ProposalID)
	c.nonEmpty(at+"/provider/id", p.Provider.ID)
	c.nonEmpty(at+"/provider/version", p.Provider.Version)
	oneOf(c, at+"/provider/capabilityFamily", p.Provider.CapabilityFamily, Edit)
	c.baseline(at+"/baseline", p.Baseline)
	c.baseline(at+"/validAsOf/baseline", p.ValidAsOf.Baseline)
	c.blobs(at+"/validAsOf/blobs", p.ValidAsOf.Blobs)
	oneOf(c, at+"/status", p.Status, StatusComplete, StatusIncomplete, StatusUnsupported, StatusError, StatusCancelled)
	need := func(status Status, name string, there bool) {
		if p.Status == status && !there {
			c.fail(at+"/status", "is %s, which needs %s", p.Status, name)
		}
	}
	need(StatusComplete, "workspaceEdit", p.WorkspaceEdit != nil)
	need(StatusIncomplete, "incomplete", p.Incomplete != nil)
	need(StatusUnsupported, "unsupported", p.Unsupported != nil)
	need(StatusError, "refusal", p.Refusal != nil)
	need(StatusCancelled, "refusal", p.Refusal != nil)
	for i, t := range p.TouchedResources {
		ptr := fmt.Sprintf("%s/touchedResources/%d", at, i)
		c.path(ptr+"/path", t.Path)
		c.touch(ptr, t.Kind, t.To, t.Precondition)
	}
	if p.WorkspaceEdit != nil {
		c.workspaceEdit(at+"/workspaceEdit", p.WorkspaceEdit)
	}
	if p.Confidence != nil && (*p.Confidence < 0 || *p.Confidence > 1) {
		c.fail(at+"/confidence", "is outside 0 to 1")
	}
	if p.Incomplete != nil {
		oneOf(c, at+"/incomplete/reason", p.Incomplete.Reason, "unresolved-reference", "partial-coverage", "ambiguous-target", "budget-exhausted", "provider-limitation")
	}
	if p.Unsupported != nil {
		oneOf(c, at+"/unsupported/reason", p.Unsupported.Reason, "operation", "language", "resource-kind", "scope", "capability-version")
	}
	if p.Refusal != nil {
		oneOf(c, at+"/refusal/reason", p.Refusal.Reason, "cancelled", "provider-error", "malformed-request", "missing-content", "scope-denied")
	}
	for i, h := range p.ConflictHints {
		oneOf(c, fmt.Sprintf("%s/conflictHints/%d/kind", at, i), h.Kind, "stale-baseline", "overlap", "missing-precondition", "range-drift")
	}
}

// touch checks kind, target and precondition, which must fit each other.
func (c *checker) touch(at string, kind ChangeKind, to string, pre Precondition) {
	oneOf(c, at+"/kind", kind, ChangeCreate, ChangeModify, ChangeDelete, ChangeRename, ChangeMove)
	if (pre.ExpectedDigest != "") == pre.ExpectedAbsence {
		c.fail(at+"/precondition", "must be exactly one of {expectedDigest} and {expectedAbsence: true}")
	}
	if (kind == ChangeCreate) != pre.ExpectedAbsence {
		c.fail(at+"/precondition", "a create expects absence, everything else a digest")
	}
	if pre.ExpectedDigest != "" {
		c.blob(at+"/precondition/expectedDigest", pre.ExpectedDigest)
	}
	moves := kind == ChangeRename || kind == ChangeMove
	if moves != (to != "") {
		c.fail(at+"/to", "belongs to a rename or move, and only there")
	}
	if to != "" {
		c.path(at+"/to", to)
	}
}

func (c *checker) workspaceEdit(at string, w *WorkspaceEdit) {
	c.baseline(at+"/baseline", w.Baseline)
	for i, d := range w.DocumentChanges {
		ptr := fmt.Sprintf("%s/documentChanges/%d", at, i)
		c.path(ptr+"/path", d.Path)
		c.touch(ptr, d.Kind, d.To, d.Precondition)
		if d.After != "" {
			c.blob(ptr+"/after", d.After)
		}
		switch d.Kind {
		case ChangeCreate:
			if d.After == "" || len(d.Edits) > 0 {
				c.fail(ptr, "a create has after and no edits")
			}
		case ChangeModify:
			if (d.After != "") == (len(d.Edits) > 0) {
				c.fail(ptr, "a modify has exactly one of edits and after")
			}
		case ChangeDelete, ChangeRename, ChangeMove:
			if d.After != "" || len(d.Edits) > 0 {
				c.fail(ptr, "a %s has neither after nor edits", d.Kind)
			}
		}
		for k := range d.Edits {
			e := &d.Edits[k]
			ep := fmt.Sprintf("%s/edits/%d", ptr, k)
			c.rng(ep+"/range", &e.Range)
			c.blob(ep+"/rangeBasis", e.RangeBasis)
			oneOf(c, ep+"/coordinateSystem", e.CoordinateSystem, "utf16")
		}
	}
}

// DecodeEvaluateParams reads host/evaluateChangeset.
func DecodeEvaluateParams(raw []byte, lim Limits) (*EvaluateParams, error) {
	return decodeMessage(raw, lim, func(p *EvaluateParams) error {
		c := &checker{}
		c.callSite(p.CallSite)
		c.changeSet("/changeset", &p.ChangeSet)
		if p.Comparison != "" {
			oneOf(c, "/comparison", p.Comparison, All, Introduced)
		}
		c.timeout(p.TimeoutMs)
		return c.result()
	})
}

func (c *checker) callSite(s CallSite) { oneOf(c, "/callSite", s, Interactive, Gate, Sweep) }

func (c *checker) timeout(ms *int) {
	if ms != nil && *ms < 1 {
		c.fail("/timeoutMs", "is %d; it must be at least 1", *ms)
	}
}

// DecodeQueryInspectParams reads host/queryInspect.
func DecodeQueryInspectParams(raw []byte, lim Limits) (*QueryInspectParams, error) {
	return decodeMessage(raw, lim, func(p *QueryInspectParams) error {
		c := &checker{}
		c.callSite(p.CallSite)
		c.timeout(p.TimeoutMs)
		if p.Request.Kind() != '{' {
			c.fail("/request", "is not an object")
		}
		return c.result()
	})
}

// DecodeRequestEditPlanParams reads host/requestEditPlan.
func DecodeRequestEditPlanParams(raw []byte, lim Limits) (*RequestEditPlanParams, error) {
	return decodeMessage(raw, lim, func(p *RequestEditPlanParams) error {
		c := &checker{}
		c.callSite(p.CallSite)
		c.nonEmpty("/operation", p.Operation)
		c.baseline("/baseline", p.Baseline)
		if p.Scope != nil {
			atLeastOne(c, "/scope/paths", p.Scope.Paths)
			for i, path := range p.Scope.Paths {
				c.path(fmt.Sprintf("/scope/paths/%d", i), path)
			}
		}
		return c.result()
	})
}

// DecodeApplyParams reads host/applyProposal.
func DecodeApplyParams(raw []byte, lim Limits) (*ApplyParams, error) {
	return decodeMessage(raw, lim, func(p *ApplyParams) error {
		c := &checker{}
		c.callSite(p.CallSite)
		c.nonEmpty("/proposalId", p.ProposalID)
		oneOf(c, "/intent", p.Intent, "user", "agent", "harness")
		if p.Proposal != nil {
			c.editPlan("/proposal", p.Proposal)
		}
		if p.Edit != nil {
			c.workspaceEdit("/edit", p.Edit)
		}
		return c.result()
	})
}

// DecodePutBlobParams reads a workspace/putBlob callback.
func DecodePutBlobParams(raw []byte, lim Limits) (*PutBlobParams, error) {
	return decodeMessage(raw, lim, func(p *PutBlobParams) error {
		c := &checker{}
		atLeastOne(c, "/blobs", p.Blobs)
		for i, b := range p.Blobs {
			if _, err := b.Content(); err != nil {
				c.fail(fmt.Sprintf("/blobs/%d", i), "%v", err)
			}
		}
		return c.result()
	})
}

// Content decodes the bytes of a blob.
func (b NewBlob) Content() ([]byte, error) {
	switch b.Encoding {
	case "utf-8":
		if !utf8.ValidString(b.Bytes) {
			return nil, errors.New("the bytes are not UTF-8; use base64")
		}
		return []byte(b.Bytes), nil
	case "base64":
		out, err := base64.StdEncoding.DecodeString(b.Bytes)
		if err != nil {
			return nil, fmt.Errorf("the bytes are not base64: %w", err)
		}
		return out, nil
	}
	return nil, fmt.Errorf("the encoding is %.20q; use utf-8 or base64", b.Encoding)
}
