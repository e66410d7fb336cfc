package schemas

import (
	"fmt"
	"strings"
)

// Bounds on what a provider may put into one answer, besides its size.
const (
	maxMessage = 64 << 10 // bytes of a message or help text
	maxName    = 1024     // bytes of an id, code, version
)

// DecodeInitializeResult reads a provider's answer to initialize.
func DecodeInitializeResult(raw []byte, lim Limits) (*InitializeResult, error) {
	return decodeMessage(raw, lim, ValidateInitializeResult)
}

// ValidateInitializeResult checks what its shape alone does not.
func ValidateInitializeResult(r *InitializeResult) error {
	c := &checker{}
	c.nonEmpty("/serverInfo/name", r.ServerInfo.Name)
	c.nonEmpty("/serverInfo/version", r.ServerInfo.Version)
	c.nonEmpty("/serverInfo/fingerprint", r.ServerInfo.Fingerprint)
	atLeastOne(c, "/capabilityFamilies", r.CapabilityFamilies)
	unique(c, "/capabilityFamilies", r.CapabilityFamilies)
	for i, f := range r.CapabilityFamilies {
		oneOf(c, fmt.Sprintf("/capabilityFamilies/%d", i), f, Inspect, Check, Edit)
		described := map[CapabilityFamily]bool{
			Inspect: r.Capabilities.Inspect != nil || r.Capabilities.Sense != nil,
			Check:   r.Capabilities.Check != nil || r.Capabilities.Judge != nil,
			Edit:    r.Capabilities.Edit != nil || r.Capabilities.Act != nil,
		}
		if !described[f] {
			c.fail("/capabilities", "does not describe %q, which capabilityFamilies names", string(f))
		}
	}
	for name, k := range map[string]*CheckCapability{"check": r.Capabilities.Check, "judge": r.Capabilities.Judge} {
		if k != nil {
			c.checkCapability("/capabilities/"+name, k)
		}
	}
	for name, k := range map[string]*EditCapability{"edit": r.Capabilities.Edit, "act": r.Capabilities.Act} {
		if k != nil {
			c.editCapability("/capabilities/"+name, k)
		}
	}
	if p := r.RequestedPermissions; p != nil {
		c.permissions("/requestedPermissions", *p)
	}
	return c.result()
}

func (c *checker) checkCapability(at string, k *CheckCapability) {
	c.nonEmpty(at+"/capabilityVersion", k.CapabilityVersion)
	atLeastOne(c, at+"/diagnosticSources", k.DiagnosticSources)
	for i, s := range k.DiagnosticSources {
		if s == "" || strings.Contains(s, "/") {
			c.fail(fmt.Sprintf("%s/diagnosticSources/%d", at, i), "is %.40q; a source is a name without a slash", s)
		}
	}
	atLeastOne(c, at+"/scopes", k.Scopes)
	for i, s := range k.Scopes {
		oneOf(c, fmt.Sprintf("%s/scopes/%d", at, i), s, ScopeChangeset, ScopeWorkspace)
	}
	atLeastOne(c, at+"/comparisons", k.Comparisons)
	for i, s := range k.Comparisons {
		oneOf(c, fmt.Sprintf("%s/comparisons/%d", at, i), s, Introduced, All, Resolved)
	}
	oneOf(c, at+"/unsupportedReporting", k.UnsupportedReporting, "assessment-status")
}

func (c *checker) editCapability(at string, k *EditCapability) {
	c.nonEmpty(at+"/capabilityVersion", k.CapabilityVersion)
	atLeastOne(c, at+"/operations", k.Operations)
	for i, s := range k.Operations {
		oneOf(c, fmt.Sprintf("%s/operations/%d", at, i), s, "rename", "move", "change-signature", "multi-edit", "organize-imports", "replace-resource", "text-edit")
	}
	oneOf(c, at+"/preconditionSupport", k.PreconditionSupport, "required")
	oneOf(c, at+"/blobUploadSupport", k.BlobUploadSupport, MethodPutBlob)
	oneOf(c, at+"/partialProposalSemantics", k.PartialProposalSemantics, "status")
}

func (c *checker) permissions(at string, p Permissions) {
	if p.Network != nil && *p.Network && len(p.NetworkAllowlist) == 0 {
		c.fail(at, "asks for the network without a networkAllowlist")
	}
	for i, d := range p.NetworkAllowlist {
		ptr := fmt.Sprintf("%s/networkAllowlist/%d", at, i)
		c.nonEmpty(ptr+"/host", d.Host)
		if d.Port != nil && (*d.Port < 1 || *d.Port > 65535) {
			c.fail(ptr+"/port", "is %d; a port is 1 to 65535", *d.Port)
		}
		if d.Proto != "" {
			oneOf(c, ptr+"/proto", d.Proto, "https", "http", "tcp")
		}
	}
	if l := p.ResourceLimits; l != nil {
		for name, v := range map[string]*int{"cpuPct": l.CPUPct, "memoryMb": l.MemoryMB, "wallclockMs": l.WallclockMs, "fd": l.FD} {
			if v != nil && *v <= 0 {
				c.fail(at+"/resourceLimits/"+name, "is %d; a limit is above 0", *v)
			}
		}
	}
}

// DecodeAssessment reads a check provider's answer.
func DecodeAssessment(raw []byte, lim Limits) (*Assessment, error) {
	return decodeMessage(raw, lim, ValidateAssessment)
}

// ValidateAssessment checks what its shape alone does not. Whether it may be
// believed (freshness, identity, ownership) is for the host.
func ValidateAssessment(a *Assessment) error {
	c := &checker{}
	oneOf(c, "/status", a.Status, StatusComplete, StatusIncomplete, StatusUnsupported, StatusError, StatusCancelled)
	for i := range a.Diagnostics {
		c.diagnostic(fmt.Sprintf("/diagnostics/%d", i), &a.Diagnostics[i])
	}
	c.part("/coverage/requested", a.Coverage.Requested)
	c.part("/coverage/covered", a.Coverage.Covered)
	c.degradations("/coverage/degraded", a.Coverage.Degraded)
	c.degradations("/coverage/unsupported", a.Coverage.Unsupported)
	c.baseline("/validAsOf/baseline", a.ValidAsOf.Baseline)
	c.digest("/validAsOf/changesetDigest", a.ValidAsOf.ChangesetDigest)
	c.blobs("/validAsOf/blobs", a.ValidAsOf.Blobs)
	c.nonEmpty("/provider/id", a.Provider.ID)
	c.nonEmpty("/provider/version", a.Provider.Version)
	c.nonEmpty("/provider/configDigest", a.Provider.ConfigDigest)
	c.nonEmpty("/provider/capabilityVersion", a.Provider.CapabilityVersion)
	if a.Provider.CapabilityFamily != "" {
		oneOf(c, "/provider/capabilityFamily", a.Provider.CapabilityFamily, Check)
	}
	t := a.Timing
	switch {
	case (t.StartedAt == nil) != (t.EndedAt == nil):
		c.fail("/timing", "has one of startedAt and endedAt without the other")
	case t.ElapsedMs == nil && t.StartedAt == nil:
		c.fail("/timing", "has neither elapsedMs nor startedAt with endedAt")
	case t.ElapsedMs != nil && *t.ElapsedMs < 0:
		c.fail("/timing/elapsedMs", "is negative")
	}
	oneOf(c, "/cache/status", a.Cache.Status, "hit", "miss", "stale", "disabled")
	for i, e := range a.Evidence {
		oneOf(c, fmt.Sprintf("/evidence/%d/kind", i), e.Kind, "trace", "artifact", "metric", "message", "reference")
		if len(e.Data) > 0 && e.Data.Kind() != '{' {
			c.fail(fmt.Sprintf("/evidence/%d/data", i), "is not an object")
		}
	}
	return c.result()
}

func (c *checker) part(at string, p CoveragePart) {
	c.scope(at+"/scope", p.Scope)
	oneOf(c, at+"/comparison", p.Comparison, Introduced, All, Resolved)
}

func (c *checker) scope(at string, s Scope) {
	if s.Name == "" && len(s.Paths) == 0 {
		c.fail(at, "is empty")
	}
	for i, p := range s.Paths {
		c.path(fmt.Sprintf("%s/paths/%d", at, i), p)
	}
}

var reasons = map[DegradationReason]bool{
	ReasonFailOpen: true, ReasonQuarantined: true, ReasonCrashed: true, ReasonSkewed: true, ReasonMissing: true, ReasonStale: true,
	ReasonMissingRequiredProvider: true, ReasonStaleBaseline: true, ReasonBlockingDiagnostic: true, ReasonMissingAuthority: true,
	ReasonInsufficientAssurance: true, ReasonIncomplete: true, ReasonUnsupported: true, ReasonError: true, ReasonCancelled: true,
	ReasonMalformed: true, ReasonTimedOut: true, ReasonOptionalDegraded: true, ReasonUnavailable: true, ReasonIncompatible: true,
	ReasonUnsupportedAssurance: true, ReasonPolicySelfAuthorization: true, ReasonDirectWriteRisk: true, ReasonLatticeFastPath: true,
}

func (c *checker) degradations(at string, list []Degradation) {
	for i, d := range list {
		if !reasons[d.Reason] {
			c.fail(fmt.Sprintf("%s/%d/reason", at, i), "is %.40q, which is no degradation reason", string(d.Reason))
		}
		c.nonEmpty(fmt.Sprintf("%s/%d/source", at, i), d.Source)
	}
}

func (c *checker) diagnostic(at string, d *Diagnostic) {
	if source, rule, ok := strings.Cut(d.Code, "/"); !ok || source == "" || rule == "" || len(d.Code) > maxName {
		c.fail(at+"/code", "is %.80q; a code is <source>/<rule>", d.Code)
	}
	oneOf(c, at+"/severity", d.Severity, SeverityError, SeverityWarning, SeverityInfo)
	c.nonEmpty(at+"/source", d.Source)
	c.nonEmpty(at+"/message", d.Message)
	if len(d.Message) > maxMessage || len(d.Help) > maxMessage {
		c.fail(at, "has a message or help of over %d bytes", maxMessage)
	}
	c.path(at+"/location/path", d.Location.Path)
	c.rng(at+"/location/range", d.Location.Range)
	if d.Fingerprint == "" || len(d.Fingerprint) > maxName {
		c.fail(at+"/fingerprint", "is empty or over %d bytes", maxName)
	}
	if f := d.Fix; f != nil {
		n := 0
		for _, there := range []bool{f.EditRef != "", f.ActRef != "", f.WorkspaceEdit != nil} {
			if there {
				n++
			}
		}
		if n != 1 || (f.WorkspaceEdit != nil && len(f.Args) > 0) {
			c.fail(at+"/fix", "must be exactly one of {editRef, args?}, {actRef, args?}, {workspaceEdit}")
		}
		if f.WorkspaceEdit != nil {
			c.workspaceEdit(at+"/fix/workspaceEdit", f.WorkspaceEdit)
		}
	}
}

// DecodeListTreeParams reads a workspace/listTree callback.
func DecodeListTreeParams(raw []byte, lim Limits) (*ListTreeParams, error) {
	if len(raw) == 0 {
		return &ListTreeParams{}, nil
	}
	return decodeMessage(raw, lim, func(p *ListTreeParams) error {
		c := &checker{}
		for i, path := range p.Paths {
			c.path(fmt.Sprintf("/paths/%d", i), path)
		}
		return c.result()
	})
}

// DecodeReadBlobParams reads a workspace/readBlob callback.
func DecodeReadBlobParams(raw []byte, lim Limits) (*ReadBlobParams, error) {
	return decodeMessage(raw, lim, func(p *ReadBlobParams) error {
		c := &checker{}
		for i, b := range p.Blobs {
			c.blob(fmt.Sprintf("/blobs/%d", i), b)
		}
		return c.result()
	})
}

// DecodeCheckParams reads check/evaluate.
func DecodeCheckParams(raw []byte, lim Limits) (*CheckParams, error) {
	return decodeMessage(raw, lim, func(p *CheckParams) error {
		c := &checker{}
		c.changeSet("/changeset", &p.ChangeSet)
		c.scope("/scope", p.Scope)
		oneOf(c, "/comparison", p.Comparison, Introduced, All, Resolved)
		if len(p.Configuration) > 0 && p.Configuration.Kind() != '{' {
			c.fail("/configuration", "is not an object")
		}
		return c.result()
	})
}
