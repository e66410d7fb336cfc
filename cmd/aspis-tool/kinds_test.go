package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/aspis-dev/aspis/schemas"
)

// TestKindsOfTools: tools that write beside what they read, that tell by their
// exit code alone, that are run for each file, and that look at everything.
func TestKindsOfTools(t *testing.T) {
	const head = "#!/bin/sh\ncase $1 in --version) echo liar 1.0.0; exit 0;; esac\n"
	lines := `"output":{"format":"errorformat","errorformat":["%f:%l: %m","%f"]}`
	for name, tc := range map[string]struct {
		script string
		tool   string // args, scope, output, exit
		want   []string
	}{
		"by exit code":        {`grep -q BAD "$1" && exit 1; exit 0`, `"args":["{files}"],"scope":"each","output":{"format":"status","message":"it is bad"}`, []string{"b.txt:0 finding"}},
		"writes beside":       {`touch beside && for f in "$@"; do echo seen >>"$f"; grep -n BAD "$f" | sed "s|^\([0-9]*\):.*|$f:\1: bad|"; done`, `"args":["{files}"],"scope":"changed","writable":true,` + lines, []string{"b.txt:1 finding"}},
		"looks at everything": {`grep -rn BAD . | sed 's/^\([^:]*:[0-9]*\):.*/\1: bad/'`, `"args":[],"scope":"workspace",` + lines, []string{"b.txt:1 finding"}},
		// What is wrong elsewhere because of the change is new as well.
		"looks elsewhere": {`test -e b.txt && echo 'untouched.txt:1: b.txt breaks this'; exit 0`, `"args":[],"scope":"workspace",` + lines, []string{"untouched.txt:1 finding"}},
		// What stands in a file that the tool only went on to is not new.
		"goes on to others": {`for f in "$@" untouched.txt; do grep -n BAD "$f" | sed "s|^\([0-9]*\):.*|$f:\1: bad|"; done | sort -u | sed 's|^./||' | sort -u`, `"args":["{files}"],"scope":"changed",` + lines, []string{"b.txt:1 finding"}},
		"into a file":       {`grep -n BAD "$2" /dev/null "$3" /dev/null | sed 's/^\([^:]*:[0-9]*\):.*/\1: bad/' >"$1"`, `"args":["{output}","{files}","{files}"],"scope":"each",` + strings.Replace(lines, `"format"`, `"from":"file","format"`, 1), []string{"b.txt:1 finding", "b.txt:1 finding"}},
		"has a home":        {`test -w "$HOME" && test -w "$TMPDIR" && test -w "$XDG_CACHE_HOME" && ! test -w . && test "$WHERE" = "$PWD" && echo 'b.txt:1: all is there'; exit 0`, `"args":["{files}"],"scope":"changed","environment":{"WHERE":"{root}"},` + lines, []string{"b.txt:1 finding"}},
		"odd names":         {`for f; do test -e "$f" || exit 9; case $f in -*) exit 8;; esac; done; exit 0`, `"args":["{files}"],"scope":"changed",` + lines, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			about, dir := liar(t, head+tc.script+"\n", `{"about":"a","url":"https://example.org","program":"liar","runtime":"system","version":["--version"],
				"tool":{"name":"liar","program":"liar",`+tc.tool+`,"exit":{"clean":[0],"findings":[1]}}}`)
			before := files{"a.txt": "BAD\n", "untouched.txt": "BAD\n"}
			after := files{"a.txt": "moved\nBAD\n", "untouched.txt": "BAD\n", "b.txt": "BAD thing\n"}
			if name == "goes on to others" {
				after["a.txt"] = before["a.txt"]
			}
			if name == "odd names" {
				after = files{"-rf": "x\n", "a b\t$(c).txt": "x\n", "ü 'q' \"q\".txt": "x\n", "untouched.txt": "BAD\n"}
			}
			p := newProject(t, before, after)
			code, v := p.try(about, "--files", dir)
			if got := shown(v); !slices.Equal(got, tc.want) || code != 0 || v.Decision == schemas.Indeterminate {
				t.Errorf("code %d, %s, %q, want %q\n%s", code, v.Decision, got, tc.want, degraded(v))
			}
		})
	}
}
