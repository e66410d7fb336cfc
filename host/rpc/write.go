package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

// Encoded is a result that is JSON already, valid and on one line. It goes out
// as it is: an answer of many MiB is not read through again.
type Encoded []byte

type outgoing struct {
	ID     jsontext.Value
	Method string
	Params any
	Result any
	Error  *schemas.Error
}

// encode writes one line. A result member is always present in a successful
// answer, as null when there is nothing to say.
func (o outgoing) encode() ([]byte, error) {
	m := message{JSONRPC: "2.0", ID: o.ID, Method: o.Method}
	var err error
	switch {
	case o.Method != "":
		if o.Params != nil {
			m.Params, err = schemas.Marshal(o.Params)
		}
	case o.Error != nil:
		m.Error, err = schemas.Marshal(o.Error)
	case o.Result != nil:
		if raw, ok := o.Result.(Encoded); ok {
			return o.encodeAround(raw)
		}
		m.Result, err = schemas.Marshal(o.Result)
	default:
		m.Result = jsontext.Value("null")
	}
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", o.Method, err)
	}
	line, err := json.Marshal(m, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	return append(line, '\n'), nil
}

// encodeAround writes the line of a successful answer around its result.
func (o outgoing) encodeAround(raw Encoded) ([]byte, error) {
	const head, middle, tail = `{"jsonrpc":"2.0","id":`, `,"result":`, "}\n"
	line := make([]byte, 0, len(head)+len(o.ID)+len(middle)+len(raw)+len(tail))
	line = append(append(line, head...), o.ID...)
	line = append(append(line, middle...), raw...)
	return append(line, tail...), nil
}

func (c *Conn) send(ctx context.Context, o outgoing) error {
	line, err := o.encode()
	if err != nil {
		return err
	}
	select {
	case c.out <- line:
		return nil
	case <-c.done:
		return errors.Join(ErrClosed, c.Err())
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// offer sends if there is room at once: for messages that are only a courtesy.
func (c *Conn) offer(o outgoing) {
	line, err := o.encode()
	if err != nil {
		return
	}
	select {
	case c.out <- line:
	default:
	}
}

func (c *Conn) reply(ctx context.Context, id ID, result any, err error) {
	o := outgoing{ID: jsontext.Value(id), Result: result}
	if err != nil {
		var e *schemas.Error
		if !errors.As(err, &e) {
			e = &schemas.Error{Code: CodeInternalError, Message: "internal error",
				Data: &schemas.ErrorData{FailClass: schemas.FailHealth}}
		}
		o.Error = e
	}
	// The only failures are an ended connection, which the peer sees by itself,
	// and a result that cannot be encoded, which must still be answered.
	if sendErr := c.send(ctx, o); sendErr != nil && !errors.Is(sendErr, ErrClosed) {
		_ = c.send(ctx, outgoing{ID: o.ID, Error: &schemas.Error{Code: CodeInternalError, Message: "the answer could not be encoded",
			Data: &schemas.ErrorData{FailClass: schemas.FailHealth}}})
	}
}

// reject answers a line that is no message; the id is null when it has none.
func (c *Conn) reject(ctx context.Context, raw jsontext.Value, code int, detail string) {
	id := jsontext.Value("null")
	if parsed, err := ParseID(raw); err == nil {
		id = jsontext.Value(parsed)
	}
	_ = c.send(ctx, outgoing{ID: id, Error: &schemas.Error{Code: code, Message: detail,
		Data: &schemas.ErrorData{FailClass: schemas.FailInput}}})
}

// writeLoop writes what is queued until the connection has ended and the queue
// is empty, or the peer takes no more.
func (c *Conn) writeLoop(w io.Writer) {
	for {
		select {
		case line := <-c.out:
			if _, err := w.Write(line); err != nil {
				c.close(fmt.Errorf("write to the peer: %w", err))
				return
			}
			continue
		default:
		}
		select {
		case line := <-c.out:
			if _, err := w.Write(line); err != nil {
				c.close(fmt.Errorf("write to the peer: %w", err))
				return
			}
		case <-c.done:
			for {
				select {
				case line := <-c.out:
					if _, err := w.Write(line); err != nil {
						return
					}
				default:
					return
				}
			}
		}
	}
}

// issuedBefore reports whether id is one that Call has used.
func issuedBefore(id ID, last int64) bool {
	n, err := strconv.ParseInt(string(id), 10, 64)
	return err == nil && n >= 1 && n <= last
}
