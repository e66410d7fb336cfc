package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
)

func TestPatchesAreApplied(t *testing.T) {
	r := newRepo(t)
	r.write("a", "1\n2\n3\n")
	r.write("bin", "\x00\x01\x02")
	r.write("old name", "moved\nas\nit\nis\n")
	r.write("run", "#!/bin/sh\n")
	r.commit("one")
	g := r.open()
	ctx := context.Background()
	base, err := g.TreeOf(ctx, "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	// A commit of git's own, as a patch with everything in it.
	r.write("a", "1\nzwei\n3\n")
	r.write("bin", "\x00\xff\x02")
	r.git("mv", "old name", "new\tname")
	r.git("update-index", "--chmod=+x", "run")
	r.write("sub/new", "n\n")
	r.git("add", "-A", ".")
	r.git("update-index", "--chmod=+x", "run")
	want := OID(strings.TrimSpace(r.git("write-tree")))
	patch := r.git("diff", "--cached", "--binary", "-M", "HEAD")
	got, err := g.ApplyPatch(ctx, base, strings.NewReader(patch+"\n"))
	if err != nil || got != want {
		t.Fatalf("%s (%v), want %s", got, err, want)
	}
	var refused *PatchError
	for name, bad := range map[string]string{
		"empty":     "",
		"no patch":  "hello\n",
		"elsewhere": "--- a/a\n+++ b/a\n@@ -1,3 +1,3 @@\n 1\n-not there\n+x\n 3\n",
		"outside":   "--- /dev/null\n+++ b/../../evil\n@@ -0,0 +1 @@\n+x\n",
		"git dir":   "--- /dev/null\n+++ b/.git/hooks/post-commit\n@@ -0,0 +1 @@\n+x\n",
	} {
		if tree, err := g.ApplyPatch(ctx, base, bytes.NewReader([]byte(bad))); !errors.As(err, &refused) {
			t.Errorf("%s: %s, %v", name, tree, err)
		}
	}
}
