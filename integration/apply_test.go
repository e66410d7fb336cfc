package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aspis-dev/aspis/integration/conformance"
	"github.com/aspis-dev/aspis/schemas"
)

// git runs git in a world's repository.
func git(t *testing.T, w *conformance.World, args ...string) string {
	t.Helper()
	out, err := w.Git(deadline(t, time.Minute), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// files is the worktree without .git: path to mode and content.
func files(t *testing.T, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		if d.Name() == ".git" {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case info.Mode()&os.ModeSymlink != 0:
			to, err := os.Readlink(p)
			out[rel] = "-> " + to
			return err
		case d.IsDir():
			return nil
		}
		b, err := os.ReadFile(p)
		out[rel] = fmt.Sprintf("%v %q", info.Mode().Perm()&0o111 != 0, b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func differences(a, b map[string]string) (out []string) {
	for p, s := range a {
		if b[p] != s {
			out = append(out, fmt.Sprintf("%s: %.60s / %.60s", p, s, b[p]))
		}
	}
	for p, s := range b {
		if _, ok := a[p]; !ok {
			out = append(out, fmt.Sprintf("%s: only %.60s", p, s))
		}
	}
	slices.Sort(out)
	return out
}

// patchOf writes what do changes as a patch, and puts the worktree back.
func patchOf(t *testing.T, w *conformance.World, do func()) (file string, after map[string]string) {
	t.Helper()
	do()
	git(t, w, "add", "-A")
	patch := git(t, w, "diff", "--cached", "--binary", "-M", "HEAD")
	after = files(t, w.Repo)
	git(t, w, "reset", "-q", "--hard", "HEAD")
	file = filepath.Join(w.Dir, fmt.Sprintf("change-%d.patch", rand.Uint64()))
	if err := os.WriteFile(file, []byte(patch+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return file, after
}

func write(t *testing.T, w *conformance.World, path, text string) {
	t.Helper()
	if err := w.Write(path, text); err != nil {
		t.Fatal(err)
	}
}

// applyJSON runs aspis apply and reads its answer.
func applyJSON(t *testing.T, w *conformance.World, args ...string) (*schemas.ApplyResult, conformance.Outcome) {
	t.Helper()
	o := runIn(t, w, append([]string{"apply", "--format", "json"}, args...)...)
	if err := schemas.ValidateSchema("apply-result", []byte(o.Stdout)); err != nil {
		t.Fatalf("%v\n%s%s", err, o.Stdout, o.Stderr)
	}
	var res schemas.ApplyResult
	if err := json.Unmarshal([]byte(o.Stdout), &res); err != nil {
		t.Fatal(err)
	}
	return &res, o
}

// TestPatchIsPublishedAsGitWould compares with git's own worktree after every
// kind of change there is.
func TestPatchIsPublishedAsGitWould(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	write(t, w, "crlf.txt", "one\r\ntwo\r\n")
	write(t, w, "dir/deep/er", "x\n")
	write(t, w, "run", "#!/bin/sh\n")
	write(t, w, "becomes-dir", "f\n")
	write(t, w, ".gitattributes", "*.dos text eol=crlf\n")
	write(t, w, "w.dos", "a\r\nb\r\n")
	git(t, w, "add", "-A")
	git(t, w, "commit", "-q", "-m", "More")
	git(t, w, "checkout", "-q", "-f", "HEAD", "--", ".")
	before := files(t, w.Repo)
	patch, after := patchOf(t, w, func() {
		write(t, w, "crlf.txt", "one\r\nTWO\r\n")
		write(t, w, "w.dos", "a\r\nB\r\n")
		write(t, w, "new\n\"name\" é", "odd\n")
		write(t, w, "data/blob.bin", "\x00\x02\xff")
		git(t, w, "mv", "src/old.go", "src/renamed.go")
		if err := errorsOf(os.Remove(filepath.Join(w.Repo, "becomes-dir")), os.RemoveAll(filepath.Join(w.Repo, "dir")),
			os.Chmod(filepath.Join(w.Repo, "run"), 0o755), os.Symlink("README.md", filepath.Join(w.Repo, "link"))); err != nil {
			t.Fatal(err)
		}
		write(t, w, "becomes-dir/inside", "f\n")
		write(t, w, "dir", "now a file\n")
	})
	res, o := applyJSON(t, w, patch)
	if o.Code != 0 || !res.Applied || res.Assurance.TransactionGuarantee != schemas.GuaranteeStagedSnapshot {
		t.Fatalf("exit code %d, %s: %+v\n%s", o.Code, res.Assurance.TransactionGuarantee, res.Refusal, o.Stderr)
	}
	if d := differences(after, files(t, w.Repo)); len(d) > 0 {
		t.Errorf("the worktree is not what git makes of it:\n%s", strings.Join(d, "\n"))
	}
	if o := runIn(t, w, "undo"); o.Code != 0 {
		t.Fatalf("undo: %+v", o)
	}
	if d := differences(before, files(t, w.Repo)); len(d) > 0 {
		t.Errorf("after undo:\n%s", strings.Join(d, "\n"))
	}
	if got := git(t, w, "status", "--porcelain"); got != "" {
		t.Errorf("after undo: %s", got)
	}
}

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func TestApplyRefusals(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	for name, tc := range map[string]struct {
		change func()
		args   []string
		code   int
		reason string
	}{
		"denied":    {func() { write(t, w, "src/new.go", "// TEST-ERROR\n") }, nil, 1, "validation-denied"},
		"protected": {func() { write(t, w, ".github/workflows/x.yml", "on: push\n") }, nil, 2, "missing-authority"},
		"policy":    {func() { write(t, w, ".asp/asp.json", "{}\n") }, []string{"--allow-protected", ".asp/**"}, 2, "validation-indeterminate"},
		"leads out": {func() {
			if err := os.Symlink("/etc/passwd", filepath.Join(w.Repo, "link")); err != nil {
				t.Fatal(err)
			}
		}, nil, 2, "unsupported"},
	} {
		t.Run(name, func(t *testing.T) {
			patch, _ := patchOf(t, w, tc.change)
			before, err := conformance.Fingerprint(w.Repo)
			if err != nil {
				t.Fatal(err)
			}
			res, o := applyJSON(t, w, append(tc.args, patch)...)
			if o.Code != tc.code || res.Applied || res.Refusal.Reason != tc.reason {
				t.Errorf("exit code %d: %+v", o.Code, res.Refusal)
			}
			after, err := conformance.Fingerprint(w.Repo)
			if err != nil || before != after {
				t.Errorf("the repository is not as it was (%v)", err)
			}
		})
	}
	patch, after := patchOf(t, w, func() { write(t, w, ".github/workflows/x.yml", "on: push\n") })
	res, o := applyJSON(t, w, "--allow-protected", ".github/workflows/*", patch)
	if o.Code != 0 || !strings.Contains(res.Assurance.Detail, ".github/workflows/x.yml") {
		t.Errorf("an allowed protected file: exit code %d, %q", o.Code, res.Assurance.Detail)
	}
	if d := differences(after, files(t, w.Repo)); len(d) > 0 {
		t.Error(d)
	}
	// What is no plan and no patch.
	for name, text := range map[string]string{"empty": " \n", "prose": "please fix it\n", "no plan": `{"proposal":{}}`, "half": `{"proposalId":"x"`} {
		file := filepath.Join(w.Dir, "bad")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		o := runIn(t, w, "apply", file)
		if o.Code != 3 || !strings.HasPrefix(o.Stderr, "aspis: ") || o.Stdout != "" {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

// TestUndoTouchesNothingThatHasMoved writes one of the files after the apply.
func TestUndoTouchesNothingThatHasMoved(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	patch, _ := patchOf(t, w, func() { write(t, w, "README.md", "By patch.\n"); write(t, w, "src/new.go", "package main\n") })
	if _, o := applyJSON(t, w, patch); o.Code != 0 {
		t.Fatal(o)
	}
	write(t, w, "README.md", "By hand.\n")
	before := files(t, w.Repo)
	o := runIn(t, w, "undo")
	refused(t, o, 3, "README.md")
	if d := differences(before, files(t, w.Repo)); len(d) > 0 {
		t.Error(d)
	}
}

// TestStalePlans has a plan that is older than the workspace, under each rule
// that policy has for that.
func TestStalePlans(t *testing.T) {
	const long = "one\ntwo\nthree\nfour\nfive\nsix\nseven\n"
	for name, tc := range map[string]struct {
		rule, text, meanwhile string // of the plan, and of README.md meanwhile
		reason, want          string // the refusal, or what README.md holds in the end
	}{
		"refused":            {"", strings.Replace(long, "one", "ONE", 1), strings.Replace(long, "seven", "SEVEN", 1), "stale-baseline", ""},
		"merged":             {"merge", strings.Replace(long, "one", "ONE", 1), strings.Replace(long, "seven", "SEVEN", 1), "", strings.Replace(strings.Replace(long, "one", "ONE", 1), "seven", "SEVEN", 1)},
		"same lines":         {"merge", strings.Replace(long, "one", "ONE", 1), strings.Replace(long, "one", "1", 1), "conflict", ""},
		"proposed anew":      {"repropose", "whole\n", "other\n", "", "whole\n"},
		"denied when merged": {"merge", "TEST-ERROR\n" + long, long + "more\n", "validation-denied", ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := lab(t)
			c := l.NewConfig("edit", "text="+tc.text)
			both := []schemas.CapabilityFamily{schemas.Check, schemas.Edit}
			c.Providers[0].Capabilities, c.Requirements[0].Capabilities = both, both
			if tc.rule != "" {
				c.Apply = &conformance.ApplyRules{OnDrift: tc.rule}
			}
			w := world(t, l, c)
			write(t, w, "README.md", long)
			git(t, w, "commit", "-q", "-a", "-m", "Long")
			h := serve(t, w)
			ctx := deadline(t, time.Minute)
			st, err := h.Status(ctx)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := h.Call(ctx, schemas.MethodHostRequestEditPlan, schemas.RequestEditPlanParams{CallSite: schemas.Gate, Operation: "replace-resource",
				Baseline: st.Workspace.Baseline, Scope: &schemas.EditScope{Paths: []string{"README.md"}}})
			if err != nil {
				t.Fatal(err)
			}
			var plan schemas.RequestEditPlanResult
			if err := json.Unmarshal(raw, &plan); err != nil {
				t.Fatal(err)
			}
			write(t, w, "README.md", tc.meanwhile)
			raw, err = h.Call(ctx, schemas.MethodHostApplyProposal, schemas.ApplyParams{CallSite: schemas.Gate, ProposalID: plan.Proposal.ProposalID, Intent: "agent"})
			if err != nil {
				t.Fatal(err)
			}
			var res schemas.ApplyResult
			if err := json.Unmarshal(raw, &res); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(w.Repo, "README.md"))
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case tc.reason != "" && (res.Applied || res.Refusal.Reason != tc.reason || string(got) != tc.meanwhile):
				t.Errorf("%+v, %q", res.Refusal, got)
			case tc.reason == "" && (!res.Applied || string(got) != tc.want):
				t.Errorf("%+v, %q", res.Refusal, got)
			}
		})
	}
}

// TestHandedInPlansNeedPolicy hands a plan in over the outer seam.
func TestHandedInPlansNeedPolicy(t *testing.T) {
	for _, allowed := range []bool{false, true} {
		l := lab(t)
		c := l.NewConfig()
		if allowed {
			c.Apply = &conformance.ApplyRules{HandedIn: []string{"some-agent"}}
		}
		w := world(t, l, c)
		h := serve(t, w)
		ctx := deadline(t, time.Minute)
		st, err := h.Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.PutBlobs(ctx, "By an agent.\n"); err != nil {
			t.Fatal(err)
		}
		pre := schemas.Precondition{ExpectedDigest: schemas.BlobRefOf([]byte(w.Files["README.md"]))}
		plan := &schemas.EditPlan{ProposalID: "p1", Status: schemas.StatusComplete, Baseline: st.Workspace.Baseline,
			Provider:  schemas.EditProvider{ID: "some-agent", Version: "1", CapabilityFamily: schemas.Edit, CapabilityVersion: "1", ConfigDigest: "sha256:" + strings.Repeat("0", 64)},
			ValidAsOf: schemas.EditValidAsOf{Baseline: st.Workspace.Baseline, Blobs: []schemas.BlobRef{}}, TouchedResources: []schemas.Touched{{Path: "README.md", Kind: schemas.ChangeModify, Precondition: pre}},
			WorkspaceEdit: &schemas.WorkspaceEdit{Baseline: st.Workspace.Baseline, DocumentChanges: []schemas.DocChange{{Path: "README.md", Kind: schemas.ChangeModify, Precondition: pre, After: schemas.BlobRefOf([]byte("By an agent.\n"))}}}}
		raw, err := h.Call(ctx, schemas.MethodHostApplyProposal, schemas.ApplyParams{CallSite: schemas.Gate, ProposalID: "p1", Intent: "agent", Proposal: plan})
		if err != nil {
			t.Fatal(err)
		}
		var res schemas.ApplyResult
		if err := json.Unmarshal(raw, &res); err != nil {
			t.Fatal(err)
		}
		if res.Applied != allowed || (!allowed && res.Refusal.Reason != "missing-authority") {
			t.Errorf("allowed %v: %+v", allowed, res.Refusal)
		}
		if allowed && (res.Assurance.Mode != schemas.Gated || !slices.ContainsFunc(res.Receipt.Failures, func(d schemas.Degradation) bool { return d.Reason == schemas.ReasonDirectWriteRisk })) {
			t.Errorf("what confined the author is not known, and the receipt says %s: %+v", res.Assurance.Mode, res.Receipt.Failures)
		}
	}
}

// TestTXN_CRASH kills aspis apply at any moment: what the next command finds is
// wholly before or wholly after.
func TestTXN_CRASH(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	for i := range 60 {
		write(t, w, fmt.Sprintf("many/%d/f", i), fmt.Sprintf("old %d\n", i))
	}
	git(t, w, "add", "-A")
	git(t, w, "commit", "-q", "-m", "Many")
	before := files(t, w.Repo)
	patch, after := patchOf(t, w, func() {
		for i := range 60 {
			write(t, w, fmt.Sprintf("many/%d/f", i), fmt.Sprintf("new %d\n", i))
		}
		write(t, w, "many/new/file", "n\n")
		if err := os.RemoveAll(filepath.Join(w.Repo, "src")); err != nil {
			t.Fatal(err)
		}
	})
	began := time.Now()
	if _, o := applyJSON(t, w, patch); o.Code != 0 {
		t.Fatalf("%+v", o)
	}
	usual := time.Since(began)
	if o := runIn(t, w, "undo"); o.Code != 0 {
		t.Fatal(o)
	}
	counts := map[string]int{}
	for i := range 40 {
		cmd := exec.Command(filepath.Join(bin, "aspis"), "--config", w.Config, "--repo", w.Repo, "apply", patch)
		cmd.Env = append(cmd.Environ(), "ASPIS_STATE_DIR="+w.State, "HOME="+filepath.Join(w.Dir, "home"))
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Mostly near the end, where files are written.
		after1 := usual/2 + time.Duration(rand.Int64N(int64(usual)*3/4))
		time.Sleep(after1)
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		if o := runIn(t, w, "check", "--worktree"); o.Code == 3 {
			t.Fatalf("kill %d: the next command: %+v", i, o)
		}
		now := files(t, w.Repo)
		switch {
		case len(differences(before, now)) == 0:
			counts["before"]++
		case len(differences(after, now)) == 0:
			counts["after"]++
			if o := runIn(t, w, "undo"); o.Code != 0 {
				t.Fatalf("kill %d: undo: %+v", i, o)
			}
		default:
			t.Fatalf("kill %d after %v: the worktree is mixed:\n%s", i, after1, strings.Join(differences(before, now), "\n"))
		}
	}
	t.Logf("usually %v; %v", usual, counts)
}

// TestApplyFromManyProcesses has eight processes apply patches at once: two to
// each of four files. Of each two one wins, and the outcome is some order of all.
func TestApplyFromManyProcesses(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	for i := range 4 {
		write(t, w, fmt.Sprintf("f%d", i), "old\n")
	}
	git(t, w, "add", "-A")
	git(t, w, "commit", "-q", "-m", "Four")
	var patches []string
	for i := range 8 {
		p, _ := patchOf(t, w, func() { write(t, w, fmt.Sprintf("f%d", i/2), fmt.Sprintf("by %d\n", i)) })
		patches = append(patches, p)
	}
	codes := make([]int, 8)
	outs := make([]string, 8)
	var all sync.WaitGroup
	for i, p := range patches {
		all.Go(func() {
			o, err := w.Run(deadline(t, time.Minute), "apply", p)
			codes[i], outs[i] = o.Code, fmt.Sprint(o.Stdout, o.Stderr, err)
		})
	}
	all.Wait()
	for f := range 4 {
		text, err := os.ReadFile(filepath.Join(w.Repo, fmt.Sprintf("f%d", f)))
		if err != nil {
			t.Fatal(err)
		}
		won := -1
		for _, i := range []int{2 * f, 2*f + 1} {
			if codes[i] == 0 {
				if won >= 0 {
					t.Errorf("both patches of f%d were applied", f)
				}
				won = i
			}
		}
		if won < 0 || !bytes.Equal(text, fmt.Appendf(nil, "by %d\n", won)) {
			t.Errorf("f%d holds %q; exit codes %d and %d\n%s\n%s", f, text, codes[2*f], codes[2*f+1], outs[2*f], outs[2*f+1])
		}
	}
}

// TestFixes makes what findings propose: inline, several in one file, and by
// reference to an edit provider.
func TestFixes(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig("fix"))
	write(t, w, "src/new.go", "// TEST-ERROR one TEST-WARNING\n\n// TEST-ERROR\n")
	write(t, w, "README.md", "TEST-INFO\n")
	if o := runIn(t, w, "fix", "--dry-run"); o.Code != 0 || !strings.Contains(o.Stdout, "would be published") {
		t.Errorf("%+v", o)
	}
	if o := runIn(t, w, "fix", "--code", "other/*"); o.Code != 0 || o.Stdout != "nothing to fix\n" {
		t.Errorf("%+v", o)
	}
	if o := runIn(t, w, "fix"); o.Code != 0 || !strings.Contains(o.Stdout, "staged_snapshot") {
		t.Errorf("%+v", o)
	}
	got := files(t, w.Repo)
	if got["src/new.go"] != fmt.Sprintf("false %q", "// mended one mended\n\n// mended\n") || got["README.md"] != fmt.Sprintf("false %q", "mended\n") {
		t.Errorf("%s, %s", got["src/new.go"], got["README.md"])
	}

	both := []schemas.CapabilityFamily{schemas.Check, schemas.Edit}
	c := l.NewConfig("edit-ref", "edit", "text=By the provider.\n")
	c.Providers[0].Capabilities, c.Requirements[0].Capabilities = both, both
	w = world(t, l, c)
	write(t, w, "README.md", "TEST-ERROR\n")
	if o := runIn(t, w, "fix"); o.Code != 0 || files(t, w.Repo)["README.md"] != fmt.Sprintf("false %q", "By the provider.\n") {
		t.Errorf("%+v: %s", o, files(t, w.Repo)["README.md"])
	}
}

// TestWholeDirectoryIsExchanged publishes to a linked worktree as one directory:
// a program that looks sees all of the old or all of the new.
func TestWholeDirectoryIsExchanged(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	write(t, w, ".gitignore", "build/\n")
	git(t, w, "add", "-A")
	git(t, w, "commit", "-q", "-m", "More")
	patch, _ := patchOf(t, w, func() { write(t, w, "README.md", "New.\n"); write(t, w, "src/new.go", "package main\n") })
	if res, o := applyJSON(t, w, "--to", "dir-exchange", patch); o.Code != 2 || res.Refusal.Reason != "unsupported" {
		t.Errorf("a worktree with its git directory inside: %+v", o)
	}
	side := filepath.Join(w.Dir, "side")
	git(t, w, "worktree", "add", "-q", "--detach", side)
	w.Repo = side
	write(t, w, "build/out", "kept\n")
	res, o := applyJSON(t, w, "--to", "dir-exchange", patch)
	if o.Code != 0 || res.Assurance.TransactionGuarantee != schemas.GuaranteeStagedSnapshot || !strings.Contains(res.Assurance.Detail, "as it was before") {
		t.Fatalf("%+v: %s", res.Refusal, o.Stderr)
	}
	got := files(t, side)
	if got["README.md"] != `false "New.\n"` || got["src/new.go"] != `false "package main\n"` || got["build/out"] != `false "kept\n"` {
		t.Errorf("%v", got)
	}
	if s := git(t, w, "status", "--porcelain"); s != " M README.md\n?? src/new.go\n" && s != "M README.md\n?? src/new.go" {
		t.Errorf("status: %q", s)
	}
	old, err := filepath.Glob(filepath.Join(w.Dir, ".side.aspis-*"))
	if err != nil || len(old) != 1 || files(t, old[0])["README.md"] == got["README.md"] {
		t.Errorf("what was there before: %v (%v)", old, err)
	}
}
