package rpc

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

// JSON-RPC 2.0 error codes (specification, section 5.1).
const (
	CodeParseError     = -32700
	CodeInvalidRequest = -32600
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602
	CodeInternalError  = -32603
)

// ID is a request id: the raw JSON of a string or an integer. The zero ID is
// that of a notification.
type ID string

// IntID makes the id that Call uses.
func IntID(n int64) ID { return ID(strconv.FormatInt(n, 10)) }

// ParseID accepts a JSON string or integer of at most 256 bytes, the only ids
// that asp-wire allows.
func ParseID(raw jsontext.Value) (ID, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || len(raw) > 256 {
		return "", fmt.Errorf("the id has %d bytes; use a string or an integer of 1 to 256", len(raw))
	}
	if raw[0] == '"' {
		return ID(raw), nil
	}
	if _, err := strconv.ParseInt(string(raw), 10, 64); err != nil {
		return "", errors.New("the id is neither a string nor an integer")
	}
	return ID(raw), nil
}

// message is one line. Its kind follows from which members are there.
type message struct {
	JSONRPC string         `json:"jsonrpc"`
	ID      jsontext.Value `json:"id,omitzero"`
	Method  string         `json:"method,omitzero"`
	Params  jsontext.Value `json:"params,omitzero"`
	Result  jsontext.Value `json:"result,omitzero"`
	Error   jsontext.Value `json:"error,omitzero"`
}

type messageKind int

const (
	kindRequest messageKind = iota
	kindNotification
	kindResponse
)

// parse decodes one line strictly: unknown or doubled members, bad UTF-8 and
// nesting deeper than limits allow are errors.
func parse(line []byte, limits schemas.Limits) (message, messageKind, error) {
	var m message
	if err := schemas.Decode(line, &m, limits); err != nil {
		return m, 0, err
	}
	if m.JSONRPC != "2.0" {
		return m, 0, fmt.Errorf("jsonrpc is %.20q, not \"2.0\"", m.JSONRPC)
	}
	hasID := len(m.ID) > 0
	if m.Method != "" {
		if len(m.Result) > 0 || len(m.Error) > 0 {
			return m, 0, errors.New("a message has both method and result or error")
		}
		if !hasID {
			return m, kindNotification, nil
		}
		return m, kindRequest, nil
	}
	if !hasID {
		return m, 0, errors.New("a message has neither id nor method")
	}
	if (len(m.Result) > 0) == (len(m.Error) > 0) {
		return m, 0, errors.New("a response must carry exactly one of result and error")
	}
	return m, kindResponse, nil
}

// decodeError reads the error member of a response. The wire's shape is closed.
func decodeError(raw jsontext.Value) (*schemas.Error, error) {
	var e schemas.Error
	if err := json.Unmarshal(raw, &e, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("the error member is not {code, message, data?: {failClass, …}}: %w", err)
	}
	return &e, nil
}
