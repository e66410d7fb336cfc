package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/aspis-dev/aspis/host/rpc"
	"github.com/aspis-dev/aspis/schemas"
)

// Failure is a provider's failure in the terms of host-obligations §2: why
// coverage is lost, whose fault that is, and in which state it left the provider.
type Failure struct {
	Reason schemas.DegradationReason
	Class  schemas.FailClass
	State  schemas.LifecycleState
	Detail string
	// Fatal is true when the conversation cannot go on.
	Fatal bool
	// Unasked is true when the request was never put to the provider, which then
	// is not to blame.
	Unasked bool
	// FastPath is true when a provider claimed a result that is the host's to
	// make: a verdict, a decision, a pass.
	FastPath bool
}

func (f *Failure) Error() string { return string(f.Reason) + ": " + f.Detail }

// Degradation puts a failure into words for coverage.
func (f *Failure) Degradation(provider, requirement string, family schemas.CapabilityFamily) schemas.Degradation {
	return schemas.Degradation{
		Source: provider, Reason: f.Reason, Detail: f.Detail,
		Requirement: requirement, Capability: family, ProviderState: f.State,
	}
}

func malformed(format string, args ...any) *Failure {
	return &Failure{Reason: schemas.ReasonMalformed, Class: schemas.FailContract, State: schemas.StateMalformed,
		Detail: fmt.Sprintf(format, args...), Fatal: true}
}

// hostOwned is the failure for a field that a provider may not send.
func hostOwned(what, pointer string) *Failure {
	f := malformed("%s carries the host-owned field %s", what, clip(pointer, 200))
	name := pointer[strings.LastIndexByte(pointer, '/')+1:]
	f.FastPath = name == "pass" || name == "decision" || name == "verdict" || name == "hostDecision" || name == "disposition"
	return f
}

// overBudget is the failure for what a provider does too much of (§8).
func overBudget(what string, limit int64) *Failure {
	return &Failure{Reason: schemas.ReasonError, Class: schemas.FailHealth, State: schemas.StateDegraded,
		Detail: fmt.Sprintf("over budget: more than %d %s", limit, what), Fatal: true}
}

// callFailure explains why a call gave no result.
func (s *Session) callFailure(ctx context.Context, method string, err error) *Failure {
	var own *Failure
	var remote *schemas.Error
	var breach *rpc.Violation
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &remote):
		return remoteFailure(method, remote)
	case errors.As(err, &breach):
		return malformed("%s during %s", breach.Error(), method)
	case errors.Is(err, context.DeadlineExceeded), ctx.Err() != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return &Failure{Reason: schemas.ReasonTimedOut, Class: schemas.FailHealth, State: schemas.StateTimedOut,
			Detail: "no answer to " + method + " within its budget", Fatal: true}
	case ctx.Err() != nil:
		return &Failure{Reason: schemas.ReasonCancelled, Class: schemas.FailHealth, State: schemas.StateCancelled,
			Detail: method + " was cancelled", Fatal: true}
	case errors.Is(err, io.EOF), errors.Is(err, rpc.ErrClosed):
		return s.crashed(method)
	default:
		return s.crashed(method)
	}
}

// remoteFailure sorts an error answer by its failClass; the code is advice,
// used only to tell kinds of the same class apart.
func remoteFailure(method string, e *schemas.Error) *Failure {
	f := &Failure{Class: schemas.FailHealth, State: schemas.StateDegraded, Reason: schemas.ReasonError,
		Detail: fmt.Sprintf("%s answered with error %d: %s", method, e.Code, clip(e.Message, 300))}
	if e.Data != nil {
		f.Class = e.Data.FailClass
	}
	switch e.Code {
	case rpc.CodeMethodNotFound:
		f.Reason, f.Class = schemas.ReasonUnsupported, schemas.FailContract
	case schemas.CodeUnsupportedVersion:
		f.Reason, f.State = schemas.ReasonSkewed, schemas.StateIncompatible
	case schemas.CodeStaleBaseline:
		f.Reason = schemas.ReasonStale
	case schemas.CodeCancelled:
		f.Reason, f.State = schemas.ReasonCancelled, schemas.StateCancelled
	}
	return f
}

func (s *Session) crashed(during string) *Failure {
	f := &Failure{Reason: schemas.ReasonCrashed, Class: schemas.FailHealth, State: schemas.StateCrashed,
		Detail: "the provider ended during " + during, Fatal: true}
	if how := s.exitDetail(); how != "" {
		f.Detail += " (" + how + ")"
	}
	if tail := s.stderr.lastLine(); tail != "" {
		f.Detail += "; its last word: " + tail
	}
	return f
}

// clip bounds a hostile string for a detail; the renderer escapes it.
func clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n]) + "…"
}
