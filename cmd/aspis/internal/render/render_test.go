package render

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/aspis-dev/aspis/schemas"
)

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Fatalf("got\n%s\nwant\n%s", got, want)
	}
}

func finding1(path, message string, line, from, to int) schemas.Finding {
	return schemas.Finding{Disposition: schemas.DispositionGating, NextStep: "Do what is right.",
		Diagnostic: schemas.Diagnostic{Code: "hygiene/secret", Severity: schemas.SeverityError, Message: message, Location: schemas.Location{Path: path,
			Range: &schemas.Range{Start: schemas.Position{Line: line, Char: from}, End: schemas.Position{Line: line, Char: to}}}}}
}

func verdict(d schemas.Decision, f ...schemas.Finding) *schemas.Verdict {
	return &schemas.Verdict{Decision: d, Findings: f, Assurance: schemas.Assurance{Mode: schemas.Isolated},
		Coverage: schemas.HostCoverage{Required: []string{"hygiene"}, Ran: []string{"hygiene"}},
		Receipt:  schemas.Receipt{ReceiptID: "0123456789abcdef", Timing: schemas.Timing{ElapsedMs: 84.4}}}
}

func show(t *testing.T, v *schemas.Verdict, o Options) string {
	t.Helper()
	var b strings.Builder
	if err := Verdict(&b, v, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestVerdicts(t *testing.T) {
	source := func(text string) func(string) ([]byte, bool) {
		return func(string) ([]byte, bool) { return []byte(text), true }
	}
	advisory := finding1("b.go", "a word", 0, 0, 1)
	advisory.Disposition, advisory.SeverityNote = schemas.DispositionAdvisory, "lowered from error to warning: trusted policy grants this provider no authority here"
	lost := verdict(schemas.Indeterminate)
	lost.Coverage = schemas.HostCoverage{Required: []string{"a", "b"}, Ran: []string{"a"}, Degraded: []schemas.Degradation{
		{Source: "linter", Reason: schemas.ReasonTimedOut, Detail: "no answer to check/evaluate within its budget"}}}
	for name, tc := range map[string]struct {
		v *schemas.Verdict
		o Options
	}{
		"allow":     {verdict(schemas.Allow), Options{}},
		"deny":      {verdict(schemas.Deny, finding1("a.go", "a key", 1, 4, 7), advisory), Options{Source: source("one\nkey=abc\n"), Width: 80}},
		"lost":      {lost, Options{}},
		"wide":      {verdict(schemas.Deny, finding1("a", "x", 0, 2, 4)), Options{Source: source("日本\U0001F600x\n")}},
		"tab":       {verdict(schemas.Deny, finding1("a", "x", 0, 1, 4)), Options{Source: source("\tabc\n")}},
		"long line": {verdict(schemas.Deny, finding1("a", "x", 0, 5000, 5006)), Options{Source: source(strings.Repeat("x", 5000) + "secret" + strings.Repeat("y", 5000)), Width: 80}},
		"hostile": {verdict(schemas.Deny, finding1("a\x1b[2J\nb\u202e", "clear\x1b[2Jscreen \x07 \u200b \xff", 0, 0, 3)),
			Options{Source: source("\x1b]0;title\x07evil\u202e\n")}},
		"colour": {verdict(schemas.Deny, finding1("a", "x", 0, 0, 1)), Options{Palette: Colours(true), Source: source("abc\n")}},
	} {
		t.Run(name, func(t *testing.T) { golden(t, strings.ReplaceAll(name, " ", "-"), show(t, tc.v, tc.o)) })
	}
}

// dangerous reports whether text could do anything to a terminal but show.
func dangerous(s string) bool {
	for _, r := range s {
		if r == '\n' {
			continue
		}
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == unicode.ReplacementChar && !strings.Contains(s, "\uFFFD") {
			return true
		}
	}
	return false
}

func FuzzNothingReachesTheTerminal(f *testing.F) {
	f.Add("a\x1b[31m", "m\u202e", "line\x07\xff\n", 3, 9)
	f.Add("\u2066", "\x9b1m", "\r\nx", -1, 1<<20)
	f.Fuzz(func(t *testing.T, path, message, text string, from, to int) {
		fi := finding1(path, message, 0, max(from, 0), max(to, 0))
		fi.NextStep, fi.SeverityNote = message, path
		v := verdict(schemas.Decision(message), fi)
		v.Coverage.Degraded = []schemas.Degradation{{Source: path, Reason: schemas.DegradationReason(message), Detail: text}}
		v.Receipt.ReceiptID = path
		out := show(t, v, Options{Source: func(string) ([]byte, bool) { return []byte(text), true }, Width: 60})
		if dangerous(out) {
			t.Fatalf("%q", out)
		}
		var b strings.Builder
		_ = Receipt(&b, &v.Receipt, Options{})
		_ = Walls(&b, []WallRow{{Name: path, Seen: message, Fix: text}}, Options{})
		_ = Facts(&b, []FactRow{{Name: path, Seen: message, Remedy: text}}, Options{})
		if dangerous(b.String()) {
			t.Fatalf("%q", b.String())
		}
	})
}
