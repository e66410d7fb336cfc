package overlay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
)

func TestViewEqualsCheckout(t *testing.T) {
	f := newFixture(t)
	f.write("a", "1\n")
	f.write("d/e/f", "2\n")
	f.write("d/e/g", "3\n")
	f.write("x", "#!/bin/sh\n")
	os.Chmod(filepath.Join(f.dir, "x"), 0o755)
	os.Symlink("d/e", filepath.Join(f.dir, "link"))
	f.write("sp ace\nnew", "")
	one := f.tree()
	base := f.baseline(one)
	same(t, "baseline", f.seen(base), f.checkedOut(one))

	f.write("a", "changed\n")
	f.remove("d")
	f.write("d", "a file now\n")
	f.remove("link")
	f.write("link/below", "a directory now\n")
	os.Chmod(filepath.Join(f.dir, "x"), 0o644)
	two := f.tree()
	cand := f.candidate(base, two)
	same(t, "candidate", f.seen(cand), f.checkedOut(two))
	same(t, "baseline afterwards", f.seen(base), f.checkedOut(one))
	f.sound()
}

// TestChangesOfKind goes through what a path can turn into.
func TestChangesOfKind(t *testing.T) {
	const sub = "160000"
	kinds := map[string]map[string]leaf{
		"nothing":     {},
		"file":        {"p": {"100644", "file"}},
		"program":     {"p": {"100755", "file"}},
		"symlink":     {"p": {"120000", "file"}},
		"submodule":   {"p": {sub, ""}},
		"directory":   {"p/a": {"100644", "1"}, "p/b/c": {"100644", "2"}},
		"other files": {"p/b/d": {"100644", "3"}, "p/e": {"100644", "4"}},
		"nested":      {"p/a/x": {"100644", "5"}, "p/b": {sub, ""}},
		"beside":      {"p-": {"100644", "6"}, "p0": {"100644", "7"}, "p/a": {"100644", "1"}},
	}
	f := newFixture(t)
	trees := map[string]gitrepo.OID{}
	want := map[string][]string{}
	for name, leaves := range kinds {
		leaves = maps.Clone(leaves)
		leaves["q"] = leaf{"100644", "stays"}
		trees[name] = f.made(leaves)
		want[name] = f.checkedOut(trees[name])
	}
	for first, one := range trees {
		base := f.baseline(one)
		same(t, first, f.seen(base), want[first])
		for second, two := range trees {
			cand := f.candidate(base, two)
			same(t, first+" to "+second, f.seen(cand), want[second])
			for third, three := range trees {
				top := f.candidate(cand, three)
				same(t, first+" to "+second+" to "+third, f.seen(top), want[third])
				top.Close()
			}
			cand.Close()
		}
		base.Close()
	}
	f.sound()
}

func TestDeepStacksAreFolded(t *testing.T) {
	f := newFixture(t)
	leaves := map[string]leaf{}
	for i := range 3 * maxLayers {
		leaves[fmt.Sprintf("d%d/f", i)] = leaf{"100644", "x"}
		leaves[fmt.Sprintf("d%d/g", i)] = leaf{"100644", "y"}
	}
	at := f.baseline(f.made(leaves))
	for i := range 3 * maxLayers {
		delete(leaves, fmt.Sprintf("d%d/f", i))
		leaves[fmt.Sprintf("d%d/h", i/2)] = leaf{"100755", fmt.Sprint(i)}
		if i%3 == 0 {
			delete(leaves, fmt.Sprintf("d%d/g", i))
		}
		tree := f.made(leaves)
		at = f.candidate(at, tree)
		if at.depth() > maxLayers {
			t.Fatalf("%d layers", at.depth())
		}
		same(t, fmt.Sprint("step ", i), f.seen(at), f.checkedOut(tree))
		var listed []string
		if err := at.Each(func(x File) error { listed = append(listed, x.Path); return nil }); err != nil {
			t.Fatal(err)
		}
		same(t, fmt.Sprint("manifest of step ", i), listed, slices.Sorted(maps.Keys(leaves)))
		for i := range 3 * maxLayers {
			for _, n := range []string{"f", "g", "h"} {
				p := fmt.Sprintf("d%d/%s", i, n)
				_, want := leaves[p]
				if _, ok, err := at.Lookup(p); ok != want || err != nil {
					t.Fatal(p, ok, err)
				}
			}
		}
	}
	f.sound()
}

func TestCandidateWithoutChanges(t *testing.T) {
	f := newFixture(t)
	f.write("a", "1")
	tree := f.tree()
	base := f.baseline(tree)
	cand := f.candidate(base, tree)
	base.Close()
	same(t, "candidate", f.seen(cand), f.checkedOut(tree))
	if n := f.layersOnDisk(); n != 1 {
		t.Fatalf("%d layers", n)
	}
}

func TestLongAndOddNames(t *testing.T) {
	f := newFixture(t)
	deep := strings.Repeat("abcdefghij/", 180) + "leaf" // about 2,000 bytes, 180 directories
	leaves := map[string]leaf{
		deep:                     {"100644", "deep"},
		deep[:len(deep)-4] + "m": {"100755", "deep too"},
		"\xff\xfe":               {"100644", "not UTF-8"},
		"a\nb\t\"\\":             {"100644", "odd"},
		"-rf":                    {"100644", ""},
		" ":                      {"120000", " "},
		"é":                      {"100644", "one"},
		"e\u0301":                {"100644", "another"},
		"UP":                     {"100644", "1"},
		"up":                     {"100644", "2"},
		strings.Repeat("n", 255): {"100644", "long"},
		".gitignore":             {"100644", "*"},
		"link":                   {"120000", strings.Repeat("t/", 2000)},
	}
	one := f.made(leaves)
	base := f.baseline(one)
	same(t, "baseline", f.seen(base), f.checkedOut(one))
	delete(leaves, deep)
	delete(leaves, "\xff\xfe")
	delete(leaves, "UP")
	leaves["a\nb\t\"\\"] = leaf{"100755", "changed"}
	two := f.made(leaves)
	cand := f.candidate(base, two)
	same(t, "candidate", f.seen(cand), f.checkedOut(two))
	if _, ok, err := cand.Lookup(deep); ok || err != nil {
		t.Fatal(ok, err)
	}
	f.sound()
}

func TestDeepStateDirectory(t *testing.T) {
	f := newFixture(t)
	f.open(filepath.Join(t.TempDir(), strings.Repeat("a long name, "+strings.Repeat(":", 200)+"/", 4)))
	leaves := map[string]leaf{"a": {"100644", "0"}}
	at := f.baseline(f.made(leaves))
	for i := range maxLayers - 1 {
		leaves["a"] = leaf{"100644", fmt.Sprint(i + 1)}
		at = f.candidate(at, f.made(leaves))
	}
	if at.depth() != maxLayers {
		t.Fatal(at.depth())
	}
	same(t, "view", f.seen(at), f.checkedOut(at.Tree()))
}

func TestViewCannotBeWritten(t *testing.T) {
	f := newFixture(t)
	f.write("a", "1\n")
	base := f.baseline(f.tree())
	f.write("b", "2\n")
	cand := f.candidate(base, f.tree())
	for _, s := range []*Snapshot{base, cand} {
		v, err := f.store.View(context.Background(), f.space, s)
		if err != nil {
			t.Fatal(err)
		}
		err = f.space.Do(func() error {
			for _, p := range []string{"a", "new"} {
				if err := os.WriteFile(filepath.Join(v.Path(), p), []byte("x"), 0o644); !errors.Is(err, unix.EROFS) {
					return fmt.Errorf("write %s: got %w", p, errors.Join(errors.New("no EROFS"), err))
				}
			}
			var st unix.Statfs_t
			if err := unix.Statfs(v.Path(), &st); err != nil {
				return err
			}
			const want = unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV
			if st.Flags&want != want {
				return fmt.Errorf("mount flags %x", st.Flags)
			}
			table, err := os.ReadFile("/proc/thread-self/mountinfo")
			if s == cand && strings.Contains(string(table), "lowerdir="+f.state) {
				return errors.New("the mount table tells where the state lies")
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(v.Close(), v.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUmaskDoesNotDecide: whoever the files belong to inside, they can be read.
func TestUmaskDoesNotDecide(t *testing.T) {
	f := newFixture(t)
	f.write("d/a", "1\n")
	f.write("d/x", "1\n")
	f.write("z", "1")
	os.Chmod(filepath.Join(f.dir, "d/x"), 0o755)
	one := f.tree()
	f.write("d/e/b", "2\n")
	f.remove("z")
	two := f.tree()
	defer unix.Umask(unix.Umask(0o077))
	base := f.baseline(one)
	cand := f.candidate(base, two)
	unix.Umask(0o022)
	same(t, "baseline", f.seen(base), f.checkedOut(one))
	same(t, "candidate", f.seen(cand), f.checkedOut(two))
	v, err := f.store.View(context.Background(), f.space, cand)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if err := f.space.Do(func() error {
		st, err := os.Stat(v.Path())
		if err == nil && st.Mode().Perm() != 0o755 {
			err = fmt.Errorf("the root has the mode %v", st.Mode())
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// TestRandomChangesEqualCheckout compares views of random trees, three layers
// deep, with what git checks out.
func TestRandomChangesEqualCheckout(t *testing.T) {
	f := newFixture(t)
	names := []string{"a", "b", "a-", "a.b", "sp ace", "\xff", "é"}
	modes := []string{"100644", "100755", "120000", "160000"}
	leaves := rapid.Custom(func(t *rapid.T) map[string]leaf {
		out := map[string]leaf{}
		for range rapid.IntRange(0, 12).Draw(t, "files") {
			parts := rapid.SliceOfN(rapid.SampledFrom(names), 1, 3).Draw(t, "path")
			p := strings.Join(parts, "/")
			free := true
			for q := range out {
				if q == p || strings.HasPrefix(q, p+"/") || strings.HasPrefix(p, q+"/") {
					free = false
				}
			}
			if free {
				out[p] = leaf{rapid.SampledFrom(modes).Draw(t, "mode"), rapid.StringMatching(`[ab]{1,2}`).Draw(t, "text")}
			}
		}
		return out
	})
	rounds := 0
	rapid.Check(t, func(rt *rapid.T) {
		if rounds++; rounds > 25 {
			return
		}
		var at *Snapshot
		for i, l := range rapid.SliceOfN(leaves, 2, 3).Draw(rt, "trees") {
			tree := f.made(l)
			if i == 0 {
				at = f.baseline(tree)
			} else {
				at = f.candidate(at, tree)
			}
			same(rt, fmt.Sprint("layer ", i), f.seen(at), f.checkedOut(tree))
			var listed []string
			if err := at.Each(func(x File) error { listed = append(listed, x.Path); return nil }); err != nil {
				rt.Fatal(err)
			}
			same(rt, fmt.Sprint("manifest ", i), listed, slices.Sorted(maps.Keys(l)))
		}
	})
	f.sound()
}
