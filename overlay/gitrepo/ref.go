package gitrepo

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Commit is what a commit says beside its tree and parents.
type Commit struct {
	Message     string
	Name, Email string // of author and committer; empty for the user's own
	At          time.Time
}

// RefError says why a ref cannot be moved. Nothing was moved then.
type RefError struct{ Ref, Detail string }

func (e *RefError) Error() string { return fmt.Sprintf("the ref %q %s", e.Ref, e.Detail) }

// RefTip gives the commit that a ref stands at, and its tree; "" where there is
// no such ref.
func (r *Repo) RefTip(ctx context.Context, ref string) (commit, tree OID, err error) {
	if err := r.checkRef(ctx, ref); err != nil {
		return "", "", err
	}
	out, err := r.run(ctx, runOptions{limit: 1 << 10, doing: "look up the ref " + ref}, "for-each-ref", "--format=%(refname) %(objectname)", ref)
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(string(out)) {
		if name, oid, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == ref {
			if commit, err = r.peel(ctx, oid, "commit"); err != nil {
				return "", "", err
			}
			tree, err = r.peel(ctx, oid, "tree")
			return commit, tree, err
		}
	}
	return "", "", nil
}

// checkRef refuses what is no name of a ref, and a branch that a worktree has
// checked out: its files would no longer be what its branch says.
func (r *Repo) checkRef(ctx context.Context, ref string) error {
	if _, err := r.run(ctx, runOptions{limit: 1 << 10, doing: "check the name of a ref"}, "check-ref-format", ref); err != nil || !strings.HasPrefix(ref, "refs/") {
		if ctx.Err() != nil {
			return err
		}
		return &RefError{Ref: ref, Detail: "has no name that git allows; give it whole, such as refs/heads/agent"}
	}
	heads, err := filepath.Glob(filepath.Join(r.place.common, "worktrees/*/HEAD"))
	if err != nil {
		return err
	}
	for _, at := range append([]string{filepath.Join(r.place.common, "HEAD"), filepath.Join(r.place.gitDir, "HEAD")}, heads...) {
		head, err := readSmall(at)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return &DamagedError{Doing: "read HEAD", Detail: err.Error()}
		}
		if r.place.root != "" && strings.TrimSpace(head) == "ref: "+ref {
			return &RefError{Ref: ref, Detail: "is checked out in a worktree; publish to the worktree, or to another ref"}
		}
	}
	return nil
}

// PublishTree makes a commit of a tree of the shadow, brings what it needs into
// the repository itself, and moves a ref to it: only if the ref is still at
// expected ("" for a ref that is not there), else it is a *RefError. No hook
// runs and no configuration of the repository is read.
func (r *Repo) PublishTree(ctx context.Context, ref string, expected OID, tree OID, parents []OID, c Commit) (OID, error) {
	if err := r.checkRef(ctx, ref); err != nil {
		return "", err
	}
	commit, err := r.commitTree(ctx, tree, parents, c)
	if err != nil {
		return "", err
	}
	if err := r.bringOver(ctx, commit, parents); err != nil {
		return "", err
	}
	return commit, r.MoveRef(ctx, ref, expected, commit)
}

// MoveRef moves a ref from one commit to another by compare and swap; "" stands
// for a ref that is not there. No hook runs. A ref that has moved meanwhile is a
// *RefError.
func (r *Repo) MoveRef(ctx context.Context, ref string, from, to OID) error {
	none := strings.Repeat("0", len(r.EmptyTree()))
	_, err := r.run(ctx, runOptions{limit: 1 << 10, doing: "move " + ref}, "-c", "core.fsync=all", "update-ref", "--no-deref", "-m", "aspis: apply",
		ref, cmp.Or(string(to), none), cmp.Or(string(from), none))
	var said *gitError
	if errors.As(err, &said) && ctx.Err() == nil {
		return &RefError{Ref: ref, Detail: "could not be moved: " + said.detail()}
	}
	return err
}

// Head gives the commit that HEAD means, "" on a branch without commits.
func (r *Repo) Head(ctx context.Context) (OID, error) {
	if r.unborn(ctx) {
		return "", nil
	}
	return r.commit(ctx, "HEAD")
}

func (r *Repo) commitTree(ctx context.Context, tree OID, parents []OID, c Commit) (OID, error) {
	s, err := r.readSettings(ctx)
	if err != nil {
		return "", err
	}
	name, email := cmp.Or(c.Name, s["user.name"], "aspis"), cmp.Or(c.Email, s["user.email"], "aspis@localhost")
	clean := func(text string) string { return strings.Map(dropFromIdent, text) }
	who := fmt.Sprintf("%s <%s> %d +0000", clean(name), clean(email), c.At.Unix())
	var text bytes.Buffer
	fmt.Fprintf(&text, "tree %s\n", tree)
	for _, p := range parents {
		fmt.Fprintf(&text, "parent %s\n", p)
	}
	fmt.Fprintf(&text, "author %s\ncommitter %s\n\n%s\n", who, who, strings.TrimRight(strings.ReplaceAll(c.Message, "\x00", ""), "\n"))
	out, err := r.run(ctx, runOptions{stdin: &text, limit: 1 << 10, doing: "make a commit"}, "hash-object", "-t", "commit", "-w", "--stdin")
	if err != nil {
		return "", err
	}
	oid := strings.TrimSpace(string(out))
	if !validOID(oid) {
		return "", &DamagedError{Doing: "make a commit", Detail: fmt.Sprintf("it answered %.60q", oid)}
	}
	return OID(oid), nil
}

// dropFromIdent takes out what would end a name in a commit early.
func dropFromIdent(c rune) rune {
	if c < ' ' || c == '<' || c == '>' || c == 0x7f {
		return -1
	}
	return c
}

// bringOver copies the objects of a commit that the repository lacks from the
// shadow, durably.
func (r *Repo) bringOver(ctx context.Context, commit OID, have []OID) error {
	var revs bytes.Buffer
	fmt.Fprintf(&revs, "%s\n", commit)
	for _, p := range have {
		fmt.Fprintf(&revs, "^%s\n", p)
	}
	return r.carry(ctx, &revs, "--revs")
}

// carry copies objects from the shadow into the repository, durably: those that
// in names, one a line.
func (r *Repo) carry(ctx context.Context, in io.Reader, how ...string) error {
	return r.inScratch(func(dir string) error {
		out, err := os.OpenFile(filepath.Join(dir, "pack"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return fmt.Errorf("pack objects: %w", err)
		}
		defer out.Close()
		args := append([]string{"pack-objects", "--stdout", "--quiet"}, how...)
		cmd := r.command(ctx, runOptions{stdin: in}, args...)
		if err := r.finish(cmd, "pack objects", func(cmd *exec.Cmd) { cmd.Stdout = out }); err != nil {
			return err
		}
		if _, err := out.Seek(0, 0); err != nil {
			return fmt.Errorf("pack objects: %w", err)
		}
		// Not through the shadow's alternates: what is found there is not written.
		cmd = r.command(ctx, runOptions{stdin: out}, "-c", "core.fsync=all", "unpack-objects", "-q", "--strict")
		cmd.Env = append(slices.Clone(cmd.Env), "GIT_OBJECT_DIRECTORY="+filepath.Join(r.place.common, "objects"))
		return r.finish(cmd, "store objects", func(*exec.Cmd) {})
	})
}

// finish runs git to its end.
func (r *Repo) finish(cmd *exec.Cmd, doing string, with func(*exec.Cmd)) error {
	said := &limited{}
	cmd.Stderr = said
	with(cmd)
	if err := r.start(cmd); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if err := cmd.Wait(); err != nil {
		return &gitError{doing: doing, stderr: said.String(), err: err}
	}
	return nil
}
