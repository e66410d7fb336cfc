package rpc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

// echo answers requests with their params; "slow" waits for its context.
type echo struct{ notified chan string }

func (e echo) Request(ctx context.Context, method string, params jsontext.Value) (any, error) {
	switch method {
	case "slow":
		<-ctx.Done()
		return nil, &schemas.Error{Code: schemas.CodeCancelled, Message: "cancelled"}
	case "secret":
		return nil, errors.New("open /etc/shadow: permission denied")
	}
	return params, nil
}

func (e echo) Notification(_ context.Context, method string, _ jsontext.Value) error {
	if method == "bad" {
		return errors.New("bad notification")
	}
	e.notified <- method
	return nil
}

// peer is a connection under test whose other side is driven by hand.
type peer struct {
	t    *testing.T
	conn *Conn
	in   *io.PipeWriter
	out  *bufio.Reader
	end  chan error
}

func start(t *testing.T, opt Options) *peer {
	t.Helper()
	if opt.Cancel == "" {
		opt.Cancel = "$/cancelRequest"
	}
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	p := &peer{t: t, in: inW, out: bufio.NewReader(outR), end: make(chan error, 1)}
	p.conn = New(echo{notified: make(chan string, 1000)}, opt)
	go func() {
		err := p.conn.Run(context.Background(), inR, outW)
		outW.Close()
		p.end <- err
	}()
	t.Cleanup(func() { inW.Close(); outR.Close() })
	return p
}

func (p *peer) say(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) hear() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSuffix(line, "\n")
}

func (p *peer) ended() error {
	p.t.Helper()
	select {
	case err := <-p.end:
		return err
	case <-time.After(5 * time.Second):
		p.t.Fatal("the connection did not end")
		return nil
	}
}

func TestAnswersRequests(t *testing.T) {
	p := start(t, Options{})
	p.say(`{"jsonrpc":"2.0","id":"a","method":"m","params":{"x":1}}`)
	if got, want := p.hear(), `{"jsonrpc":"2.0","id":"a","result":{"x":1}}`; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
}

func TestHidesInternalErrors(t *testing.T) {
	p := start(t, Options{})
	p.say(`{"jsonrpc":"2.0","id":1,"method":"secret"}`)
	if got := p.hear(); strings.Contains(got, "shadow") || !strings.Contains(got, `"failClass":"health"`) {
		t.Fatal(got)
	}
}

func TestCallIsAnsweredAndCancelled(t *testing.T) {
	p := start(t, Options{})
	type result struct {
		v   jsontext.Value
		err error
	}
	res := make(chan result, 1)
	go func() {
		v, err := p.conn.Call(context.Background(), "m", nil)
		res <- result{v, err}
	}()
	if got, want := p.hear(), `{"jsonrpc":"2.0","id":1,"method":"m"}`; got != want {
		t.Fatal(got)
	}
	p.say(`{"jsonrpc":"2.0","id":1,"result":7}`)
	if r := <-res; r.err != nil || string(r.v) != "7" {
		t.Fatal(r)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		v, err := p.conn.Call(ctx, "m", nil)
		res <- result{v, err}
	}()
	p.hear()
	cancel()
	if got, want := p.hear(), `{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":2}}`; got != want {
		t.Fatal(got)
	}
	if r := <-res; !errors.Is(r.err, context.Canceled) {
		t.Fatal(r)
	}
	// One late answer to what was withdrawn is fine, a second is not.
	p.say(`{"jsonrpc":"2.0","id":2,"result":7}`)
	p.say(`{"jsonrpc":"2.0","id":2,"result":7}`)
	wantViolation(t, p.ended(), "answered-twice")
}

func wantViolation(t *testing.T, err error, kind string) {
	t.Helper()
	var v *Violation
	if !errors.As(err, &v) || v.Kind != kind {
		t.Fatalf("got %v, want a violation of kind %s", err, kind)
	}
}

func TestBreachesEndTheConnection(t *testing.T) {
	for name, tc := range map[string]struct{ line, kind string }{
		"not json":         {`hello`, "malformed"},
		"batch":            {`[{"jsonrpc":"2.0","id":1,"method":"m"}]`, "malformed"},
		"no version":       {`{"id":1,"method":"m"}`, "malformed"},
		"unknown member":   {`{"jsonrpc":"2.0","id":1,"method":"m","extra":1}`, "malformed"},
		"doubled member":   {`{"jsonrpc":"2.0","id":1,"id":1,"method":"m"}`, "malformed"},
		"bad utf-8":        {"{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"m\"}", "malformed"},
		"both":             {`{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":"x"}}`, "malformed"},
		"neither":          {`{"jsonrpc":"2.0","id":1}`, "malformed"},
		"fraction id":      {`{"jsonrpc":"2.0","id":1.5,"method":"m"}`, "malformed"},
		"null id":          {`{"jsonrpc":"2.0","id":null,"method":"m"}`, "malformed"},
		"open error":       {`{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x","decision":"allow"}}`, "malformed"},
		"unasked":          {`{"jsonrpc":"2.0","id":99,"result":1}`, "unasked-answer"},
		"unasked string":   {`{"jsonrpc":"2.0","id":"x","result":1}`, "unasked-answer"},
		"long line":        {strings.Repeat("x", 5000), "line-too-long"},
		"deep":             {`{"jsonrpc":"2.0","id":1,"method":"m","params":` + strings.Repeat("[", 900) + strings.Repeat("]", 900) + `}`, "malformed"},
		"bad notification": {`{"jsonrpc":"2.0","method":"bad"}`, "notification"},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, Options{LineBytes: 4096})
			p.say(tc.line)
			wantViolation(t, p.ended(), tc.kind)
		})
	}
}

func TestTolerantConnectionGoesOn(t *testing.T) {
	p := start(t, Options{LineBytes: 4096, Tolerant: true})
	for _, line := range []string{`hello`, `[]`, strings.Repeat("x", 100_000), `{"jsonrpc":"2.0","id":{},"method":"m"}`} {
		p.say(line)
		if got := p.hear(); !strings.Contains(got, `"error"`) || !strings.Contains(got, `"failClass":"input"`) {
			t.Fatalf("%.30s: %s", line, got)
		}
	}
	p.say(`{"jsonrpc":"2.0","id":5,"method":"m","params":[1]}`)
	if got, want := p.hear(), `{"jsonrpc":"2.0","id":5,"result":[1]}`; got != want {
		t.Fatal(got)
	}
}

func TestEndlessLineIsRefusedWhileItRuns(t *testing.T) {
	p := start(t, Options{LineBytes: 1 << 16})
	go func() {
		for {
			if _, err := p.in.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	}()
	wantViolation(t, p.ended(), "line-too-long")
}

func TestCancelNotificationReachesTheRequest(t *testing.T) {
	p := start(t, Options{})
	p.say(`{"jsonrpc":"2.0","id":"s","method":"slow"}`)
	p.say(`{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":"s"}}`)
	if got := p.hear(); !strings.Contains(got, "-32016") {
		t.Fatal(got)
	}
}

// TestFloodIsHeldBack sends many requests that are not answered: the reader
// stops reading after the workers are busy, so that nothing piles up here.
func TestFloodIsHeldBack(t *testing.T) {
	p := start(t, Options{Concurrent: 2})
	sent := make(chan int, 1)
	go func() {
		for i := range 1_000_000 {
			if _, err := fmt.Fprintf(p.in, `{"jsonrpc":"2.0","id":%d,"method":"slow"}`+"\n", i); err != nil {
				sent <- i
				return
			}
		}
		sent <- -1
	}()
	time.Sleep(200 * time.Millisecond)
	p.in.CloseWithError(io.ErrUnexpectedEOF)
	if n := <-sent; n < 0 || n > 2000 {
		t.Fatalf("%d requests were taken", n)
	}
}

func TestPeerClosingIsEOF(t *testing.T) {
	p := start(t, Options{})
	p.in.Close()
	if err := p.ended(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if _, err := p.conn.Call(context.Background(), "m", nil); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}\n\n{}\n"), true)
	f.Add([]byte("{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n"), false)
	f.Fuzz(func(t *testing.T, data []byte, tolerant bool) {
		c := New(echo{notified: make(chan string, len(data)+1)}, Options{LineBytes: 1 << 12, Tolerant: tolerant})
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		r := io.Reader(strings.NewReader(strings.ReplaceAll(string(data), "slow", "quick")))
		if err := c.Run(ctx, r, io.Discard); errors.Is(err, context.DeadlineExceeded) {
			t.Fatal("the connection did not end")
		}
	})
}
