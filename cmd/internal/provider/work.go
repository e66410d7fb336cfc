package provider

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

// job is one accepted request.
type job struct {
	id     jsontext.Value
	method string
	params jsontext.Value
	ctx    context.Context
	done   func()
}

// serves reports whether the handler has a method.
func (s *session) serves(method string) bool {
	switch method {
	case schemas.MethodCheckEvaluate, schemas.MethodJudgeEvaluate:
		return s.handler.Check != nil
	case schemas.MethodEditPropose, schemas.MethodActPropose:
		return s.handler.Propose != nil
	}
	return strings.HasPrefix(method, "sense/") && s.handler.Inspect != nil
}

// accept queues a request. Requests are worked on one after the other, for a
// callback does not say which of them it belongs to.
func (s *session) accept(ctx context.Context, m message) {
	id, err := idOf(m.ID)
	if err != nil {
		return // parse has refused it
	}
	if !s.serves(m.Method) {
		s.fail(m.ID, failure(codeMethodNotFound, schemas.FailContract, "there is no method "+strconv.Quote(clip(m.Method, 80))))
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	j := job{id: m.ID.Clone(), method: m.Method, params: m.Params.Clone(), ctx: ctx, done: func() {
		cancel()
		s.mu.Lock()
		delete(s.accepted, id)
		s.mu.Unlock()
	}}
	s.mu.Lock()
	phase, twice := s.phase, s.accepted[id] != nil
	if phase == ready && !twice {
		s.accepted[id] = cancel
	}
	s.mu.Unlock()
	switch {
	case phase != ready:
		cancel()
		s.fail(m.ID, failure(schemas.CodeHealthNotReady, schemas.FailHealth, "there is no work before initialized and none after shutdown"))
		return
	case twice:
		cancel()
		s.fail(m.ID, failure(codeInvalidRequest, schemas.FailInput, "a request with this id is being worked on"))
		return
	}
	select {
	case s.jobs <- j:
	default:
		j.done()
		s.fail(m.ID, passing(schemas.CodeHealthNotReady, fmt.Sprintf("%d requests are waiting already", maxWaiting)))
	}
}

// work answers accepted requests until ctx ends.
func (s *session) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case j := <-s.jobs:
			result, err := s.run(j)
			// The id is free again before the answer is out, so that a host may use
			// it at once.
			stopped := j.ctx.Err() != nil
			j.done()
			if ctx.Err() != nil {
				return
			}
			s.reply(j.id, result, err, stopped)
		}
	}
}

func (s *session) reply(id jsontext.Value, result any, err error, stopped bool) {
	var typed *schemas.Error
	switch {
	case stopped && !saysCancelled(result):
		s.fail(id, passing(schemas.CodeCancelled, "the request was cancelled"))
	case errors.As(err, &typed):
		s.fail(id, typed)
	case err != nil:
		s.fail(id, failure(codeInternal, schemas.FailHealth, clip(err.Error(), maxDetail)))
	default:
		s.answer(id, result)
	}
}

// saysCancelled reports whether a result tells by itself that it was cancelled.
func saysCancelled(result any) bool {
	switch r := result.(type) {
	case *schemas.Assessment:
		return r != nil && r.Status == schemas.StatusCancelled
	case *schemas.ProposeResult:
		return r != nil && r.Proposal.Status == schemas.StatusCancelled
	}
	return false
}

// run works on one request. A panic is answered as an error: the content that
// caused it is not to end the provider for the requests that follow.
func (s *session) run(j job) (result any, err error) {
	defer func() {
		if p := recover(); p != nil {
			result, err = nil, failure(codeInternal, schemas.FailHealth, "the provider failed inside: "+clip(fmt.Sprint(p), maxDetail))
		}
	}()
	if j.ctx.Err() != nil {
		return nil, j.ctx.Err()
	}
	w := s.workspace(j)
	switch j.method {
	case schemas.MethodCheckEvaluate, schemas.MethodJudgeEvaluate:
		q, bad := decodeCheck(j.params)
		if bad == nil {
			bad = w.fresh(q.ChangeSet.Baseline)
		}
		if bad != nil {
			return nil, bad
		}
		return s.handler.Check(j.ctx, w, q)
	case schemas.MethodEditPropose, schemas.MethodActPropose:
		var p schemas.ProposeParams
		if err := schemas.DecodeRequired(j.params, &p, schemas.Limits{MaxBytes: maxLine}); err != nil {
			return nil, failure(codeInvalidParams, schemas.FailInput, clip(err.Error(), maxDetail))
		}
		if bad := w.fresh(p.Baseline); bad != nil {
			return nil, bad
		}
		return s.handler.Propose(j.ctx, w, &p)
	}
	return s.handler.Inspect(j.ctx, w, j.method, j.params)
}
