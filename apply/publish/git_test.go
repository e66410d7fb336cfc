package publish_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/aspis-dev/aspis/apply/publish"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
)

// git runs the user's git in a repository, without the user's configuration.
func git(t testing.TB, dir, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return string(out)
}

// TestAPublishIsWhatGitApplyDoes compares random changes, in the worktree and in
// the index.
func TestAPublishIsWhatGitApplyDoes(t *testing.T) {
	for seed := uint64(2000); seed < 2018; seed++ {
		p := plan(seed)
		if len(p.changes) == 0 {
			continue
		}
		after := randomPlan{before: p.after}
		dir := t.TempDir()
		ours, theirs := filepath.Join(dir, "ours"), filepath.Join(dir, "theirs")
		// Two commits of which the second is the change.
		git(t, dir, "", "init", "-q", theirs)
		p.make(t, theirs)
		git(t, theirs, "", "add", ".")
		git(t, theirs, "", "commit", "-q", "-m", "before")
		git(t, theirs, "", "rm", "-q", "-r", ".")
		after.make(t, theirs)
		git(t, theirs, "", "add", ".")
		git(t, theirs, "", "commit", "-q", "-m", "after")
		patch := git(t, theirs, "", "diff", "--binary", "--no-renames", "HEAD~", "HEAD")
		want := git(t, theirs, "", "rev-parse", "HEAD^{tree}")
		git(t, theirs, "", "reset", "-q", "--hard", "HEAD~")
		git(t, dir, "", "clone", "-q", theirs, ours)

		git(t, theirs, patch, "apply", "--index", "-")
		repo, err := gitrepo.Open(context.Background(), ours, gitrepo.Options{StateDir: filepath.Join(dir, "state")})
		if err != nil {
			t.Fatal(err)
		}
		w := open(t, ours, dir)
		res, err := w.Publish(context.Background(), p.changes, p.content, publish.Options{Index: repo})
		if err != nil || len(res.Notes) > 0 {
			t.Fatalf("%+v %v", res, err)
		}
		for _, what := range [][]string{{"status", "--porcelain"}, {"ls-files", "--stage"}, {"diff-files"}, {"write-tree"}, {"fsck", "--strict", "--no-dangling"}} {
			if d := cmp.Diff(git(t, theirs, "", what...), git(t, ours, "", what...)); d != "" {
				t.Fatalf("plan %d: git %q: %s", seed, what, d)
			}
		}
		if got := git(t, ours, "", "write-tree"); got != want {
			t.Fatalf("plan %d: the tree is %s, not %s", seed, got, want)
		}
		if d := cmp.Diff(snapshot(t, theirs), snapshot(t, ours)); d != "" {
			t.Fatalf("plan %d: %s", seed, d)
		}
		if res, err := w.Undo(context.Background(), res.ID, publish.Options{Index: repo}); err != nil || len(res.Notes) > 0 {
			t.Fatalf("%+v %v", res, err)
		}
		if status := git(t, ours, "", "status", "--porcelain"); status != "" {
			t.Fatalf("plan %d: after the undo: %s", seed, status)
		}
		w.Close()
		if err := repo.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGitStatusTellsTheTruth has entries of the index that are not what the
// worktree holds, a lock that another git holds, and no wish for the index.
func TestGitStatusTellsTheTruth(t *testing.T) {
	root, b, changes := two(t)
	git(t, root, "", "init", "-q")
	git(t, root, "", "add", ".")
	git(t, root, "", "commit", "-q", "-m", "c")
	write(t, root, "two", "staged\n")
	git(t, root, "", "add", "two")
	write(t, root, "two", "old\n")
	repo, err := gitrepo.Open(context.Background(), root, gitrepo.Options{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer repo.Close()
	staged := git(t, root, "", "ls-files", "--stage", "two")
	changes = append(changes, publish.Change{Path: "three", After: b.file("3\n")})
	res, err := publishOnce(t, root, b, publish.Options{Index: repo}, changes...)
	if err != nil || len(res.Notes) != 1 || !strings.Contains(res.Notes[0], `"two"`) {
		t.Fatalf("%+v %v", res, err)
	}
	if got := git(t, root, "", "ls-files", "--stage", "two"); got != staged {
		t.Errorf("what the user staged is %s and was %s", got, staged)
	}
	if d := cmp.Diff("M  one\nA  three\nMM two\n", git(t, root, "", "status", "--porcelain")); d != "" {
		t.Error(d)
	}

	lock := filepath.Join(root, ".git/index.lock")
	write(t, root, ".git/index.lock", "")
	more := []publish.Change{{Path: "one", Before: b.file("new\n"), After: b.file("newer\n")}}
	res, err = publishOnce(t, root, b, publish.Options{Index: repo}, more...)
	if err != nil || len(res.Notes) != 1 || !strings.Contains(res.Notes[0], "locked") {
		t.Fatalf("%+v %v", res, err)
	}
	if err := os.Remove(lock); err != nil {
		t.Fatalf("the other git's lock is gone: %v", err)
	}
	if d := cmp.Diff("MM one\nA  three\nMM two\n", git(t, root, "", "status", "--porcelain")); d != "" {
		t.Error(d)
	}
	if _, err := publishOnce(t, root, b, publish.Options{}, publish.Change{Path: "three", Before: b.file("3\n")}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff("MM one\nAD three\nMM two\n", git(t, root, "", "status", "--porcelain")); d != "" {
		t.Error(d)
	}
}
