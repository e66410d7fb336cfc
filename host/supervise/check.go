package supervise

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

// CheckRequest is one question to a check provider.
type CheckRequest struct {
	Content Content
	Params  schemas.CheckParams
	// ConfigDigest is the digest of the configuration that is sent.
	ConfigDigest string
	// ChangesetDigest is the digest of the changeset that is sent.
	ChangesetDigest string
	// SeesSnapshot is true when candidate and baseline are mounted in the
	// provider's view, so that it can have read what was not served by callback.
	SeesSnapshot bool
}

// CheckResult is a provider's answer and what it cost.
type CheckResult struct {
	// Assessment is nil unless it has the right shape and is fresh.
	Assessment *schemas.Assessment
	Failure    *Failure
	Elapsed    time.Duration
	Served     []schemas.BlobRef
	Bytes      int64
	Callbacks  int64
	Reissued   bool
}

// Check asks for an Assessment and validates it: shape, host-owned fields,
// identity, configuration, freshness. A stale answer is asked for once more
// while the budget lasts (host-obligations §5).
func (s *Session) Check(ctx context.Context, q CheckRequest) CheckResult {
	started := time.Now()
	done, f := s.enter(ctx, schemas.MethodCheckEvaluate, schemas.Check, q.Params.ChangeSet.Baseline)
	if f != nil {
		return CheckResult{Failure: f, Elapsed: time.Since(started)}
	}
	defer done()
	res := s.checkOnce(ctx, q)
	if res.Failure != nil && res.Failure.Reason == schemas.ReasonStale && ctx.Err() == nil && s.Alive() {
		first := res
		res = s.checkOnce(ctx, q)
		res.Reissued = true
		res.Callbacks += first.Callbacks
		res.Bytes += first.Bytes
	}
	res.Elapsed = time.Since(started)
	s.retire(ctx, res.Failure)
	return res
}

func (s *Session) checkOnce(ctx context.Context, q CheckRequest) CheckResult {
	r := s.begin(q.Content, nil)
	method := schemas.MethodCheckEvaluate
	if info := s.Info(); info.Capabilities.Check == nil && info.Capabilities.Judge != nil {
		method = schemas.MethodJudgeEvaluate
	}
	raw, err := s.conn.Call(ctx, method, q.Params)
	res := s.end(r)
	switch {
	case res.Failure != nil:
	case err != nil:
		res.Failure = s.callFailure(ctx, method, err)
	default:
		res.Assessment, res.Failure = s.judge(ctx, raw, q, r, res.Served)
	}
	return res
}

// end closes a request; what a late callback would still count or be served
// goes nowhere.
func (s *Session) end(r *request) CheckResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active = nil
	return CheckResult{
		Callbacks: r.callbacks, Bytes: r.bytes, Failure: r.over,
		Served: slices.Sorted(maps.Keys(r.served)),
	}
}

// judge validates one answer.
func (s *Session) judge(ctx context.Context, raw jsontext.Value, q CheckRequest, r *request, served []schemas.BlobRef) (*schemas.Assessment, *Failure) {
	if pointer, found := schemas.ForbiddenField(raw, false); found {
		return nil, hostOwned("the assessment", pointer)
	}
	a, err := schemas.DecodeAssessment(raw, schemas.Limits{MaxBytes: s.limits.LineBytes})
	if err != nil {
		return nil, malformed("the assessment is not valid: %v", err)
	}
	if a.Provider.ID != s.launch.ID {
		return nil, malformed("the assessment is signed by %q, not by %q", clip(a.Provider.ID, 80), s.launch.ID)
	}
	if a.Provider.Version != s.launch.Version {
		return nil, malformed("the assessment is of version %q, not %q", clip(a.Provider.Version, 60), s.launch.Version)
	}
	if a.Provider.ConfigDigest != q.ConfigDigest {
		return nil, malformed("its configDigest %s is not that of the configuration sent, %s", clip(a.Provider.ConfigDigest, 80), q.ConfigDigest)
	}
	if why := s.stale(ctx, a, q, r, served); why != "" {
		return nil, &Failure{Reason: schemas.ReasonStale, Class: schemas.FailHealth, State: schemas.StateDegraded, Detail: why}
	}
	return a, nil
}

// stale compares validAsOf exactly with the request: the baseline, the digest
// of the changeset as sent, and the set of blobs against what was really
// served. A warm provider may also name blobs that it was served earlier; one
// that sees the snapshot may name any that the request refers to.
func (s *Session) stale(ctx context.Context, a *schemas.Assessment, q CheckRequest, r *request, served []schemas.BlobRef) string {
	v := a.ValidAsOf
	if !v.Baseline.Same(q.Params.ChangeSet.Baseline) {
		return fmt.Sprintf("validAsOf names the baseline %s, the request was on %s", clip(v.Baseline.Rev, 80), q.Params.ChangeSet.Baseline.Rev)
	}
	if v.ChangesetDigest != q.ChangesetDigest {
		return fmt.Sprintf("validAsOf names the changeset %s, the request sent %s", clip(v.ChangesetDigest, 80), q.ChangesetDigest)
	}
	named := make(map[schemas.BlobRef]bool, len(v.Blobs))
	for _, ref := range v.Blobs {
		named[ref] = true
		if s.wasServed(ref) {
			continue
		}
		if q.SeesSnapshot {
			if paths, err := r.content.Paths(ctx, ref); err == nil && len(paths) > 0 {
				continue
			}
		}
		return fmt.Sprintf("validAsOf names the blob %s, which was never served", clip(string(ref), 80))
	}
	for _, ref := range served {
		if !named[ref] {
			return fmt.Sprintf("validAsOf leaves out the blob %s, which was served", ref)
		}
	}
	return ""
}

func (s *Session) wasServed(ref schemas.BlobRef) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.served[ref]
}
