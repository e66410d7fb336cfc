package publish_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aspis-dev/aspis/apply/publish"
	"github.com/aspis-dev/aspis/schemas"
)

const (
	modeFile = 0o100644
	modeExec = 0o100755
	modeLink = 0o120000
)

// blobs is the content of a test, in memory.
type blobs map[schemas.BlobRef][]byte

func (b blobs) OpenBlob(ref schemas.BlobRef) (io.ReadCloser, int64, error) {
	data, ok := b[ref]
	if !ok {
		return nil, 0, fmt.Errorf("no blob %s", ref)
	}
	return io.NopCloser(bytes.NewReader(data)), int64(len(data)), nil
}

func (b blobs) state(mode uint32, text string) publish.State {
	ref := schemas.BlobRefOf([]byte(text))
	b[ref] = []byte(text)
	return publish.State{Mode: mode, Blob: ref}
}

func (b blobs) file(text string) publish.State { return b.state(modeFile, text) }

// snapshot reads a whole tree: git mode and content by path. Directories are
// there with a slash. What lies in .git or in the staging area is left out.
func snapshot(t testing.TB, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		st, err := os.Lstat(p)
		switch {
		case err != nil:
			return err
		case rel == ".":
		case e.IsDir() && (e.Name() == ".git" || filepath.Dir(rel) == "." && strings.HasPrefix(rel, ".aspis-publish-")):
			return fs.SkipDir
		case e.IsDir():
			out[rel+"/"] = ""
		case st.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			out[rel] = "link " + target
		default:
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			out[rel] = fmt.Sprintf("%v %s", st.Mode().Perm()&0o100 != 0, b)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func write(t testing.TB, root, p, text string) {
	t.Helper()
	full := filepath.Join(root, p)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, root, state string) *publish.Workspace {
	t.Helper()
	w, err := publish.Open(context.Background(), root, state)
	if err != nil {
		t.Fatal(err)
	}
	return w
}
