package match

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// find is a tool of the tests: it reports every line that holds BAD, by rule of
// what follows it, without columns; or with those of the word, if exact.
func find(path, home, content string, exact bool) []Item {
	t := NewText([]byte(content))
	var out []Item
	for n, line := range strings.Split(content, "\n") {
		at := strings.Index(line, "BAD")
		if at < 0 {
			continue
		}
		column, end := -1, -1
		if exact {
			column, end = at, at+len("BAD")
			for end < len(line) && line[end] != ' ' && line[end] != ')' && line[end] != ',' {
				end++
			}
		}
		p, ok := t.Locate(n, column, -1, end, Runes)
		if !ok {
			panic("a line that is there is not found")
		}
		out = append(out, Item{Rule: "bad", Message: fmt.Sprintf("bad thing at %s:%d", path, n+1), Path: path, Home: home, Place: p, Text: t})
	}
	return out
}

// introduced lists the lines, from 1, of what is new.
func introduced(before, after []Item) (lines []string) {
	r := Compare(before, after)
	for i, it := range after {
		if !r.Old[i] {
			line, _ := it.Text.Position(it.Place.Start)
			lines = append(lines, fmt.Sprintf("%s:%d", it.Path, line+1))
		}
	}
	slices.Sort(lines)
	return lines
}

type tree map[string]string

func (t tree) items(homes map[string]string, exact bool) (out []Item) {
	for _, name := range sortedNames(t) {
		home := name
		if h := homes[name]; h != "" {
			home = h
		}
		out = append(out, find(name, home, t[name], exact)...)
	}
	return out
}

func sortedNames(t tree) (names []string) {
	for n := range t {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// TestCorpus has changes with the right answer to each.
func TestCorpus(t *testing.T) {
	const block = "func one() {\n\tcall(BAD, 1)\n\treturn\n}\n"
	for name, tc := range map[string]struct {
		before, after tree
		homes         map[string]string
		exact         bool
		want          []string
	}{
		"nothing changes": {before: tree{"a": block}, after: tree{"a": block}},
		"a new finding":   {before: tree{"a": "x\ny\n"}, after: tree{"a": "x\nBAD\ny\n"}, want: []string{"a:2"}},
		"lines above":     {before: tree{"a": block}, after: tree{"a": "// more\n// lines\n\n" + block}},
		"lines around change": {before: tree{"a": "p = 1\ncall(BAD)\nq = 2\n"},
			after: tree{"a": "p = 100\ncall(BAD)\nq = 200\n"}},
		"a rename":              {before: tree{"a": block}, after: tree{"b": block}, homes: map[string]string{"b": "a"}},
		"a rename not told":     {before: tree{"a": block}, after: tree{"b": block}},
		"a rename with a new":   {before: tree{"a": block}, after: tree{"b": block + "BAD\n"}, homes: map[string]string{"b": "a"}, want: []string{"b:5"}},
		"a block moves down":    {before: tree{"a": block + "func two() {\n\tnothing()\n}\n"}, after: tree{"a": "func two() {\n\tnothing()\n}\n" + block}},
		"a block moves across":  {before: tree{"a": block + "rest\n", "b": "other\n"}, after: tree{"a": "rest\n", "b": "other\n" + block}},
		"indented":              {before: tree{"a": "call(BAD, 1)\n"}, after: tree{"a": "if x {\n\t\tcall(BAD, 1)\n}\n"}},
		"split over lines":      {before: tree{"a": "result = call(first, BAD, last)\n"}, after: tree{"a": "result = call(\n    first,\n    BAD,\n    last,\n)\n"}},
		"joined into a line":    {before: tree{"a": "result = call(\n    first,\n    BAD,\n    last,\n)\n"}, after: tree{"a": "result = call(first, BAD, last)\n"}},
		"quotes and semicolons": {before: tree{"a": "call('BAD', 1)\n"}, after: tree{"a": "call(\"BAD\", 1);\n"}},
		"line endings":          {before: tree{"a": block}, after: tree{"a": strings.ReplaceAll(block, "\n", "\r\n")}},
		"reformatted and one more": {before: tree{"a": "result = call(first, BAD, last)\n"},
			after: tree{"a": "result = call(\n  first,\n  BAD,\n  last,\n)\nother(BAD)\n"}, want: []string{"a:6"}},
		"a copy below":         {before: tree{"a": block}, after: tree{"a": block + block}, want: []string{"a:6"}},
		"a copy in a file":     {before: tree{"a": block}, after: tree{"a": block, "b": block}, want: []string{"b:2"}},
		"two become three":     {before: tree{"a": "BAD\nBAD\n"}, after: tree{"a": "BAD\nBAD\nBAD\n"}, want: []string{"a:3"}},
		"three become two":     {before: tree{"a": "BAD\nBAD\nBAD\n"}, after: tree{"a": "BAD\nBAD\n"}},
		"one goes, one comes":  {before: tree{"a": "first(BAD)\nmiddle\n"}, after: tree{"a": "middle\nsecond(BAD)\n"}, want: []string{"a:2"}},
		"the line is touched":  {before: tree{"a": "call(BAD, 1)\n"}, after: tree{"a": "call(BAD, 2)\n"}, want: []string{"a:1"}},
		"beside what is meant": {before: tree{"a": "call(BAD, 1)\n"}, after: tree{"a": "call(BAD, 2)\n"}, exact: true},
		"what is meant":        {before: tree{"a": "key = BAD1\n"}, after: tree{"a": "key = BAD2\n"}, exact: true, want: []string{"a:1"}},
		"swapped":              {before: tree{"a": "p(BAD1)\nq(BAD2)\n"}, after: tree{"a": "q(BAD2)\np(BAD1)\n"}, exact: true},
		"moved, split and renamed": {before: tree{"a": "one\ntwo\nresult = call(first, BAD, last)\nthree\n"},
			after: tree{"b": "three\nresult = call(\n\tfirst,\n\tBAD,\n\tlast,\n)\none\ntwo\n"}, homes: map[string]string{"b": "a"}},
		"wrapped":         {before: tree{"a": "import BAD\n\nfunc f() {}\n"}, after: tree{"a": "import (\n\tBAD\n\tmore\n)\n\nfunc f() {}\n"}},
		"everything goes": {before: tree{"a": block}, after: tree{"a": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			got := introduced(tc.before.items(nil, tc.exact), tc.after.items(tc.homes, tc.exact))
			if !slices.Equal(got, tc.want) {
				t.Errorf("introduced %q, want %q", got, tc.want)
			}
		})
	}
}

// TestOtherPlaces has findings that are about no line of code.
func TestOtherPlaces(t *testing.T) {
	text := func(s string) *Text { return NewText([]byte(s)) }
	whole := func(path, home string) Item {
		return Item{Rule: "format", Message: "not formatted", Path: path, Home: home, Text: text("x")}
	}
	blank := func(s string, line int) Item {
		x := text(s)
		p, _ := x.Locate(line, -1, -1, -1, Runes)
		return Item{Rule: "blank", Message: "too many blank lines", Path: "a", Home: "a", Place: p, Text: x}
	}
	for name, tc := range map[string]struct {
		before, after []Item
		old           []bool
	}{
		"the whole file":         {[]Item{whole("a", "a")}, []Item{whole("a", "a")}, []bool{true}},
		"the whole file renamed": {[]Item{whole("a", "a")}, []Item{whole("b", "a")}, []bool{true}},
		"another file":           {[]Item{whole("a", "a")}, []Item{whole("a", "a"), whole("b", "b")}, []bool{true, false}},
		"between lines":          {[]Item{blank("p\n\n\nq\n", 2)}, []Item{blank("n\np\n\n\nq\n", 3)}, []bool{true}},
		"between other lines":    {[]Item{blank("p\n\n\nq\n", 2)}, []Item{blank("p\n\n\nq\nr\n\n\ns\n", 2), blank("p\n\n\nq\nr\n\n\ns\n", 6)}, []bool{true, false}},
		"another rule":           {[]Item{{Rule: "r1", Message: "m", Path: "a", Home: "a"}}, []Item{{Rule: "r2", Message: "m", Path: "a", Home: "a"}}, []bool{false}},
		"another message":        {[]Item{{Rule: "r", Message: "m", Path: "a", Home: "a"}}, []Item{{Rule: "r", Message: "n", Path: "a", Home: "a"}}, []bool{false}},
		"a message with lines": {[]Item{{Rule: "r", Message: "x is declared at a:12:3, line 12", Path: "a", Home: "a"}},
			[]Item{{Rule: "r", Message: "x is declared at a:14:3, line 14", Path: "a", Home: "a"}}, []bool{true}},
		"an unreadable file": {[]Item{{Rule: "r", Message: "m", Path: "a", Home: "a"}, {Rule: "r", Message: "m", Path: "a", Home: "a"}},
			[]Item{{Rule: "r", Message: "m", Path: "a", Home: "a"}, {Rule: "r", Message: "m", Path: "a", Home: "a"}, {Rule: "r", Message: "m", Path: "a", Home: "a"}}, []bool{true, true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			if r := Compare(tc.before, tc.after); !slices.Equal(r.Old, tc.old) {
				t.Errorf("old %v, want %v", r.Old, tc.old)
			}
		})
	}
}

// program makes a file of functions, of which many are alike.
func program(rng *rand.Rand, functions int) []string {
	var blocks []string
	for i := range functions {
		var b strings.Builder
		fmt.Fprintf(&b, "func f%d(a int) int {\n", i)
		for range 1 + rng.IntN(6) {
			switch rng.IntN(5) {
			case 0:
				b.WriteString("\tcall(BAD, a)\n")
			case 1:
				b.WriteString("\tif a > 0 {\n\t\treturn BAD\n\t}\n")
			case 2:
				fmt.Fprintf(&b, "\tx := a + %d\n", rng.IntN(3))
			case 3:
				b.WriteString("\n")
			case 4:
				fmt.Fprintf(&b, "\tuse(a, %d, BAD%d)\n", rng.IntN(3), rng.IntN(3))
			}
		}
		b.WriteString("}\n")
		blocks = append(blocks, b.String())
	}
	return blocks
}

// TestPureMoves moves blocks within files, between files, renames files, and
// mixes that with reformatting and with new lines that say nothing: nothing of it
// is new. Then one finding is added, and that one is.
func TestPureMoves(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 7))
		before := tree{}
		var files [][]string
		for f := range 1 + rng.IntN(3) {
			blocks := program(rng, 2+rng.IntN(8))
			files = append(files, blocks)
			before[fmt.Sprintf("f%d", f)] = strings.Join(blocks, "")
		}
		for range 1 + rng.IntN(4) {
			from, to := rng.IntN(len(files)), rng.IntN(len(files))
			if len(files[from]) == 0 {
				continue
			}
			i := rng.IntN(len(files[from]))
			block := files[from][i]
			files[from] = slices.Delete(slices.Clone(files[from]), i, i+1)
			j := rng.IntN(len(files[to]) + 1)
			files[to] = slices.Insert(slices.Clone(files[to]), j, block)
		}
		after, homes := tree{}, map[string]string{}
		for f, blocks := range files {
			was := fmt.Sprintf("f%d", f)
			name := was
			if rng.IntN(3) == 0 {
				name = "renamed-" + was
				homes[name] = was
			}
			text := strings.Join(blocks, "")
			switch rng.IntN(3) {
			case 0:
				text = strings.ReplaceAll(text, "\t", "    ")
			case 1:
				text = "// new\n\n" + strings.ReplaceAll(text, "}\n", "}\n\n")
			}
			after[name] = text
		}
		for _, exact := range []bool{false, true} {
			if got := introduced(before.items(nil, exact), after.items(homes, exact)); len(got) > 0 {
				t.Fatalf("seed %d, exact %v: %q are called new\nbefore %q\nafter %q", seed, exact, got, before, after)
			}
			name := sortedNames(after)[0]
			more := tree{}
			for n, s := range after {
				more[n] = s
			}
			more[name] += "added(BAD, here)\n"
			if got := introduced(before.items(nil, exact), more.items(homes, exact)); len(got) != 1 || !strings.HasPrefix(got[0], name+":") {
				t.Fatalf("seed %d, exact %v: one was added to %s, %q are called new", seed, exact, name, got)
			}
		}
	}
}

// TestMany has what a hostile project can make of a tool: very many findings that
// say the same, of single places and of the whole of a large file. It would not
// end if each were compared with each.
func TestMany(t *testing.T) {
	const n = 20_000
	text := strings.Repeat("BAD(x)\n", n)
	large := func(text string) (out []Item) {
		x := NewText([]byte(text))
		for i := range n {
			for _, p := range []Place{{Known: true, Start: 7 * i, End: 7*i + 3, Exact: true}, {Known: true, Start: i, End: len(text) - i, Exact: true}} {
				out = append(out, Item{Rule: "r", Message: "m", Path: "a", Home: "a", Place: p, Text: x})
			}
		}
		return out
	}
	r := Compare(large(text), large(text))
	if slices.Contains(r.Old, false) {
		t.Error("a file is not like itself")
	}
	// In another file, which is not one run of the first.
	other := large(strings.Replace(text, "BAD", "GOOD", 1))
	Compare(large(text), other)
	if got := Fingerprints(other); len(got) != 2*n {
		t.Errorf("%d fingerprints", len(got))
	}
}

// TestFingerprints must not change where nothing is new, and be different.
func TestFingerprints(t *testing.T) {
	a := find("a", "a", "x\ncall(BAD, 1)\ncall(BAD, 1)\ny(BAD)\n", false)
	b := find("b", "a", "\n\n\n  call(BAD,1)\n  call(BAD,1)\ny(BAD)\nx\n", false)
	x, y := Fingerprints(a), Fingerprints(b)
	if !slices.Equal(x, y) {
		t.Errorf("%q\n%q", x, y)
	}
	slices.Sort(x)
	if len(slices.Compact(x)) != 3 {
		t.Errorf("not one each: %q", x)
	}
}

func TestColumns(t *testing.T) {
	x := NewText([]byte("a\n\"ä𝄞\" BAD\n"))
	for unit, column := range map[Unit]int{Runes: 5, UTF16: 6, Bytes: 9} {
		p, ok := x.Locate(1, column, 1, column+3, unit)
		if got := string(x.content[p.Start:p.End]); !ok || got != "BAD" {
			t.Errorf("unit %d: %q", unit, got)
		}
		if line, char := x.Position(p.Start); line != 1 || char != 6 {
			t.Errorf("unit %d: %d:%d", unit, line, char)
		}
	}
	if _, ok := x.Locate(9, 0, 0, 0, Runes); ok {
		t.Error("a line that is not there is found")
	}
}

// FuzzCompare looks for panics, and for a side that is compared with itself.
func FuzzCompare(f *testing.F) {
	f.Add([]byte("a BAD\nb\n"), []byte("b\na\tBAD;\n"), 0, 2, 5)
	f.Add([]byte("\xff\xfe BAD '\r\n"), []byte(""), -1, 7, 1<<30)
	f.Fuzz(func(t *testing.T, p, q []byte, line, column, end int) {
		x, y := NewText(p), NewText(q)
		items := func() (a, b []Item) {
			for _, unit := range []Unit{Runes, Bytes, UTF16} {
				if place, ok := x.Locate(line, column, line, end, unit); ok {
					a = append(a, Item{Rule: "r", Path: "a", Home: "a", Place: place, Text: x})
				}
				if place, ok := y.LocateOffsets(column, end); ok {
					b = append(b, Item{Rule: "r", Path: "b", Home: "a", Place: place, Text: y})
				}
			}
			return a, b
		}
		a, b := items()
		Compare(a, b)
		again, _ := items()
		r := Compare(a, again)
		if slices.Contains(r.Old, false) || slices.Contains(r.Still, false) {
			t.Error("a side is not like itself")
		}
		marks := Fingerprints(a)
		slices.Sort(marks)
		if len(slices.Compact(marks)) != len(a) {
			t.Error("two findings have one fingerprint")
		}
		for _, it := range a {
			it.Text.Position(it.Place.End)
		}
	})
}
