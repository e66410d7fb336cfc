package schemas

import (
	"strings"
	"testing"
)

func TestEverySchemaCompiles(t *testing.T) {
	names, err := SchemaNames()
	if err != nil {
		t.Fatal(err)
	}
	if len(names) < 60 {
		t.Errorf("only %d schemas: %v", len(names), names)
	}
}

func TestValidateSchema(t *testing.T) {
	const hex = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for _, c := range []struct{ name, raw, wrong string }{
		{"path", `"a/.b/..c/d.e"`, ""},
		{"path", `"a/../b"`, "pattern"},
		{"path", `"."`, "pattern"},
		{"path", `"/a"`, "pattern"},
		{"path", `"a//b"`, "pattern"},
		{"path", `"a\\b"`, "pattern"},
		{"change", `{"path":"a","kind":"create","after":"blob:sha256:` + hex + `"}`, ""},
		{"change", `{"path":"a","kind":"create"}`, "after"},
		{"change", `{"path":"a","kind":"delete","before":"blob:sha256:` + hex + `","after":"blob:sha256:` + hex + `"}`, "not"},
		{"baseline", `{"rev":"r","stampedAt":"2026-01-02T03:04:05Z"}`, ""},
		{"baseline", `{"rev":"r","stampedAt":"yesterday"}`, "date-time"},
		{"baseline", `{"rev":"r","more":1}`, "more"},
		{"response", `{"jsonrpc":"2.0","id":1,"result":null}`, ""},
		{"response", `{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":"m"}}`, "oneOf"},
		{"initialized-params", `{"grantedPermissions":{},"baseline":{"rev":"r"}}`, "resourceLimits"},
		{"precondition", `{"expectedAbsence":true}`, ""},
		{"precondition", `{}`, "missing property"},
		{"progress-params", `{"token":1,"value":{"kind":"end"}}`, ""},
		{"no-such-schema", `{}`, "no schema"},
		{"baseline", `{`, "not JSON"},
	} {
		err := ValidateSchema(c.name, []byte(c.raw))
		switch {
		case c.wrong == "" && err != nil:
			t.Errorf("%s %s: %v", c.name, c.raw, err)
		case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("%s %s: %v, want an error with %q", c.name, c.raw, err, c.wrong)
		}
	}
}

func TestInspectRequestForms(t *testing.T) {
	for raw, method := range map[string]string{
		`{"verb":"symbols","query":"x"}`:                                          MethodSymbols,
		`{"query":"x","verb":"symbols","kinds":["type"]}`:                         MethodSymbols,
		`{"method":"sense/symbols","params":{"query":"x"}}`:                       MethodSymbols,
		`{"method":"query","params":{"verb":"v","args":{}}}`:                      MethodQuery,
		`{"verb":"references","symbol":{"id":"a"}}`:                               MethodReferences,
		`{"verb":"callees","symbol":{"path":"a","position":{"line":0,"char":0}}}`: MethodCallees,
	} {
		r, err := DecodeInspectRequest([]byte(raw), Limits{})
		if err != nil || r.Method != method {
			t.Errorf("%s: %+v %v", raw, r, err)
		}
	}
	for _, raw := range []string{`{}`, `[]`, `{"verb":"symbols"}`, `{"verb":"symbols","query":"x","extra":1}`, `{"verb":"paint"}`} {
		if r, err := DecodeInspectRequest([]byte(raw), Limits{}); err == nil {
			t.Errorf("%s: %+v", raw, r)
		}
	}
}
