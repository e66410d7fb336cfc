package gitrepo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/aspis-dev/aspis/schemas"
)

// SelectionKind says what is compared with what.
type SelectionKind int

const (
	// KindBase compares the merge base of A and HEAD with HEAD.
	KindBase SelectionKind = iota
	// KindRange compares A with B; with Merge set, their merge base with B.
	KindRange
	// KindStaged compares HEAD with the index.
	KindStaged
	// KindWorktree compares HEAD with the worktree: untracked files count,
	// ignored ones do not.
	KindWorktree
	// KindTree compares HEAD with the tree A.
	KindTree
)

// Selection names a change.
type Selection struct {
	Kind  SelectionKind
	A, B  string
	Merge bool
}

// Entry is one changed path with everything that ASP's Change cannot say.
type Entry struct {
	Path, From            string
	Kind                  schemas.ChangeKind
	BeforeMode, AfterMode uint32
	BeforeOID, AfterOID   OID
	Before, After         schemas.BlobRef
	Size                  int64 // of the content after the change, or of what is deleted, in bytes
}

// Capture is a change held fast: two trees, and what differs.
type Capture struct {
	Baseline      schemas.Baseline
	BaseTree      OID
	CandidateTree OID
	ChangeSet     schemas.ChangeSet
	Entries       []Entry
}

// Capture resolves a selection. All of it is read once: what happens to the
// repository afterwards does not change it.
//
// Errors: *UnknownRevisionError, *NoMergeBaseError; *NoWorktreeError for the
// worktree or index of a bare repository, *UnmergedError for an index with
// conflicts, *WorktreeError for a file that cannot be taken;
// *UnsupportedNameError for paths that cannot be carried; *TooLargeError;
// *MissingObjectError and *DamagedError for what the repository does not hold or
// holds wrongly.
func (r *Repo) Capture(ctx context.Context, sel Selection) (*Capture, error) {
	base, cand, err := r.resolve(ctx, sel)
	if err != nil {
		return nil, err
	}
	return r.Compare(ctx, base, cand)
}

// Compare captures the change from one tree to another.
func (r *Repo) Compare(ctx context.Context, base, cand OID) (*Capture, error) {
	c := &Capture{Baseline: schemas.Baseline{Rev: Rev(base)}, BaseTree: base, CandidateTree: cand}
	raw, err := r.DiffTrees(ctx, base, cand)
	if err != nil {
		return nil, err
	}
	var odd []string
	for _, ch := range raw {
		for _, name := range []string{ch.Path, ch.From} {
			if name != "" && schemas.ValidPath(name) != nil {
				odd = append(odd, name)
			}
		}
	}
	if len(odd) > 0 {
		return nil, &UnsupportedNameError{Names: odd}
	}
	if err := r.checkDirs(ctx, cand, raw); err != nil {
		return nil, err
	}
	refs, err := r.hashAll(ctx, raw)
	if err != nil {
		return nil, err
	}
	c.ChangeSet = schemas.ChangeSet{Baseline: c.Baseline, Changes: []schemas.Change{}}
	for _, ch := range raw {
		e := entry(ch, refs)
		c.Entries = append(c.Entries, e)
	}
	slices.SortFunc(c.Entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	for _, e := range c.Entries {
		out := schemas.Change{Path: e.Path, Kind: e.Kind, From: e.From, Before: e.Before, After: e.After}
		if e.Kind == schemas.ChangeRename && e.Before == e.After {
			out.After = "" // asp-wire: after only when the content changes too
		}
		c.ChangeSet.Changes = append(c.ChangeSet.Changes, out)
	}
	return c, nil
}

// Rev is the baseline name of a tree.
func Rev(tree OID) string { return "git:tree:" + string(tree) }

func entry(ch RawChange, refs map[key]content) Entry {
	e := Entry{Path: ch.Path, From: ch.From}
	if ch.Status != 'A' {
		e.BeforeMode, e.BeforeOID = ch.OldMode, ch.OldOID
		before := refs[key{ch.OldOID, ch.OldMode == ModeGitlink}]
		e.Before, e.Size = before.ref, before.size
	}
	if ch.Status != 'D' {
		e.AfterMode, e.AfterOID = ch.NewMode, ch.NewOID
		after := refs[key{ch.NewOID, ch.NewMode == ModeGitlink}]
		e.After, e.Size = after.ref, after.size
	}
	e.Kind = map[byte]schemas.ChangeKind{'A': schemas.ChangeCreate, 'M': schemas.ChangeModify, 'T': schemas.ChangeModify,
		'D': schemas.ChangeDelete, 'R': schemas.ChangeRename}[ch.Status]
	return e
}

// content is what a blob holds, by name and size.
type content struct {
	ref  schemas.BlobRef
	size int64
}

// key tells a blob from a submodule's commit, which have ids of one form.
type key struct {
	oid     OID
	gitlink bool
}

// GitlinkContent is what stands for a submodule, whose content lies elsewhere:
// the line that git shows in a diff.
func GitlinkContent(oid OID) []byte { return []byte("Subproject commit " + string(oid) + "\n") }

// hashAll names the content of both sides of every change.
func (r *Repo) hashAll(ctx context.Context, raw []RawChange) (map[key]content, error) {
	refs := map[key]content{}
	var todo []OID
	note := func(oid OID, mode uint32) {
		k := key{oid, mode == ModeGitlink}
		if _, done := refs[k]; done {
			return
		}
		refs[k] = content{}
		if k.gitlink {
			line := GitlinkContent(oid)
			refs[k] = content{schemas.BlobRefOf(line), int64(len(line))}
			return
		}
		todo = append(todo, oid)
	}
	for _, ch := range raw {
		if ch.Status != 'A' {
			note(ch.OldOID, ch.OldMode)
		}
		if ch.Status != 'D' {
			note(ch.NewOID, ch.NewMode)
		}
	}
	err := r.objects(ctx, todo, func(oid OID, kind string, size int64, body io.Reader) error {
		if kind != "blob" {
			return &DamagedError{Doing: "read the blob " + string(oid), Detail: "it is a " + kind}
		}
		h := sha256.New()
		if _, err := io.Copy(h, body); err != nil {
			return err
		}
		refs[key{oid: oid}] = content{schemas.BlobRef("blob:sha256:" + hex.EncodeToString(h.Sum(nil))), size}
		return nil
	})
	return refs, err
}

// resolve turns a selection into two trees.
func (r *Repo) resolve(ctx context.Context, sel Selection) (base, cand OID, err error) {
	if err := r.syncHead(); err != nil {
		return "", "", err
	}
	switch sel.Kind {
	case KindBase:
		return r.fromMergeBase(ctx, sel.A, "HEAD")
	case KindRange:
		if sel.Merge {
			return r.fromMergeBase(ctx, sel.A, sel.B)
		}
		if base, err = r.TreeOf(ctx, sel.A); err != nil {
			return "", "", err
		}
		cand, err = r.TreeOf(ctx, sel.B)
		return base, cand, err
	}
	if base, err = r.headTree(ctx); err != nil {
		return "", "", err
	}
	switch sel.Kind {
	case KindTree:
		cand, err = r.TreeOf(ctx, sel.A)
	case KindStaged:
		cand, err = r.IndexTree(ctx)
	case KindWorktree:
		cand, err = r.WorktreeTree(ctx)
	default:
		err = fmt.Errorf("unknown selection %d", sel.Kind)
	}
	return base, cand, err
}

func (r *Repo) fromMergeBase(ctx context.Context, a, b string) (base, cand OID, err error) {
	ca, err := r.commit(ctx, a)
	if err != nil {
		return "", "", err
	}
	cb, err := r.commit(ctx, b)
	if err != nil {
		return "", "", err
	}
	at := string(ca)
	if !r.isAncestor(ctx, ca, cb) {
		out, err := r.run(ctx, runOptions{limit: 1 << 20, doing: "find the merge base"}, "merge-base", string(ca), string(cb))
		if err != nil && exitCode(err) == 1 {
			return "", "", &NoMergeBaseError{A: a, B: b}
		}
		if err != nil {
			return "", "", err
		}
		at = strings.TrimSpace(string(out))
	}
	if base, err = r.TreeOf(ctx, at); err != nil {
		return "", "", err
	}
	cand, err = r.TreeOf(ctx, string(cb))
	return base, cand, err
}

// headTree is HEAD's tree, or the empty one before the first commit.
func (r *Repo) headTree(ctx context.Context) (OID, error) {
	tree, err := r.TreeOf(ctx, "HEAD")
	var unknown *UnknownRevisionError
	if errors.As(err, &unknown) && r.unborn(ctx) {
		return r.EmptyTree(), nil
	}
	return tree, err
}

// unborn reports whether HEAD names a branch that does not exist yet. A branch
// that is there but cannot be read is none of these: its commits would be taken
// for not there, and with them the policy that they hold.
func (r *Repo) unborn(ctx context.Context) bool {
	head, err := readSmall(filepath.Join(r.shadow, "HEAD"))
	branch, ok := strings.CutPrefix(head, "ref: refs/")
	if err != nil || !ok {
		return false
	}
	if _, err := os.Lstat(filepath.Join(r.shadow, "refs", strings.TrimSpace(branch))); !absent(err) {
		return false
	}
	_, err = r.run(ctx, runOptions{limit: 1 << 16, doing: "read HEAD"}, "symbolic-ref", "-q", "HEAD")
	if err != nil {
		return false
	}
	_, err = r.run(ctx, runOptions{limit: 1 << 16, doing: "read HEAD"}, "rev-parse", "--verify", "--quiet", "HEAD")
	return exitCode(err) == 1
}

// TreeOf resolves a revision to its tree.
func (r *Repo) TreeOf(ctx context.Context, rev string) (OID, error) {
	return r.peel(ctx, rev, "tree")
}

func (r *Repo) commit(ctx context.Context, rev string) (OID, error) {
	return r.peel(ctx, rev, "commit")
}

func (r *Repo) peel(ctx context.Context, rev, kind string) (OID, error) {
	switch {
	case rev == "" || strings.ContainsAny(rev, "\n\r\x00") || len(rev) > 4096:
		return "", &UnknownRevisionError{Rev: rev}
	case strings.Contains(strings.ToLower(rev), "@{u") || strings.Contains(strings.ToLower(rev), "@{push"):
		return "", &UnknownRevisionError{Rev: rev, Detail: " (upstreams are named in the repository's configuration, which aspis does not read; name the branch, such as origin/main)"}
	}
	if rev == string(r.EmptyTree()) && kind == "tree" {
		return r.EmptyTree(), nil
	}
	oid, err := r.object(ctx, rev+"^{"+kind+"}", func(got string, _ int64, _ io.Reader) error {
		if got != kind {
			return &DamagedError{Doing: "look up a revision", Detail: "it is a " + got}
		}
		return nil
	})
	// Why there is no such thing is for a git of its own to explain.
	var missing *MissingObjectError
	switch {
	case err == nil:
		return oid, nil
	case !errors.As(err, &missing):
		return "", err
	case missing.Ambiguous:
		return "", &UnknownRevisionError{Rev: rev, Detail: " (" + missing.Error() + ")"}
	}
	out, err := r.run(ctx, runOptions{limit: 1 << 16, doing: "look up a revision"}, "rev-parse", "--verify", "--quiet", "--end-of-options", rev+"^{"+kind+"}")
	if err != nil {
		var ge *gitError
		if exitCode(err) == 1 || (errors.As(err, &ge) && exitCode(err) == 128) {
			return "", r.explain(ctx, rev, kind, err)
		}
		return "", err
	}
	oid = OID(strings.TrimSpace(string(out)))
	if !validOID(string(oid)) {
		return "", &UnknownRevisionError{Rev: rev}
	}
	return oid, nil
}

// explain tells a name that means nothing from an object that is damaged.
func (r *Repo) explain(ctx context.Context, rev, kind string, cause error) error {
	out, err := r.run(ctx, runOptions{limit: 1 << 16, doing: "look up a revision"}, "rev-parse", "--verify", "--quiet", "--end-of-options", rev)
	oid := strings.TrimSpace(string(out))
	if err != nil || !validOID(oid) {
		return &UnknownRevisionError{Rev: rev}
	}
	// The name means an object, but it cannot be had as what is needed.
	_, err = r.run(ctx, runOptions{limit: 1 << 20, doing: fmt.Sprintf("read %q as a %s", rev, kind)}, "cat-file", "-e", oid+"^{"+kind+"}")
	if err != nil {
		return err
	}
	return cause
}

// Trees resolves a selection without comparing anything.
func (r *Repo) Trees(ctx context.Context, sel Selection) (base, candidate OID, err error) {
	return r.resolve(ctx, sel)
}

// BaseTree is HEAD's tree, or the empty one before the first commit.
func (r *Repo) BaseTree(ctx context.Context) (OID, error) {
	if err := r.syncHead(); err != nil {
		return "", err
	}
	return r.headTree(ctx)
}
