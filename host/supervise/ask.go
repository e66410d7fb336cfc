package supervise

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

// enter waits for this session's turn and makes it ready for a request of a
// capability family on a baseline. done gives the turn back.
func (s *Session) enter(ctx context.Context, method string, family schemas.CapabilityFamily, b schemas.Baseline) (done func(), f *Failure) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		f := s.callFailure(ctx, method, context.Cause(ctx))
		f.Fatal, f.Unasked = false, true // it never got its turn
		return nil, f
	}
	done = func() { <-s.turn }
	switch {
	case !s.Alive():
		f = s.crashed("the request before " + method)
		f.Unasked = true
	case !s.Offers(family):
		f = &Failure{Reason: schemas.ReasonUnsupported, Class: schemas.FailContract, State: s.State(),
			Detail: "it does not offer the " + string(family) + " capability"}
	default:
		f = s.MoveBaseline(ctx, b)
	}
	if f != nil {
		done()
		return nil, f
	}
	return done, nil
}

// retire ends a session whose conversation cannot go on.
func (s *Session) retire(ctx context.Context, f *Failure) {
	if f != nil && f.Fatal {
		s.setState(f.State)
		s.Abort(ctx)
	}
}

// wornServed is how many blobs a session may have been served before it is
// replaced, so that what is remembered of it stays bounded.
const wornServed = 200_000

// Worn reports whether a session has used up half of what it may in all. It
// should be replaced between requests, before one of them hits a limit.
func (s *Session) Worn() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts.callbacks > s.limits.SessionCount/2 || s.counts.bytes > s.limits.SessionBytes/2 || len(s.served) > wornServed
}

// Retire stops a session after the requests that still wait for it, or when ctx
// ends.
func (s *Session) Retire(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
	}
	return s.Stop(context.WithoutCancel(ctx))
}

func (s *Session) begin(c Content, put Putter) *request {
	r := &request{content: c, put: put, served: map[schemas.BlobRef]bool{}, offered: map[schemas.BlobRef]bool{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active = r
	return r
}

// Putter stores the bytes that an edit provider offers for its proposal.
type Putter func(ctx context.Context, b []byte) (schemas.BlobRef, error)

// Answer is a provider's answer to an inspect or edit request. Raw has been
// searched for host-owned fields; its shape is for the caller to decode.
type Answer struct {
	Raw     jsontext.Value
	Failure *Failure
	Elapsed time.Duration
	Served  []schemas.BlobRef
	Offered []schemas.BlobRef // put by the provider for this proposal
}

// Ask makes one inspect or edit request. put is nil unless the provider holds
// an edit grant; then its blobs may be put, and the answer may hold nothing
// that is to be run.
func (s *Session) Ask(ctx context.Context, family schemas.CapabilityFamily, method string, params any, c Content, put Putter) Answer {
	started := time.Now()
	done, f := s.enter(ctx, method, family, c.Baseline())
	if f != nil {
		return Answer{Failure: f, Elapsed: time.Since(started)}
	}
	defer done()
	r := s.begin(c, put)
	raw, err := s.conn.Call(ctx, method, params)
	res := s.end(r)
	a := Answer{Raw: raw, Failure: res.Failure, Served: res.Served, Offered: slices.Sorted(maps.Keys(r.offered)), Elapsed: time.Since(started)}
	if a.Failure == nil && err != nil {
		a.Failure = s.callFailure(ctx, method, err)
	}
	if a.Failure == nil {
		if pointer, found := schemas.ForbiddenField(raw, family == schemas.Edit); found {
			a.Failure = malformed("the answer to %s carries the field %s, which a provider may not send", method, clip(pointer, 200))
		}
	}
	if a.Failure != nil {
		a.Raw = nil
	}
	s.retire(ctx, a.Failure)
	return a
}

// putBlob stores what an edit provider offers for the proposal in hand.
func (s *Session) putBlob(ctx context.Context, r *request, raw jsontext.Value) (any, error) {
	if r.put == nil {
		return nil, scopeDenied("workspace/putBlob needs an edit grant")
	}
	p, err := schemas.DecodePutBlobParams(raw, schemas.Limits{})
	if err != nil {
		return nil, badParams(err)
	}
	res := schemas.PutBlobResult{IDs: make([]schemas.BlobRef, 0, len(p.Blobs))}
	for _, blob := range p.Blobs {
		content, err := blob.Content()
		if err != nil {
			return nil, badParams(err)
		}
		if err := s.charge(r, int64(len(content))); err != nil {
			return nil, err
		}
		ref, err := r.put(ctx, content)
		if err != nil {
			return nil, unavailable(err)
		}
		s.mu.Lock()
		r.offered[ref] = true
		s.mu.Unlock()
		res.IDs = append(res.IDs, ref)
	}
	return res, nil
}
