package conformance

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

// message is one line of JSON-RPC.
type message struct {
	JSONRPC string         `json:"jsonrpc"`
	ID      jsontext.Value `json:"id,omitzero"`
	Method  string         `json:"method,omitzero"`
	Params  jsontext.Value `json:"params,omitzero"`
	Result  jsontext.Value `json:"result,omitzero"`
	Error   *schemas.Error `json:"error,omitzero"`
}

// resultSchemas names the schema of each method's result.
var resultSchemas = map[string]string{
	schemas.MethodHostStatus: "host-status", schemas.MethodHostCapabilities: "host-capabilities",
	schemas.MethodHostEvaluateChangeset: "verdict", schemas.MethodHostQueryInspect: "query-inspect-result",
	schemas.MethodHostRequestEditPlan: "request-edit-plan-result", schemas.MethodHostApplyProposal: "apply-result",
	schemas.MethodHostAuthorityStatus: "authority-status",
	schemas.MethodInitialize:          "initialize-result", schemas.MethodCheckEvaluate: "assessment", schemas.MethodEditPropose: "propose-result",
	schemas.MethodListTree: "list-tree-result", schemas.MethodReadBlob: "read-blob-result", schemas.MethodPutBlob: "put-blob-result",
}

// paramSchemas names the schema of each method's params.
var paramSchemas = map[string]string{
	schemas.MethodInitialize: "initialize-params", schemas.MethodInitialized: "initialized-params",
	schemas.MethodCheckEvaluate: "check-params", schemas.MethodJudgeEvaluate: "check-params",
	schemas.MethodEditPropose: "propose-params", schemas.MethodActPropose: "propose-params",
	schemas.MethodReferences: "references-params", schemas.MethodCallers: "calls-params", schemas.MethodCallees: "calls-params",
	schemas.MethodSymbols: "symbols-params", schemas.MethodImpact: "impact-params", schemas.MethodQuery: "query-params",
	schemas.MethodBaselineChanged: "baseline-changed-params", schemas.MethodCancelRequest: "cancel-params",
	schemas.MethodListTree: "list-tree-params", schemas.MethodReadBlob: "read-blob-params", schemas.MethodPutBlob: "put-blob-params",
	schemas.MethodLogMessage: "log-message-params", schemas.MethodProgress: "progress-params", schemas.MethodPublishDiagnostics: "publish-diagnostics-params",
}

// ValidateMessage checks one line against the schemas; answered is the method
// that a response answers, empty for other messages.
func ValidateMessage(line []byte, answered string) error {
	var m message
	if err := json.Unmarshal(line, &m, json.RejectUnknownMembers(true)); err != nil {
		return fmt.Errorf("not a JSON-RPC message: %w", err)
	}
	switch {
	case m.Method == "":
		if err := schemas.ValidateSchema("response", line); err != nil {
			return err
		}
		if name := resultSchemas[answered]; name != "" && m.Error == nil {
			return schemas.ValidateSchema(name, m.Result)
		}
		return nil
	case len(m.ID) > 0:
		if err := schemas.ValidateSchema("request", line); err != nil {
			return err
		}
	default:
		if err := schemas.ValidateSchema("notification", line); err != nil {
			return err
		}
	}
	if name := paramSchemas[m.Method]; name != "" && len(m.Params) > 0 {
		return schemas.ValidateSchema(name, m.Params)
	}
	return nil
}

// Peer is a child process spoken to by JSON-RPC on its standard streams. Every
// line that it sends is checked against the schemas.
type Peer struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr lockedBuffer
	ended  chan struct{}
	// answer serves the requests of the other side; nil refuses them.
	answer func(method string, params jsontext.Value) (any, *schemas.Error)

	mu       sync.Mutex
	next     int
	waiting  map[string]waiter
	breaches []error
	heard    []message // notifications
	waitErr  error
}

type waiter struct {
	method string
	reply  chan message
}

// maxPeerLine bounds one line of a subject, in bytes.
const maxPeerLine = 128 << 20

// startPeer starts cmd; its Stdin, Stdout and Stderr must not be set.
func startPeer(cmd *exec.Cmd, answer func(string, jsontext.Value) (any, *schemas.Error)) (*Peer, error) {
	p := &Peer{cmd: cmd, waiting: map[string]waiter{}, ended: make(chan struct{}), answer: answer}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in = in
	cmd.Stderr = &p.stderr
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %q: %w", cmd.Path, err)
	}
	go p.read(out)
	return p, nil
}

func (p *Peer) read(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(make([]byte, 1<<16), maxPeerLine)
	for lines.Scan() {
		p.take(bytes.Clone(lines.Bytes()))
	}
	_, _ = io.Copy(io.Discard, out)
	err := p.cmd.Wait()
	p.mu.Lock()
	p.waitErr = err
	for id, w := range p.waiting {
		delete(p.waiting, id)
		close(w.reply)
	}
	p.mu.Unlock()
	close(p.ended)
}

func (p *Peer) take(line []byte) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		p.breach(fmt.Errorf("it sent a line that is no JSON: %.200q", line))
		return
	}
	if m.Method == "" {
		p.mu.Lock()
		w, ok := p.waiting[string(m.ID)]
		delete(p.waiting, string(m.ID))
		p.mu.Unlock()
		if err := ValidateMessage(line, w.method); err != nil {
			p.breach(fmt.Errorf("its answer to %s: %w", w.method, err))
		}
		if ok {
			w.reply <- m
		}
		return
	}
	if err := ValidateMessage(line, ""); err != nil {
		p.breach(fmt.Errorf("its %s: %w", m.Method, err))
	}
	if len(m.ID) == 0 {
		p.mu.Lock()
		if len(p.heard) < 10_000 {
			p.heard = append(p.heard, m)
		}
		p.mu.Unlock()
		return
	}
	go p.serve(m)
}

func (p *Peer) serve(m message) {
	reply := message{JSONRPC: "2.0", ID: m.ID}
	if p.answer == nil {
		reply.Error = &schemas.Error{Code: -32601, Message: "no such method", Data: &schemas.ErrorData{FailClass: schemas.FailContract}}
	} else if v, failed := p.answer(m.Method, m.Params); failed != nil {
		reply.Error = failed
	} else if raw, err := schemas.Marshal(v); err == nil {
		reply.Result = raw
	}
	if b, err := schemas.Marshal(reply); err == nil {
		_ = p.Send(b) // a peer that is gone needs no answer
	}
}

func (p *Peer) breach(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.breaches) < 20 {
		p.breaches = append(p.breaches, err)
	}
}

// Breaches joins everything that did not fit the schemas.
func (p *Peer) Breaches() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.breaches...)
}

// Send writes one line as it is.
func (p *Peer) Send(line []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := p.in.Write(append(bytes.Clone(line), '\n'))
	return err
}

// Pid of the child.
func (p *Peer) Pid() int { return p.cmd.Process.Pid }

// Stderr is what the child has written to standard error so far.
func (p *Peer) Stderr() string { return p.stderr.String() }

// Notify sends a notification.
func (p *Peer) Notify(method string, params any) error {
	raw, err := schemas.Marshal(params)
	if err != nil {
		return err
	}
	b, err := schemas.Marshal(message{JSONRPC: "2.0", Method: method, Params: raw})
	if err != nil {
		return err
	}
	return p.Send(b)
}

// Go sends a request and returns its id and where the answer will come. The
// channel is closed without an answer when the child ends.
func (p *Peer) Go(method string, params any) (string, <-chan message, error) {
	var raw jsontext.Value
	if params != nil {
		var err error
		if raw, err = schemas.Marshal(params); err != nil {
			return "", nil, err
		}
	}
	p.mu.Lock()
	p.next++
	id := fmt.Sprintf(`%d`, p.next)
	reply := make(chan message, 1)
	p.waiting[id] = waiter{method, reply}
	p.mu.Unlock()
	b, err := schemas.Marshal(message{JSONRPC: "2.0", ID: jsontext.Value(id), Method: method, Params: raw})
	if err != nil {
		return "", nil, err
	}
	select {
	case <-p.ended:
		return "", nil, p.gone(method)
	default:
	}
	return id, reply, p.Send(b)
}

// Call makes a request. A *schemas.Error is the other side's answer; any other
// error means that there was none.
func (p *Peer) Call(ctx context.Context, method string, params any) (jsontext.Value, error) {
	_, reply, err := p.Go(method, params)
	if err != nil {
		return nil, err
	}
	return p.await(ctx, method, reply)
}

func (p *Peer) await(ctx context.Context, method string, reply <-chan message) (jsontext.Value, error) {
	select {
	case m, ok := <-reply:
		switch {
		case !ok:
			return nil, p.gone(method)
		case m.Error != nil:
			return nil, m.Error
		}
		return m.Result, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("no answer to %s in time: %w", method, ctx.Err())
	}
}

func (p *Peer) gone(method string) error {
	<-p.ended
	return fmt.Errorf("it ended before it answered %s (%s); its last words: %s", method, fmt.Sprint(p.waitErr), lastLines(p.Stderr(), 3))
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}

// Close closes the child's input and waits for its end; it is killed when it
// does not end by itself within the time given, which is an error.
func (p *Peer) Close(patience time.Duration) error {
	_ = p.in.Close()
	if err := p.Ended(patience); err != nil {
		return fmt.Errorf("its input has ended: %w", err)
	}
	return nil
}

// Ended waits for the child to end by itself; it is killed when it does not,
// which is an error.
func (p *Peer) Ended(patience time.Duration) error {
	select {
	case <-p.ended:
		return nil
	case <-time.After(patience):
	}
	p.Kill()
	return fmt.Errorf("it did not end within %v", patience)
}

// Kill ends the child's whole process group.
func (p *Peer) Kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.ended
}

// ExitCode is valid after the end; -1 for a signal.
func (p *Peer) ExitCode() int { <-p.ended; return p.cmd.ProcessState.ExitCode() }

// lockedBuffer keeps the last 256 KiB.
type lockedBuffer struct {
	mu sync.Mutex
	b  []byte
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, p...)
	if over := len(l.b) - 256<<10; over > 0 {
		l.b = append([]byte{}, l.b[over:]...)
	}
	return len(p), nil
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.b)
}
