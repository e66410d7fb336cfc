package provider

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

// Codes of JSON-RPC 2.0, section 5.1.
const (
	codeParse          = -32700
	codeInvalidRequest = -32600
	codeMethodNotFound = -32601
	codeInvalidParams  = -32602
	codeInternal       = -32603
)

// received is one line as it comes.
type received struct {
	JSONRPC string         `json:"jsonrpc"`
	ID      jsontext.Value `json:"id,omitzero"`
	Method  string         `json:"method,omitzero"`
	Params  jsontext.Value `json:"params,omitzero"`
	Result  jsontext.Value `json:"result,omitzero"`
	Error   jsontext.Value `json:"error,omitzero"`
}

// message is one line in either direction.
type message struct {
	JSONRPC string         `json:"jsonrpc"`
	ID      jsontext.Value `json:"id,omitzero"`
	Method  string         `json:"method,omitzero"`
	Params  jsontext.Value `json:"params,omitzero"`
	Result  jsontext.Value `json:"result,omitzero"`
	Error   *schemas.Error `json:"error,omitzero"`
}

// kind is what a message is; it follows from the members that are there.
type kind int

const (
	request kind = iota
	notification
	response
)

// parse reads one line. Even when there is an error, the message has whatever
// id and method could be read. Nothing in it outlives the line's buffer.
func parse(line []byte) (message, kind, error) {
	if bytes.HasPrefix(line, []byte("[")) {
		return message{}, 0, errors.New("there are no batches in ASP")
	}
	var r received
	err := json.Unmarshal(line, &r, json.RejectUnknownMembers(true))
	m := message{JSONRPC: r.JSONRPC, ID: r.ID, Method: r.Method, Params: r.Params, Result: r.Result}
	if err != nil {
		return m, 0, fmt.Errorf("not a JSON-RPC message: %w", err)
	}
	if r.JSONRPC != "2.0" {
		return m, 0, fmt.Errorf("jsonrpc is %.20q, not \"2.0\"", r.JSONRPC)
	}
	answered := len(r.Result) > 0 || len(r.Error) > 0
	switch {
	case r.Method != "" && answered:
		return m, 0, errors.New("a message has both a method and an answer")
	case r.Method != "" && len(r.ID) == 0:
		return m, notification, nil
	case r.Method != "":
		_, err := idOf(r.ID)
		return m, request, err
	case !answered:
		return m, 0, errors.New("a message has neither a method nor an answer")
	case len(r.Result) > 0 && len(r.Error) > 0:
		return m, 0, errors.New("a response has both result and error")
	case len(r.Error) > 0:
		m.Error = remote(r.Error)
	}
	_, err = idOf(r.ID)
	return m, response, err
}

// remote reads an error of the host. What it adds beyond the wire's shape does
// no harm here.
func remote(raw jsontext.Value) *schemas.Error {
	var e schemas.Error
	if json.Unmarshal(raw, &e) != nil {
		return failure(codeInternal, schemas.FailContract, "the host answered with an error that is malformed")
	}
	return &e
}

// maxID bounds an id, in bytes.
const maxID = 256

// idOf gives the identity of an id: two spellings of one string are the same,
// the string "1" and the integer 1 are not.
func idOf(raw jsontext.Value) (string, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) > maxID {
		return "", fmt.Errorf("an id has more than %d bytes", maxID)
	}
	if raw.Kind() == '"' {
		text, err := jsontext.AppendUnquote([]byte("s"), raw)
		if err != nil {
			return "", fmt.Errorf("an id is not a string: %w", err)
		}
		return string(text), nil
	}
	if _, err := strconv.ParseInt(string(raw), 10, 64); err != nil {
		return "", errors.New("an id is neither a string nor an integer")
	}
	return "i" + string(raw), nil
}

// failure makes an error of a class.
func failure(code int, class schemas.FailClass, text string) *schemas.Error {
	return &schemas.Error{Code: code, Message: text, Data: &schemas.ErrorData{FailClass: class}}
}

// passing makes an error of health that may be gone at the next try.
func passing(code int, text string) *schemas.Error {
	yes := true
	return &schemas.Error{Code: code, Message: text, Data: &schemas.ErrorData{FailClass: schemas.FailHealth, Retryable: &yes}}
}

// clip bounds text that comes from elsewhere, in bytes.
func clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && text[n]&0xC0 == 0x80 {
		n--
	}
	return text[:n] + "…"
}
