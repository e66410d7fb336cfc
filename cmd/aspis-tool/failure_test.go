package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/aspis-dev/aspis/schemas"
)

// liar is a tool of the tests' own: a script, in a directory with its
// description.
func liar(t *testing.T, script, description string) (description_, dir string) {
	t.Helper()
	dir = t.TempDir()
	files{"liar*": script}.write(t, dir)
	about := t.TempDir()
	files{"liar.json": description}.write(t, about)
	return filepath.Join(about, "liar.json"), dir
}

const sarifHead = `{"version":"2.1.0","runs":[{"tool":{"driver":{"name":"liar"}},"results":[`

func describe(more string) string {
	return fmt.Sprintf(`{"about":"a tool that fails","url":"https://example.org","program":"liar","runtime":"system","version":["--version"],"memoryMb":192,
	"tool":{"name":"liar","program":"liar","args":["{files}"],"scope":"changed","output":{"format":"sarif"},"exit":{"clean":[0],"findings":[1]}%s}}`, more)
}

// TestNoFailureIsClean: whatever becomes of the tool, the verdict names it and
// is not allow.
func TestNoFailureIsClean(t *testing.T) {
	const version = "case $1 in --version) echo liar 1.0.0; exit 0;; esac\n"
	clean := sarifHead + `]}]}`
	for name, tc := range map[string]struct {
		script, more string
		says         []string
	}{
		"unknown exit code":    {"echo trouble >&2; exit 7", "", []string{"exit code 7", "trouble"}},
		"crash":                {"kill -SEGV $$", "", []string{"signal 11"}},
		"killed":               {"kill -KILL $$", "", []string{"killed"}},
		"timeout":              {"sleep 600", `,"timeoutMs":300`, []string{"300ms"}},
		"out of memory":        {"exec tail -n 1 /dev/zero", "", []string{"memory"}},
		"truncated SARIF":      {"printf '%s' '" + sarifHead + `{"ruleId":"r","message":{"text":"m"}` + "'; exit 1", "", []string{"no whole SARIF"}},
		"empty output":         {"exit 0", "", []string{"no whole SARIF"}},
		"another format":       {"echo all is well; exit 0", "", []string{"no whole SARIF"}},
		"another SARIF":        {`echo '{"version":"1.0.0","runs":[]}'`, "", []string{"1.0.0"}},
		"no run":               {`echo '{"version":"2.1.0","runs":[]}'`, "", []string{"no run"}},
		"no results":           {`echo '{"version":"2.1.0","runs":[{"tool":{"driver":{"name":"x"}}}]}'`, "", []string{"no list of results"}},
		"failed by its word":   {`echo '{"version":"2.1.0","runs":[{"tool":{"driver":{"name":"x"}},"invocations":[{"executionSuccessful":false}],"results":[]}]}'`, "", []string{"did not succeed"}},
		"exit code lies":       {"echo '" + clean + "'; exit 1", "", []string{"means findings", "has none"}},
		"output without end":   {"yes", "", []string{"printed more than"}},
		"leaves processes":     {"echo '" + clean + "'; sleep 1000 & exit 0", "", []string{"left processes"}},
		"missing interpreter":  {"#!/no/such/shell", "", []string{"not there"}},
		"wrong version inside": {"test -d /workspace && { echo liar 6.6.6; exit 0; }", "", []string{"wrong version", "6.6.6"}},
		"outside paths":        {"echo '" + sarifHead + `{"ruleId":"r","message":{"text":"m"},"locations":[{"physicalLocation":{"artifactLocation":{"uri":"../../etc/passwd"}}}]}]}]}` + "'; exit 1", "", []string{"name no file of the workspace"}},
		"places that are not":  {"echo '" + sarifHead + `{"ruleId":"r","message":{"text":"m"},"locations":[{"physicalLocation":{"artifactLocation":{"uri":"a.txt"},"region":{"startLine":9999}}}]}]}]}` + "'; exit 1", "", []string{"places that their files do not have"}},
		"unread lines":         {"echo something else; exit 0", `,"output":{"format":"errorformat","errorformat":["%f:%l: %m"]}`, []string{"not understood", "something else"}},
		"half a line of JSON":  {`echo '{"a"'; exit 0`, `,"output":{"format":"jsonlines","fields":{"message":"m"}}`, []string{"no whole JSON"}},
		"half of XML":          {`echo '<checkstyle><file name="a.txt"><error line="1" message="m"/>'; exit 1`, `,"output":{"format":"checkstyle"}`, []string{"no whole XML"}},
		"no output file":       {"exit 0", `,"args":["{output}","{files}"],"output":{"from":"file","format":"sarif"}`, []string{"no output file"}},
		"config in the change": {"echo '" + clean + "'", `,"configFiles":["a.*"]`, []string{"does not decide about its own check"}},
		"baseline fails":       {"grep -q before \"$1\" && exit 9\necho '" + sarifHead + `{"ruleId":"r","message":{"text":"m"},"locations":[{"physicalLocation":{"artifactLocation":{"uri":"a.txt"},"region":{"startLine":1}}}]}]}]}` + "'; exit 1", "", []string{"before the change is not known"}},
	} {
		t.Run(name, func(t *testing.T) {
			script := "#!/bin/sh\n"
			switch {
			case strings.HasPrefix(tc.script, "#!"):
				// It is asked for its version where it does not run.
				script = tc.script + "\n"
			case name == "wrong version inside":
				script += tc.script + "\n" + version
			default:
				script += version + tc.script + "\n"
			}
			more := tc.more
			description := describe(more)
			for _, member := range []string{"args", "output"} {
				// What a case gives takes the place of what is there.
				if strings.Contains(more, `"`+member+`"`) {
					description = strings.Replace(description, map[string]string{"args": `"args":["{files}"],`, "output": `"output":{"format":"sarif"},`}[member], "", 1)
				}
			}
			about, dir := liar(t, script, description)
			p := newProject(t, files{"a.txt": "before\n"}, files{"a.txt": "after\n"})
			code, v := p.try(about, "--files", dir)
			if v.Decision == schemas.Allow || v.Pass || (code != 2 && v.Decision != schemas.Deny) {
				t.Errorf("code %d, decision %s", code, v.Decision)
			}
			for _, words := range tc.says {
				if !strings.Contains(degraded(v), words) {
					t.Errorf("%q is not named in %q", words, degraded(v))
				}
			}
		})
	}
}

// TestHostileOutputIsMadeHarmless: what a tool says reaches nobody's terminal,
// and its findings count all the same.
func TestHostileOutputIsMadeHarmless(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	script := "#!/bin/sh\ncase $1 in --version) echo 1.0.0; exit 0;; esac\n" +
		"printf 'a.txt:1: \\033[31mred\\033]0;title\\007 \\377\\376 \\342\\200\\256bidi\\n'\n" +
		"printf './a.txt:2: /workspace/candidate/a.txt is bad " + long[:20_000] + "\\n'\nexit 1\n"
	about, dir := liar(t, script, strings.Replace(describe(""), `"format":"sarif"`, `"format":"errorformat","errorformat":["%f:%l: %m"]`, 1))
	p := newProject(t, files{"a.txt": "one\n"}, files{"a.txt": "two\nthree\n"})
	_, v := p.try(about, "--files", dir)
	if len(v.Findings) != 2 || len(v.Coverage.Degraded) > 0 {
		t.Fatalf("%d findings; %s", len(v.Findings), degraded(v))
	}
	for _, f := range v.Findings {
		m := f.Diagnostic.Message
		if !utf8.ValidString(m) || strings.ContainsFunc(m, func(r rune) bool { return unicode.IsControl(r) || r == 0x202e }) || len(m) > 2000 || strings.Contains(m, "/workspace/") {
			t.Errorf("%.200q", m)
		}
	}
}
