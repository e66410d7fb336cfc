package overlay

import (
	"fmt"
	"os"
	"testing"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
)

// TestBaselineCutShortByTheMachine: one that was not on disk when the machine
// went down is made again, whatever is left of it.
func TestBaselineCutShortByTheMachine(t *testing.T) {
	f := newFixture(t)
	leaves := map[string]leaf{}
	for i := range soonFiles + 1 {
		leaves[fmt.Sprintf("d%d/f%d", i%50, i)] = leaf{"100644", fmt.Sprint(i % 7)}
	}
	one := f.made(leaves)
	leaves["d1/f1"] = leaf{"100755", "other"}
	two := f.made(leaves)
	base := f.baseline(one)
	cand := f.candidate(base, two)
	f.store.Wait()
	if _, err := os.Lstat(f.store.besideManifest(base.layer, "synced")); err != nil {
		t.Fatal("it was not forced to disk", err)
	}
	layer := base.layer
	cand.Close()
	base.Close()
	f.baseline(one).Close()
	for what, do := range map[string]func() error{
		"another boot": func() error { return os.WriteFile(f.store.besideManifest(layer, "boot"), []byte("another"), 0o600) },
		"no note":      func() error { return os.Remove(f.store.besideManifest(layer, "boot")) },
	} {
		if err := os.Remove(f.store.besideManifest(layer, "synced")); err != nil {
			t.Fatal(err)
		}
		if err := do(); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(f.store.layerDir(layer)+"/d2/f2", 0); err != nil {
			t.Fatal(err)
		}
		again := f.baseline(one)
		if again.layer == layer {
			t.Fatal(what, "it was believed")
		}
		same(t, what, f.seen(again), f.checkedOut(one))
		for _, tree := range []gitrepo.OID{one, two} {
			same(t, what, f.seen(f.candidate(again, tree)), f.checkedOut(tree))
		}
		f.sound()
		layer = again.layer
		f.store.Wait()
	}
}
