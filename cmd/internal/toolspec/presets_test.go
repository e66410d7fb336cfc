package toolspec

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// TestPresetsAreWhole: each can be described, and its description is read again.
func TestPresetsAreWhole(t *testing.T) {
	want := strings.Fields(`actionlint ast-grep bandit biome clippy codespell eslint gitleaks go-vet golangci-lint gosec govulncheck
		hadolint markdownlint mypy prettier pyright ruff semgrep shellcheck staticcheck trivy tsc yamllint`)
	all, err := Presets()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
		tool, err := p.Describe("/usr/bin/"+p.Program, "", nil)
		if err != nil {
			t.Error(err)
			continue
		}
		if p.About == "" || !strings.HasPrefix(p.URL, "https://") || (p.Runtime != "static" && p.Runtime != "system") {
			t.Errorf("%s says too little of itself: %+v", p.Name, p)
		}
		raw, err := json.Marshal(tool)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(raw); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
	if !slices.Equal(names, want) {
		t.Errorf("there are %q", names)
	}
}

// TestDocumented: the table in the documents names every preset and how it looks.
func TestDocumented(t *testing.T) {
	raw, err := os.ReadFile("../../../docs/tools.md")
	if err != nil {
		t.Fatal(err)
	}
	all, err := Presets()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		tool, err := p.Describe("/p", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		row := "| `" + p.Name + "` | " + map[string]string{"changed": "changed files", "workspace": "workspace"}[tool.Scope] + " | "
		if !strings.Contains(string(raw), row) {
			t.Errorf("docs/tools.md has no row %q", row)
		}
	}
}

func TestMistakesAreNamed(t *testing.T) {
	const good = `{"name":"n","program":"/p","args":["{files}"],"scope":"changed","output":{"format":"sarif"},"exit":{"clean":[0]}}`
	if _, err := Parse(jsontext.Value(good)); err != nil {
		t.Fatal(err)
	}
	for old, change := range map[string][2]string{
		`"name":"n"`:       {`"name":""`, "name"},
		`"args"`:           {`"arguments"`, "arguments"},
		`["{files}"]`:      {`["x{files}"]`, "more than"},
		`"changed"`:        {`"workspace"`, "although the scope"},
		`"sarif"`:          {`"text"`, "output.format"},
		`[0]`:              {`[]`, "exit.clean"},
		`"format":"sarif"`: {`"format":"sarif","from":"file"`, "one without the other"},
		`"exit"`:           {`"severity":{"default":"bad"},"exit"`, "severity"},
		`"scope"`:          {`"files":["["],"scope"`, "glob"},
		`"output":{`:       {`"output":{"rule":"(",`, "("},
		`"program":"/p"`:   {`"program":"/p","timeoutMs":-1`, "timeoutMs"},
	} {
		_, err := Parse(jsontext.Value(strings.Replace(good, old, change[0], 1)))
		if err == nil || !strings.Contains(err.Error(), change[1]) {
			t.Errorf("%s: %v", change[0], err)
		}
	}
}

func TestWants(t *testing.T) {
	tool := Tool{Files: []string{"**/*.sh", "!gen/**"}, Interpreters: []string{"sh", "bash"}}
	for name, tc := range map[string]struct {
		first string
		want  bool
	}{
		"a.sh": {"", true}, "x/y/a.sh": {"", true}, "gen/a.sh": {"", false}, "a.py": {"#!/bin/sh", false},
		"run": {"#!/bin/sh -e", true}, "run2": {"#!/usr/bin/env -S bash -x", true}, "run3": {"#!/usr/bin/python3", false},
		"gen/run": {"#!/bin/sh", false}, "data": {"", false}, "odd": {"#!", false}, "env": {"#!/usr/bin/env", false},
	} {
		if got := tool.Wants(name, func() string { return tc.first }); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"name":"n","program":"/p","args":["{files}"],"scope":"changed","output":{"format":"sarif"},"exit":{"clean":[0]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		tool, err := Parse(raw)
		if err != nil {
			return
		}
		tool.Wants("a/b", func() string { return "#!/usr/bin/env sh" })
		tool.Configures("a/b")
	})
}
