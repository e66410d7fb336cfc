// Package provider is the provider's side of ASP's inner seam, for the
// providers that come with aspis: the handshake, the grant, callbacks for bytes
// with an account of every blob that was read, and one check at a time. It
// shares only the wire types with the host.
package provider

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

// Checker is a check provider's own part.
type Checker interface {
	// Describe answers initialize.
	Describe() schemas.InitializeResult
	// Check judges a change. w serves bytes and keeps account of them. An
	// *schemas.Error is answered as it is.
	Check(ctx context.Context, w *Workspace, p *schemas.CheckParams, raw jsontext.Value) (*schemas.Assessment, error)
}

// maxLine bounds one message of the host, in bytes.
const maxLine = 256 << 20

type message struct {
	JSONRPC string         `json:"jsonrpc"`
	ID      jsontext.Value `json:"id,omitzero"`
	Method  string         `json:"method,omitzero"`
	Params  jsontext.Value `json:"params,omitzero"`
	Result  jsontext.Value `json:"result,omitzero"`
	Error   *schemas.Error `json:"error,omitzero"`
}

// server is one conversation.
type server struct {
	checker Checker
	outMu   sync.Mutex
	out     io.Writer

	mu          sync.Mutex
	initialized bool
	shutdown    bool
	grant       schemas.Permissions
	nextID      int64
	calls       map[string]chan message
	running     map[string]context.CancelFunc
}

// Serve speaks with a host until it says exit or closes its side. The code is
// what the program should exit with: 0 after a shutdown, else 1.
func Serve(ctx context.Context, c Checker, in io.Reader, out io.Writer) (code int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &server{checker: c, out: out, calls: map[string]chan message{}, running: map[string]context.CancelFunc{}}
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	lines := bufio.NewReaderSize(in, 256<<10)
	for {
		line, err := readLine(lines)
		if errors.Is(err, io.EOF) {
			return s.code(), nil
		}
		if err != nil {
			return 1, err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var m message
		if err := schemas.Decode(line, &m, schemas.Limits{MaxBytes: maxLine}); err != nil || m.JSONRPC != "2.0" {
			s.fail(jsontext.Value("null"), &schemas.Error{Code: -32600, Message: "not a JSON-RPC message", Data: &schemas.ErrorData{FailClass: schemas.FailInput}})
			continue
		}
		if m.Method == schemas.MethodExit {
			return s.code(), nil
		}
		s.handle(ctx, m, &work)
	}
}

func (s *server) code() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shutdown {
		return 0
	}
	return 1
}

func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxLine {
			return nil, fmt.Errorf("the host sent a line of over %d bytes", maxLine)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil && len(line) == 0 {
			return nil, err
		}
		return line, nil
	}
}

func (s *server) send(m message) {
	m.JSONRPC = "2.0"
	b, err := json.Marshal(m)
	if err != nil {
		return
	}
	s.outMu.Lock()
	defer s.outMu.Unlock()
	_, _ = s.out.Write(append(b, '\n')) // a host that is gone closes stdin too
}

func (s *server) answer(id jsontext.Value, v any) {
	b, err := schemas.Marshal(v)
	if err != nil {
		s.fail(id, &schemas.Error{Code: -32603, Message: "the answer could not be encoded", Data: &schemas.ErrorData{FailClass: schemas.FailHealth}})
		return
	}
	s.send(message{ID: id, Result: b})
}

func (s *server) fail(id jsontext.Value, e *schemas.Error) { s.send(message{ID: id, Error: e}) }

func contract(code int, text string) *schemas.Error {
	return &schemas.Error{Code: code, Message: text, Data: &schemas.ErrorData{FailClass: schemas.FailContract}}
}

func (s *server) handle(ctx context.Context, m message, work *sync.WaitGroup) {
	switch {
	case m.Method == "" && len(m.ID) > 0:
		s.settle(m)
	case m.Method == schemas.MethodInitialize && len(m.ID) > 0:
		s.initialize(m)
	case m.Method == schemas.MethodInitialized:
		s.begin(m)
	case m.Method == schemas.MethodShutdown && len(m.ID) > 0:
		s.mu.Lock()
		s.shutdown = true
		s.mu.Unlock()
		s.send(message{ID: m.ID, Result: jsontext.Value("null")})
	case m.Method == schemas.MethodCancelRequest:
		var p schemas.CancelParams
		if json.Unmarshal(m.Params, &p) != nil {
			return
		}
		s.mu.Lock()
		if cancel := s.running[string(p.ID)]; cancel != nil {
			cancel()
		}
		s.mu.Unlock()
	case (m.Method == schemas.MethodCheckEvaluate || m.Method == schemas.MethodJudgeEvaluate) && len(m.ID) > 0:
		s.check(ctx, m, work)
	case len(m.ID) > 0:
		s.fail(m.ID, contract(-32601, "no such method"))
	}
}

func (s *server) settle(m message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ch := s.calls[string(m.ID)]; ch != nil {
		delete(s.calls, string(m.ID))
		ch <- m
	}
}

func (s *server) initialize(m message) {
	var p schemas.InitializeParams
	if err := schemas.DecodeRequired(m.Params, &p, schemas.Limits{}); err != nil {
		s.fail(m.ID, &schemas.Error{Code: -32602, Message: "initialize: " + err.Error(), Data: &schemas.ErrorData{FailClass: schemas.FailInput}})
		return
	}
	if p.ProtocolVersion != schemas.ProtocolVersion {
		s.fail(m.ID, contract(schemas.CodeUnsupportedVersion, "only "+schemas.ProtocolVersion+" is spoken here"))
		return
	}
	s.answer(m.ID, s.checker.Describe())
}

func (s *server) begin(m message) {
	var p schemas.InitializedParams
	if schemas.Decode(m.Params, &p, schemas.Limits{}) != nil {
		return // without a grant there is no work
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.initialized, s.grant = true, p.GrantedPermissions
}

func (s *server) check(ctx context.Context, m message, work *sync.WaitGroup) {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	ready := s.initialized && !s.shutdown
	s.running[string(m.ID)] = cancel
	s.mu.Unlock()
	done := func() {
		cancel()
		s.mu.Lock()
		delete(s.running, string(m.ID))
		s.mu.Unlock()
	}
	if !ready {
		done()
		s.fail(m.ID, &schemas.Error{Code: schemas.CodeHealthNotReady, Message: "not initialized", Data: &schemas.ErrorData{FailClass: schemas.FailHealth}})
		return
	}
	params := m.Params.Clone()
	work.Add(1)
	go func() {
		defer work.Done()
		defer done()
		p, err := schemas.DecodeCheckParams(params, schemas.Limits{MaxBytes: maxLine})
		if err != nil {
			s.fail(m.ID, &schemas.Error{Code: schemas.CodeInvalidChangeset, Message: err.Error(), Data: &schemas.ErrorData{FailClass: schemas.FailInput}})
			return
		}
		w := &Workspace{s: s, cache: map[schemas.BlobRef][]byte{}, read: map[schemas.BlobRef]bool{}}
		a, err := s.checker.Check(ctx, w, p, params)
		var typed *schemas.Error
		switch {
		case ctx.Err() != nil:
			yes := true
			s.fail(m.ID, &schemas.Error{Code: schemas.CodeCancelled, Message: "cancelled", Data: &schemas.ErrorData{FailClass: schemas.FailHealth, Retryable: &yes}})
		case errors.As(err, &typed):
			s.fail(m.ID, typed)
		case err != nil:
			s.fail(m.ID, &schemas.Error{Code: schemas.CodeHealthNotReady, Message: err.Error(), Data: &schemas.ErrorData{FailClass: schemas.FailHealth}})
		default:
			s.answer(m.ID, a)
		}
	}()
}

// call makes a callback to the host.
func (s *server) call(ctx context.Context, method string, params any) (jsontext.Value, error) {
	raw, err := schemas.Marshal(params)
	if err != nil {
		return nil, err
	}
	ch := make(chan message, 1)
	s.mu.Lock()
	s.nextID++
	id := strconv.FormatInt(s.nextID, 10)
	s.calls[id] = ch
	s.mu.Unlock()
	s.send(message{ID: jsontext.Value(id), Method: method, Params: raw})
	select {
	case m := <-ch:
		if m.Error != nil {
			return nil, m.Error
		}
		return m.Result, nil
	case <-ctx.Done():
		s.mu.Lock()
		delete(s.calls, id)
		s.mu.Unlock()
		return nil, context.Cause(ctx)
	}
}

// Workspace serves one check.
type Workspace struct {
	s     *server
	mu    sync.Mutex
	cache map[schemas.BlobRef][]byte
	read  map[schemas.BlobRef]bool
}

// Read lists the blobs that were received.
func (w *Workspace) Read() []schemas.BlobRef {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]schemas.BlobRef, 0, len(w.read))
	for ref := range w.read {
		out = append(out, ref)
	}
	return out
}

// Blob returns the bytes of a blob; they must not be changed.
func (w *Workspace) Blob(ctx context.Context, ref schemas.BlobRef) ([]byte, error) {
	w.mu.Lock()
	b, ok := w.cache[ref]
	w.mu.Unlock()
	if ok {
		return b, nil
	}
	raw, err := w.s.call(ctx, schemas.MethodReadBlob, schemas.ReadBlobParams{Blobs: []schemas.BlobRef{ref}})
	if err != nil {
		return nil, err
	}
	var res schemas.ReadBlobResult
	if err := schemas.Decode(raw, &res, schemas.Limits{MaxBytes: maxLine}); err != nil {
		return nil, fmt.Errorf("workspace/readBlob answered: %w", err)
	}
	if len(res.Blobs) != 1 || res.Blobs[0].ID != ref {
		return nil, fmt.Errorf("workspace/readBlob answered with another blob than %s", ref)
	}
	b = []byte(res.Blobs[0].Bytes)
	if res.Blobs[0].Encoding == "base64" {
		if b, err = base64.StdEncoding.DecodeString(res.Blobs[0].Bytes); err != nil {
			return nil, fmt.Errorf("workspace/readBlob answered with bad base64: %w", err)
		}
	}
	if schemas.BlobRefOf(b) != ref {
		return nil, fmt.Errorf("workspace/readBlob answered with bytes that are not %s", ref)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cache[ref], w.read[ref] = b, true
	return b, nil
}

// List lists the baseline's entries inside the grant; truncated is true when
// the host left some out.
func (w *Workspace) List(ctx context.Context, p schemas.ListTreeParams) (entries []schemas.TreeEntry, truncated bool, err error) {
	raw, err := w.s.call(ctx, schemas.MethodListTree, p)
	if err != nil {
		return nil, false, err
	}
	var res schemas.ListTreeResult
	if err := schemas.Decode(raw, &res, schemas.Limits{MaxBytes: maxLine}); err != nil {
		return nil, false, fmt.Errorf("workspace/listTree answered: %w", err)
	}
	return res.Entries, res.Truncated != nil && *res.Truncated, nil
}
