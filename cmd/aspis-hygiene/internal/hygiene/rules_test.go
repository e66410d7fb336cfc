package hygiene

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/aspis-dev/aspis/schemas"
)

func codes(a *schemas.Assessment) []string {
	var out []string
	for _, d := range a.Diagnostics {
		out = append(out, strings.TrimPrefix(d.Code, "hygiene/"))
	}
	slices.Sort(out)
	return out
}

// key is a made-up key of the form that AWS uses; it opens nothing.
func key(seed byte) string {
	return "AKIA" + strings.Map(func(r rune) rune { return rune('A' + (int(r)*7+int(seed)*3)%17) }, "QWERTYUIOPASDFGH")
}

// pem is a made-up private key, in pieces, so that this file has none.
func pem() string {
	const what = "RSA PRIVATE " + "KEY-----\n"
	return "-----BEGIN " + what + strings.Repeat("MIIEpAIBAAKCAQEA7bq\n", 10) + "-----END " + what
}

func windowsProgram() string {
	b := make([]byte, 0x100)
	copy(b, "MZ")
	binary.LittleEndian.PutUint32(b[0x3c:], 0x80)
	copy(b[0x80:], "PE\x00\x00")
	return string(b)
}

func TestRules(t *testing.T) {
	c := start(t)
	c.greet()
	big := strings.Repeat("x", defaultMaxFile+1)
	for name, tc := range map[string]struct {
		path, after string
		want        []string
	}{
		"clean":     {"a.go", "package a\n", nil},
		"empty":     {"a.go", "", nil},
		"not UTF-8": {"a.txt", "caf\xe9\n", nil},

		"aws key":                {"a.py", "k = \"" + key(1) + "\"\n", []string{"secret"}},
		"after a byte not UTF-8": {"a.py", "\xff\xfek = \"" + key(1) + "\"\n", []string{"secret"}},
		"allowed by comment":     {"a.py", "k = \"" + key(2) + "\" # gitleaks:allow\n", []string{"secret"}},
		"allowed by file":        {".gitleaks.toml", "[allowlist]\nregexes = ['.*']\nk = \"" + key(2) + "\"\n", []string{"secret"}},
		"example key":            {"a.py", "k = \"AKIAIOSFODNN7EXAMPLE\"\n", nil},
		"password of words":      {"a.py", "password = get_password_from_environment\n", nil},
		"two on a line":          {"a.py", key(1) + " " + key(5) + "\n", []string{"secret", "secret"}},
		"no final newline":       {"a.py", "k = \"" + key(1) + "\"", []string{"secret"}},
		"carriage returns":       {"a.py", "\r\nk = \"" + key(1) + "\"\r\n", []string{"secret"}},
		"in a lock file":         {"go.sum", "k = \"" + key(1) + "\"\n", []string{"secret"}},
		"digest in a lock file":  {"package-lock.json", "{\"key\": \"sha512-Zx81kPq0LmN39vTq7WbR5yYc2QdE6hUa\"}\n", nil},
		"private key":            {"id", pem(), []string{"private-key"}},
		"public key":             {"id.pub", strings.ReplaceAll(pem(), "PRIVATE", "PUBLIC"), nil},
		"key store":              {"a.p12", "\x00\x01", []string{"private-key"}},

		"conflict":           {"a.c", "<<<<<<< HEAD\nint a;\n=======\nint b;\n>>>>>>> other\n", []string{"conflict-marker"}},
		"conflict of three":  {"a.c", "<<<<<<< HEAD\nint a;\n||||||| base\n=======\nint b;\n>>>>>>> other\n", []string{"conflict-marker"}},
		"two conflicts":      {"a.c", "<<<<<<<\n=======\n>>>>>>>\n<<<<<<< HEAD\r\n=======\r\n>>>>>>> other\r\n", []string{"conflict-marker", "conflict-marker"}},
		"conflict half gone": {"a.c", "<<<<<<< HEAD\nint a;\n=======\nint b;\n", []string{"conflict-marker"}},
		"conflict opened":    {"a.c", "<<<<<<< HEAD\nint a;\n", nil},
		"heading":            {"a.rst", "Title\n=======\n\ntext\n", nil},
		"longer heading":     {"a.md", "<<<<<<<<\n========\n>>>>>>>>\n", nil},
		"quotation":          {"a.txt", ">>>>>>> quoted\n", nil},
		"indented":           {"a.md", "    <<<<<<< HEAD\n    =======\n    >>>>>>> x\n", nil},

		"bidi override":     {"a.js", "if (admin\u202e) {}\n", []string{"bidi-control"}},
		"bidi isolate":      {"a.js", "\u2066x\u2069 = 1\n", []string{"bidi-control"}},
		"bidi and hidden":   {"a.js", "\u202ex\u200b\n", []string{"bidi-control", "invisible-character"}},
		"zero width":        {"a.js", "x\u200b = 1\n", []string{"invisible-character"}},
		"zero width joiner": {"a.js", "x\u200dy = 1\n", []string{"invisible-character"}},
		"emoji":             {"a.md", "👩\u200d💻 ❤\ufe0f 1\ufe0f\u20e3 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f\n", nil},
		"tags":              {"a.md", "hello\U000e0068\U000e0069\n", []string{"invisible-character"}},
		"row of selectors":  {"a.js", "x(`\ufe00\ufe01\ufe02`)\n", []string{"invisible-character"}},
		"Persian":           {"a.txt", "می\u200cخواهم\n", nil},
		"Arabic":            {"a.txt", "مرحبا\u200f!\n", nil},
		"mark in Latin":     {"a.txt", "abc\u200edef\n", []string{"invisible-character"}},
		"byte order mark":   {"a.cs", "\ufeffclass A {}\n", nil},
		"inner mark":        {"a.cs", "class\ufeff A {}\n", []string{"invisible-character"}},
		"soft hyphen":       {"a.js", "pass\u00adword\n", []string{"invisible-character"}},

		"bad json":              {"a.json", "{\"a\": 1,}\n", []string{"invalid-json"}},
		"doubled json":          {"a.json", "{\"a\": 1, \"a\": 2}\n", []string{"invalid-json"}},
		"empty json":            {"a.json", "", []string{"invalid-json"}},
		"two values":            {"a.json", "{} {}\n", []string{"invalid-json"}},
		"value without end":     {"a.json", "{\"a\": [\n", []string{"invalid-json"}},
		"a value a line":        {"a.json", "{}\n[1,\n2]\n3\n", nil},
		"good json":             {"a.json", "{\"a\": [1, 2.5e3, null]}\n", nil},
		"json with a mark":      {"a.json", "\ufeff{}\n", nil},
		"json with comments":    {"tsconfig.json", "{ // c \"\n\"a\": [1, /* x */], \"b\": \"//\",\n}\n", nil},
		"broken with comments":  {".vscode/settings.json", "{ // c\n\"a\" 1\n}\n", []string{"invalid-json"}},
		"comment without end":   {"a.jsonc", "{} /* x", []string{"invalid-json"}},
		"comments elsewhere":    {"a.json", "{ // c\n}\n", []string{"invalid-json"}},
		"json template":         {"a.json", "{\"a\": {{ .x }} }\n", nil},
		"other ending":          {"a.json.tmpl", "{", nil},
		"bad yaml":              {"a.yml", "a: [1\nb: 2\n", []string{"invalid-yaml"}},
		"two documents":         {"a.yaml", "a: 1\n---\nb: 2\n", nil},
		"empty yaml":            {"a.yaml", "# nothing\n", nil},
		"tags of one's own":     {"a.yaml", "a: !Ref b\nc: &x [1]\nd: *x\n", nil},
		"yaml template":         {"a.yaml", "{{ if .x }}\na: [\n", nil},
		"good yaml template":    {"a.yaml", "a: {{ x }}\n", nil},
		"expressions in yaml":   {"a.yaml", "a: ${{ x }}\nb: [\n", []string{"invalid-yaml"}},
		"yaml of many brackets": {"a.yaml", strings.Repeat("[", 5000), []string{"invalid-yaml"}},
		"yaml bomb":             {"a.yaml", "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nd: [*c,*c]\n", nil},
		"bad toml":              {"a.toml", "a = \n", []string{"invalid-toml"}},
		"doubled toml":          {"a.toml", "a = 1\na = 2\n", []string{"invalid-toml"}},
		"good toml":             {"a.toml", "[a]\nb = 1\n", nil},
		"toml of many brackets": {"a.toml", "a = " + strings.Repeat("[", 5000), []string{"invalid-toml"}},

		"binary":        {"a.bin", "\x00\x01<<<<<<< \n=======\n" + key(3), nil},
		"NUL far below": {"a.txt", strings.Repeat(" ", binaryProbe) + "\x00\nk = \"" + key(1) + "\"\n", []string{"secret"}},
		"large":         {"a.dat", "\x00" + big, []string{"large-file"}},
		"as large":      {"a.dat", "\x00" + big[2:], nil},
		"ELF":           {"a", "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 60), []string{"binary-program"}},
		"PE":            {"a.exe", windowsProgram(), []string{"binary-program"}},
		"Mach-O":        {"a", "\xcf\xfa\xed\xfe" + strings.Repeat("\x00", 60), []string{"binary-program"}},
		"universal":     {"a", "\xca\xfe\xba\xbe\x00\x00\x00\x02" + strings.Repeat("\x00", 60), []string{"binary-program"}},
		"Java class":    {"A.class", "\xca\xfe\xba\xbe\x00\x00\x00\x34" + strings.Repeat("\x00", 60), nil},
		"MZ text":       {"a.txt", "MZ is how a program begins\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			c.t = t
			a := c.check(nil, c.change(tc.path, "", nothing, tc.after))
			if got := codes(a); !slices.Equal(got, tc.want) {
				t.Fatalf("got %v, want %v\n%+v", got, tc.want, a.Diagnostics)
			}
			if a.Status != schemas.StatusComplete || !a.Coverage.Exhaustive {
				t.Fatalf("%s: %+v", a.Status, a.Coverage)
			}
			for _, d := range a.Diagnostics {
				if d.Help == "" || d.Introduced == nil || !*d.Introduced || d.Severity != wantSeverity(tc.path, d) {
					t.Fatalf("%+v", d)
				}
				if strings.Contains(d.Message, key(1)[:8]) || strings.Contains(d.Message, "MIIE") {
					t.Fatal("the message holds the secret")
				}
			}
			// The same on both sides is not new.
			if again := c.check(nil, c.change(tc.path, "", tc.after+" ", tc.after)); tc.after != "" && !strings.HasPrefix(name, "as large") && len(again.Diagnostics) > 0 {
				t.Fatalf("introduced by a space: %v", codes(again))
			}
		})
	}
}

func wantSeverity(path string, d schemas.Diagnostic) schemas.Severity {
	if path == "go.sum" || path == "a.p12" {
		return schemas.SeverityWarning
	}
	return rules[strings.TrimPrefix(d.Code, "hygiene/")].severity
}

// TestNothingSecretIsPublished looks at the whole answer, for values and for
// digests of them.
func TestNothingSecretIsPublished(t *testing.T) {
	c := start(t)
	c.greet()
	secret := key(1)
	r := c.call("check/evaluate", obj{"changeset": obj{"baseline": baseline, "changes": []obj{
		c.change("a.py", "", nothing, "k = \""+secret+"\"\n"), c.change("b.toml", "", nothing, "password = \""+secret+"\" "+secret+"\n"),
		c.change("c.yaml", "", nothing, "a: \""+secret+"\"\n\t\""+secret+"\n")}}, "scope": "changeset", "comparison": "introduced"})
	if r.Error != nil || len(r.Result) < 200 {
		t.Fatalf("%+v", r)
	}
	if bytes.Contains(r.Result, []byte(secret[:8])) {
		t.Fatalf("%s", r.Result)
	}
	c.asked = map[string]bool{}
	// Two weak passwords in like lines: were fingerprints made of them, they
	// would differ by more than their number.
	one := c.check(nil, c.change("a.py", "", nothing, "k = \""+key(1)+"\"\n"))
	two := c.check(nil, c.change("a.py", "", nothing, "k = \""+key(5)+"\"\n"))
	if one.Diagnostics[0].Fingerprint != two.Diagnostics[0].Fingerprint {
		t.Fatal("a fingerprint depends on the secret")
	}
}

func TestRangesCountUTF16(t *testing.T) {
	c := start(t)
	c.greet()
	for name, tc := range map[string]struct {
		path, text string
		want       schemas.Range
	}{
		"secret":   {"a.py", "x\n\U0001F600 k = \"" + key(1) + "\"\n", schemas.Range{Start: schemas.Position{Line: 1, Char: 8}, End: schemas.Position{Line: 1, Char: 28}}},
		"key":      {"a", "\n" + pem(), schemas.Range{Start: schemas.Position{Line: 1}, End: schemas.Position{Line: 12, Char: 29}}},
		"hidden":   {"a.py", "\U0001F600é\u200bx\u200b\n", schemas.Range{Start: schemas.Position{Char: 3}, End: schemas.Position{Char: 6}}},
		"conflict": {"a.py", "a\n<<<<<<< x\n=======\n>>>>>>> y\n", schemas.Range{Start: schemas.Position{Line: 1}, End: schemas.Position{Line: 3, Char: 7}}},
		"json":     {"a.json", "{\n\"a\": x\n}\n", schemas.Range{Start: schemas.Position{Line: 1}, End: schemas.Position{Line: 1, Char: 6}}},
		"yaml":     {"a.yaml", "a: 1\nb: [\n", schemas.Range{Start: schemas.Position{Line: 1}, End: schemas.Position{Line: 1, Char: 4}}},
		"toml":     {"a.toml", "a = 1\nb = x\n", schemas.Range{Start: schemas.Position{Line: 1}, End: schemas.Position{Line: 1, Char: 5}}},
	} {
		t.Run(name, func(t *testing.T) {
			c.t = t
			a := c.check(nil, c.change(tc.path, "", nothing, tc.text))
			if len(a.Diagnostics) != 1 || *a.Diagnostics[0].Location.Range != tc.want {
				t.Fatalf("%v %+v", codes(a), a.Diagnostics[0].Location.Range)
			}
		})
	}
}

func TestNamesThatCollide(t *testing.T) {
	c := start(t)
	c.greet()
	c.base = map[string]string{"src/Main.go": "a", "docs/é.md": "b", "lib/x": "c", "Old/one": "d", "old/two": "e"}
	for path, want := range map[string]int{"src/main.go": 1, "SRC/other.go": 1, "docs/e\u0301.md": 1, "docs/É.md": 1, "lib/y": 0, "straße": 0,
		"Old/three": 0 /* it collided before */, "src": 0, "Lib": 1} {
		a := c.check(nil, c.change(path, "", nothing, "package x\n"))
		if len(a.Diagnostics) != want {
			t.Errorf("%s: %v", path, codes(a))
		}
	}
	for name, tc := range map[string]struct {
		changes []obj
		want    int
	}{
		"both are new":           {[]obj{c.change("n/A", "", nothing, "1"), c.change("n/a", "", nothing, "2")}, 1},
		"three are new":          {[]obj{c.change("n/AA", "", nothing, "1"), c.change("n/aA", "", nothing, "2"), c.change("n/aa", "", nothing, "3")}, 2},
		"the other goes":         {[]obj{c.change("src/Main.go", "", "a", nothing), c.change("src/main.go", "", nothing, "2")}, 0},
		"renamed":                {[]obj{c.change("src/main.go", "src/Main.go", "a", "a")}, 0},
		"directory beside":       {[]obj{c.change("LIB/a", "", nothing, "1"), c.change("LIB/b", "", nothing, "2")}, 1},
		"modified":               {[]obj{c.change("Old/one", "", "d", "dd")}, 0},
		"file against directory": {[]obj{c.change("DOCS", "", nothing, "1")}, 1},
	} {
		if a := c.check(nil, tc.changes...); len(a.Diagnostics) != tc.want {
			t.Errorf("%s: %v", name, codes(a))
		}
	}
	// Without a new name there is no need to look.
	c.lists = 0
	c.check(nil, c.change("src/Main.go", "", "a", "b"))
	if c.lists != 0 {
		t.Error("it listed the tree for a change of content")
	}
	all := c.check(obj{"comparison": "all", "scope": "workspace"}, c.change("src/Main.go", "", "a", "b"))
	if got := codes(all); !slices.Equal(got, []string{"case-collision"}) || *all.Diagnostics[0].Introduced {
		t.Errorf("all: %v", got)
	}
	resolved := c.check(obj{"comparison": "resolved"}, c.change("Old/one", "", "d", nothing))
	if got := codes(resolved); !slices.Equal(got, []string{"case-collision"}) {
		t.Errorf("resolved: %v", got)
	}
}

func TestEscapingLinks(t *testing.T) {
	for _, tc := range []struct {
		at, target string
		out        bool
	}{
		{"a", "/etc/passwd", true}, {"a", "/", true}, {"a", "..", true}, {"a/b", "../..", true}, {"a", "../x", true},
		{"a/b/c", "../../../x", true}, {"a", "x/../../y", true}, {"a", ".git", true}, {"a", ".git/config", true}, {"a/b", "../.GIT/hooks", true},
		{"a", "sub/.git/config", true}, {"a", ".git./config", true}, {"a", "GIT~1/config", true}, {"a", `C:\x`, true}, {"a", `\\host\share`, true},
		{"a", "b", false}, {"a/b", "../c", false}, {"a/b", "..", false}, {"a", "./.gitignore", false}, {"a/b/c", "../../d/e", false},
		{"a", "nowhere/at/all", false}, {"a", "..x", false}, {"a/b", "../..x", false}, {"a", "c:d", false},
	} {
		if got := escapes(tc.at, tc.target) != ""; got != tc.out {
			t.Errorf("%s -> %s: %v", tc.at, tc.target, got)
		}
	}
}

// TestSnapshot uses modes, which no callback has.
func TestSnapshot(t *testing.T) {
	dirs := map[string]string{}
	for _, side := range []string{"candidate", "baseline"} {
		dirs[side] = t.TempDir()
	}
	file := func(side, name, text string, mode os.FileMode) string {
		path := filepath.Join(dirs[side], name)
		os.MkdirAll(filepath.Dir(path), 0o755)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return text
	}
	symlink := func(side, name, target string) string {
		if err := os.Symlink(target, filepath.Join(dirs[side], name)); err != nil {
			t.Fatal(err)
		}
		return target
	}
	c := within(t, dirs["candidate"], dirs["baseline"])
	c.greet()
	for name, tc := range map[string]struct {
		change   obj
		want     []string
		severity schemas.Severity
	}{
		"link out":          {c.change("out", "", nothing, symlink("candidate", "out", "../secret")), []string{"symlink-escape"}, "error"},
		"link in":           {c.change("in", "", nothing, symlink("candidate", "in", "plain")), nil, ""},
		"link kept":         {c.change("kept2", "kept", symlink("baseline", "kept", "/x"), symlink("candidate", "kept2", "/x")), nil, ""},
		"link elsewhere":    {c.change("turned", "", symlink("baseline", "turned", "/x"), symlink("candidate", "turned", "/y")), []string{"symlink-escape"}, "error"},
		"link out of file":  {c.change("became", "", file("baseline", "became", "text", 0o644), symlink("candidate", "became", "/y")), []string{"symlink-escape"}, "error"},
		"new program":       {c.change("run", "", nothing, file("candidate", "run", "echo\n", 0o755)), []string{"new-executable"}, "warning"},
		"new script":        {c.change("run.sh", "", nothing, file("candidate", "run.sh", "#!/bin/sh\n", 0o755)), []string{"new-executable"}, "info"},
		"became executable": {c.change("mode", "", file("baseline", "mode", "x\n", 0o644), file("candidate", "mode", "x\n", 0o755)), []string{"new-executable"}, "warning"},
		"was executable":    {c.change("old", "", file("baseline", "old", "x\n", 0o755), file("candidate", "old", "y\n", 0o755)), nil, ""},
		"moved executable":  {c.change("new/old2", "old2", file("baseline", "old2", "x2\n", 0o755), file("candidate", "new/old2", "x2\n", 0o755)), nil, ""},
		"plain":             {c.change("plain", "", nothing, file("candidate", "plain", "x\n", 0o644)), nil, ""},
		"name collides":     {c.change("dir/Name", "", nothing, file("candidate", "dir/Name", "n", 0o644)+file("candidate", "dir/name", "", 0o644)+file("baseline", "dir/name", "", 0o644)), []string{"case-collision"}, "warning"},
		"text like a link":  {c.change("text", "", nothing, file("candidate", "text", "/etc/passwd", 0o644)), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.t = t
			a := c.check(nil, tc.change)
			if got := codes(a); !slices.Equal(got, tc.want) || (len(got) > 0 && a.Diagnostics[0].Severity != tc.severity) {
				t.Fatalf("%v %+v", got, a.Diagnostics)
			}
			if !slices.Contains(a.Coverage.Covered.Rules, ruleExecutable) {
				t.Fatal("a rule that ran is not named")
			}
		})
	}
	if c.lists != 0 {
		t.Error("it listed the tree though it sees it")
	}
	// The host serves no file of such a size: its size is still told.
	huge := c.change("huge", "", nothing, file("candidate", "huge", strings.Repeat("x", defaultMaxFile+1), 0o644))
	delete(c.blobs, huge["after"].(string))
	a := c.check(nil, huge)
	if got := codes(a); !slices.Equal(got, []string{"large-file"}) || a.Status != schemas.StatusIncomplete {
		t.Errorf("%v %s", got, a.Status)
	}
}

// TestNothingElseIsNeeded runs the binary where there is no other file at all.
func TestNothingElseIsNeeded(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("an empty root needs chroot(2), which needs root")
	}
	root := t.TempDir()
	program, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "p"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/p")
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Dir = "/"
	c := converse(t, cmd)
	c.greet()
	a := c.check(nil, c.change("a.py", "", nothing, "k = \""+key(1)+"\"\n"), c.change("b.yaml", "", nothing, "a: [\n"))
	if got := codes(a); !slices.Equal(got, []string{"invalid-yaml", "secret"}) {
		t.Fatal(got)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) != 1 {
		t.Fatalf("it left files: %v %v", left, err)
	}
}
