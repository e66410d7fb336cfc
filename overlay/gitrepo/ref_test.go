package gitrepo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestRefsMoveByCompareAndSwap(t *testing.T) {
	r := newRepo(t)
	r.write("a", "1\n")
	r.commit("one")
	// Nothing that the repository says is run.
	mark := filepath.Join(t.TempDir(), "ran")
	for _, hook := range []string{"reference-transaction", "post-commit", "pre-commit", "post-checkout"} {
		r.write(".git/hooks/"+hook, "#!/bin/sh\necho "+hook+" >>"+mark+"\n")
		if err := os.Chmod(filepath.Join(r.dir, ".git/hooks", hook), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	g := r.open()
	ctx := context.Background()
	head, err := g.commit(ctx, "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	base, err := g.TreeOf(ctx, "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	put := func(text string) OID {
		oid, err := g.PutBlob(ctx, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		tree, err := g.WriteTree(ctx, base, []TreeEdit{{Path: "dir/b", Mode: ModeExec, OID: oid}})
		if err != nil {
			t.Fatal(err)
		}
		return tree
	}
	const ref = "refs/heads/agent"
	say := Commit{Message: "Two\n\nMore.", Name: "A <b>\n", Email: "a@example.org", At: time.Unix(1_700_000_000, 0)}
	if c, _, err := g.RefTip(ctx, ref); err != nil || c != "" {
		t.Fatalf("%s: %q (%v)", ref, c, err)
	}
	one, err := g.PublishTree(ctx, ref, "", put("2\n"), []OID{head}, say)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	// All of it is in the repository itself, as git sees it.
	if got := r.git("show", "agent:dir/b"); got != "2" {
		t.Errorf("dir/b holds %q", got)
	}
	if got := r.git("log", "-1", "--format=%an|%ae|%s|%b|%P", "agent"); got != "A b|a@example.org|Two|More.\n|"+string(head) {
		t.Errorf("the commit says %q", got)
	}
	r.git("fsck", "--strict")
	if got := strings.TrimSpace(r.git("status", "--porcelain")); got != "" {
		t.Errorf("the worktree has changed: %s", got)
	}
	g = r.open()
	var refused *RefError
	if _, err := g.PublishTree(ctx, ref, "", put("3\n"), []OID{head}, say); !errors.As(err, &refused) {
		t.Errorf("a ref that is there was made again: %v", err)
	}
	if _, err := g.PublishTree(ctx, ref, head, put("3\n"), []OID{head}, say); !errors.As(err, &refused) {
		t.Errorf("a ref that had moved was moved: %v", err)
	}
	two, err := g.PublishTree(ctx, ref, one, put("3\n"), []OID{one}, say)
	if err != nil {
		t.Fatal(err)
	}
	if c, tree, err := g.RefTip(ctx, ref); err != nil || c != two || tree != put("3\n") {
		t.Errorf("%s is at %s %s (%v)", ref, c, tree, err)
	}
	for _, bad := range []string{"refs/heads/main", "HEAD", "agent", "refs/heads/../x", "refs/heads/a b", "-x", "refs/heads/x.lock"} {
		if _, err := g.PublishTree(ctx, bad, "", put("4\n"), []OID{head}, say); !errors.As(err, &refused) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if text, err := os.ReadFile(mark); err == nil {
		t.Errorf("hooks ran: %s", text)
	}
}
