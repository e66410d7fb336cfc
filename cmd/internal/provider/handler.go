package provider

import (
	"context"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

// Handler is a provider's own part. What is nil is not offered. Each function
// is called for one request at a time. An *schemas.Error is answered as it is,
// any other error as one of health. A function should return soon after its
// context is done; the answer is then "cancelled", unless the function returns
// an Assessment or a plan of that status itself.
type Handler struct {
	// Describe answers initialize. It must be quick: nothing else is answered
	// meanwhile.
	Describe func() schemas.InitializeResult
	// Check answers check/evaluate, and judge/evaluate, its old name.
	Check func(ctx context.Context, w *Workspace, q *CheckRequest) (*schemas.Assessment, error)
	// Propose answers edit/propose, and act/propose, its old name.
	Propose func(ctx context.Context, w *Workspace, p *schemas.ProposeParams) (*schemas.ProposeResult, error)
	// Inspect answers the sense methods. The shape of params depends on the
	// method and is for the provider to decode.
	Inspect func(ctx context.Context, w *Workspace, method string, params jsontext.Value) (any, error)
	// BaselineChanged is told of another baseline, between requests.
	BaselineChanged func(b schemas.Baseline)
}

// CheckRequest is a check/evaluate with the digests that its answer must carry.
type CheckRequest struct {
	schemas.CheckParams
	// ChangesetDigest is over the changeset exactly as it was sent.
	ChangesetDigest string
	// ConfigDigest is over the configuration as it was sent, or over {}.
	ConfigDigest string
}

// decodeCheck reads the parameters and computes the digests.
func decodeCheck(raw jsontext.Value) (*CheckRequest, *schemas.Error) {
	p, err := schemas.DecodeCheckParams(raw, schemas.Limits{MaxBytes: maxLine})
	if err != nil {
		return nil, failure(schemas.CodeInvalidChangeset, schemas.FailInput, clip(err.Error(), maxDetail))
	}
	q := &CheckRequest{CheckParams: *p}
	sent := member(raw, "changeset")
	if q.ChangesetDigest, err = schemas.DigestRaw(sent); err != nil {
		return nil, failure(schemas.CodeInvalidChangeset, schemas.FailInput, clip(err.Error(), maxDetail))
	}
	configuration := p.Configuration
	if len(configuration) == 0 {
		configuration = jsontext.Value("{}")
	}
	if q.ConfigDigest, err = schemas.DigestRaw(configuration); err != nil {
		return nil, failure(codeInvalidParams, schemas.FailInput, "configuration: "+clip(err.Error(), maxDetail))
	}
	return q, nil
}

// maxDetail bounds what is repeated of a peer's mistake, in bytes.
const maxDetail = 300
