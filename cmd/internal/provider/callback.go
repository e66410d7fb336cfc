package provider

import (
	"context"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

// settle gives an answer to the call that waits for it, if there is one. An
// answer that nobody asked for, or that comes after the call was given up, is
// dropped.
func (s *session) settle(id string, m message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch := s.calls[id]
	if ch == nil {
		return false
	}
	delete(s.calls, id)
	// The line's buffer is used again for the next one.
	ch <- message{Result: m.Result.Clone(), Error: m.Error}
	return true
}

// call makes a callback and waits for its answer. An error of the host is an
// *schemas.Error. When ctx ends first the host is told.
func (s *session) call(ctx context.Context, method string, params any) (jsontext.Value, error) {
	raw, err := schemas.Marshal(params)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", method, err)
	}
	ch := make(chan message, 1)
	s.mu.Lock()
	s.lastID++
	wire := jsontext.Value(strconv.FormatInt(s.lastID, 10))
	id := "i" + string(wire)
	s.calls[id] = ch
	s.mu.Unlock()
	s.send(message{ID: wire, Method: method, Params: raw})
	select {
	case m := <-ch:
		if m.Error != nil {
			return nil, m.Error
		}
		return m.Result, nil
	case <-ctx.Done():
		s.mu.Lock()
		_, waiting := s.calls[id]
		delete(s.calls, id)
		s.mu.Unlock()
		if waiting {
			s.notify(schemas.MethodCancelRequest, schemas.CancelParams{ID: wire})
		}
		return nil, context.Cause(ctx)
	}
}
