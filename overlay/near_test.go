package overlay

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
)

func TestNextBaselineIsTheDifference(t *testing.T) {
	f := newFixture(t)
	leaves := map[string]leaf{}
	for i := range 400 {
		leaves[fmt.Sprintf("d%d/f%d", i%20, i)] = leaf{"100644", fmt.Sprint(i)}
	}
	one := f.made(leaves)
	f.baseline(one)
	leaves["d1/f1"] = leaf{"100755", "changed"}
	delete(leaves, "d2/f2")
	two := f.made(leaves)
	next := f.baseline(two)
	same(t, "next", f.seen(next), f.checkedOut(two))
	if next.depth() != 2 {
		t.Fatalf("it was written whole: %d layers", next.depth())
	}
	// What stands on it is right too, and outlives its being closed.
	leaves["new"] = leaf{"100644", "new"}
	three := f.made(leaves)
	same(t, "candidate", f.seen(f.candidate(next, three)), f.checkedOut(three))
	unchanged := f.candidate(next, two)
	next.Close()
	same(t, "without changes", f.seen(unchanged), f.checkedOut(two))
	// Very different ones are written whole.
	other := map[string]leaf{}
	for i := range 300 {
		other[fmt.Sprintf("e%d/f%d", i%20, i)] = leaf{"100644", fmt.Sprint(i)}
	}
	four := f.made(other)
	far := f.baseline(four)
	if far.depth() != 1 {
		t.Fatalf("%d layers", far.depth())
	}
	same(t, "another", f.seen(far), f.checkedOut(four))
	f.sound()
}

func TestDamagedHintsAreNotBelieved(t *testing.T) {
	f := newFixture(t)
	f.write("a", "1")
	one := f.tree()
	f.baseline(one)
	for _, hint := range []string{"", "\xff\x00", strings.Repeat("0", 40) + "\n", "../../x\n" + strings.Repeat("ab", 20) + "\n" + string(one) + "\n"} {
		if err := os.WriteFile(f.store.recentPath(f.repo), []byte(hint), 0o600); err != nil {
			t.Fatal(err)
		}
		f.write("a", fmt.Sprintf("%q", hint))
		tree := f.tree()
		same(t, hint, f.seen(f.baseline(tree)), f.checkedOut(tree))
	}
	f.sound()
}

func TestNarrowedView(t *testing.T) {
	f := newFixture(t)
	leaves := map[string]leaf{
		"src/a.go": {"100644", "a"}, "src/b.txt": {"100644", "b"}, "docs/x/y.md": {"100644", "y"},
		"docs/x/z.go": {"120000", "../../src/a.go"}, "secret/key": {"100644", "k"}, "m": {"160000", ""}, "n": {"160000", ""},
	}
	one := f.made(leaves)
	base := f.baseline(one)
	leaves["src/new.go"] = leaf{"100755", "new"}
	delete(leaves, "docs/x/y.md")
	cand := f.candidate(base, f.made(leaves))
	for _, s := range []*Snapshot{base, cand} {
		n, err := f.store.Narrow(context.Background(), s, "**/*.go and n", func(p string) bool { return strings.HasSuffix(p, ".go") || p == "n" })
		if err != nil {
			t.Fatal(err)
		}
		left := map[string]leaf{}
		if err := n.Each(func(x File) error { left[x.Path] = leaf{fmt.Sprintf("%o", x.Mode), ""}; return nil }); err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, line := range f.seen(s) {
			if strings.Contains(line, ".go\"") || strings.HasPrefix(line, `"n"`) || strings.HasPrefix(line, `"src" `) || strings.HasPrefix(line, `"docs`) && !strings.Contains(line, ".md") {
				want = append(want, line)
			}
		}
		same(t, "narrowed", f.seen(n), want)
		if _, ok := left["secret/key"]; ok || len(left) < 3 {
			t.Fatal(left)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
	f.sound()
}

func TestPair(t *testing.T) {
	f := newFixture(t)
	f.write("a", "1")
	one := f.tree()
	base := f.baseline(one)
	f.write("a", "2")
	two := f.tree()
	cand := f.candidate(base, two)
	p, err := f.store.Pair(context.Background(), f.space, base, cand)
	if err != nil {
		t.Fatal(err)
	}
	for name, tree := range map[string]gitrepo.OID{"before": one, "after": two} {
		var got []string
		if err := f.space.Do(func() (err error) { got, err = listing(filepath.Join(p.Path(), name)); return err }); err != nil {
			t.Fatal(err)
		}
		same(t, name, got, f.checkedOut(tree))
	}
	for range 2 {
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(f.space.Dir()); err != nil || slices.ContainsFunc(left, func(d os.DirEntry) bool { return strings.HasPrefix(d.Name(), "pair-") }) {
		t.Fatal(left, err)
	}
}
