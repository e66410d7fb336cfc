package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// run makes a package of the given test file and reports on a real run of it.
func run(t *testing.T, source string, rules rules) (string, bool) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.org/x\n\ngo 1.26\n", "x_test.go": "package x\n\nimport \"testing\"\n\n" + source} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-json", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	stream, _ := cmd.Output() // it fails where its tests do
	var b strings.Builder
	ok, err := report(strings.NewReader(string(stream)), &b, rules)
	if err != nil {
		t.Fatal(err)
	}
	return b.String(), ok
}

func TestReport(t *testing.T) {
	strict := rules{strict: true, facts: []string{"crun"}}
	for name, tc := range map[string]struct {
		source string
		rules  rules
		ok     bool
		last   string
		shows  string
	}{
		"passes":             {"func TestA(t *testing.T) {}", strict, true, "1 passed, 0 failed, 0 skipped", "ok    example.org/x"},
		"fails":              {"func TestA(t *testing.T) { t.Fatal(\"because\") }", strict, false, "0 passed, 1 failed, 0 skipped", "because"},
		"panics":             {"func TestA(t *testing.T) { panic(\"because\") }", strict, false, "0 passed, 1 failed, 0 skipped", "because"},
		"does not build":     {"func TestA(t *testing.T) { nonsense }", strict, false, "0 passed, 1 failed, 0 skipped", "undefined: nonsense"},
		"ends early":         {"func TestA(t *testing.T) {}\nfunc init() { panic(\"because\") }", strict, false, "0 passed, 1 failed, 0 skipped", "because"},
		"allowed skip":       {"func TestA(t *testing.T) { t.Log(\"x.go:1: first\"); t.Skip(\"needs: crun\") }", strict, true, "0 passed, 0 failed, 1 skipped", "TestA: needs: crun"},
		"forbidden skip":     {"func TestA(t *testing.T) { t.Skip(\"needs: root\") }", strict, false, "0 passed, 1 failed, 0 skipped", "not allowed here: needs: root"},
		"skip of other form": {"func TestA(t *testing.T) { t.Skip(\"crun\") }", strict, false, "0 passed, 1 failed, 0 skipped", "not allowed here: crun"},
		"skip without words": {"func TestA(t *testing.T) { t.SkipNow() }", strict, false, "0 passed, 1 failed, 0 skipped", "no reason was given"},
		"skip of a part":     {"func TestA(t *testing.T) { t.Run(\"b\", func(t *testing.T) { t.Skip(\"needs: root\") }) }", strict, false, "1 passed, 1 failed, 0 skipped", "TestA/b"},
		"skip outside CI":    {"func TestA(t *testing.T) { t.Skip(\"whatever\") }", rules{}, true, "0 passed, 0 failed, 1 skipped", "whatever"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := run(t, tc.source, tc.rules)
			if ok != tc.ok || !strings.HasSuffix(got, tc.last+"\n") || !strings.Contains(got, tc.shows) {
				t.Fatalf("ok is %v, with\n%s\nwanted %v, ending in %q, with %q", ok, got, tc.ok, tc.last, tc.shows)
			}
		})
	}
}

func TestReportRefusesAStreamThatEndsEarly(t *testing.T) {
	var b strings.Builder
	if ok, err := report(strings.NewReader(""), &b, rules{}); ok || err == nil {
		t.Fatalf("an empty run counts as passed:\n%s", b.String())
	}
	const cut = `{"Action":"start","Package":"a"}
{"Action":"pass","Package":"a","Elapsed":1}
{"Action":"start","Package":"b"}
{"Action":"pass","Package":"b","Test":"TestB"}
`
	if ok, err := report(strings.NewReader(cut), &b, rules{}); ok || err != nil {
		t.Fatalf("a run that ended within a package gives %v, %v:\n%s", ok, err, b.String())
	}
	if !strings.Contains(b.String(), "b began and did not end") {
		t.Fatal(b.String())
	}
}

func TestTailIsBounded(t *testing.T) {
	var all tail
	for range 100_000 {
		all.add("line\n")
	}
	all.add("the end\n")
	got := all.String()
	if len(got) > 3*keep*len("line\n")+100 || !strings.HasSuffix(got, "the end\n") || !strings.Contains(got, "left out here") {
		t.Fatalf("%d bytes, ending in %q", len(got), got[len(got)-20:])
	}
}
