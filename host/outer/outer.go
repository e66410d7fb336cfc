// Package outer serves the outer seam: a harness speaks JSON-RPC on a stream
// and gets the host's answers (asp-wire, "Outer seam"). It decodes, dispatches
// and turns errors into typed ones; it makes no decision of its own.
package outer

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/host/rpc"
	"github.com/aspis-dev/aspis/schemas"
)

// MethodPutBlob is our own extension, outside ASP 1.0, by which a harness hands
// over the after-blobs of a changeset before it asks for an evaluation.
const MethodPutBlob = "aspis/putBlob"

// Bounds of the outer seam.
const (
	maxLine     = 64 << 20 // bytes of one message from a harness
	maxRequests = 64       // requests worked on at the same time
)

// Host is what the outer seam needs of a host.
type Host interface {
	Status(ctx context.Context) (*schemas.HostStatus, error)
	Capabilities(ctx context.Context) (*schemas.HostCapabilities, error)
	EvaluateChangeset(ctx context.Context, p *schemas.EvaluateParams, raw jsontext.Value) (*schemas.Verdict, error)
	QueryInspect(ctx context.Context, p *schemas.QueryInspectParams, raw jsontext.Value) (*schemas.QueryInspectResult, error)
	RequestEditPlan(ctx context.Context, p *schemas.RequestEditPlanParams, raw jsontext.Value) (*schemas.RequestEditPlanResult, error)
	ApplyProposal(ctx context.Context, p *schemas.ApplyParams, raw jsontext.Value) (*schemas.ApplyResult, error)
	AuthorityStatus(ctx context.Context) (*schemas.AuthorityStatus, error)
	PutBlob(ctx context.Context, b []byte) (schemas.BlobRef, error)
}

// Serve answers requests until the harness closes its side or ctx ends. The
// harness closing its side is a clean end.
func Serve(ctx context.Context, h Host, r io.Reader, w io.Writer) error {
	conn := rpc.New(&server{host: h}, rpc.Options{
		LineBytes: maxLine, Concurrent: maxRequests, Tolerant: true, Cancel: schemas.MethodCancelRequest,
	})
	err := conn.Run(ctx, r, w)
	if errors.Is(err, io.EOF) || ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serve the outer seam: %w", err)
}

type server struct{ host Host }

// Request dispatches one method.
func (s *server) Request(ctx context.Context, method string, raw jsontext.Value) (any, error) {
	result, err := s.dispatch(ctx, method, raw)
	if err != nil && ctx.Err() != nil {
		yes := true
		return nil, &schemas.Error{Code: schemas.CodeCancelled, Message: "the request was cancelled",
			Data: &schemas.ErrorData{FailClass: schemas.FailHealth, Retryable: &yes}}
	}
	return result, err
}

func (s *server) dispatch(ctx context.Context, method string, raw jsontext.Value) (any, error) {
	switch method {
	case schemas.MethodHostStatus:
		return answer(s.host.Status(ctx))
	case schemas.MethodHostCapabilities:
		return answer(s.host.Capabilities(ctx))
	case schemas.MethodHostAuthorityStatus:
		return answer(s.host.AuthorityStatus(ctx))
	case schemas.MethodHostEvaluateChangeset:
		return with(ctx, raw, schemas.DecodeEvaluateParams, s.host.EvaluateChangeset)
	case schemas.MethodHostQueryInspect:
		return with(ctx, raw, schemas.DecodeQueryInspectParams, s.host.QueryInspect)
	case schemas.MethodHostRequestEditPlan:
		return with(ctx, raw, schemas.DecodeRequestEditPlanParams, s.host.RequestEditPlan)
	case schemas.MethodHostApplyProposal:
		return with(ctx, raw, schemas.DecodeApplyParams, s.host.ApplyProposal)
	case MethodPutBlob:
		return s.putBlob(ctx, raw)
	}
	return nil, &schemas.Error{Code: rpc.CodeMethodNotFound, Message: "the host has no such method",
		Data: &schemas.ErrorData{FailClass: schemas.FailContract}}
}

// with decodes strictly and calls.
func with[P, R any](ctx context.Context, raw jsontext.Value, decode func([]byte, schemas.Limits) (*P, error), call func(context.Context, *P, jsontext.Value) (*R, error)) (any, error) {
	p, err := decode(raw, schemas.Limits{MaxBytes: maxLine})
	if err != nil {
		return nil, invalid(err)
	}
	return answer(call(ctx, p, raw))
}

// answer keeps a typed nil from reaching the wire and an untyped error from
// telling more than its message.
func answer[R any](r *R, err error) (any, error) {
	if err == nil {
		return r, nil
	}
	var typed *schemas.Error
	if errors.As(err, &typed) {
		return nil, typed
	}
	return nil, &schemas.Error{Code: rpc.CodeInternalError, Message: "the host could not answer",
		Data: &schemas.ErrorData{FailClass: schemas.FailHealth, Detail: err.Error()}}
}

func invalid(err error) *schemas.Error {
	return &schemas.Error{Code: rpc.CodeInvalidParams, Message: "the params are not valid",
		Data: &schemas.ErrorData{FailClass: schemas.FailInput, Detail: err.Error()}}
}

func (s *server) putBlob(ctx context.Context, raw jsontext.Value) (any, error) {
	p, err := schemas.DecodePutBlobParams(raw, schemas.Limits{MaxBytes: maxLine})
	if err != nil {
		return nil, invalid(err)
	}
	res := schemas.PutBlobResult{IDs: make([]schemas.BlobRef, 0, len(p.Blobs))}
	for _, b := range p.Blobs {
		content, err := b.Content()
		if err != nil {
			return nil, invalid(err)
		}
		ref, err := s.host.PutBlob(ctx, content)
		if err != nil {
			return answer[schemas.PutBlobResult](nil, err)
		}
		res.IDs = append(res.IDs, ref)
	}
	return res, nil
}

// Notification ignores what a harness tells; cancellation is handled below.
func (s *server) Notification(context.Context, string, jsontext.Value) error { return nil }
