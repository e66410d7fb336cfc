package publish

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDirectoriesAreOpenedBeneath descends with openat2 and name by name.
func TestDirectoriesAreOpenedBeneath(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "a/b"), 0o755), os.Symlink(outside, filepath.Join(root, "out")),
		os.Symlink("a", filepath.Join(root, "in")), os.Mkdir(filepath.Join(outside, "x"), 0o755), os.WriteFile(filepath.Join(root, "f"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, walk := range []bool{false, true} {
		tr, err := newTree(root)
		if err != nil {
			t.Fatal(err)
		}
		if tr.walk {
			t.Error("openat2 is missing here")
		}
		tr.walk = walk
		for p, want := range map[string]bool{".": true, "a": true, "a/b": true, "out": false, "out/x": false, "in": false, "in/b": false, "f": false, "none": false} {
			fd, err := tr.openDir(p)
			if (err == nil) != want {
				t.Errorf("walk %v, %q: %v", walk, p, err)
			}
			if err == nil {
				unix.Close(fd)
			} else if !noDirectory(err) {
				t.Errorf("walk %v, %q: %v is not known", walk, p, err)
			}
		}
		tr.close()
	}
	host, err := newTree("/")
	if err != nil {
		t.Fatal(err)
	}
	defer host.close()
	for _, walk := range []bool{false, true} {
		host.walk = walk
		if fd, err := host.openDir("proc"); !errors.Is(err, unix.EXDEV) {
			unix.Close(fd)
			t.Errorf("walk %v: another mount was entered: %v", walk, err)
		}
	}
}
