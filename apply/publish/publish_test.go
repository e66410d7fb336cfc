package publish_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/aspis-dev/aspis/apply/publish"
	"github.com/aspis-dev/aspis/schemas"
)

// kinds is a workspace, and a change of every kind to it.
func kinds(t testing.TB, root string) (b blobs, changes []publish.Change, after map[string]string) {
	t.Helper()
	b = blobs{}
	write(t, root, "mod", "one\n")
	write(t, root, "gone/deep/x", "x\n")
	write(t, root, "was-dir/a", "a\n")
	write(t, root, "was-file", "f\n")
	write(t, root, "run", "#!/bin/sh\n")
	write(t, root, "stays", "same\n")
	if err := os.Symlink("mod", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	changes = []publish.Change{
		{Path: "mod", Before: b.file("one\n"), After: b.file("two\n")},
		{Path: "gone/deep/x", Before: b.file("x\n")},
		{Path: "was-dir/a", Before: b.file("a\n")},
		{Path: "was-dir", After: b.file("now a file\n")},
		{Path: "was-file", Before: b.file("f\n")},
		{Path: "was-file/in/it", After: b.file("deep\n")},
		{Path: "run", Before: b.file("#!/bin/sh\n"), After: b.state(modeExec, "#!/bin/sh\n")},
		{Path: "link", Before: b.state(modeLink, "mod"), After: b.state(modeLink, "stays")},
		{Path: "new/dir/file", After: b.state(modeExec, "new\n")},
		{Path: "empty", After: b.file("")},
	}
	after = map[string]string{"mod": "false two\n", "was-dir": "false now a file\n", "was-file/": "", "was-file/in/": "", "was-file/in/it": "false deep\n",
		"run": "true #!/bin/sh\n", "link": "link stays", "new/": "", "new/dir/": "", "new/dir/file": "true new\n", "empty": "false ", "stays": "false same\n"}
	return b, changes, after
}

func TestEveryKindOfChangeIsPublishedAndUndone(t *testing.T) {
	root := t.TempDir()
	b, changes, after := kinds(t, root)
	before := snapshot(t, root)
	w := open(t, root, t.TempDir())
	defer w.Close()
	res, err := w.Publish(context.Background(), changes, b, publish.Options{Checked: true})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(after, snapshot(t, root)); d != "" {
		t.Fatal(d)
	}
	if res.Guarantee != schemas.GuaranteeStagedSnapshot || len(res.Limits) > 0 || len(res.Changed) != len(changes) || !slices.IsSorted(res.Changed) {
		t.Fatalf("%+v", res)
	}
	for _, want := range []map[string]string{before, after, before} {
		if _, err := w.Undo(context.Background(), "", publish.Options{}); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, snapshot(t, root)); d != "" {
			t.Fatal(d)
		}
	}
	var nothing *publish.NothingToUndoError
	if _, err := w.Undo(context.Background(), res.ID, publish.Options{}); !errors.As(err, &nothing) {
		t.Fatal(err)
	}
}

func TestEveryConflictIsNamedAndNothingWritten(t *testing.T) {
	root := t.TempDir()
	b, changes, _ := kinds(t, root)
	write(t, root, "mod", "other\n")
	write(t, root, "was-dir/untracked", "u\n")
	write(t, root, "empty", "")
	if err := os.Remove(filepath.Join(root, "run")); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, root)
	w := open(t, root, t.TempDir())
	defer w.Close()
	_, err := w.Publish(context.Background(), changes, b, publish.Options{})
	var conflict *publish.ConflictError
	if !errors.As(err, &conflict) {
		t.Fatal(err)
	}
	var paths []string
	for _, c := range conflict.Conflicts {
		paths = append(paths, c.Path)
	}
	slices.Sort(paths)
	if d := cmp.Diff([]string{"empty", "mod", "run", "was-dir"}, paths); d != "" {
		t.Fatal(d, err)
	}
	if d := cmp.Diff(before, snapshot(t, root)); d != "" {
		t.Fatal(d)
	}
}
