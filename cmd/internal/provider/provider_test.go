package provider

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

type obj = map[string]any

var baseline = obj{"rev": "git:tree:4b825dc642cb6eb9a060e54bf8d69288fbee4904"}

// peer is a host at the other end of two pipes.
type peer struct {
	t     *testing.T
	in    *io.PipeWriter
	lines chan reply
	done  chan struct{}
	code  int
	err   error
	next  int
	// answer serves callbacks; nil answers nothing.
	answer func(r reply) obj
	mu     sync.Mutex
	notes  []reply
}

type reply struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *schemas.Error
}

func converse(t *testing.T, h Handler) *peer {
	t.Helper()
	if h.Describe == nil {
		h.Describe = func() schemas.InitializeResult {
			return schemas.InitializeResult{ServerInfo: schemas.ServerInfo{Name: "t", Version: "1", Fingerprint: "sha256:0"}}
		}
	}
	fromHost, in := io.Pipe()
	out, toHost := io.Pipe()
	p := &peer{t: t, in: in, lines: make(chan reply, 1000), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.code, p.err = Serve(t.Context(), h, fromHost, toHost)
		toHost.Close()
	}()
	go func() {
		defer close(p.lines)
		r := bufio.NewReaderSize(out, 1<<20)
		for {
			line, err := r.ReadBytes('\n')
			if err != nil {
				return
			}
			var m reply
			if err := json.Unmarshal(line, &m); err != nil {
				panic(err)
			}
			switch {
			case m.Method != "" && m.ID == nil:
				p.mu.Lock()
				p.notes = append(p.notes, m)
				p.mu.Unlock()
			case m.Method != "":
				if p.answer == nil {
					continue
				}
				a := p.answer(m)
				if a == nil {
					continue
				}
				a["jsonrpc"], a["id"] = "2.0", m.ID
				p.send(a)
			default:
				p.lines <- m
			}
		}
	}()
	t.Cleanup(func() { in.Close(); out.Close(); <-p.done })
	return p
}

func (p *peer) raw(text string) {
	if _, err := io.WriteString(p.in, text); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		p.t.Error(err)
	}
}

func (p *peer) send(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	p.raw(string(b) + "\n")
}

func (p *peer) read() reply {
	p.t.Helper()
	select {
	case r, ok := <-p.lines:
		if !ok {
			p.t.Fatal("the provider has ended")
		}
		return r
	case <-time.After(10 * time.Second):
		p.t.Fatal("no answer")
	}
	return reply{}
}

func (p *peer) call(method string, params any) reply {
	p.t.Helper()
	p.next++
	m := obj{"jsonrpc": "2.0", "id": p.next, "method": method}
	if params != nil {
		m["params"] = params
	}
	p.send(m)
	return p.read()
}

func (p *peer) notify(method string, params any) {
	p.send(obj{"jsonrpc": "2.0", "method": method, "params": params})
}

func (p *peer) greet() {
	p.t.Helper()
	if r := p.call("initialize", introduction()); r.Error != nil {
		p.t.Fatal(r.Error)
	}
	p.notify("initialized", obj{"grantedPermissions": obj{"read": []string{"**"}, "resourceLimits": obj{}}, "baseline": baseline})
}

func introduction() obj {
	return obj{"protocolVersion": "asp/1.0", "host": obj{"name": "t", "version": "0"}, "workspace": obj{"root": "/w", "baseline": baseline}}
}

func question(changes ...obj) obj {
	if changes == nil {
		changes = []obj{}
	}
	return obj{"changeset": obj{"baseline": baseline, "changes": changes}, "scope": "changeset", "comparison": "introduced"}
}

// clean answers every check at once.
func clean(_ context.Context, w *Workspace, q *CheckRequest) (*schemas.Assessment, error) {
	return &schemas.Assessment{Status: schemas.StatusComplete, ValidAsOf: schemas.CheckValidAsOf{ChangesetDigest: q.ChangesetDigest, Blobs: w.Received()}}, nil
}

func wantError(t *testing.T, r reply, code int, class schemas.FailClass) {
	t.Helper()
	if r.Error == nil || r.Error.Code != code || r.Error.Data == nil || r.Error.Data.FailClass != class {
		t.Fatalf("got %s %+v, want code %d of class %s", r.Result, r.Error, code, class)
	}
}

func TestHandshakeInOrder(t *testing.T) {
	p := converse(t, Handler{Check: clean})
	wantError(t, p.call("check/evaluate", question()), schemas.CodeHealthNotReady, schemas.FailHealth)
	// A grant before initialize is none.
	p.notify("initialized", obj{"grantedPermissions": obj{"resourceLimits": obj{}}, "baseline": baseline})
	wantError(t, p.call("check/evaluate", question()), schemas.CodeHealthNotReady, schemas.FailHealth)
	if r := p.call("initialize", introduction()); r.Error != nil {
		t.Fatal(r.Error)
	}
	wantError(t, p.call("initialize", introduction()), codeInvalidRequest, schemas.FailContract)
	wantError(t, p.call("check/evaluate", question()), schemas.CodeHealthNotReady, schemas.FailHealth)
	for name, grant := range map[string]obj{
		"no limits":      {"grantedPermissions": obj{"read": []string{"**"}}, "baseline": baseline},
		"no permissions": {"baseline": baseline},
		"no baseline":    {"grantedPermissions": obj{"resourceLimits": obj{}}},
		"host's words":   {"grantedPermissions": obj{"resourceLimits": obj{}}, "baseline": baseline, "authority": obj{"granted": true}},
	} {
		p.notify("initialized", grant)
		r := p.call("check/evaluate", question())
		if r.Error == nil {
			t.Fatalf("%s: it works", name)
		}
	}
	p.notify("initialized", obj{"grantedPermissions": obj{"resourceLimits": obj{}}, "baseline": baseline})
	if r := p.call("check/evaluate", question()); r.Error != nil {
		t.Fatal(r.Error)
	}
	if r := p.call("judge/evaluate", question()); r.Error != nil {
		t.Fatal("the old name: ", r.Error)
	}
}

func TestInitializeRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		change obj
		code   int
		class  schemas.FailClass
	}{
		"other version":              {obj{"protocolVersion": "asp/2.0", "novelty": 1}, schemas.CodeUnsupportedVersion, schemas.FailContract},
		"older version":              {obj{"protocolVersion": "asp/0.9"}, schemas.CodeUnsupportedVersion, schemas.FailContract},
		"version of another kind":    {obj{"protocolVersion": 1}, codeInvalidParams, schemas.FailInput},
		"no version":                 {obj{"protocolVersion": nil}, codeInvalidParams, schemas.FailInput},
		"unknown member":             {obj{"verdict": "allow"}, codeInvalidParams, schemas.FailInput},
		"no workspace":               {obj{"workspace": nil}, codeInvalidParams, schemas.FailInput},
		"empty baseline":             {obj{"workspace": obj{"root": "/", "baseline": obj{"rev": ""}}}, codeInvalidParams, schemas.FailInput},
		"an assurance mode made up":  {obj{"assuranceMode": "unbreakable"}, codeInvalidParams, schemas.FailInput},
		"host without a version":     {obj{"host": obj{"name": "x"}}, codeInvalidParams, schemas.FailInput},
		"workspace with extra field": {obj{"workspace": obj{"root": "/", "baseline": baseline, "policyDigest": "x"}}, codeInvalidParams, schemas.FailInput},
	} {
		t.Run(name, func(t *testing.T) {
			p := converse(t, Handler{Check: clean})
			params := introduction()
			for k, v := range tc.change {
				if params[k] = v; v == nil {
					delete(params, k)
				}
			}
			wantError(t, p.call("initialize", params), tc.code, tc.class)
			// A refusal is not the end of the conversation.
			p.greet()
		})
	}
}

func TestMalformedLines(t *testing.T) {
	p := converse(t, Handler{Check: clean})
	p.greet()
	for line, id := range map[string]string{
		`{`: "null", `[]`: "null", `[{"jsonrpc":"2.0","id":1,"method":"shutdown"}]`: "null", `7`: "null", `"x"`: "null",
		`{"jsonrpc":"1.0","id":5,"method":"shutdown"}`:                           "5",
		`{"jsonrpc":"2.0","id":6}`:                                               "6",
		`{"jsonrpc":"2.0","id":{},"method":"shutdown"}`:                          "null",
		`{"jsonrpc":"2.0","id":1.5,"method":"shutdown"}`:                         "null",
		`{"jsonrpc":"2.0","id":true,"method":"shutdown"}`:                        "null",
		`{"jsonrpc":"2.0","id":null,"method":"shutdown"}`:                        "null",
		`{"jsonrpc":"2.0","id":7,"method":"shutdown","result":{}}`:               "7",
		`{"jsonrpc":"2.0","id":8,"method":"shutdown","extra":1}`:                 "8",
		`{"jsonrpc":"2.0","id":9,"id":9,"method":"shutdown"}`:                    "9",
		`{"jsonrpc":"2.0","id":"` + strings.Repeat("x", 300) + `","method":"x"}`: "null",
		"{\"jsonrpc\":\"2.0\",\"id\":10,\"method\":\"\xff\"}":                    "10",
		`{"jsonrpc":"2.0","id":11,"result":{},"error":{"code":1,"message":""}}`:  "11",
	} {
		p.raw(line + "\n")
		r := p.read()
		if r.Error == nil || r.Error.Data == nil || r.Error.Data.FailClass != schemas.FailInput || string(r.ID) != id {
			t.Errorf("%s: %s %+v", line, r.ID, r.Error)
		}
	}
	// Answers to nothing, empty lines and carriage returns disturb nobody.
	p.raw("\n \r\n{\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{}}\r\n")
	if r := p.call("check/evaluate", question()); r.Error != nil {
		t.Fatal(r.Error)
	}
}

func TestLongLineIsPassedOver(t *testing.T) {
	l := newLines(io.MultiReader(strings.NewReader(strings.Repeat("x", 200_000)+"\nshort\n"+strings.Repeat("y", 100)+"\n"), strings.NewReader("last")), 100)
	var long *tooLongError
	if _, err := l.next(); !errors.As(err, &long) {
		t.Fatal(err)
	}
	for _, want := range []string{"short", strings.Repeat("y", 99) + "y", "last"} {
		line, err := l.next()
		if want == strings.Repeat("y", 100) {
			// Its newline makes it 101 bytes.
			if !errors.As(err, &long) {
				t.Fatal(err)
			}
			continue
		}
		if err != nil || string(line) != want {
			t.Fatalf("%q %v", line, err)
		}
	}
	if _, err := l.next(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if cap(l.held) > 200 {
		t.Fatalf("it held %d bytes", cap(l.held))
	}
}

func TestIDsKeepTheirKind(t *testing.T) {
	p := converse(t, Handler{Check: clean})
	p.greet()
	for _, id := range []string{`"a"`, `1`, `"1"`, `-7`, `9007199254740993`, `"ü"`} {
		p.raw(`{"jsonrpc":"2.0","id":` + id + `,"method":"check/evaluate","params":` + string(must(json.Marshal(question()))) + "}\n")
		if r := p.read(); string(r.ID) != id || r.Error != nil {
			t.Fatalf("%s came back as %s %v", id, r.ID, r.Error)
		}
	}
	for a, b := range map[string]string{`"a"`: `"\u0061"`, ` 1`: `1 `} {
		x, _ := idOf(jsontext.Value(a))
		y, _ := idOf(jsontext.Value(b))
		if x != y || x == "" {
			t.Errorf("%s and %s are told apart", a, b)
		}
	}
	if x, y := must(idOf(jsontext.Value("1"))), must(idOf(jsontext.Value(`"1"`))); x == y {
		t.Error("1 and \"1\" are one")
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestDigestsAreOverWhatWasSent(t *testing.T) {
	var got *CheckRequest
	p := converse(t, Handler{Check: func(ctx context.Context, w *Workspace, q *CheckRequest) (*schemas.Assessment, error) {
		got = q
		return clean(ctx, w, q)
	}})
	p.greet()
	ref := "blob:sha256:" + strings.Repeat("0", 64)
	// Order of members, spaces, escapes and a time that is written unusually.
	p.raw(`{"jsonrpc":"2.0","id":1,"method":"check/evaluate","params":{"comparison":"introduced","scope":"changeset","configuration":{"b":1,"a":1.0},` +
		`"changeset":{ "changes":[{"kind":"create","path":"\u0061","after":"` + ref + `"}],"baseline":{"stampedAt":"2026-01-02T03:04:05.000Z","rev":"` + baseline["rev"].(string) + `"}}}}` + "\n")
	if r := p.read(); r.Error != nil {
		t.Fatal(r.Error)
	}
	want := must(schemas.DigestRaw([]byte(`{"baseline":{"rev":"` + baseline["rev"].(string) + `","stampedAt":"2026-01-02T03:04:05.000Z"},"changes":[{"after":"` + ref + `","kind":"create","path":"a"}]}`)))
	if got.ChangesetDigest != want {
		t.Error("changeset digest")
	}
	if want := must(schemas.DigestRaw([]byte(`{"a":1,"b":1}`))); got.ConfigDigest != want {
		t.Error("config digest")
	}
	p.call("check/evaluate", question())
	if want := must(schemas.DigestRaw([]byte(`{}`))); got.ConfigDigest != want {
		t.Error("config digest without a configuration")
	}
}

func TestRefusedRequests(t *testing.T) {
	p := converse(t, Handler{Check: clean})
	p.greet()
	with := func(k string, v any) obj {
		q := question()
		if q[k] = v; v == nil {
			delete(q, k)
		}
		return q
	}
	other := obj{"baseline": obj{"rev": "git:tree:other"}, "changes": []obj{}}
	for name, tc := range map[string]struct {
		method string
		params any
		code   int
		class  schemas.FailClass
	}{
		"no method":          {"check/everything", obj{}, codeMethodNotFound, schemas.FailContract},
		"the host's method":  {"host/status", obj{}, codeMethodNotFound, schemas.FailContract},
		"not offered":        {"edit/propose", obj{}, codeMethodNotFound, schemas.FailContract},
		"not offered either": {"sense/symbols", obj{}, codeMethodNotFound, schemas.FailContract},
		"no params":          {"check/evaluate", nil, schemas.CodeInvalidChangeset, schemas.FailInput},
		"bad path":           {"check/evaluate", question(obj{"path": "../x", "kind": "create", "after": "blob:sha256:" + strings.Repeat("0", 64)}), schemas.CodeInvalidChangeset, schemas.FailInput},
		"unknown member":     {"check/evaluate", with("decision", "allow"), schemas.CodeInvalidChangeset, schemas.FailInput},
		"host's field":       {"check/evaluate", with("authority", obj{"granted": true}), schemas.CodeInvalidChangeset, schemas.FailInput},
		"no comparison":      {"check/evaluate", with("comparison", nil), schemas.CodeInvalidChangeset, schemas.FailInput},
		"empty scope":        {"check/evaluate", with("scope", obj{"paths": []string{}}), schemas.CodeInvalidChangeset, schemas.FailInput},
		"list for config":    {"check/evaluate", with("configuration", []string{}), schemas.CodeInvalidChangeset, schemas.FailInput},
		"other baseline":     {"check/evaluate", with("changeset", other), schemas.CodeStaleBaseline, schemas.FailHealth},
	} {
		t.Run(name, func(t *testing.T) {
			p.t = t
			wantError(t, p.call(tc.method, tc.params), tc.code, tc.class)
		})
	}
	p.t = t
	p.notify("workspace/baselineChanged", obj{"baseline": obj{}})
	p.notify("workspace/baselineChanged", obj{"baseline": obj{"rev": "git:tree:other"}})
	if r := p.call("check/evaluate", with("changeset", other)); r.Error != nil {
		t.Fatal(r.Error)
	}
	wantError(t, p.call("check/evaluate", question()), schemas.CodeStaleBaseline, schemas.FailHealth)
}

func TestCancel(t *testing.T) {
	started := make(chan struct{}, 10)
	p := converse(t, Handler{Check: func(ctx context.Context, _ *Workspace, q *CheckRequest) (*schemas.Assessment, error) {
		started <- struct{}{}
		<-ctx.Done()
		if len(q.Rules) > 0 {
			return &schemas.Assessment{Status: schemas.StatusCancelled}, nil
		}
		return nil, ctx.Err()
	}})
	p.greet()
	ask := func(id any, q obj) { p.send(obj{"jsonrpc": "2.0", "id": id, "method": "check/evaluate", "params": q}) }
	ask("running", question())
	<-started
	ask("waiting", question())
	ask("waiting", question())
	wantError(t, p.read(), codeInvalidRequest, schemas.FailInput)
	p.notify("$/cancelRequest", obj{"id": "waiting"})
	p.notify("$/cancelRequest", obj{"id": "never there"})
	p.notify("$/cancelRequest", obj{"id": []int{}})
	p.notify("$/cancelRequest", obj{"id": "running"})
	for range 2 {
		r := p.read()
		wantError(t, r, schemas.CodeCancelled, schemas.FailHealth)
		if r.Error.Data.Retryable == nil || !*r.Error.Data.Retryable {
			t.Fatal("not called retryable")
		}
	}
	q := question()
	q["rules"] = []string{"x"}
	ask(3, q)
	<-started
	p.notify("$/cancelRequest", obj{"id": 3})
	if r := p.read(); r.Error != nil || !bytes.Contains(r.Result, []byte(`"cancelled"`)) {
		t.Fatalf("%s %v", r.Result, r.Error)
	}
}

func TestOneAtATimeAndNoEndlessQueue(t *testing.T) {
	var mu sync.Mutex
	running, most := 0, 0
	release := make(chan struct{})
	p := converse(t, Handler{Check: func(ctx context.Context, w *Workspace, q *CheckRequest) (*schemas.Assessment, error) {
		mu.Lock()
		running++
		most = max(most, running)
		mu.Unlock()
		<-release
		mu.Lock()
		running--
		mu.Unlock()
		return clean(ctx, w, q)
	}})
	p.greet()
	const n = 60
	for i := range n {
		p.send(obj{"jsonrpc": "2.0", "id": i, "method": "check/evaluate", "params": question()})
	}
	busy := 0
	for range n - maxWaiting - 1 {
		r := p.read()
		wantError(t, r, schemas.CodeHealthNotReady, schemas.FailHealth)
		busy++
	}
	close(release)
	for range n - busy {
		if r := p.read(); r.Error != nil && r.Error.Code != schemas.CodeHealthNotReady {
			t.Fatal(r.Error)
		}
	}
	if most != 1 {
		t.Fatalf("%d at a time", most)
	}
}

func TestFailuresInside(t *testing.T) {
	answers := []func() (*schemas.Assessment, error){
		func() (*schemas.Assessment, error) { panic("boom") },
		func() (*schemas.Assessment, error) { return nil, errors.New("it is broken") },
		func() (*schemas.Assessment, error) {
			return nil, &schemas.Error{Code: 7, Message: "mine", Data: &schemas.ErrorData{FailClass: schemas.FailPolicy}}
		},
		func() (*schemas.Assessment, error) {
			return &schemas.Assessment{Evidence: []schemas.EvidenceItem{{Kind: "metric", Data: jsontext.Value(`{"a":[{"verdict":1}]}`)}}}, nil
		},
		func() (*schemas.Assessment, error) {
			return &schemas.Assessment{Evidence: []schemas.EvidenceItem{{Kind: "metric", Data: jsontext.Value(`{"a":`)}}}, nil
		},
	}
	n := 0
	p := converse(t, Handler{Check: func(context.Context, *Workspace, *CheckRequest) (*schemas.Assessment, error) {
		n++
		return answers[n-1]()
	}})
	p.greet()
	wantError(t, p.call("check/evaluate", question()), codeInternal, schemas.FailHealth)
	wantError(t, p.call("check/evaluate", question()), codeInternal, schemas.FailHealth)
	wantError(t, p.call("check/evaluate", question()), 7, schemas.FailPolicy)
	wantError(t, p.call("check/evaluate", question()), codeInternal, schemas.FailContract)
	wantError(t, p.call("check/evaluate", question()), codeInternal, schemas.FailHealth)
}

func TestEditAndInspectHooks(t *testing.T) {
	h := Handler{
		Propose: func(ctx context.Context, w *Workspace, p *schemas.ProposeParams) (*schemas.ProposeResult, error) {
			refs, err := w.PutBlobs(ctx, []byte("new"))
			if err != nil {
				return nil, err
			}
			return &schemas.ProposeResult{Proposal: schemas.EditPlan{ProposalID: p.ProposalID, Rationale: string(refs[0])}}, nil
		},
		Inspect: func(_ context.Context, w *Workspace, method string, params jsontext.Value) (any, error) {
			w.Progress(50, "half")
			w.Log("info", "well")
			return obj{"method": method, "params": params}, nil
		},
	}
	p := converse(t, h)
	p.answer = func(reply) obj { return obj{"result": obj{"ids": []string{string(schemas.BlobRefOf([]byte("new")))}}} }
	p.greet()
	ask := obj{"operation": "rename", "baseline": baseline, "scope": obj{"paths": []string{"a"}}, "proposalId": "p1"}
	for _, method := range []string{"edit/propose", "act/propose"} {
		if r := p.call(method, ask); r.Error != nil || !bytes.Contains(r.Result, []byte(schemas.BlobRefOf([]byte("new")))) {
			t.Fatalf("%s %v", r.Result, r.Error)
		}
	}
	ask["command"] = "rm"
	wantError(t, p.call("edit/propose", ask), codeInvalidParams, schemas.FailInput)
	if r := p.call("sense/references", obj{"symbol": obj{"id": "x"}}); r.Error != nil || !bytes.Contains(r.Result, []byte("sense/references")) {
		t.Fatalf("%s %v", r.Result, r.Error)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.notes) != 2 || p.notes[0].Method != "$/progress" || p.notes[1].Method != "window/logMessage" {
		t.Fatalf("%+v", p.notes)
	}
	for _, note := range p.notes {
		t.Log(string(note.Params))
	}
}

func TestEnds(t *testing.T) {
	block := func(ctx context.Context, _ *Workspace, _ *CheckRequest) (*schemas.Assessment, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for name, tc := range map[string]struct {
		do   func(*peer)
		code int
	}{
		"shutdown and exit": {func(p *peer) { p.call("shutdown", nil); p.notify("exit", nil) }, 0},
		"shutdown and gone": {func(p *peer) { p.call("shutdown", nil); p.in.Close() }, 0},
		"exit alone":        {func(p *peer) { p.notify("exit", nil) }, 1},
		"gone":              {func(p *peer) { p.in.Close() }, 1},
		"gone in a line":    {func(p *peer) { p.raw(`{"jsonrpc":`); p.in.Close() }, 1},
		"gone while it works": {func(p *peer) {
			p.send(obj{"jsonrpc": "2.0", "id": 1, "method": "check/evaluate", "params": question()})
			p.in.Close()
		}, 1},
		"no work after shutdown": {func(p *peer) {
			p.call("shutdown", nil)
			wantError(p.t, p.call("check/evaluate", question()), schemas.CodeHealthNotReady, schemas.FailHealth)
			p.notify("exit", nil)
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := converse(t, Handler{Check: block})
			p.greet()
			tc.do(p)
			select {
			case <-p.done:
			case <-time.After(5 * time.Second):
				t.Fatal("it did not end")
			}
			if p.code != tc.code || p.err != nil {
				t.Fatalf("code %d, %v", p.code, p.err)
			}
		})
	}
}

// reader is a check that reads the blobs of a change.
func reader(got map[schemas.BlobRef]string, refused map[schemas.BlobRef]int) func(context.Context, *Workspace, *CheckRequest) (*schemas.Assessment, error) {
	return func(ctx context.Context, w *Workspace, q *CheckRequest) (*schemas.Assessment, error) {
		var refs []schemas.BlobRef
		for _, c := range q.ChangeSet.Changes {
			refs = append(refs, c.After)
		}
		err := w.ReadBlobs(ctx, refs, func(ref schemas.BlobRef, content []byte, no *schemas.Error) error {
			if no != nil {
				refused[ref]++
				return nil
			}
			got[ref] = string(content)
			return nil
		})
		if err != nil {
			return nil, err
		}
		return clean(ctx, w, q)
	}
}

func blobs(n int, text func(int) string) (changes []obj, store map[string]string) {
	store = map[string]string{}
	for i := range n {
		ref := string(schemas.BlobRefOf([]byte(text(i))))
		store[ref] = text(i)
		changes = append(changes, obj{"path": fmt.Sprint("f", i), "kind": "create", "after": ref})
	}
	return changes, store
}

// TestBlobsInBatches grants all but some blobs and bounds the size of an
// answer, as hosts do.
func TestBlobsInBatches(t *testing.T) {
	got, refused := map[schemas.BlobRef]string{}, map[schemas.BlobRef]int{}
	p := converse(t, Handler{Check: reader(got, refused)})
	changes, store := blobs(100, func(i int) string { return strings.Repeat("x", i*100) + "\xff"[:i%2] })
	denied := map[string]bool{changes[3]["after"].(string): true, changes[70]["after"].(string): true}
	served := map[string]bool{}
	calls := 0
	p.answer = func(r reply) obj {
		calls++
		var q struct{ Blobs []string }
		_ = json.Unmarshal(r.Params, &q)
		if len(q.Blobs) > maxBatch {
			t.Errorf("%d blobs at once", len(q.Blobs))
		}
		sum := 0
		list := []obj{}
		for _, ref := range q.Blobs {
			sum += len(store[ref])
			encoding, text := "utf-8", store[ref]
			if strings.HasSuffix(text, "\xff") {
				encoding, text = "base64", base64.StdEncoding.EncodeToString([]byte(text))
			}
			list = append(list, obj{"id": ref, "encoding": encoding, "bytes": text})
			if denied[ref] {
				return obj{"error": obj{"code": -32012, "message": "outside", "data": obj{"failClass": "policy"}}}
			}
		}
		if sum > 50_000 {
			return obj{"error": obj{"code": -32012, "message": "too much", "data": obj{"failClass": "policy"}}}
		}
		for _, ref := range q.Blobs {
			served[ref] = true
		}
		slices.Reverse(list) // the order is the host's
		return obj{"result": obj{"blobs": list}}
	}
	p.greet()
	r := p.call("check/evaluate", question(changes...))
	if r.Error != nil {
		t.Fatal(r.Error)
	}
	var a struct{ ValidAsOf schemas.CheckValidAsOf }
	if err := json.Unmarshal(r.Result, &a); err != nil {
		t.Fatal(err)
	}
	if len(got) != 98 || len(refused) != 2 || len(a.ValidAsOf.Blobs) != len(served) || !slices.IsSorted(a.ValidAsOf.Blobs) {
		t.Fatalf("%d got, %d refused, %d named, %d served", len(got), len(refused), len(a.ValidAsOf.Blobs), len(served))
	}
	for ref, text := range got {
		if store[string(ref)] != text {
			t.Fatal("other bytes")
		}
	}
	if calls > 60 {
		t.Fatalf("%d callbacks for 100 blobs", calls)
	}
}

func TestAnswersThatCannotBeBelieved(t *testing.T) {
	changes, store := blobs(2, func(i int) string { return fmt.Sprint("text ", i) })
	a, b := changes[0]["after"].(string), changes[1]["after"].(string)
	blob := func(id, encoding, bytes string) obj { return obj{"id": id, "encoding": encoding, "bytes": bytes} }
	good := []obj{blob(a, "utf-8", store[a]), blob(b, "utf-8", store[b])}
	for name, answer := range map[string]obj{
		"other bytes":    {"result": obj{"blobs": []obj{blob(a, "utf-8", "lies"), good[1]}}},
		"one left out":   {"result": obj{"blobs": good[:1]}},
		"one twice":      {"result": obj{"blobs": []obj{good[0], good[0]}}},
		"not asked for":  {"result": obj{"blobs": append([]obj{blob(string(schemas.BlobRefOf([]byte("z"))), "utf-8", "z")}, good...)}},
		"bad base64":     {"result": obj{"blobs": []obj{blob(a, "base64", "***"), good[1]}}},
		"odd encoding":   {"result": obj{"blobs": []obj{blob(a, "utf-16", store[a]), good[1]}}},
		"unknown member": {"result": obj{"blobs": good, "receipt": 1}},
		"of no kind":     {"result": 5},
	} {
		t.Run(name, func(t *testing.T) {
			p := converse(t, Handler{Check: reader(map[schemas.BlobRef]string{}, map[schemas.BlobRef]int{})})
			p.answer = func(reply) obj { return answer }
			p.greet()
			wantError(t, p.call("check/evaluate", question(changes...)), codeInternal, schemas.FailHealth)
		})
	}
	for name, line := range map[string]string{
		"both":            `{"jsonrpc":"2.0","id":%s,"result":{},"error":{"code":1,"message":"x"}}`,
		"odd error":       `{"jsonrpc":"2.0","id":%s,"error":"no"}`,
		"error with more": `{"jsonrpc":"2.0","id":%s,"error":{"code":1,"message":"x","data":{"failClass":"policy","novelty":1}}}`,
		"doubled names":   `{"jsonrpc":"2.0","id":%s,"result":{"blobs":[],"blobs":[]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			refused := map[schemas.BlobRef]int{}
			p := converse(t, Handler{Check: reader(map[schemas.BlobRef]string{}, refused)})
			p.answer = func(r reply) obj {
				p.raw(fmt.Sprintf(line, r.ID) + "\n")
				return nil
			}
			p.greet()
			r := p.call("check/evaluate", question(changes...))
			if r.Error != nil || len(refused) != 2 {
				t.Fatalf("%+v, %d refused", r.Error, len(refused))
			}
		})
	}
}

// TestAnswerOverTheLineLimit stands for a file whose JSON form is too large.
func TestAnswerOverTheLineLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("writes over 64 MiB")
	}
	refused := map[schemas.BlobRef]int{}
	p := converse(t, Handler{Check: reader(map[schemas.BlobRef]string{}, refused)})
	p.answer = func(r reply) obj {
		p.raw(`{"jsonrpc":"2.0","id":` + string(r.ID) + `,"result":"` + strings.Repeat("x", maxLine) + "\"}\n")
		return nil
	}
	p.greet()
	changes, _ := blobs(1, func(int) string { return "a" })
	if r := p.call("check/evaluate", question(changes...)); r.Error != nil || len(refused) != 1 {
		t.Fatalf("%+v, %d refused", r.Error, len(refused))
	}
}

func TestTree(t *testing.T) {
	var got []schemas.TreeEntry
	var cut bool
	p := converse(t, Handler{Check: func(ctx context.Context, w *Workspace, q *CheckRequest) (*schemas.Assessment, error) {
		var err error
		if got, cut, err = w.ListTree(ctx, schemas.ListTreeParams{Globs: []string{"**"}}); err != nil {
			return nil, err
		}
		return clean(ctx, w, q)
	}})
	ref := schemas.BlobRefOf([]byte("x"))
	entries := []obj{{"path": "a", "blobId": ref, "kind": "file"}, {"path": "b", "blobId": ref, "kind": "symlink"}}
	p.answer = func(reply) obj { return obj{"result": obj{"entries": entries, "truncated": true}} }
	p.greet()
	if r := p.call("check/evaluate", question()); r.Error != nil || len(got) != 2 || !cut {
		t.Fatalf("%+v %v %v", r.Error, got, cut)
	}
	entries[0]["path"] = "../a"
	wantError(t, p.call("check/evaluate", question()), codeInternal, schemas.FailHealth)
}

// FuzzMessages looks at lines and their parsing alone: what runs side by side
// would be new to the fuzzer each time.
func FuzzMessages(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"asp/1.0"}}` + "\n" + `{"jsonrpc":"2.0","method":"exit"}`))
	f.Add([]byte(`{"jsonrpc":"2.0","id":"a","result":{"blobs":[]}}` + "\r\n\n" + `{"jsonrpc":"2.0","id":-1,"error":{"code":-32012,"message":"no"}}`))
	f.Add([]byte("[]\n{}\n\x00\n" + strings.Repeat("x", 2000)))
	f.Fuzz(func(t *testing.T, in []byte) {
		l := newLines(bytes.NewReader(in), 1000)
		seen := 0
		for {
			line, err := l.next()
			var long *tooLongError
			if errors.Is(err, io.EOF) {
				break
			}
			if seen++; seen > len(in)+1 {
				t.Fatal("it does not end")
			}
			if errors.As(err, &long) {
				continue
			}
			if err != nil || len(line) > 1000 || bytes.IndexByte(line, '\n') >= 0 {
				t.Fatalf("%d bytes, %v", len(line), err)
			}
			m, k, err := parse(line)
			if err != nil {
				continue
			}
			_, noID := idOf(m.ID)
			switch k {
			case request:
				if m.Method == "" || noID != nil || len(m.Result) > 0 || m.Error != nil {
					t.Fatalf("%q is taken for a request", line)
				}
			case notification:
				if m.Method == "" || len(m.ID) > 0 {
					t.Fatalf("%q is taken for a notification", line)
				}
			case response:
				if m.Method != "" || noID != nil || (len(m.Result) > 0) == (m.Error != nil) {
					t.Fatalf("%q is taken for a response", line)
				}
			}
		}
	})
}
