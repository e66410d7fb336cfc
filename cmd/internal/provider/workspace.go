package provider

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

// maxBatch is how many blobs are asked for at once. The host bounds the bytes
// of an answer and sizes are not known beforehand, so that a batch that is too
// large is halved.
const maxBatch = 32

// Workspace is what one request may see, through the host's callbacks. It is
// safe for use by several goroutines; calls are made one at a time.
type Workspace struct {
	s        *session
	token    jsontext.Value
	grant    schemas.Permissions
	baseline schemas.Baseline

	turn chan struct{} // a callback is under way
	mu   sync.Mutex
	read map[schemas.BlobRef]bool
}

func (s *session) workspace(j job) *Workspace {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Workspace{s: s, token: j.id, grant: s.grant, baseline: s.baseline, turn: make(chan struct{}, 1), read: map[schemas.BlobRef]bool{}}
}

// Grant is what the host allows. It enforces it by itself.
func (w *Workspace) Grant() schemas.Permissions { return w.grant }

// Baseline is the one that the host stands on.
func (w *Workspace) Baseline() schemas.Baseline { return w.baseline }

// fresh refuses a request on another baseline than the host's last word.
func (w *Workspace) fresh(b schemas.Baseline) *schemas.Error {
	if b.Same(w.baseline) {
		return nil
	}
	e := passing(schemas.CodeStaleBaseline, "the request is on another baseline than the workspace")
	e.Data.Detail = clip(fmt.Sprintf("asked on %q, the workspace is at %q", b.Rev, w.baseline.Rev), maxDetail)
	return e
}

// Received lists every blob whose bytes the host has served to this request,
// sorted: what validAsOf must name.
func (w *Workspace) Received() []schemas.BlobRef {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := slices.Sorted(maps.Keys(w.read))
	if out == nil {
		out = []schemas.BlobRef{}
	}
	return out
}

// ReadBlobs hands each blob to fn, in batches and in the order asked. content
// is fn's to keep. What the host refuses reaches fn as an *schemas.Error and
// does not stop the others; an error of fn, a breach of the protocol and the
// end of ctx do.
func (w *Workspace) ReadBlobs(ctx context.Context, refs []schemas.BlobRef, fn func(ref schemas.BlobRef, content []byte, refused *schemas.Error) error) error {
	for batch := range slices.Chunk(refs, maxBatch) {
		if err := w.readBatch(ctx, batch, fn); err != nil {
			return err
		}
	}
	return nil
}

// readBatch halves what the host does not serve in one piece: one blob outside
// the grant refuses the whole answer, as does a sum that is too large.
func (w *Workspace) readBatch(ctx context.Context, refs []schemas.BlobRef, fn func(schemas.BlobRef, []byte, *schemas.Error) error) error {
	contents, err := w.fetch(ctx, refs)
	var refused *schemas.Error
	switch {
	case errors.As(err, &refused) && len(refs) == 1:
		return fn(refs[0], nil, refused)
	case errors.As(err, &refused):
		half := len(refs) / 2
		if err := w.readBatch(ctx, refs[:half], fn); err != nil {
			return err
		}
		return w.readBatch(ctx, refs[half:], fn)
	case err != nil:
		return err
	}
	for _, ref := range refs {
		if err := fn(ref, contents[ref], nil); err != nil {
			return err
		}
		delete(contents, ref)
	}
	return nil
}

// fetch makes one workspace/readBlob and believes nothing of its answer that
// was not asked for or is not the bytes that the name says.
func (w *Workspace) fetch(ctx context.Context, refs []schemas.BlobRef) (map[schemas.BlobRef][]byte, error) {
	raw, err := w.call(ctx, schemas.MethodReadBlob, schemas.ReadBlobParams{Blobs: refs})
	if err != nil {
		return nil, err
	}
	var res schemas.ReadBlobResult
	if err := schemas.DecodeRequired(raw, &res, schemas.Limits{MaxBytes: maxLine}); err != nil {
		return nil, fmt.Errorf("the answer to workspace/readBlob: %w", err)
	}
	out := make(map[schemas.BlobRef][]byte, len(res.Blobs))
	for i := range res.Blobs {
		b := &res.Blobs[i]
		content, err := decodeBlob(b)
		if err != nil {
			return nil, fmt.Errorf("the answer to workspace/readBlob: %w", err)
		}
		if _, twice := out[b.ID]; twice || !slices.Contains(refs, b.ID) {
			return nil, fmt.Errorf("the answer to workspace/readBlob holds %s, which was not asked for", clip(string(b.ID), 90))
		}
		out[b.ID] = content
		b.Bytes = ""
	}
	for _, ref := range refs {
		if _, ok := out[ref]; !ok {
			return nil, fmt.Errorf("the answer to workspace/readBlob leaves out %s", ref)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for ref := range out {
		w.read[ref] = true
	}
	return out, nil
}

func decodeBlob(b *schemas.Blob) ([]byte, error) {
	var content []byte
	switch b.Encoding {
	case "utf-8":
		content = []byte(b.Bytes)
	case "base64":
		var err error
		if content, err = base64.StdEncoding.DecodeString(b.Bytes); err != nil {
			return nil, fmt.Errorf("blob %s: %w", clip(string(b.ID), 90), err)
		}
	default:
		return nil, fmt.Errorf("blob %s has the encoding %q; there are utf-8 and base64", clip(string(b.ID), 90), clip(b.Encoding, 20))
	}
	if schemas.BlobRefOf(content) != b.ID {
		return nil, fmt.Errorf("blob %s is not the bytes that its name says", clip(string(b.ID), 90))
	}
	return content, nil
}

// ListTree lists the baseline's entries inside the grant; truncated is true
// when the host left some out.
func (w *Workspace) ListTree(ctx context.Context, p schemas.ListTreeParams) (entries []schemas.TreeEntry, truncated bool, err error) {
	raw, err := w.call(ctx, schemas.MethodListTree, p)
	if err != nil {
		return nil, false, err
	}
	var res schemas.ListTreeResult
	if err := schemas.DecodeRequired(raw, &res, schemas.Limits{MaxBytes: maxLine}); err != nil {
		return nil, false, fmt.Errorf("the answer to workspace/listTree: %w", err)
	}
	for _, e := range res.Entries {
		if err := schemas.ValidPath(e.Path); err != nil {
			return nil, false, fmt.Errorf("the answer to workspace/listTree: %w", err)
		}
	}
	return res.Entries, res.Truncated != nil && *res.Truncated, nil
}

// PutBlobs hands over bytes for a proposal; the host serves it only under an
// edit grant.
func (w *Workspace) PutBlobs(ctx context.Context, contents ...[]byte) ([]schemas.BlobRef, error) {
	p := schemas.PutBlobParams{Blobs: make([]schemas.NewBlob, 0, len(contents))}
	for _, c := range contents {
		p.Blobs = append(p.Blobs, schemas.NewBlob{Encoding: "base64", Bytes: base64.StdEncoding.EncodeToString(c)})
	}
	raw, err := w.call(ctx, schemas.MethodPutBlob, p)
	if err != nil {
		return nil, err
	}
	var res schemas.PutBlobResult
	if err := schemas.DecodeRequired(raw, &res, schemas.Limits{}); err != nil {
		return nil, fmt.Errorf("the answer to workspace/putBlob: %w", err)
	}
	if len(res.IDs) != len(contents) {
		return nil, fmt.Errorf("workspace/putBlob named %d blobs for %d", len(res.IDs), len(contents))
	}
	for i, c := range contents {
		if res.IDs[i] != schemas.BlobRefOf(c) {
			return nil, fmt.Errorf("workspace/putBlob named another blob than was put")
		}
	}
	return res.IDs, nil
}

// Progress tells how far the request has come; percentage is 0 to 100. It is
// advice and costs a message: once in a while is enough.
func (w *Workspace) Progress(percentage float64, text string) {
	w.s.notify(schemas.MethodProgress, schemas.ProgressParams{Token: w.token,
		Value: schemas.ProgressValue{Kind: "report", Percentage: &percentage, Message: text}})
}

// Log writes to the host's log; level is error, warn, info or debug.
func (w *Workspace) Log(level, text string) { w.s.log(level, text) }

func (w *Workspace) call(ctx context.Context, method string, params any) (jsontext.Value, error) {
	select {
	case w.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-w.turn }()
	return w.s.call(ctx, method, params)
}
