package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

// Handler answers what the peer asks. Each method is called from the read loop
// or from one of at most Options.Concurrent workers, never more at a time.
type Handler interface {
	// Request answers a request: with a result that can be marshalled, or with
	// an error. An *schemas.Error goes out as it is; any other error becomes an
	// internal error without its text, which could tell of the host.
	Request(ctx context.Context, method string, params jsontext.Value) (any, error)
	// Notification is called in the order of arrival, inside the read loop: it
	// must not block. An error is a violation and ends the connection.
	Notification(ctx context.Context, method string, params jsontext.Value) error
}

// Options bounds a connection. Zero values take the defaults.
type Options struct {
	LineBytes  int            // longest line accepted, in bytes; default 16 MiB
	Decode     schemas.Limits // depth and element bounds of one message
	Concurrent int            // requests of the peer served at the same time; default 4
	Queue      int            // messages waiting to be written; default 64
	// Tolerant answers a malformed line with an error and goes on, as a server
	// should; otherwise the first one ends the connection with a *Violation.
	Tolerant bool
	// Cancel names the notification by which either side withdraws a request.
	Cancel string
}

// Violation is a breach of the protocol by the peer.
type Violation struct {
	Kind   string // line-too-long, malformed, unasked-answer, answered-twice, notification
	Detail string
}

func (v *Violation) Error() string { return v.Kind + ": " + v.Detail }

// ErrClosed is returned by calls on a connection that has ended.
var ErrClosed = errors.New("the connection is closed")

// Conn is one symmetric connection. Its in-flight state is one struct that is
// touched only in update, which also decides when the connection is over.
type Conn struct {
	opt     Options
	handler Handler
	out     chan []byte
	slots   chan struct{}
	done    chan struct{}

	mu    sync.Mutex
	state inFlight
}

type inFlight struct {
	lastID    int64
	calls     map[ID]chan answer        // ours, waiting for the peer
	withdrawn map[ID]bool               // ours, cancelled: one late answer is fine
	serving   map[ID]context.CancelFunc // the peer's, being served
	closed    bool
	cause     error
}

type answer struct {
	result jsontext.Value
	err    error
}

// New makes a connection; Run must be called once to make it live.
func New(handler Handler, opt Options) *Conn {
	if opt.LineBytes <= 0 {
		opt.LineBytes = 16 << 20
	}
	if opt.Concurrent <= 0 {
		opt.Concurrent = 4
	}
	if opt.Queue <= 0 {
		opt.Queue = 64
	}
	if opt.Decode.MaxBytes == 0 {
		opt.Decode.MaxBytes = opt.LineBytes
	}
	return &Conn{
		opt: opt, handler: handler,
		out:   make(chan []byte, opt.Queue),
		slots: make(chan struct{}, opt.Concurrent),
		done:  make(chan struct{}),
		state: inFlight{
			calls:     map[ID]chan answer{},
			withdrawn: map[ID]bool{},
			serving:   map[ID]context.CancelFunc{},
		},
	}
}

// update is the only place where the in-flight state is touched.
func (c *Conn) update(f func(*inFlight)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.state)
}

// close ends the connection once: every waiting call fails with the cause and
// every request being served is cancelled.
func (c *Conn) close(cause error) {
	c.update(func(s *inFlight) {
		if s.closed {
			return
		}
		s.closed, s.cause = true, cause
		for id, ch := range s.calls {
			ch <- answer{err: cause}
			delete(s.calls, id)
		}
		for _, cancel := range s.serving {
			cancel()
		}
		close(c.done)
	})
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err tells why the connection ended: nil while it lives, io.EOF when the peer
// closed its side, a *Violation when it broke the protocol.
func (c *Conn) Err() (err error) {
	c.update(func(s *inFlight) { err = s.cause })
	return err
}

// Run reads and writes until the peer closes, breaks the protocol or ctx ends.
// The caller closes r and w; closing r is what ends a blocked read. Run returns
// after all workers have ended, io.EOF when the peer closed its side.
func (c *Conn) Run(ctx context.Context, r io.Reader, w io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.close(context.Cause(ctx)) })
	defer stop()

	var workers sync.WaitGroup
	writer := make(chan struct{})
	go func() {
		defer close(writer)
		c.writeLoop(w)
	}()
	err := c.readLoop(ctx, r, &workers)
	if errors.Is(err, io.EOF) {
		// The peer may have closed only its sending side: what it asked is
		// still answered before the connection goes.
		workers.Wait()
	}
	c.close(err)
	workers.Wait()
	<-writer
	return c.Err()
}

func (c *Conn) readLoop(ctx context.Context, r io.Reader, workers *sync.WaitGroup) error {
	lines := newLineReader(r, c.opt.LineBytes)
	for {
		line, err := lines.next()
		var tooLong *tooLongError
		switch {
		case errors.As(err, &tooLong):
			v := &Violation{Kind: "line-too-long", Detail: err.Error()}
			if !c.opt.Tolerant {
				return v
			}
			c.reject(ctx, nil, CodeInvalidRequest, v.Detail)
			continue
		case err != nil:
			return err
		case len(line) == 0:
			continue
		}
		if err := c.accept(ctx, line, workers); err != nil {
			return err
		}
	}
}

// accept handles one line. A returned error ends the connection.
func (c *Conn) accept(ctx context.Context, line []byte, workers *sync.WaitGroup) error {
	m, kind, err := parse(line, c.opt.Decode)
	if err != nil {
		if !c.opt.Tolerant {
			return &Violation{Kind: "malformed", Detail: err.Error()}
		}
		code := CodeInvalidRequest
		if !jsontext.Value(line).IsValid() {
			code = CodeParseError
		}
		c.reject(ctx, m.ID, code, err.Error())
		return nil
	}
	switch kind {
	case kindResponse:
		return c.settle(m)
	case kindNotification:
		return c.notified(ctx, m)
	}
	id, err := ParseID(m.ID)
	if err != nil {
		if !c.opt.Tolerant {
			return &Violation{Kind: "malformed", Detail: err.Error()}
		}
		c.reject(ctx, nil, CodeInvalidRequest, err.Error())
		return nil
	}
	return c.serve(ctx, id, m, workers)
}

// settle gives an answer to the call that waits for it.
func (c *Conn) settle(m message) error {
	id, err := ParseID(m.ID)
	if err != nil {
		return c.breach("malformed", err.Error())
	}
	var a answer
	if len(m.Error) > 0 {
		e, err := decodeError(m.Error)
		if err != nil {
			return c.breach("malformed", err.Error())
		}
		a.err = e
	} else {
		a.result = m.Result.Clone()
	}
	var known, late, issued bool
	c.update(func(s *inFlight) {
		ch, ok := s.calls[id]
		if ok {
			known = true
			delete(s.calls, id)
			ch <- a
			return
		}
		if s.withdrawn[id] {
			late = true
			delete(s.withdrawn, id)
			return
		}
		issued = issuedBefore(id, s.lastID)
	})
	switch {
	case known || late:
		return nil
	case issued:
		return c.breach("answered-twice", fmt.Sprintf("request %.40q has been answered before", string(id)))
	default:
		return c.breach("unasked-answer", fmt.Sprintf("no request has the id %.40q", string(id)))
	}
}

func (c *Conn) breach(kind, detail string) error {
	if c.opt.Tolerant {
		return nil
	}
	return &Violation{Kind: kind, Detail: detail}
}

func (c *Conn) notified(ctx context.Context, m message) error {
	if c.opt.Cancel != "" && m.Method == c.opt.Cancel {
		var p schemas.CancelParams
		if err := json.Unmarshal(m.Params, &p); err != nil {
			return c.breach("malformed", m.Method+" without an id")
		}
		id, err := ParseID(p.ID)
		if err != nil {
			return c.breach("malformed", m.Method+": "+err.Error())
		}
		c.update(func(s *inFlight) {
			if cancel, ok := s.serving[id]; ok {
				cancel()
			}
		})
		return nil
	}
	if err := c.handler.Notification(ctx, m.Method, m.Params); err != nil {
		return c.breach("notification", err.Error())
	}
	return nil
}

// serve answers one request of the peer in a worker. When all workers are busy
// the read loop waits, so that a flood fills the peer's pipe and not our memory.
func (c *Conn) serve(ctx context.Context, id ID, m message, workers *sync.WaitGroup) error {
	ctx, cancel := context.WithCancel(ctx)
	var doubled bool
	c.update(func(s *inFlight) {
		if _, doubled = s.serving[id]; !doubled {
			s.serving[id] = cancel
		}
	})
	if doubled {
		cancel()
		if !c.opt.Tolerant {
			return &Violation{Kind: "malformed", Detail: fmt.Sprintf("request id %.40q is in use", string(id))}
		}
		c.reject(ctx, m.ID, CodeInvalidRequest, "a request with this id is still being served")
		return nil
	}
	finish := func() {
		cancel()
		c.update(func(s *inFlight) { delete(s.serving, id) })
	}
	select {
	case c.slots <- struct{}{}:
	case <-c.done:
		finish()
		return c.Err()
	}
	params := m.Params.Clone()
	workers.Add(1)
	go func() {
		defer workers.Done()
		defer func() { <-c.slots }()
		result, err := c.handler.Request(ctx, m.Method, params)
		// The id is free again before the answer is on the wire, so that a peer
		// that reuses it at once is not refused.
		finish()
		c.reply(context.WithoutCancel(ctx), id, result, err)
	}()
	return nil
}

// Call sends a request and waits for its answer. When ctx ends first the
// request is withdrawn with the cancel notification, and ctx's cause is
// returned. An error of the peer is an *schemas.Error.
func (c *Conn) Call(ctx context.Context, method string, params any) (jsontext.Value, error) {
	ch := make(chan answer, 1)
	var id ID
	var closed bool
	var cause error
	c.update(func(s *inFlight) {
		if closed, cause = s.closed, s.cause; closed {
			return
		}
		s.lastID++
		id = IntID(s.lastID)
		s.calls[id] = ch
	})
	if closed {
		return nil, errors.Join(ErrClosed, cause)
	}
	if err := c.send(ctx, outgoing{ID: jsontext.Value(id), Method: method, Params: params}); err != nil {
		c.withdraw(id)
		return nil, err
	}
	select {
	case a := <-ch:
		return a.result, a.err
	case <-ctx.Done():
		if c.withdraw(id) && c.opt.Cancel != "" {
			c.offer(outgoing{Method: c.opt.Cancel, Params: schemas.CancelParams{ID: jsontext.Value(id)}})
		}
		return nil, context.Cause(ctx)
	}
}

// withdraw gives a call up; it reports whether the call was still waiting.
func (c *Conn) withdraw(id ID) (waiting bool) {
	c.update(func(s *inFlight) {
		if _, waiting = s.calls[id]; !waiting {
			return
		}
		delete(s.calls, id)
		// A peer that never answers what was withdrawn must not grow the map.
		if len(s.withdrawn) < 1024 {
			s.withdrawn[id] = true
		}
	})
	return waiting
}

// Notify sends a notification; it waits while the write queue is full.
func (c *Conn) Notify(ctx context.Context, method string, params any) error {
	return c.send(ctx, outgoing{Method: method, Params: params})
}
