package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/aspis-dev/aspis/cmd/internal/toolspec"
	"github.com/aspis-dev/aspis/schemas"
)

// everyTool names the variable that asks for all tools; without it only those are
// run that the project installs for its tests.
const everyTool = "ASPIS_TEST_TOOLS"

// real is one real tool on a change: what it finds before, and what of that which
// it finds after is new.
type real struct {
	before, after files
	want          []string
	// always is true of tools that are installed wherever the tests run.
	always bool
}

const (
	goMod    = "module example.org/x\n\ngo 1.24\n"
	oldVet   = "package x\n\nimport \"fmt\"\n\nfunc Old(s string) {\n\tfmt.Printf(\"%d\\n\", s)\n}\n"
	newVet   = "package x\n\nimport \"fmt\"\n\n// Moved down.\n\nfunc New(s string) {\n\tfmt.Printf(\"%x %d\\n\", 1, s)\n}\n\nfunc Old(s string) {\n\tfmt.Printf(\"%d\\n\", s)\n}\n"
	oldHash  = "package x\n\nimport \"crypto/md5\"\n\nfunc Old() { _ = md5.New() }\n"
	newHash  = "package x\n\nimport (\n\t\"crypto/md5\"\n\t\"crypto/sha1\"\n)\n\nfunc New() { _ = sha1.New() }\n\nfunc Old() { _ = md5.New() }\n"
	misspelt = "te" + "h"
	// token has the form of a secret and is none.
	token = "ghp_" + "x7Kq2mWv9ZtRb4Ns8Lp" + "D1cFg6Hj3Yu5Ea0Io"
	other = "ghp_" + "Q4nTz8Vw2KxLm6Rb9Js" + "P3dHf1Gy7Uc5Ae0Xi"
)

var realTools = map[string]real{
	"shellcheck": {always: true,
		before: files{"a.sh": "#!/bin/sh\nrm $1\n", "keep": "x\n"},
		after:  files{"a.sh": "#!/bin/sh\n\n# moved\nif true; then\n\trm $1\nfi\ncat $2\n", "keep": "x\n", "run*": "#!/usr/bin/env bash\necho $3\n"},
		want:   []string{"a.sh:7 SC2086", "run:2 SC2086"}},
	"yamllint": {always: true,
		before: files{"a.yaml": "---\na:   1\n"}, after: files{"b.yaml": "---\nnew:   2\na:   1\n"}, want: []string{"b.yaml:2 colons"}},
	"codespell": {always: true,
		before: files{"a.txt": misspelt + " first\n"}, after: files{"a.txt": "a line\n" + misspelt + " first\nand " + misspelt + " second\n"}, want: []string{"a.txt:3 finding"}},
	"go-vet": {always: true,
		before: files{"go.mod": goMod, "a.go": oldVet}, after: files{"go.mod": goMod, "a.go": newVet}, want: []string{"a.go:8 finding"}},
	"staticcheck":   {before: files{"go.mod": goMod, "a.go": oldVet}, after: files{"go.mod": goMod, "a.go": newVet}, want: []string{"a.go:8 SA5009"}},
	"golangci-lint": {before: files{"go.mod": goMod, "a.go": oldVet}, after: files{"go.mod": goMod, "a.go": newVet}, want: []string{"a.go:8 govet"}},
	"gosec":         {before: files{"go.mod": goMod, "a.go": oldHash}, after: files{"go.mod": goMod, "a.go": newHash}, want: []string{"a.go:5 G505", "a.go:8 G401"}},
	"gitleaks":      {before: files{"a.txt": "key = " + token + "\n"}, after: files{"a.txt": "one more\nkey = " + token + "\nkey = " + other + " # gitleaks:allow\n"}, want: []string{"a.txt:3 github-pat"}},
	"actionlint":    {before: files{".github/workflows/a.yml": workflow("foo")}, after: files{".github/workflows/a.yml": workflow("foo", "bar")}, want: []string{".github/workflows/a.yml:7 expression"}},
	"eslint": {before: files{"eslint.config.mjs": eslintConfig, "a.js": "let a = f(1, debug == 2)\n"},
		after: files{"eslint.config.mjs": eslintConfig, "a.js": "let a = f(\n  1,\n  debug == 2,\n);\nif (a == 3) a();\n"}, want: []string{"a.js:5 eqeqeq"}},
	"tsc": {before: files{"tsconfig.json": tsConfig, "a.ts": "export const x: number = \"a\";\n", "b.ts": "import { f } from \"./c\";\nf(1);\n", "c.ts": "export function f(n: number) { return n; }\n"},
		after: files{"tsconfig.json": tsConfig, "a.ts": "// moved\nexport const x: number = \"a\";\n", "b.ts": "import { f } from \"./c\";\nf(1);\n", "c.ts": "export function f(n: string) { return n; }\n"},
		// The change is in c.ts; what it breaks is elsewhere.
		want: []string{"b.ts:2 TS2345"}},
	"biome":        {before: files{"a.js": "if (a == 1) b();\n"}, after: files{"a.js": "b();\nif (a == 1) b();\nif (b == 2) b();\n"}, want: []string{"a.js:3 lint/suspicious/noDoubleEquals"}},
	"prettier":     {before: files{"a.js": "a( )\n"}, after: files{"a.js": "a( )\nb( )\n", "b.js": "c( )\n"}, want: []string{"b.js:0 finding"}},
	"markdownlint": {before: files{"a.md": "# A\n\n\ttab\n"}, after: files{"a.md": "# A\n\ntext\n\n\ttab\n\n### C\n"}, want: []string{"a.md:7 MD001"}},
	"pyright":      {before: files{"a.py": "x: int = 'a'\n"}, after: files{"a.py": "# more\nx: int = \"a\"\ny: int = \"b\"\n"}, want: []string{"a.py:3 reportAssignmentType"}},
	"mypy":         {before: files{"a.py": "x: int = 'a'\n"}, after: files{"a.py": "# more\nx: int = 'a'\ny: int = 'b'\n"}, want: []string{"a.py:3 assignment"}},
	"bandit":       {before: files{"a.py": "import hashlib\neval('1')\n"}, after: files{"a.py": "import hashlib\nx = 1\neval('1')\nexec('2')  # nosec\n"}, want: []string{"a.py:4 B102"}},
	"ast-grep": {before: files{"sgconfig.yml": "ruleDirs: [rules]\n", "rules/r.yml": astRule, "a.js": "alert(1)\n"},
		after: files{"sgconfig.yml": "ruleDirs: [rules]\n", "rules/r.yml": astRule, "a.js": "f()\nalert(1)\nalert(2)\n"}, want: []string{"a.js:3 no-alert"}},
}

const (
	eslintConfig = "export default [{ rules: { eqeqeq: \"error\" } }];\n"
	tsConfig     = "{\"compilerOptions\": {\"strict\": true, \"noEmit\": true, \"types\": []}, \"include\": [\"*.ts\"]}\n"
	astRule      = "id: no-alert\nlanguage: JavaScript\nseverity: warning\nmessage: no alerts\nrule:\n  pattern: alert($A)\n"
)

func workflow(names ...string) string {
	text := "on: push\njobs:\n  a:\n    runs-on: ubuntu-latest\n    steps:\n"
	for _, n := range names {
		text += "      - run: echo ${{ github." + n + " }}\n"
	}
	return text
}

// npmDir finds the directory that npm has installed a program into.
func npmDir(program string) string {
	real, err := filepath.EvalSymlinks(program)
	if err != nil {
		return ""
	}
	if i := strings.Index(real, "/node_modules/"); i > 0 {
		return real[:i]
	}
	return ""
}

// TestRealTools runs each tool behind walls: only what the change brings in is
// gating or shown, and what was there before is not.
func TestRealTools(t *testing.T) {
	for name, tc := range realTools {
		if !tc.always && os.Getenv(everyTool) == "" {
			continue // make test-tools runs it
		}
		t.Run(name, func(t *testing.T) {
			preset, err := toolspec.Find(name)
			if err != nil {
				t.Fatal(err)
			}
			program, err := exec.LookPath(preset.Program)
			if err != nil {
				t.Skip("needs: ", name, " in PATH")
			}
			args := []string{name}
			if dir := npmDir(program); dir != "" && !strings.HasPrefix(program, "/usr/") {
				args = append(args, "--files", dir, "--program", program)
			}
			p := newProject(t, tc.before, tc.after)
			code, v := p.try(args...)
			slices.Sort(tc.want)
			if got := shown(v); !slices.Equal(got, tc.want) || code != 0 || v.Assurance.Mode != schemas.Isolated {
				t.Errorf("code %d, %s, found %q, want %q\n%s", code, v.Assurance.Mode, got, tc.want, degraded(v))
			}
		})
	}
}
