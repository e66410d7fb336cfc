package integration

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/aspis-dev/aspis/integration/conformance"
	"github.com/aspis-dev/aspis/schemas"
)

// openConfig installs a provider for everything that writes down what it is
// sent, which only one without walls can.
func openConfig(l *conformance.Lab, path string, behave ...string) *conformance.Config {
	c := l.NewConfig(append(behave, "record="+path, "edit", "inspect")...)
	p := &c.Providers[0]
	p.Runtime = "process"
	p.Args = slices.DeleteFunc(p.Args, func(a string) bool { return a == "record" })
	p.Capabilities = schemas.CapabilityFamilies[:]
	c.Requirements[0].Capabilities = schemas.CapabilityFamilies[:]
	c.Requirements[0].Assurance = []schemas.AssuranceMode{schemas.Advisory}
	return c
}

// conversation validates every line that a host sent and returns the methods in order.
func conversation(t *testing.T, path string) []string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var methods []string
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var rec struct{ Answers, Line string }
		var m struct{ Method string }
		if err := json.Unmarshal(lines.Bytes(), &rec); err != nil {
			t.Fatal(err)
		}
		if err := conformance.ValidateMessage([]byte(rec.Line), rec.Answers); err != nil {
			t.Errorf("the host sent %.300s: %v", rec.Line, err)
		}
		_ = json.Unmarshal([]byte(rec.Line), &m)
		if m.Method == "" {
			m.Method = "answer to " + rec.Answers
		}
		methods = append(methods, m.Method)
	}
	return methods
}

// TestWholeConversation validates everything that a provider is sent in its
// life: from initialize over every family and a moved baseline to exit.
func TestWholeConversation(t *testing.T) {
	l := lab(t)
	path := filepath.Join(t.TempDir(), "lines")
	w := world(t, l, openConfig(l, path))
	h := serve(t, w)
	ctx := deadline(t, time.Minute)
	text := "package main\n"
	for range 2 {
		if _, err := h.Evaluate(ctx, schemas.Gate, conformance.Change{"src/new.go": &text}, 0); err != nil {
			t.Fatal(err)
		}
		if err := w.Write("src/moved.go", "package main\n"); err != nil {
			t.Fatal(err)
		}
	}
	st, err := h.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	b := st.Workspace.Baseline
	for _, request := range []string{`{"verb":"symbols","query":"x"}`, `{"verb":"references","symbol":{"path":"README.md","position":{"line":0,"char":0}}}`,
		`{"verb":"callers","symbol":{"id":"x"},"depth":2}`, `{"method":"sense/query","params":{"verb":"x","args":{}}}`,
		fmt.Sprintf(`{"verb":"impact","changeset":{"baseline":{"rev":%q},"changes":[]},"scope":"workspace"}`, b.Rev)} {
		_, err := h.Call(ctx, schemas.MethodHostQueryInspect, schemas.QueryInspectParams{CallSite: schemas.Interactive, Request: []byte(request), Baseline: &b})
		if err != nil {
			t.Errorf("%s: %s", request, failure(err))
		}
	}
	if _, err := h.Call(ctx, schemas.MethodHostRequestEditPlan, schemas.RequestEditPlanParams{CallSite: schemas.Gate, Operation: "replace-resource", Baseline: b,
		Scope: &schemas.EditScope{Paths: []string{"README.md"}}}); err != nil {
		t.Errorf("edit: %s", failure(err))
	}
	if err := h.Close(20 * time.Second); err != nil {
		t.Error(err)
	}
	methods := conversation(t, path)
	for _, m := range []string{"initialize", "initialized", "check/evaluate", "answer to workspace/readBlob", "workspace/baselineChanged", "sense/symbols", "sense/references", "sense/callers", "sense/impact", "edit/propose", "answer to workspace/listTree", "answer to workspace/putBlob", "shutdown", "exit"} {
		if !slices.Contains(methods, m) {
			t.Errorf("the provider was never sent %s: %v", m, methods)
		}
	}
	if i := slices.Index(methods, "initialized"); i > slices.Index(methods, "check/evaluate") {
		t.Error("work was sent before initialized")
	}
}

// failure is an error with the detail that a typed one carries.
func failure(err error) string {
	var typed *schemas.Error
	if errors.As(err, &typed) && typed.Data != nil {
		return fmt.Sprintf("%v (%s: %s)", err, typed.Data.FailClass, typed.Data.Detail)
	}
	return err.Error()
}

// TestInspect asks through the outer seam: an answer, or openly none.
func TestInspect(t *testing.T) {
	l := lab(t)
	for kind, want := range map[string]bool{"inspect": true, "inspect=stale": false, "inspect=malformed": false, "no-inspect": false} {
		t.Run(kind, func(t *testing.T) {
			c := l.NewConfig(kind)
			both := []schemas.CapabilityFamily{schemas.Check, schemas.Inspect}
			c.Providers[0].Capabilities, c.Requirements[0].Capabilities = both, both
			w := world(t, l, c)
			h := serve(t, w)
			raw, err := h.Call(deadline(t, time.Minute), schemas.MethodHostQueryInspect,
				schemas.QueryInspectParams{CallSite: schemas.Interactive, Request: []byte(`{"verb":"symbols","query":"x"}`)})
			switch {
			case want && err != nil:
				t.Error(failure(err))
			case !want && err == nil:
				t.Errorf("an answer where there is none: %s", raw)
			}
		})
	}
}

// TestCommandsAreValid checks what the commands print as JSON by the schemas.
func TestCommandsAreValid(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	v := judge(t, w)
	for _, c := range []struct {
		schema string
		args   []string
	}{
		{"host-status", []string{"status", "--format", "json"}},
		{"receipt", []string{"receipt", "show", "--format", "json"}},
		{"receipt", []string{"receipt", "show", v.Receipt.ReceiptID, "--format", "json"}},
	} {
		o := runIn(t, w, c.args...)
		if o.Code != 0 {
			t.Errorf("%v: %+v", c.args, o)
			continue
		}
		raw := []byte(o.Stdout)
		var rec struct{ Receipt json.RawMessage }
		if c.schema == "receipt" && json.Unmarshal(raw, &rec) == nil && len(rec.Receipt) > 0 {
			raw = rec.Receipt
		}
		if err := schemas.ValidateSchema(c.schema, raw); err != nil {
			t.Errorf("%v: %v", c.args, err)
		}
	}
}
