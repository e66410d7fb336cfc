package schemas

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Limits bound a decoded value; zero members take the defaults.
type Limits struct {
	MaxBytes    int // default 16 MiB
	MaxDepth    int // default 64 levels
	MaxElements int // values in total, default 4,000,000
}

func (l Limits) withDefaults() Limits {
	if l.MaxBytes <= 0 {
		l.MaxBytes = 16 << 20
	}
	if l.MaxDepth <= 0 {
		l.MaxDepth = 64
	}
	if l.MaxElements <= 0 {
		l.MaxElements = 4_000_000
	}
	return l
}

// DecodeError says what is wrong with a JSON text, and where: Pointer is a JSON
// pointer (RFC 6901), Offset counts bytes from 0 and is -1 when not known.
type DecodeError struct {
	Pointer string
	Detail  string
	Offset  int64
}

func (e *DecodeError) Error() string {
	if e.Pointer == "" {
		return e.Detail
	}
	return e.Pointer + ": " + e.Detail
}

// Decode reads exactly one JSON value into v. Unknown members, doubled names,
// invalid UTF-8, trailing data and anything over the limits are a *DecodeError.
func Decode(data []byte, v any, lim Limits) error {
	lim = lim.withDefaults()
	if len(data) > lim.MaxBytes {
		return &DecodeError{Detail: fmt.Sprintf("%d bytes, over the limit of %d", len(data), lim.MaxBytes), Offset: -1}
	}
	if err := scan(data, lim); err != nil {
		return err
	}
	if len(bytes.Trim(data, " \t\r\n")) == 0 {
		return &DecodeError{Detail: "there is no JSON value", Offset: 0}
	}
	if err := json.Unmarshal(data, v, json.RejectUnknownMembers(true)); err != nil {
		return decodeError(err)
	}
	return nil
}

func decodeError(err error) *DecodeError {
	e := &DecodeError{Detail: err.Error(), Offset: -1}
	var syn *jsontext.SyntacticError
	var sem *json.SemanticError
	switch {
	case errors.As(err, &syn):
		e.Pointer, e.Offset = string(syn.JSONPointer), syn.ByteOffset
		e.Detail = syn.Err.Error()
	case errors.As(err, &sem):
		e.Pointer, e.Offset = string(sem.JSONPointer), sem.ByteOffset
		if sem.Err != nil {
			e.Detail = sem.Err.Error()
		} else {
			e.Detail = "a JSON " + sem.JSONKind.String() + " does not fit here"
		}
	}
	e.Detail = strings.TrimPrefix(e.Detail, "json: ")
	if len(e.Pointer) > 200 {
		e.Pointer = e.Pointer[:200] + "…"
	}
	return e
}

// Marshal writes v the same way every time, without HTML escaping.
func Marshal(v any) ([]byte, error) { return json.Marshal(v, json.Deterministic(true)) }
