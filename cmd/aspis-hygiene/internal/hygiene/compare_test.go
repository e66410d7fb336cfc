package hygiene

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/aspis-dev/aspis/schemas"
)

func TestWhatWasThereIsNotIntroduced(t *testing.T) {
	c := start(t)
	c.greet()
	old := "a = 1\nk = \"" + key(1) + "\"\n"
	for name, tc := range map[string]struct {
		changes []obj
		want    int
	}{
		"line moved":         {[]obj{c.change("a", "", old, "x\ny\n"+old)}, 0},
		"renamed":            {[]obj{c.change("b", "a", old, old+"more\n")}, 0},
		"moved elsewhere":    {[]obj{c.change("a", "", old, "a = 1\n"), c.change("c", "", "q\n", "q\nk = \""+key(1)+"\"\n")}, 0},
		"one more":           {[]obj{c.change("a", "", old, old+old)}, 1},
		"two more":           {[]obj{c.change("a", "", old, old+old), c.change("b", "", nothing, old)}, 2},
		"another":            {[]obj{c.change("a", "", old, old+"j = \""+key(5)+"\"\n")}, 1},
		"another in place":   {[]obj{c.change("a", "", old, strings.ReplaceAll(old, key(1), key(5)))}, 1},
		"new file":           {[]obj{c.change("n", "", nothing, old)}, 1},
		"taken out":          {[]obj{c.change("a", "", old, "a = 1\n")}, 0},
		"broken before":      {[]obj{c.change("a.json", "", "{", "{{}")}, 0},
		"broken and renamed": {[]obj{c.change("b.json", "a.json", "{\n1", "{\n2")}, 0},
		"broken and moved":   {[]obj{c.change("a.json", "", "{\n1", nothing), c.change("d/b.json", "", nothing, "{\n1")}, 0},
		"broken now":         {[]obj{c.change("a.json", "", "{}", "{")}, 1},
		"one mended":         {[]obj{c.change("a.json", "", "{", "{}"), c.change("b.json", "", "{}", "{")}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c.t = t
			if a := c.check(nil, tc.changes...); len(a.Diagnostics) != tc.want {
				t.Fatalf("%v", codes(a))
			}
		})
	}
}

func TestComparisonsAndScopes(t *testing.T) {
	c := start(t)
	c.greet()
	old := "a = 1\nk = \"" + key(1) + "\"\n"
	c.base = map[string]string{"a": old, "d/b": "j = \"" + key(5) + "\"\n", "c": "fine\n", "l": "/etc"}
	c.links["l"] = true
	for name, tc := range map[string]struct {
		params  obj
		changes []obj
		want    string // path and whether introduced
	}{
		"introduced":            {nil, []obj{c.change("a", "", old, "x\n"+old+old)}, "a:4:true"},
		"all":                   {obj{"comparison": "all"}, []obj{c.change("a", "", old, "x\n"+old+old)}, "a:2:false a:4:true"},
		"resolved":              {obj{"comparison": "resolved"}, []obj{c.change("a", "", old, "a = 1\n")}, "a:1:false"},
		"resolved by moving":    {obj{"comparison": "resolved"}, []obj{c.change("a", "", old, "a = 1\n"), c.change("n", "", nothing, old)}, ""},
		"moved out of scope":    {obj{"comparison": "resolved", "scope": obj{"paths": []string{"a"}}}, []obj{c.change("a", "", old, "a = 1\n"), c.change("n", "", nothing, old)}, ""},
		"workspace":             {obj{"scope": "workspace"}, []obj{c.change("a", "", old, old+old)}, "a:3:true"},
		"all of the workspace":  {obj{"scope": "workspace", "comparison": "all"}, []obj{c.change("a", "", old, "x\n"+old)}, "a:2:false d/b:0:false"},
		"paths":                 {obj{"scope": obj{"paths": []string{"a"}}}, []obj{c.change("a", "", old, old+old), c.change("n", "", nothing, old)}, "a:3:true"},
		"a directory":           {obj{"scope": obj{"paths": []string{"d"}}, "comparison": "all"}, []obj{c.change("a", "", old, old+old)}, "d/b:0:false"},
		"moved into scope":      {obj{"scope": obj{"paths": []string{"n"}}}, []obj{c.change("a", "", old, "a = 1\n"), c.change("n", "", nothing, old)}, ""},
		"nothing in scope":      {obj{"scope": obj{"paths": []string{"zzz"}}}, []obj{c.change("a", "", old, old+old)}, ""},
		"no changes":            {nil, nil, ""},
		"no changes, all of it": {obj{"scope": "workspace", "comparison": "all"}, nil, "a:1:false d/b:0:false"},
	} {
		t.Run(name, func(t *testing.T) {
			c.t = t
			if tc.changes == nil {
				tc.changes = []obj{}
			}
			a := c.check(tc.params, tc.changes...)
			var got []string
			for _, d := range a.Diagnostics {
				got = append(got, fmt.Sprintf("%s:%d:%v", d.Location.Path, d.Location.Range.Start.Line, *d.Introduced))
			}
			if s := strings.Join(got, " "); s != tc.want || a.Status != schemas.StatusComplete {
				t.Fatalf("%q, want %q (%s)", s, tc.want, a.Status)
			}
		})
	}
}

// TestMovesAreNeverIntroduced shuffles lines, splits files and renames them.
func TestMovesAreNeverIntroduced(t *testing.T) {
	c := start(t)
	c.greet()
	lines := []string{"a = 1", "k = \"" + key(1) + "\"", "j = \"" + key(5) + "\"", "x\u200b = 2", "y\u202e = 3", "# done", "k = \"" + key(1) + "\""}
	rapid.Check(t, func(rt *rapid.T) {
		before := strings.Join(lines, "\n") + "\n"
		moved := rapid.Permutation(lines).Draw(rt, "order")
		at := rapid.IntRange(0, len(moved)).Draw(rt, "split")
		one := strings.Join(append([]string{"// new head"}, moved[:at]...), "\n") + "\n"
		two := strings.Join(append(moved[at:len(moved):len(moved)], "// new tail"), "\n") + "\n"
		a := c.check(nil, c.change("b", "a", before, one), c.change("c", "", nothing, two))
		if len(a.Diagnostics) != 0 {
			rt.Fatalf("introduced %v by moving lines", codes(a))
		}
	})
}

// hostileParts are findings of several lines, which moves keep whole.
func hostileParts() []string {
	return []string{"k = \"" + key(1) + "\"\n", "k = \"" + key(1) + "\"\n", "j = \"" + key(5) + "\"\n", pem(),
		"<<<<<<< HEAD\na\n=======\nb\n>>>>>>> x\n", "x\u200b = 2\n", "y\u202e\n"}
}

// TestInsertionsNeverIntroduce puts clean lines between findings and renames
// the file; then a finding more is one introduced, wherever it is put.
func TestInsertionsNeverIntroduce(t *testing.T) {
	c := start(t)
	c.greet()
	cleanLines := rapid.SliceOfN(rapid.SampledFrom([]string{"\n", "a = 1\n", "# é 😀\n", "\t\n", "=======\n", "}\r\n"}), 0, 5)
	runs := 0
	for runs < 200 {
		rapid.Check(t, func(rt *rapid.T) {
			runs++
			parts := rapid.Permutation(hostileParts()).Draw(rt, "parts")
			parts = parts[:rapid.IntRange(1, len(parts)).Draw(rt, "how many")]
			var now strings.Builder
			for _, p := range parts {
				now.WriteString(strings.Join(cleanLines.Draw(rt, "before"), ""))
				now.WriteString(p)
			}
			before, after := strings.Join(parts, ""), now.String()
			path := rapid.SampledFrom([]string{"a", "b", "d/c.py"}).Draw(rt, "path")
			from := "a"
			if path == from {
				from = ""
			}
			a := c.check(nil, c.change(path, from, before, after))
			if len(a.Diagnostics) != 0 {
				rt.Fatalf("introduced %v by inserting lines:\n%s", codes(a), after)
			}
			more := rapid.SampledFrom(hostileParts()).Draw(rt, "more")
			if rapid.Bool().Draw(rt, "in front") {
				after = more + after
			} else {
				after += more
			}
			a = c.check(nil, c.change(path, from, before, after))
			if len(a.Diagnostics) != 1 {
				rt.Fatalf("one more finding introduced %v", codes(a))
			}
			prints := map[string]bool{}
			all := c.check(obj{"comparison": "all"}, c.change(path, from, before, after))
			for _, d := range all.Diagnostics {
				prints[d.Fingerprint] = true
			}
			if len(prints) != len(all.Diagnostics) || len(prints) != len(parts)+1 {
				rt.Fatalf("%d findings have %d fingerprints", len(all.Diagnostics), len(prints))
			}
		})
	}
}
