package supervise

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/host/rpc"
	"github.com/aspis-dev/aspis/schemas"
)

// callbacks is a Session as its provider sees it: the workspace/* methods and
// the notifications, nothing else.
type callbacks Session

// request is what a session is working on.
type request struct {
	content       Content
	callbacks     int64
	bytes         int64
	notifications int64
	served        map[schemas.BlobRef]bool
	put           Putter // nil where nothing may be put
	offered       map[schemas.BlobRef]bool
	over          *Failure
}

// Request serves a callback.
func (c *callbacks) Request(ctx context.Context, method string, params jsontext.Value) (any, error) {
	s := (*Session)(c)
	switch method {
	case schemas.MethodListTree, schemas.MethodReadBlob, schemas.MethodPutBlob:
	default:
		s.mu.Lock()
		if len(s.unasked) < 64 {
			s.unasked[clip(method, 80)]++
		}
		s.mu.Unlock()
		return nil, &schemas.Error{Code: rpc.CodeMethodNotFound, Message: "the host has no such method",
			Data: &schemas.ErrorData{FailClass: schemas.FailContract}}
	}
	r, err := s.admit()
	if err != nil {
		return nil, err
	}
	switch method {
	case schemas.MethodListTree:
		return s.listTree(ctx, r, params)
	case schemas.MethodPutBlob:
		return s.putBlob(ctx, r, params)
	}
	return s.readBlob(ctx, r, params)
}

// admit counts a callback against the budgets.
func (s *Session) admit() (*request, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.active
	if r == nil {
		return nil, &schemas.Error{Code: schemas.CodeHealthNotReady, Message: "no request is being worked on",
			Data: &schemas.ErrorData{FailClass: schemas.FailHealth}}
	}
	r.callbacks++
	s.counts.callbacks++
	switch {
	case r.callbacks > s.limits.CallbackCount:
		return nil, s.exceed(r, overBudget("callbacks in a request", s.limits.CallbackCount))
	case s.counts.callbacks > s.limits.SessionCount:
		return nil, s.exceed(r, overBudget("callbacks in a session", s.limits.SessionCount))
	}
	return r, nil
}

// exceed marks a request as over budget and ends the provider: whatever it
// would still answer does not count. Called with the lock held.
func (s *Session) exceed(r *request, f *Failure) error {
	if r.over == nil {
		r.over = f
		go func() { _ = s.proc.Kill() }()
	}
	return &schemas.Error{Code: schemas.CodeScopeDenied, Message: f.Detail,
		Data: &schemas.ErrorData{FailClass: schemas.FailPolicy}}
}

// charge counts bytes served against the budgets.
func (s *Session) charge(r *request, n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.bytes += n
	s.counts.bytes += n
	switch {
	case r.bytes > s.limits.CallbackBytes:
		return s.exceed(r, overBudget("bytes in a request", s.limits.CallbackBytes))
	case s.counts.bytes > s.limits.SessionBytes:
		return s.exceed(r, overBudget("bytes in a session", s.limits.SessionBytes))
	}
	return nil
}

// listTree answers with the entries of the baseline that lie inside the grant
// and fit the question. Outside the grant there is nothing, not a refusal.
func (s *Session) listTree(ctx context.Context, r *request, raw jsontext.Value) (any, error) {
	p, err := schemas.DecodeListTreeParams(raw, schemas.Limits{})
	if err != nil {
		return nil, badParams(err)
	}
	if p.Baseline != nil && !p.Baseline.Same(r.content.Baseline()) {
		yes := true
		return nil, &schemas.Error{Code: schemas.CodeStaleBaseline, Message: "the baseline has moved",
			Data: &schemas.ErrorData{FailClass: schemas.FailHealth, Retryable: &yes}}
	}
	for _, g := range p.Globs {
		if !doublestar.ValidatePattern(g) {
			return nil, badParams(fmt.Errorf("glob %q is not valid", clip(g, 100)))
		}
	}
	read := s.Grant().Read
	var res schemas.ListTreeResult
	var size int64
	add := func(e schemas.TreeEntry) error {
		if !Readable(read, e.Path) {
			return nil
		}
		if len(res.Entries) >= s.limits.ListEntries {
			yes := true
			res.Truncated = &yes
			return errTruncated
		}
		size += int64(len(e.Path)) + 96 // the path beside the blob id and the member names
		res.Entries = append(res.Entries, e)
		return nil
	}
	if err := s.selectEntries(ctx, r.content, p, add); err != nil && !errors.Is(err, errTruncated) {
		return nil, unavailable(err)
	}
	if err := s.charge(r, size); err != nil {
		return nil, err
	}
	return res, nil
}

var errTruncated = errors.New("the listing is cut")

func (s *Session) selectEntries(ctx context.Context, c Content, p *schemas.ListTreeParams, add func(schemas.TreeEntry) error) error {
	if len(p.Paths) > 0 && len(p.Globs) == 0 {
		for _, path := range p.Paths {
			e, ok, err := c.Entry(ctx, path)
			if err != nil {
				return err
			}
			if ok {
				if err := add(e); err != nil {
					return err
				}
			}
		}
		return nil
	}
	wanted := map[string]bool{}
	for _, path := range p.Paths {
		wanted[path] = true
	}
	return c.Entries(ctx, func(e schemas.TreeEntry) error {
		if len(p.Globs) > 0 && !wanted[e.Path] && !Readable(p.Globs, e.Path) {
			return nil
		}
		return add(e)
	})
}

// readBlob serves bytes that the request refers to and the grant covers. The
// whole answer is refused when one blob of it may not be had.
func (s *Session) readBlob(ctx context.Context, r *request, raw jsontext.Value) (any, error) {
	p, err := schemas.DecodeReadBlobParams(raw, schemas.Limits{})
	if err != nil {
		return nil, badParams(err)
	}
	read := s.Grant().Read
	for _, ref := range p.Blobs {
		paths, err := r.content.Paths(ctx, ref)
		if err != nil {
			return nil, unavailable(err)
		}
		granted := false
		for _, path := range paths {
			granted = granted || Readable(read, path)
		}
		if !granted {
			// The same words whether it does not exist or is not granted: the
			// answer must not tell which.
			return nil, scopeDenied("the blob is outside what this request and the grant cover")
		}
	}
	res := rpc.Encoded(`{"blobs":[`)
	left := s.limits.ReadBytes
	for i, ref := range p.Blobs {
		b, err := s.load(ctx, r, ref, left)
		if err != nil {
			return nil, err
		}
		left -= int64(len(b))
		if i > 0 {
			res = append(res, ',')
		}
		res = appendBlob(res, ref, b)
	}
	res = append(res, "]}"...)
	if !s.record(r, p.Blobs) {
		return nil, &schemas.Error{Code: schemas.CodeHealthNotReady, Message: "the request has ended",
			Data: &schemas.ErrorData{FailClass: schemas.FailHealth}}
	}
	return res, nil
}

// record notes what was served; false when the request has ended meanwhile.
func (s *Session) record(r *request, refs []schemas.BlobRef) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active != r {
		return false
	}
	for _, ref := range refs {
		r.served[ref] = true
		s.served[ref] = true
	}
	return true
}

func (s *Session) load(ctx context.Context, r *request, ref schemas.BlobRef, left int64) ([]byte, error) {
	rc, size, err := r.content.Open(ctx, ref)
	if err != nil {
		return nil, &schemas.Error{Code: schemas.CodeBlobUnavailable, Message: "the host cannot read this blob",
			Data: &schemas.ErrorData{FailClass: schemas.FailHealth}}
	}
	defer rc.Close()
	if size > left {
		return nil, &schemas.Error{Code: schemas.CodeScopeDenied,
			Message: fmt.Sprintf("the answer would be over %d bytes; ask for fewer blobs at a time", s.limits.ReadBytes),
			Data:    &schemas.ErrorData{FailClass: schemas.FailPolicy}}
	}
	if err := s.charge(r, size); err != nil {
		return nil, err
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(rc, b); err != nil {
		return nil, unavailable(err)
	}
	// The reader verifies the digest at its end.
	if n, err := rc.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		return nil, unavailable(fmt.Errorf("blob %s is not what its name says", ref))
	}
	return b, nil
}

// appendBlob writes a blob as the wire has it: as text where it is text. The
// members are those of schemas.Blob, which a test holds it to.
func appendBlob(dst []byte, ref schemas.BlobRef, b []byte) []byte {
	const around = `{"id":,"encoding":"base64","bytes":""},`
	text := utf8.Valid(b)
	size := len(b) + len(b)/16 // room for the escapes of ordinary text
	if !text {
		size = base64.StdEncoding.EncodedLen(len(b))
	}
	dst = slices.Grow(dst, len(around)+len(ref)+2+size)
	dst = append(dst, `{"id":`...)
	dst = schemas.AppendString(dst, []byte(ref))
	if text {
		dst = append(dst, `,"encoding":"utf-8","bytes":`...)
		return append(schemas.AppendString(dst, b), '}')
	}
	dst = append(dst, `,"encoding":"base64","bytes":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, `"}`...)
}

func badParams(err error) error {
	return &schemas.Error{Code: rpc.CodeInvalidParams, Message: clip(err.Error(), 300),
		Data: &schemas.ErrorData{FailClass: schemas.FailInput}}
}

func scopeDenied(why string) error {
	return &schemas.Error{Code: schemas.CodeScopeDenied, Message: why,
		Data: &schemas.ErrorData{FailClass: schemas.FailPolicy}}
}

// unavailable hides the host's own reason, which may name host paths.
func unavailable(error) error {
	return &schemas.Error{Code: schemas.CodeBlobUnavailable, Message: "the host cannot serve this now",
		Data: &schemas.ErrorData{FailClass: schemas.FailHealth}}
}

// Notification counts what a provider says by itself. Progress and logs are
// advice and are dropped; a flood of them is a failure.
func (c *callbacks) Notification(_ context.Context, method string, _ jsontext.Value) error {
	s := (*Session)(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.active
	if r == nil {
		// Between requests: ambient diagnostics and late logs count for the session.
		s.counts.callbacks++
		if s.counts.callbacks > s.limits.SessionCount {
			return fmt.Errorf("more than %d messages in a session", s.limits.SessionCount)
		}
		return nil
	}
	r.notifications++
	if r.notifications > s.limits.Notifications && r.over == nil {
		_ = s.exceed(r, overBudget("notifications in a request, the last of them "+clip(method, 40), s.limits.Notifications))
	}
	return nil
}
