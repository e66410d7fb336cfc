package overlay

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// onFileSystem gives a directory on a fresh file system of a kind.
func onFileSystem(t *testing.T, kind string) string {
	t.Helper()
	if os.Geteuid() != 0 || underUser() {
		t.Skip("needs: root, to mount a file system")
	}
	image, at := filepath.Join(t.TempDir(), "image"), t.TempDir()
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 512<<20); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs." + kind, "-q", image}, {"mount", "-o", "loop", image, at}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("needs: a file system with reflinks (%v: %v: %s)", args, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", at).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	return at
}

// TestCloned: where the file system can share bytes nothing is copied, and a
// program that writes in place is not seen.
func TestCloned(t *testing.T) {
	at := onFileSystem(t, "btrfs")
	p := &plain{t: t, dir: at + "/project", space: newSpace(t)}
	p.must(os.Mkdir(p.dir, 0o755))
	store, err := Open(at + "/state")
	p.must(err)
	p.store = store
	for i := range 5 {
		p.write(fmt.Sprintf("node_modules/m%d", i), strings.Repeat("x", linkAbove/3))
	}
	p.write("src/a", "source")
	want := p.project()
	w := p.area(WorkOptions{})
	h := w.Parts()[0].Held
	if h.Cloned != 6 || h.Copied+h.Linked > 0 {
		t.Fatalf("%+v", h)
	}
	f, err := os.OpenFile(p.dir+"/node_modules/m0", os.O_WRONLY, 0)
	p.must(err)
	_, err = f.WriteString("in place")
	p.must(err)
	p.must(f.Close())
	if !maps.Equal(p.seen(w), want) {
		t.Fatal("a change in place is seen")
	}
	p.shell(w, "echo y >>node_modules/m1; mv src source")
	same(t, "changes", lines(p.changes(w)), []string{"modify node_modules/m1", "create source/", "rename source/a from src/a", "delete src/"})
	p.sound()
}
