package provider

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

const (
	// maxLine bounds one message of the host, in bytes. An answer to
	// workspace/readBlob carries whole files, in base64 or with escapes.
	maxLine = 64 << 20
	// maxWaiting bounds the requests that wait for their turn.
	maxWaiting = 32
	// parting is how long Serve waits for work that was cancelled.
	parting = time.Second
)

// phase is how far the handshake has come.
type phase int

const (
	launched    phase = iota
	introduced        // initialize was answered
	ready             // the grant is here
	shuttingOff       // shutdown was asked for
)

// session is one conversation. Everything below mu is touched under it only.
type session struct {
	handler Handler
	jobs    chan job

	outMu sync.Mutex
	out   io.Writer

	mu       sync.Mutex
	phase    phase
	grant    schemas.Permissions
	baseline schemas.Baseline
	lastID   int64
	calls    map[string]chan message
	accepted map[string]context.CancelFunc // requests that wait or are worked on
}

// Serve speaks with a host until it says exit or closes its side. code is what
// the program should exit with: 0 after a shutdown, else 1. What is being
// worked on then is cancelled and waited for no longer than a second.
func Serve(ctx context.Context, h Handler, in io.Reader, out io.Writer) (code int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &session{handler: h, out: out, jobs: make(chan job, maxWaiting),
		calls: map[string]chan message{}, accepted: map[string]context.CancelFunc{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.work(ctx)
	}()
	err = s.read(ctx, in)
	cancel()
	select {
	case <-done:
	case <-time.After(parting):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase == shuttingOff && err == nil {
		return 0, nil
	}
	return 1, err
}

// read handles lines until exit or the end of the stream.
func (s *session) read(ctx context.Context, in io.Reader) error {
	l := newLines(in, maxLine)
	for ctx.Err() == nil {
		line, err := l.next()
		var long *tooLongError
		switch {
		case errors.As(err, &long):
			s.tooLong(long)
			continue
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case len(bytes.TrimSpace(line)) == 0:
			continue
		}
		m, k, err := parse(bytes.TrimSpace(line))
		if err != nil {
			s.malformed(m, line, err)
			continue
		}
		switch k {
		case response:
			if id, err := idOf(m.ID); err == nil {
				s.settle(id, m)
			}
		case notification:
			if m.Method == schemas.MethodExit {
				return nil
			}
			s.notified(m)
		case request:
			s.asked(ctx, m)
		}
	}
	return ctx.Err()
}

// tooLong settles what the passed-over line can only have been: the answer to a
// callback, of which there is one at most, or else a request whose id is not
// known.
func (s *session) tooLong(e *tooLongError) {
	s.mu.Lock()
	var waiting string
	for id := range s.calls {
		waiting = id
	}
	s.mu.Unlock()
	if !s.settle(waiting, message{Error: failure(schemas.CodeBlobUnavailable, schemas.FailHealth, "the answer is too large: "+e.Error())}) {
		s.fail(jsontext.Value("null"), failure(codeInvalidRequest, schemas.FailInput, e.Error()))
	}
}

// malformed answers what is no message. A callback whose answer it was meant to
// be waits no longer.
func (s *session) malformed(m message, line []byte, err error) {
	bad := failure(codeInvalidRequest, schemas.FailInput, clip(err.Error(), maxDetail))
	if !jsontext.Value(line).IsValid() {
		bad.Code = codeParse
	}
	id, noID := idOf(m.ID)
	switch {
	case noID != nil:
		s.fail(jsontext.Value("null"), bad)
	case m.Method == "" && s.settle(id, message{Error: failure(codeInternal, schemas.FailContract, "the host's answer is malformed: "+clip(err.Error(), maxDetail))}):
	default:
		s.fail(m.ID, bad)
	}
}

func (s *session) notified(m message) {
	switch m.Method {
	case schemas.MethodInitialized:
		s.begin(m.Params)
	case schemas.MethodCancelRequest:
		var p schemas.CancelParams
		if schemas.Decode(m.Params, &p, schemas.Limits{}) != nil {
			return
		}
		id, err := idOf(p.ID)
		if err != nil {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if cancel := s.accepted[id]; cancel != nil {
			cancel()
		}
	case schemas.MethodBaselineChanged:
		var p schemas.BaselineChangedParams
		if err := schemas.DecodeRequired(m.Params, &p, schemas.Limits{}); err != nil || p.Baseline.Rev == "" {
			s.log("error", "workspace/baselineChanged is malformed; the baseline stays as it was")
			return
		}
		s.mu.Lock()
		s.baseline = p.Baseline
		s.mu.Unlock()
		if s.handler.BaselineChanged != nil {
			s.handler.BaselineChanged(p.Baseline)
		}
	}
}

// asked answers a request or queues it. Only the handshake is answered here, so
// that a cancellation is always seen.
func (s *session) asked(ctx context.Context, m message) {
	switch m.Method {
	case schemas.MethodInitialize:
		s.initialize(m)
	case schemas.MethodShutdown:
		s.mu.Lock()
		s.phase = shuttingOff
		for _, cancel := range s.accepted {
			cancel()
		}
		s.mu.Unlock()
		s.send(message{ID: m.ID, Result: jsontext.Value("null")})
	default:
		s.accept(ctx, m)
	}
}

// initialize introduces the provider. The version comes first: a message of
// another version may have members that are unknown here.
func (s *session) initialize(m message) {
	var spoken struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	if err := json.Unmarshal(m.Params, &spoken); err == nil && spoken.ProtocolVersion != "" && spoken.ProtocolVersion != schemas.ProtocolVersion {
		s.fail(m.ID, failure(schemas.CodeUnsupportedVersion, schemas.FailContract,
			"the protocol "+strconv.Quote(clip(spoken.ProtocolVersion, 40))+" is not spoken here, only "+schemas.ProtocolVersion))
		return
	}
	var p schemas.InitializeParams
	err := schemas.DecodeRequired(m.Params, &p, schemas.Limits{})
	if err == nil && p.Workspace.Baseline.Rev == "" {
		err = errors.New("/workspace/baseline/rev: is empty")
	}
	if err == nil && p.AssuranceMode != "" && p.AssuranceMode.Rank() < 0 {
		err = errors.New("/assuranceMode: is no assurance mode")
	}
	if err != nil {
		s.fail(m.ID, failure(codeInvalidParams, schemas.FailInput, "initialize: "+clip(err.Error(), maxDetail)))
		return
	}
	s.mu.Lock()
	first := s.phase == launched
	if first {
		s.phase = introduced
	}
	s.mu.Unlock()
	if !first {
		s.fail(m.ID, failure(codeInvalidRequest, schemas.FailContract, "initialize was answered already"))
		return
	}
	s.answer(m.ID, s.handler.Describe())
}

// begin takes the grant. Without a whole one there is no work (asp-wire,
// initialized: resourceLimits is always present in a grant).
func (s *session) begin(params jsontext.Value) {
	var p schemas.InitializedParams
	err := schemas.DecodeRequired(params, &p, schemas.Limits{})
	switch {
	case err != nil:
	case p.GrantedPermissions.ResourceLimits == nil:
		err = errors.New("/grantedPermissions/resourceLimits: is missing")
	case p.Baseline.Rev == "":
		err = errors.New("/baseline/rev: is empty")
	}
	s.mu.Lock()
	taken := err == nil && s.phase == introduced
	if taken {
		s.phase, s.grant, s.baseline = ready, p.GrantedPermissions, p.Baseline
	}
	s.mu.Unlock()
	switch {
	case err != nil:
		s.log("error", "initialized is malformed, and no grant is taken from it: "+clip(err.Error(), maxDetail))
	case !taken:
		s.log("error", "initialized came out of turn and is passed over")
	}
}

// send writes one line. A host that has gone shows on the reading side too.
func (s *session) send(m message) {
	m.JSONRPC = "2.0"
	line, err := json.Marshal(m)
	if err != nil {
		return
	}
	s.outMu.Lock()
	defer s.outMu.Unlock()
	_, _ = s.out.Write(append(line, '\n'))
}

func (s *session) answer(id jsontext.Value, v any) {
	raw, err := schemas.Marshal(v)
	if err != nil {
		s.fail(id, failure(codeInternal, schemas.FailHealth, "the answer could not be encoded"))
		return
	}
	if pointer, found := schemas.ForbiddenField(raw, false); found {
		s.fail(id, failure(codeInternal, schemas.FailContract, "the answer would have held the host's own field "+clip(pointer, maxDetail)))
		return
	}
	s.send(message{ID: id, Result: raw})
}

func (s *session) fail(id jsontext.Value, e *schemas.Error) { s.send(message{ID: id, Error: e}) }

// notify sends a notification.
func (s *session) notify(method string, params any) {
	if raw, err := schemas.Marshal(params); err == nil {
		s.send(message{Method: method, Params: raw})
	}
}

func (s *session) log(level, text string) {
	s.notify(schemas.MethodLogMessage, schemas.LogMessageParams{Level: level, Message: text})
}

// member finds one member of an object that has been decoded before.
func member(object jsontext.Value, name string) jsontext.Value {
	var all map[string]jsontext.Value
	if json.Unmarshal(object, &all) != nil {
		return nil
	}
	return all[name]
}
