package gitrepo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/aspis-dev/aspis/schemas"
)

// raw are the changes as git itself tells them: one line each, in path order.
func (r repo) raw(args ...string) []string {
	r.t.Helper()
	out := r.git(append([]string{"-c", "core.quotePath=false"}, args...)...)
	f := strings.Split(out, "\x00")
	var lines []string
	for len(f) > 1 {
		head := strings.Fields(strings.TrimPrefix(f[0], ":"))
		line := fmt.Sprintf("%c %s %s %s %s", head[4][0], head[0], head[1], head[2], head[3])
		n := 1
		if head[4][0] == 'R' {
			line, n = line+fmt.Sprintf(" %q", f[1]), 2
		}
		lines = append(lines, line+fmt.Sprintf(" %q", f[n]))
		f = f[n+1:]
	}
	slices.Sort(lines)
	return lines
}

// told are the same lines from a capture.
func told(g *Repo, c *Capture) []string {
	zero := OID(strings.Repeat("0", len(g.EmptyTree())))
	var lines []string
	for _, e := range c.Entries {
		status, before, after := "M", e.BeforeOID, e.AfterOID
		switch e.Kind {
		case schemas.ChangeCreate:
			status, before = "A", zero
		case schemas.ChangeDelete:
			status, after = "D", zero
		case schemas.ChangeRename:
			status = "R"
		}
		if status == "M" && e.BeforeMode&0o170000 != e.AfterMode&0o170000 {
			status = "T"
		}
		line := fmt.Sprintf("%s %06o %06o %s %s", status, e.BeforeMode, e.AfterMode, before, after)
		if e.From != "" {
			line += fmt.Sprintf(" %q", e.From)
		}
		lines = append(lines, line+fmt.Sprintf(" %q", e.Path))
	}
	slices.Sort(lines)
	return lines
}

// TestEverySelectionAgreesWithGit makes random changes, of files, directories
// and symlinks in place of each other, under odd names, and compares with git.
func TestEverySelectionAgreesWithGit(t *testing.T) {
	ctx := context.Background()
	r := newRepo(t)
	names := []string{"a", "b c", "new\nline", `q"uote`, "tab\tend", "ünï", "-x", "#h", "d/a", "d/e/f", "d/e/g", "d.x", "d-y/z", "*", "[x]", ":(top)y"}
	for i, n := range names {
		r.write(n, strings.Repeat(fmt.Sprintln("line", i), 20))
	}
	r.commit("base")
	g := r.open()
	in := func(p string) string { return filepath.Join(r.dir, p) }
	change := func(rt *rapid.T) {
		at := rapid.SampledFrom(names).Draw(rt, "path")
		switch rapid.IntRange(0, 6).Draw(rt, "op") {
		case 0:
			if os.MkdirAll(filepath.Dir(in(at)), 0o755) == nil {
				_ = os.WriteFile(in(at), []byte(rapid.StringMatching(`[a-c\n]{0,40}`).Draw(rt, "text")), 0o644)
			}
		case 1:
			if f, err := os.OpenFile(in(at), os.O_APPEND|os.O_WRONLY, 0); err == nil {
				_, _ = f.WriteString("more\n")
				f.Close()
			}
		case 2:
			_ = os.RemoveAll(in(at))
		case 3:
			if st, err := os.Lstat(in(at)); err == nil && st.Mode().IsRegular() {
				_ = os.Chmod(in(at), st.Mode().Perm()^0o111)
			}
		case 4:
			_ = os.RemoveAll(in(at))
			_ = os.Symlink(rapid.SampledFrom([]string{"d", "a", "../out", "/etc", "nowhere"}).Draw(rt, "target"), in(at))
		case 5:
			_ = os.RemoveAll(in(at))
			if os.MkdirAll(in(at), 0o755) == nil {
				_ = os.WriteFile(filepath.Join(in(at), "inside"), []byte("x"), 0o644)
			}
		case 6:
			_ = os.Rename(in(at), in(rapid.SampledFrom(names).Draw(rt, "to")))
		}
	}
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		if n++; n > 40 {
			return // each takes a tenth of a second
		}
		r.git("reset", "-q", "--hard", "main")
		r.git("clean", "-qffdx")
		same := func(what string, sel Selection, args ...string) {
			rt.Helper()
			c, err := g.Capture(ctx, sel)
			if err != nil {
				rt.Fatalf("%s: %v", what, err)
			}
			if err := schemas.ValidateChangeSet(&c.ChangeSet); err != nil {
				rt.Fatalf("%s: %v", what, err)
			}
			if got, expect := told(g, c), r.raw(args...); !slices.Equal(got, expect) {
				rt.Fatalf("%s: got\n%s\ngit says\n%s", what, strings.Join(got, "\n"), strings.Join(expect, "\n"))
			}
		}
		for range rapid.IntRange(0, 6).Draw(rt, "staged") {
			change(rt)
		}
		r.git("add", "-A")
		same("staged", Selection{Kind: KindStaged}, "diff", "--cached", "--raw", "-z", "--no-abbrev", "-M", "HEAD")
		for range rapid.IntRange(1, 6).Draw(rt, "loose") {
			change(rt)
		}
		worktree, err := g.Capture(ctx, Selection{Kind: KindWorktree})
		if err != nil {
			rt.Fatal(err)
		}
		if len(worktree.Entries) > 0 && r.git("status", "--porcelain") == "" {
			rt.Fatalf("git status sees nothing, the capture %q", summary(worktree))
		}
		r.git("add", "-A")
		if tree := r.git("write-tree"); tree != string(worktree.CandidateTree) {
			rt.Fatalf("worktree: %s, git says %s", worktree.CandidateTree, tree)
		}
		r.git("checkout", "-q", "-B", "side")
		r.git("commit", "-q", "--allow-empty", "-m", "x")
		diff := []string{"diff", "--raw", "-z", "--no-abbrev", "-M", "main", "side"}
		same("base", Selection{Kind: KindBase, A: "main"}, diff...)
		same("range", Selection{Kind: KindRange, A: "main", B: "side"}, diff...)
		// A tree rebuilt from the entries of the capture is the candidate's.
		var edits []TreeEdit
		for _, e := range worktree.Entries {
			if e.Kind == schemas.ChangeDelete {
				edits = append(edits, TreeEdit{Path: e.Path})
			}
			if e.From != "" {
				edits = append(edits, TreeEdit{Path: e.From})
			}
		}
		for _, e := range worktree.Entries {
			if e.Kind != schemas.ChangeDelete {
				edits = append(edits, TreeEdit{Path: e.Path, Mode: e.AfterMode, OID: e.AfterOID})
			}
		}
		if tree, err := g.WriteTree(ctx, worktree.BaseTree, edits); err != nil || tree != worktree.CandidateTree {
			rt.Fatalf("rebuilt: %s %v, want %s", tree, err, worktree.CandidateTree)
		}
		r.git("checkout", "-q", "-f", "main")
	})
}
