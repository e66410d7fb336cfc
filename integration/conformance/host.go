package conformance

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json"

	"github.com/aspis-dev/aspis/schemas"
)

// Host is a host under test, seen from a harness.
type Host struct {
	*Peer
	world *World
}

func ask[T any](ctx context.Context, h *Host, method string, params any) (*T, error) {
	raw, err := h.Call(ctx, method, params)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	v := new(T)
	if err := json.Unmarshal(raw, v, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("the answer to %s: %w", method, err)
	}
	return v, nil
}

// Status asks host/status.
func (h *Host) Status(ctx context.Context) (*schemas.HostStatus, error) {
	s, err := ask[schemas.HostStatus](ctx, h, schemas.MethodHostStatus, struct{}{})
	if err != nil {
		return nil, err
	}
	return s, errors.Join(mirror(s.Receipt), wantKind(s.Receipt, schemas.ReceiptStatus))
}

// Capabilities asks host/capabilities.
func (h *Host) Capabilities(ctx context.Context) (*schemas.HostCapabilities, error) {
	c, err := ask[schemas.HostCapabilities](ctx, h, schemas.MethodHostCapabilities, struct{}{})
	if err != nil {
		return nil, err
	}
	return c, errors.Join(coverageHolds(c.Coverage, ""), mirror(c.Receipt), wantKind(c.Receipt, schemas.ReceiptCapabilities))
}

// AuthorityStatus asks host/authority/status.
func (h *Host) AuthorityStatus(ctx context.Context) (*schemas.AuthorityStatus, error) {
	c, err := ask[schemas.AuthorityStatus](ctx, h, schemas.MethodHostAuthorityStatus, struct{}{})
	if err != nil {
		return nil, err
	}
	return c, errors.Join(mirror(c.Receipt), wantKind(c.Receipt, schemas.ReceiptAuthorityStatus))
}

// PutBlobs hands bytes over by aspis/putBlob. A host without that method gets
// them in some way of its own, which the wire leaves open.
func (h *Host) PutBlobs(ctx context.Context, texts ...string) error {
	p := schemas.PutBlobParams{Blobs: []schemas.NewBlob{}}
	for _, t := range texts {
		b := encodeBlob("", t)
		p.Blobs = append(p.Blobs, schemas.NewBlob{Encoding: b.Encoding, Bytes: b.Bytes})
	}
	raw, err := h.Call(ctx, "aspis/putBlob", p)
	if err != nil {
		return fmt.Errorf("aspis/putBlob: %w", err)
	}
	if err := schemas.ValidateSchema("put-blob-result", raw); err != nil {
		return err
	}
	var res schemas.PutBlobResult
	if err := json.Unmarshal(raw, &res); err != nil {
		return err
	}
	for i, t := range texts {
		if i >= len(res.IDs) || res.IDs[i] != schemas.BlobRefOf([]byte(t)) {
			return fmt.Errorf("aspis/putBlob answered %v", res.IDs)
		}
	}
	return nil
}

func encodeBlob(ref schemas.BlobRef, t string) schemas.Blob {
	if utf8.ValidString(t) {
		return schemas.Blob{ID: ref, Encoding: "utf-8", Bytes: t}
	}
	return schemas.Blob{ID: ref, Encoding: "base64", Bytes: base64.StdEncoding.EncodeToString([]byte(t))}
}

// Change describes an after-state by path: new text, or nothing for a deletion.
type Change map[string]*string

func text(s string) *string { return &s }

// ChangeSet puts a change on a baseline; the texts are what has to be handed over.
func (w *World) ChangeSet(b schemas.Baseline, c Change) (cs schemas.ChangeSet, texts []string) {
	cs = schemas.ChangeSet{Baseline: b, Changes: []schemas.Change{}}
	paths := make([]string, 0, len(c))
	for p := range c {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	for _, p := range paths {
		ch := schemas.Change{Path: p, Kind: schemas.ChangeCreate}
		if old, ok := w.Files[p]; ok {
			ch.Kind, ch.Before = schemas.ChangeModify, schemas.BlobRefOf([]byte(old))
		}
		if c[p] == nil {
			ch.Kind = schemas.ChangeDelete
		} else {
			ch.After = schemas.BlobRefOf([]byte(*c[p]))
			texts = append(texts, *c[p])
		}
		cs.Changes = append(cs.Changes, ch)
	}
	return cs, texts
}

// Evaluate hands a change over and asks for a verdict, which must keep every
// rule of the wire.
func (h *Host) Evaluate(ctx context.Context, site schemas.CallSite, c Change, timeoutMs int) (*schemas.Verdict, error) {
	st, err := h.Status(ctx)
	if err != nil {
		return nil, err
	}
	cs, texts := h.world.ChangeSet(st.Workspace.Baseline, c)
	if len(texts) > 0 {
		if err := h.PutBlobs(ctx, texts...); err != nil {
			return nil, err
		}
	}
	p := schemas.EvaluateParams{CallSite: site, ChangeSet: cs}
	if timeoutMs > 0 {
		p.TimeoutMs = &timeoutMs
	}
	return h.EvaluateParams(ctx, p)
}

// EvaluateParams asks for a verdict on exactly these params.
func (h *Host) EvaluateParams(ctx context.Context, p schemas.EvaluateParams) (*schemas.Verdict, error) {
	v, err := ask[schemas.Verdict](ctx, h, schemas.MethodHostEvaluateChangeset, p)
	if err != nil {
		return nil, err
	}
	return v, h.verdictOf(p, v)
}

// verdictOf checks a verdict against the question it answers.
func (h *Host) verdictOf(p schemas.EvaluateParams, v *schemas.Verdict) error {
	request, err := schemas.Digest(p)
	if err != nil {
		return err
	}
	changeset, err := schemas.Digest(p.ChangeSet)
	if err != nil {
		return err
	}
	if v.RequestDigest != request || v.Receipt.RequestDigest != request {
		err = errors.Join(err, fmt.Errorf("requestDigest is not that of the params sent"))
	}
	if v.ChangesetDigest != changeset || v.Receipt.ChangesetDigest != changeset {
		err = errors.Join(err, fmt.Errorf("changesetDigest is not that of the changeset sent"))
	}
	if v.ValidAsOf.Rev != p.ChangeSet.Baseline.Rev {
		err = errors.Join(err, fmt.Errorf("validAsOf is %q, the request was on %q", v.ValidAsOf.Rev, p.ChangeSet.Baseline.Rev))
	}
	if v.CallSite != p.CallSite {
		err = errors.Join(err, fmt.Errorf("callSite is %q, the request's was %q", v.CallSite, p.CallSite))
	}
	return errors.Join(err, VerdictHolds(v))
}

// VerdictHolds checks the rules that join the members of a verdict.
func VerdictHolds(v *schemas.Verdict) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("verdict: "+format, args...)) }
	if v.Pass != (v.Decision == schemas.Allow) {
		bad("pass is %v, the decision %s", v.Pass, v.Decision)
	}
	errs = append(errs, coverageHolds(v.Coverage, v.CallSite), mirror(v.Receipt), wantKind(v.Receipt, schemas.ReceiptEvaluate))
	if !sameJSON(v.Coverage, v.Receipt.Coverage) || v.Receipt.PolicyDigest != v.PolicyDigest || !sameJSON(v.Assurance, v.Receipt.Assurance) ||
		!sameJSON(v.AuthorityEvidence, v.Receipt.AuthorityEvidence) || v.Receipt.CallSite != v.CallSite {
		bad("the receipt tells something else")
	}
	blocking := false
	for _, f := range v.Findings {
		if f.Disposition == schemas.DispositionGating {
			blocking = true
			if f.NextStep == "" || !f.Authority.Authority.Granted {
				bad("a gating finding without next step or authority: %s", f.Diagnostic.Code)
			}
		}
	}
	if v.CallSite == schemas.Gate && v.Decision == schemas.Allow {
		if blocking || len(v.Coverage.Required) == 0 {
			bad("an allow with a gating finding, or with nothing required")
		}
		for _, d := range v.Coverage.Degraded {
			if d.Reason != schemas.ReasonOptionalDegraded {
				bad("an allow at a gate with degraded required coverage: %s %s", d.Source, d.Reason)
			}
		}
		if len(v.AuthorityEvidence) == 0 {
			bad("an allow without authority evidence")
		}
	}
	if v.Decision == schemas.Deny && blocking && !slices.ContainsFunc(v.Coverage.Degraded, func(d schemas.Degradation) bool { return d.Reason == schemas.ReasonBlockingDiagnostic }) {
		bad("a deny for a finding without a blocking-diagnostic degradation")
	}
	return errors.Join(errs...)
}

func coverageHolds(c schemas.HostCoverage, site schemas.CallSite) error {
	var errs []error
	if !slices.Equal(c.Required, c.Enrolled) {
		errs = append(errs, fmt.Errorf("coverage: enrolled %v, required %v", c.Enrolled, c.Required))
	}
	for _, r := range c.Required {
		if !slices.Contains(c.Ran, r) && !slices.ContainsFunc(c.Degraded, func(d schemas.Degradation) bool { return d.Requirement == r || d.Source == r }) {
			errs = append(errs, fmt.Errorf("coverage: %q is required, and neither ran nor degraded", r))
		}
	}
	if c.Exhaustive && len(c.Degraded) > 0 && (site == schemas.Gate || site == "") {
		errs = append(errs, errors.New("coverage: exhaustive, yet degraded"))
	}
	return errors.Join(errs...)
}

// mirror checks that a receipt's failures are its degraded coverage.
func mirror(r schemas.Receipt) error {
	if !sameJSON(r.Failures, r.Coverage.Degraded) {
		return fmt.Errorf("receipt: failures do not mirror the degraded coverage")
	}
	if r.Timing.EndedAt.Before(r.Timing.StartedAt) || r.Timing.ElapsedMs < 0 {
		return fmt.Errorf("receipt: it ended before it started")
	}
	return nil
}

func wantKind(r schemas.Receipt, kind schemas.ReceiptKind) error {
	if r.Kind != kind {
		return fmt.Errorf("receipt: the kind is %q, not %q", r.Kind, kind)
	}
	return nil
}

func sameJSON(a, b any) bool {
	x, errX := schemas.Marshal(a)
	y, errY := schemas.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}
