package render

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
		"combining": {verdict(schemas.Deny, finding1("re\u0301sume\u0301.go", "नमस्ते, สวัสดี, and a tower: o\u0301\u0301\u0301\u0301\u0301\u0301 and none: \u0301", 0, 2, 5)), Options{Source: source("ae\u0301xyz\n")}},
		"files":     {verdict(schemas.Deny, finding1("b.go", "one", 0, 0, 1), finding1("a.go", "two", 0, 0, 1), finding1("b.go", "three", 0, 0, 1)), Options{}},
		"narrow":    {verdict(schemas.Deny, finding1("a", strings.Repeat("日本語 words ", 12)+strings.Repeat("x", 90), 0, 60, 62)), Options{Width: 1, Source: source(strings.Repeat("日", 200))}},
		"colour":    {verdict(schemas.Deny, finding1("a", "x", 0, 0, 1)), Options{Palette: Colours(true), Source: source("abc\n")}},
	} {
		t.Run(name, func(t *testing.T) { golden(t, strings.ReplaceAll(name, " ", "-"), show(t, tc.v, tc.o)) })
	}
}

// TestNoLineIsTooWide: nothing of ours is wider than the terminal, whatever is
// in the source line.
func TestNoLineIsTooWide(t *testing.T) {
	for _, text := range []string{strings.Repeat("日", 300), strings.Repeat("\x1b", 300), strings.Repeat("e\u0301", 300), strings.Repeat("\t", 300), "short"} {
		for width := 40; width < 130; width += 7 {
			for _, at := range []int{0, 1, 50, 150, 299, 5000} {
				v := verdict(schemas.Deny, finding1("a", "x", 0, at, at+40))
				out := show(t, v, Options{Width: width, Source: func(string) ([]byte, bool) { return []byte(text), true }})
				for line := range strings.SplitSeq(out, "\n") {
					if n := columns(line); n > width && strings.Contains(line, "|") {
						t.Fatalf("%d columns of %d:\n%s", n, width, line)
					}
				}
			}
		}
	}
}

// TestNoSecretIsRepeated: a line that is shown for one finding hides what all
// others found on it.
func TestNoSecretIsRepeated(t *testing.T) {
	const text = "one=AKIAAAAAAAAAAAAAAAAA two=BKIBBBBBBBBBBBBBBBBB rest\nsecond line of it\nend KEY"
	many := finding1("a", "over several lines", 0, 29, 3)
	many.Diagnostic.Location.Range.End = schemas.Position{Line: 2, Char: 3}
	other := finding1("a", "another rule", 0, 50, 54)
	other.Diagnostic.Code = "style/spelling"
	second := finding1("a", "within", 1, 0, 6)
	second.Diagnostic.Code = "style/spelling"
	backwards := finding1("a", "the provider is confused", 0, 40, 2)
	for name, findings := range map[string][]schemas.Finding{
		"two":       {finding1("a", "first", 0, 4, 24), finding1("a", "second", 0, 29, 49), other},
		"lines":     {finding1("a", "first", 0, 4, 24), many, second},
		"backwards": {finding1("a", "first", 0, 4, 24), backwards, finding1("a", "second", 0, 29, 49)},
	} {
		out := show(t, verdict(schemas.Deny, findings...), Options{Source: func(string) ([]byte, bool) { return []byte(text), true }})
		for _, word := range []string{"AKIAA", "BKIBB"} {
			if strings.Contains(out, word) {
				t.Errorf("%s: %s is shown:\n%s", name, word, out)
			}
		}
		if name == "lines" && strings.Contains(out, "second line") {
			t.Errorf("%s: the inside of a secret is shown:\n%s", name, out)
		}
	}
}

// TestFarColumn: a finding a megabyte into a line is shown where it is.
func TestFarColumn(t *testing.T) {
	text := []byte(strings.Repeat("\U0001F600x", 200_000) + "TARGET" + strings.Repeat("y", 1000))
	f := finding1("a", "x", 0, 600_000, 600_006) // an emoji is two units
	f.Diagnostic.Code = "style/x"
	out := show(t, verdict(schemas.Deny, f), Options{Source: func(string) ([]byte, bool) { return text, true }})
	lines := strings.Split(out, "\n")
	if !strings.Contains(lines[2], "xTARGETy") || columns(lines[2][:strings.Index(lines[2], "TARGET")]) != strings.IndexByte(lines[3], '^') {
		t.Fatal(out)
	}
}

// TestManyFindings: any number of findings on a line of any length is answered
// in a time that a person waits.
func TestManyFindings(t *testing.T) {
	text := []byte(strings.Repeat("x", 4<<20))
	var all []schemas.Finding
	for i := range 5000 {
		all = append(all, finding1("a", "x", 0, i*800, i*800+20))
	}
	began := time.Now()
	out := show(t, verdict(schemas.Deny, all...), Options{Source: func(string) ([]byte, bool) { return text, true }})
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
	if n := strings.Count(out, "blocking hygiene"); n != len(all) {
		t.Errorf("%d findings are told of %d", n, len(all))
	}
}

// TestEachDegradationIsTold with what to do, but for those that need nothing.
func TestEachDegradationIsTold(t *testing.T) {
	for _, reason := range reasons(t) {
		v := verdict(schemas.Indeterminate)
		v.Coverage.Degraded = []schemas.Degradation{{Source: "p", Reason: reason, Detail: "d"}}
		out := show(t, v, Options{})
		silent := reason == schemas.ReasonFailOpen || reason == schemas.ReasonOptionalDegraded || reason == schemas.ReasonBlockingDiagnostic
		if strings.Contains(out, "to do:") == silent {
			t.Errorf("%s:\n%s", reason, out)
		}
	}
}

// reasons are all that the JSON Schema allows.
func reasons(t *testing.T) []schemas.DegradationReason {
	t.Helper()
	files, err := schemas.SchemaFiles()
	if err != nil {
		t.Fatal(err)
	}
	var defs struct {
		Defs map[string]struct {
			Enum []schemas.DegradationReason `json:"enum"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(files["vocabulary.json"], &defs); err != nil {
		t.Fatal(err)
	}
	all := defs.Defs["degradation-reason"].Enum
	if len(all) < 20 {
		t.Fatalf("the schema has %d reasons", len(all))
	}
	return all
}

func TestTables(t *testing.T) {
	var b strings.Builder
	hostile := "n\x1b[2J\u202e\nx"
	status := &schemas.HostStatus{Host: schemas.HostInfo{Name: "aspis", Version: "1", State: "ready"}, AssuranceCapabilities: []schemas.AssuranceMode{schemas.Gated, schemas.Isolated},
		Servers: []schemas.Server{{ID: "hygiene", State: "ready", Role: "required", Detail: hostile}}}
	status.Gates.Gate = schemas.GateState{Available: true, RequiredProviders: []string{"hygiene"}}
	status.Gates.Sweep = schemas.GateState{Degraded: []schemas.Degradation{{Reason: schemas.ReasonMissing, Detail: hostile}}}
	status.Capabilities.Check = schemas.Cap{Available: true, Providers: []string{"hygiene", hostile}}
	status.Capabilities.Edit = schemas.Cap{Providers: []string{"editor"}}
	rows := []WallRow{{Name: "seccomp", Standing: true, Seen: "a filter is in force"}, {Name: hostile, Seen: hostile, Fix: "set it"}}
	facts := []FactRow{{Name: "cgroup", OK: true, Seen: "version 1"}, {Name: "ids", Seen: hostile, Remedy: "install uidmap"}}
	rec := verdict(schemas.Allow).Receipt
	rec.IssuedAt, rec.Failures = time.Unix(1_700_000_000, 0).UTC(), []schemas.Degradation{{Source: "p", Reason: schemas.ReasonCrashed, Detail: hostile}}
	for _, err := range []error{
		Status(&b, status, Options{}), Walls(&b, rows, Options{}), Facts(&b, facts, Options{}), Receipt(&b, &rec, Options{}),
		Paragraphs(&b, Options{}, hostile, strings.Repeat("word ", 30)), Status(&b, &schemas.HostStatus{}, Options{}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	golden(t, "tables", b.String())
}
