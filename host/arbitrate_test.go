package host

import (
	"strings"
	"testing"

	"github.com/aspis-dev/aspis/schemas"
)

func diag(code string, sev schemas.Severity, fp string) schemas.Diagnostic {
	return schemas.Diagnostic{Code: code, Severity: sev, Source: "x", Message: "m", Fingerprint: fp,
		Location: schemas.Location{Path: "a.go", Range: &schemas.Range{Start: schemas.Position{Line: 4}}}}
}

var granted = authority{granted: true}

func TestDedupKeepsTheSterner(t *testing.T) {
	out, _ := arbitrate("p", []string{"s"}, []schemas.Diagnostic{
		diag("s/a", schemas.SeverityWarning, "1"), diag("s/a", schemas.SeverityError, "1"), diag("s/a", schemas.SeverityInfo, "1"),
	}, granted, schemas.Introduced)
	if len(out) != 1 || !out[0].blocking {
		t.Fatalf("%+v", out)
	}
}

func TestDedupNeverCrossesSources(t *testing.T) {
	out, _ := arbitrate("p", []string{"s", "t"}, []schemas.Diagnostic{
		diag("s/a", schemas.SeverityError, "1"), diag("t/a", schemas.SeverityError, "1"),
	}, granted, schemas.Introduced)
	if len(out) != 2 {
		t.Fatalf("%+v", out)
	}
}

func TestForeignCodeIsRelabelled(t *testing.T) {
	out, foreign := arbitrate("p", []string{"s"}, []schemas.Diagnostic{diag("other/rule", schemas.SeverityError, "1")}, granted, schemas.Introduced)
	if foreign != 1 || out[0].finding.Diagnostic.Code != "p/other.rule" || !strings.Contains(out[0].finding.SeverityNote, "other/rule") {
		t.Fatalf("%d %+v", foreign, out)
	}
}

func TestSeverityIsCapped(t *testing.T) {
	no := false
	old := diag("s/a", schemas.SeverityError, "1")
	old.Introduced = &no
	for name, tc := range map[string]struct {
		d    schemas.Diagnostic
		a    authority
		want schemas.Severity
	}{
		"granted":      {diag("s/a", schemas.SeverityError, "1"), granted, schemas.SeverityError},
		"not granted":  {diag("s/a", schemas.SeverityError, "1"), authority{}, schemas.SeverityWarning},
		"capped":       {diag("s/a", schemas.SeverityError, "1"), authority{granted: true, cap: schemas.SeverityInfo}, schemas.SeverityInfo},
		"never raised": {diag("s/a", schemas.SeverityInfo, "1"), authority{granted: true, cap: schemas.SeverityError}, schemas.SeverityInfo},
		"there before": {old, granted, schemas.SeverityInfo},
	} {
		t.Run(name, func(t *testing.T) {
			out, _ := arbitrate("p", []string{"s"}, []schemas.Diagnostic{tc.d}, tc.a, schemas.Introduced)
			f := out[0].finding
			if f.Diagnostic.Severity != tc.want || out[0].blocking != (tc.want == schemas.SeverityError) {
				t.Fatalf("%+v", out[0])
			}
			if (f.SeverityNote != "") != (tc.want != tc.d.Severity) {
				t.Fatalf("note %q", f.SeverityNote)
			}
			if f.Disposition == schemas.DispositionGating && f.NextStep == "" {
				t.Fatal("a gating finding without a next step")
			}
		})
	}
}

func TestNextStepPrefersTheProvider(t *testing.T) {
	d := diag("s/a", schemas.SeverityError, "1")
	if step, origin := nextStep(d); origin != "synthesized" || !strings.Contains(step, "a.go, line 5") {
		t.Fatal(step, origin)
	}
	d.CodeDescription = &schemas.CodeDescription{Href: "https://example.org/r"}
	if step, origin := nextStep(d); origin != "server" || !strings.Contains(step, "https://example.org/r") {
		t.Fatal(step, origin)
	}
	d.Help = "do this"
	if step, _ := nextStep(d); step != "do this" {
		t.Fatal(step)
	}
}
