package report

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/aspis-dev/aspis/cmd/internal/toolspec"
)

func recorded(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// format is that of a preset.
func format(t testing.TB, preset string) toolspec.Format {
	t.Helper()
	p, err := toolspec.Find(preset)
	if err != nil {
		t.Fatal(err)
	}
	tool, err := p.Describe("/p", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return tool.Output
}

func rows(r *Report) (out []string) {
	for _, f := range r.Findings {
		name, _ := Relative("/workspace/candidate", f.Path)
		out = append(out, fmt.Sprintf("%s:%d:%d %s %s", name, f.Line, f.Column, f.Rule, f.Level))
	}
	return out
}

// TestRecorded reads what tools have really printed.
func TestRecorded(t *testing.T) {
	for file, tc := range map[string]struct {
		format toolspec.Format
		want   []string
	}{
		"shellcheck.json":   {format(t, "shellcheck"), []string{"a.sh:1:3 SC2086 info"}},
		"biome.sarif":       {format(t, "biome"), []string{"a.js:0:0 lint/style/useConst warning", "a.js:1:6 lint/suspicious/noDoubleEquals error", "a.js:1:14 lint/suspicious/noDebugger error"}},
		"eslint.json":       {format(t, "eslint"), []string{"a.js:1:6 eqeqeq 1", "a.js:1:14 no-debugger 2"}},
		"golangci.sarif":    {toolspec.Format{Format: "sarif"}, []string{"main.go:10:13 govet error", "main.go:8:1 ineffassign error"}},
		"clippy.jsonl":      {format(t, "clippy"), []string{"src/main.rs:2:7 clippy::len_zero warning", "src/main.rs:3:23 clippy::print_literal warning"}},
		"govulncheck.sarif": {format(t, "govulncheck"), []string{"go.mod:0:-1 GO-2099-0001 error"}},
		"checkstyle.xml":    {toolspec.Format{Format: "checkstyle"}, []string{"a.sh:1:3 ShellCheck.SC2086 info"}},
	} {
		t.Run(file, func(t *testing.T) {
			r, err := Read(tc.format, recorded(t, file))
			if err != nil {
				t.Fatal(err)
			}
			if got := rows(r); !slices.Equal(got, tc.want) || len(r.Gaps) > 0 {
				t.Errorf("%q, want %q; gaps %q", got, tc.want, r.Gaps)
			}
		})
	}
}

// TestCutAnywhere: a report that ends early, wherever, is never taken for a whole
// one without findings.
func TestCutAnywhere(t *testing.T) {
	for file, f := range map[string]toolspec.Format{
		"shellcheck.json": format(t, "shellcheck"), "biome.sarif": {Format: "sarif"}, "eslint.json": format(t, "eslint"), "golangci.sarif": {Format: "sarif"}, "checkstyle.xml": {Format: "checkstyle"},
	} {
		whole := recorded(t, file)
		whole = []byte(strings.TrimRight(string(whole), "\n"))
		for n := range len(whole) {
			if r, err := Read(f, whole[:n]); err == nil {
				t.Errorf("%s: %d of %d bytes are read as %d findings", file, n, len(whole), len(r.Findings))
			}
		}
	}
}

// TestSARIF has what the standard allows and few tools write.
func TestSARIF(t *testing.T) {
	for name, tc := range map[string]struct {
		run  string
		want []string
		gap  string
	}{
		"level of the rule": {`"tool":{"driver":{"rules":[{"id":"r","defaultConfiguration":{"level":"error"}}]}},"results":[{"ruleIndex":0,"message":{"text":"m"}}]`, []string{":-1:-1 r error"}, ""},
		"no level":          {`"tool":{"driver":{}},"results":[{"ruleId":"r","message":{"text":"m"}}]`, []string{":-1:-1 r warning"}, ""},
		"suppressed":        {`"tool":{"driver":{}},"results":[{"ruleId":"r","suppressions":[{"kind":"inSource"}],"message":{"text":"m"}}]`, nil, ""},
		"passed":            {`"tool":{"driver":{}},"results":[{"ruleId":"r","kind":"pass","message":{"text":"m"}}]`, nil, ""},
		"base id":           {`"tool":{"driver":{}},"originalUriBaseIds":{"B":{"uri":"file:///workspace/candidate/"}},"results":[{"ruleId":"r","message":{"text":"m"},"locations":[{"physicalLocation":{"artifactLocation":{"uri":"a%20b.c","uriBaseId":"B"}}}]}]`, []string{"a b.c:-1:-1 r warning"}, ""},
		"by index":          {`"tool":{"driver":{}},"artifacts":[{"location":{"uri":"x.c"}}],"results":[{"ruleId":"r","message":{"text":"m"},"locations":[{"physicalLocation":{"artifactLocation":{"index":0},"region":{"startLine":3}}}]}]`, []string{"x.c:2:-1 r warning"}, ""},
		"an odd index":      {`"tool":{"driver":{}},"results":[{"ruleIndex":-5,"rule":{"index":99,"toolComponent":{"index":-1}},"message":{"text":"m"},"locations":[{"physicalLocation":{"artifactLocation":{"index":-3}}}]}]`, []string{":-1:-1 finding warning"}, ""},
		"notified":          {`"tool":{"driver":{}},"invocations":[{"executionSuccessful":true,"toolExecutionNotifications":[{"level":"error","message":{"text":"parse error"}}]}],"results":[]`, nil, "parse error"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Read(toolspec.Format{Format: "sarif"}, []byte(`{"version":"2.1.0","runs":[{`+tc.run+`}]}`))
			if err != nil {
				t.Fatal(err)
			}
			if got := rows(r); !slices.Equal(got, tc.want) || (tc.gap == "") != (len(r.Gaps) == 0) || !strings.Contains(strings.Join(r.Gaps, " "), tc.gap) {
				t.Errorf("%q, want %q; gaps %q", got, tc.want, r.Gaps)
			}
		})
	}
}

func TestLines(t *testing.T) {
	f := toolspec.Format{Format: "errorformat", Errorformat: []string{"%f:%l:%c: %m"}, Ignore: []string{"^Summary"}, Rule: `^(?P<message>.*) \[(?P<rule>[a-z-]+)\]$`}
	r, err := Read(f, []byte("\x1b[1ma.c:3:7: bad thing [some-rule]\x1b[0m\nSummary: 1\n\na.c:4:1: no rule\n"))
	if err != nil || len(r.Gaps) > 0 {
		t.Fatalf("%v, %q", err, r.Gaps)
	}
	if got := rows(r); !slices.Equal(got, []string{"a.c:2:6 some-rule ", "a.c:3:0 finding "}) || r.Findings[0].Message != "bad thing" {
		t.Errorf("%q, %q", got, r.Findings[0].Message)
	}
	// A line that nobody understands, and one that nobody can hold.
	r, err = Read(f, []byte("what is this\n"+strings.Repeat("y", 100<<10)+"\na.c:1:1: m\n"))
	if err != nil || len(r.Gaps) != 2 || len(r.Findings) != 1 {
		t.Errorf("%v, %q, %d findings", err, r.Gaps, len(r.Findings))
	}
	// The library's own.
	r, err = Read(toolspec.Format{Format: "errorformat", Preset: "golint"}, []byte("x.go:1:2: m\n"))
	if err != nil || len(r.Findings) != 1 {
		t.Errorf("%v", err)
	}
	if _, err = Read(toolspec.Format{Format: "errorformat", Preset: "no such"}, []byte("x\n")); err == nil {
		t.Error("a preset that is not there is taken")
	}
}

// TestFarDown: what comes after much of nothing is read.
func TestFarDown(t *testing.T) {
	r, err := Read(toolspec.Format{Format: "errorformat", Errorformat: []string{"%f:%l: %m"}}, []byte(strings.Repeat(" \n", 1<<17)+"a:1: m\n"))
	if err != nil || len(r.Findings) != 1 {
		t.Errorf("%v, %d findings", err, len(r.Findings))
	}
}

func TestTooMany(t *testing.T) {
	r, err := Read(toolspec.Format{Format: "errorformat", Errorformat: []string{"%f:%l: %m"}}, []byte(strings.Repeat("a:1: m\n", MaxFindings+5)))
	if err != nil || len(r.Findings) != MaxFindings || len(r.Gaps) != 1 {
		t.Errorf("%v, %d findings, %q", err, len(r.Findings), r.Gaps)
	}
}

func TestRelative(t *testing.T) {
	for p, want := range map[string]string{
		"a": "a", "./a/../b": "b", "/root/a": "a", "/root//a/./b": "a/b",
		"": "", ".": "", "..": "", "../a": "", "a/../../b": "", "/": "", "/root": "", "/rootx/a": "", "/root/../etc": "", "a\x00b": "", "\xff": "",
	} {
		if got, ok := Relative("/root", p); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v", p, got, ok)
		}
	}
}

// FuzzRead: whatever is printed, what comes of it is bounded and harmless.
func FuzzRead(f *testing.F) {
	formats := []toolspec.Format{
		{Format: "sarif"}, {Format: "checkstyle"}, format(f, "shellcheck"), format(f, "eslint"), format(f, "clippy"), format(f, "yamllint"), format(f, "mypy"),
		{Format: "errorformat", Errorformat: []string{"%E%f:%l: %m", "%C%.%#", "%Z%p^", "%+P%f", "%Q", "%D%f", "%A%m"}},
	}
	for i, name := range []string{"biome.sarif", "checkstyle.xml", "shellcheck.json", "eslint.json", "clippy.jsonl"} {
		f.Add(i, recorded(f, name))
	}
	f.Add(5, []byte("./a.yaml:2:5: [error] too many spaces (colons)\n"))
	f.Add(7, []byte("a:1: x\n  ^\n\x1b]0;t\x07\xff"))
	f.Fuzz(func(t *testing.T, which int, out []byte) {
		r, err := Read(formats[uint(which)%uint(len(formats))], out)
		if err != nil {
			return
		}
		if len(r.Findings) > MaxFindings || len(r.Gaps) > 20 {
			t.Fatalf("%d findings, %d gaps", len(r.Findings), len(r.Gaps))
		}
		for _, x := range r.Findings {
			for _, s := range []string{x.Rule, x.Message, x.Level, x.Help} {
				if !utf8.ValidString(s) || len(s) > maxMessage || strings.ContainsAny(s, "\x1b\n\x00\x7f\u202e") {
					t.Errorf("%q", s)
				}
			}
			if x.Rule == "" || x.Message == "" || x.Line < -1 || x.Column < -1 {
				t.Errorf("%+v", x)
			}
		}
	})
}
