// Package docs_test keeps the tables in the documents equal to those in the code.
package docs_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/aspis-dev/aspis/policy"
	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/schemas"
)

var update = flag.Bool("update", false, "write the tables anew")

func walls() string {
	var b strings.Builder
	b.WriteString("| wall | what stands | needed for |\n|---|---|---|\n")
	for _, w := range sandbox.Table() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", w.Name, w.Meaning, w.Needed)
	}
	return b.String()
}

func failPolicy() string {
	var b strings.Builder
	b.WriteString("| whose fault | interactive | gate | sweep |\n|---|---|---|---|\n")
	for _, class := range []schemas.FailClass{schemas.FailHealth, schemas.FailContract, schemas.FailPolicy, schemas.FailInput} {
		fmt.Fprintf(&b, "| `%s` |", class)
		for _, site := range schemas.CallSites {
			word := "closed"
			if policy.FailsOpen(class, site) {
				word = "open, visibly"
			}
			fmt.Fprintf(&b, " %s |", word)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestTablesAreThoseOfTheCode(t *testing.T) {
	for _, tc := range []struct {
		file, mark string
		text       func() string
	}{{"threat-model.md", "walls", walls}, {"policy.md", "failpolicy", failPolicy}} {
		raw, err := os.ReadFile(tc.file)
		if err != nil {
			t.Fatal(err)
		}
		re := regexp.MustCompile(`(?s)<!-- ` + tc.mark + ` -->\n.*<!-- /` + tc.mark + ` -->`)
		want := re.ReplaceAllString(string(raw), "<!-- "+tc.mark+" -->\n"+strings.ReplaceAll(tc.text(), "$", "$$")+"<!-- /"+tc.mark+" -->")
		if want == string(raw) {
			continue
		}
		if !*update {
			t.Errorf("%s is not up to date: go test ./docs -update", tc.file)
			continue
		}
		if err := os.WriteFile(tc.file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLinksLeadSomewhere checks every relative link of README and docs.
func TestLinksLeadSomewhere(t *testing.T) {
	files, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(files, "../README.md") {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\]\(([^)#:]+)\)`).FindAllStringSubmatch(string(raw), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(f), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", f, m[1], err)
			}
		}
	}
}

// TestEveryDegradationIsExplained: a reason that a user can meet has a row.
func TestEveryDegradationIsExplained(t *testing.T) {
	raw, err := os.ReadFile("troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []schemas.DegradationReason{
		schemas.ReasonFailOpen, schemas.ReasonQuarantined, schemas.ReasonCrashed, schemas.ReasonSkewed, schemas.ReasonMissing, schemas.ReasonStale,
		schemas.ReasonMissingRequiredProvider, schemas.ReasonStaleBaseline, schemas.ReasonBlockingDiagnostic, schemas.ReasonMissingAuthority,
		schemas.ReasonInsufficientAssurance, schemas.ReasonIncomplete, schemas.ReasonUnsupported, schemas.ReasonError, schemas.ReasonCancelled,
		schemas.ReasonMalformed, schemas.ReasonTimedOut, schemas.ReasonOptionalDegraded, schemas.ReasonPolicySelfAuthorization, schemas.ReasonDirectWriteRisk,
		schemas.ReasonIncompatible, schemas.ReasonUnavailable, schemas.ReasonUnsupportedAssurance, schemas.ReasonLatticeFastPath,
	} {
		if !strings.Contains(string(raw), "`"+string(r)+"`") {
			t.Errorf("troubleshooting.md does not explain %s", r)
		}
	}
}
