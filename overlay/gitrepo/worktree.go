package gitrepo

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/aspis-dev/aspis/schemas"
)

// withIndex runs fn with a private copy of the repository's index, which the
// real one never notices. A copy keeps the stat data by which git knows
// unchanged files without reading them.
func (r *Repo) withIndex(fn func(index string) error) error {
	dir, err := os.MkdirTemp(r.shadow, "index-")
	if err != nil {
		return fmt.Errorf("copy the index: %w", err)
	}
	defer os.RemoveAll(dir)
	index := filepath.Join(dir, "index")
	if err := copyFile(filepath.Join(r.place.gitDir, "index"), index); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("copy the index: %w", err)
	}
	// A split index names its shared part, which git looks for in GIT_DIR.
	shared, err := filepath.Glob(filepath.Join(r.place.gitDir, "sharedindex.*"))
	if err != nil {
		return fmt.Errorf("copy the index: %w", err)
	}
	for _, s := range shared {
		if err := replaceLink(s, filepath.Join(r.shadow, filepath.Base(s))); err != nil {
			return fmt.Errorf("copy the index: %w", err)
		}
	}
	return fn(index)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	// The copy must not be older than the original: git takes a file whose time
	// is not before the index's for one that may have changed since.
	st, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return errors.Join(err, out.Close())
	}
	if err := out.Close(); err != nil {
		return err
	}
	return os.Chtimes(to, st.ModTime(), st.ModTime())
}

// IndexTree writes the tree of the index, into the shadow.
func (r *Repo) IndexTree(ctx context.Context) (tree OID, err error) {
	if r.place.root == "" {
		return "", &NoWorktreeError{Dir: r.place.gitDir}
	}
	err = r.withIndex(func(index string) error {
		tree, err = r.writeTree(ctx, index)
		return err
	})
	return tree, err
}

func (r *Repo) writeTree(ctx context.Context, index string) (OID, error) {
	if _, err := os.Stat(index); errors.Is(err, os.ErrNotExist) {
		return r.EmptyTree(), nil
	}
	out, err := r.run(ctx, runOptions{index: index, limit: 1 << 16, doing: "write the tree of the index (unmerged paths must be resolved first)"}, "write-tree")
	if err != nil {
		return "", err
	}
	oid := strings.TrimSpace(string(out))
	if !validOID(oid) {
		return "", &DamagedError{Doing: "write a tree", Detail: fmt.Sprintf("it answered %.60q", oid)}
	}
	return OID(oid), nil
}

// WorktreeTree writes the tree of the worktree as it lies, into the shadow:
// tracked files with their changes, untracked ones, no ignored ones. Content is
// what `git add` would store without any filter driver: line endings are
// converted where .gitattributes says so, which runs no command. Of a submodule
// only the commit that it is at is read.
func (r *Repo) WorktreeTree(ctx context.Context) (tree OID, err error) {
	if r.place.root == "" {
		return "", &NoWorktreeError{Dir: r.place.gitDir}
	}
	err = r.withIndex(func(index string) error {
		var changed, untracked []byte
		g, gctx := errgroup.WithContext(ctx)
		g.Go(func() (err error) {
			changed, err = r.run(gctx, runOptions{index: index, doing: "look for changed files"},
				"diff-files", "-z", "--name-only", "--ignore-submodules=dirty", "--no-ext-diff")
			return err
		})
		g.Go(func() (err error) {
			untracked, err = r.run(gctx, runOptions{index: index, doing: "look for untracked files"},
				"ls-files", "-z", "--others", "--exclude-standard")
			return err
		})
		if err := g.Wait(); err != nil {
			return err
		}
		paths := append(changed, bytes.ReplaceAll(untracked, []byte("/\x00"), []byte("\x00"))...)
		if len(paths) == 0 {
			tree, err = r.treeOfIndex(ctx, index)
			return err
		}
		_, err := r.run(ctx, runOptions{index: index, stdin: bytes.NewReader(paths), limit: 1 << 20, doing: "read changed files"},
			"update-index", "-z", "--add", "--remove", "--stdin")
		if err != nil {
			return err
		}
		tree, err = r.writeTree(ctx, index)
		return err
	})
	return tree, err
}

// knownIndex is the tree that an index with exactly this content stands for.
type knownIndex struct {
	mu   sync.Mutex
	sum  [sha256.Size]byte
	tree OID
}

// treeOfIndex writes the tree of an index that was not changed since it was
// copied. For one that was asked about just before it is known.
func (r *Repo) treeOfIndex(ctx context.Context, index string) (OID, error) {
	f, err := os.Open(index)
	if errors.Is(err, os.ErrNotExist) {
		return r.EmptyTree(), nil
	}
	if err != nil {
		return "", fmt.Errorf("read the index: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read the index: %w", err)
	}
	sum := [sha256.Size]byte(h.Sum(nil))
	k := &r.index
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tree != "" && k.sum == sum {
		return k.tree, nil
	}
	tree, err := r.writeTree(ctx, index)
	if err == nil {
		k.sum, k.tree = sum, tree
	}
	return tree, err
}

// Current is the baseline of the workspace as it lies: HEAD's tree, with a
// digest of what differs from it in the worktree. tree is the worktree's own.
func (r *Repo) Current(ctx context.Context) (b schemas.Baseline, tree OID, err error) {
	head, err := r.BaseTree(ctx)
	if err != nil {
		return b, "", err
	}
	b = schemas.Baseline{Rev: Rev(head)}
	if r.place.root == "" {
		return b, head, nil
	}
	if tree, err = r.WorktreeTree(ctx); err != nil {
		return b, "", err
	}
	if tree != head {
		sum := sha256.Sum256([]byte(Rev(tree)))
		b.Dirty = "sha256:" + hex.EncodeToString(sum[:])
	}
	return b, tree, nil
}

// PutBlob stores bytes in the shadow.
func (r *Repo) PutBlob(ctx context.Context, content io.Reader) (OID, error) {
	out, err := r.run(ctx, runOptions{stdin: content, limit: 1 << 16, doing: "store a blob"}, "hash-object", "-w", "--stdin", "--no-filters")
	if err != nil {
		return "", err
	}
	return OID(strings.TrimSpace(string(out))), nil
}

// TreeEdit sets a path of a tree, or removes it when OID is empty.
type TreeEdit struct {
	Path string
	Mode uint32
	OID  OID
}

// WriteTree makes a tree that differs from base by edits, in the shadow.
func (r *Repo) WriteTree(ctx context.Context, base OID, edits []TreeEdit) (tree OID, err error) {
	dir, err := os.MkdirTemp(r.shadow, "tree-")
	if err != nil {
		return "", fmt.Errorf("make a tree: %w", err)
	}
	defer os.RemoveAll(dir)
	index := filepath.Join(dir, "index")
	if base != r.EmptyTree() {
		if _, err := r.run(ctx, runOptions{index: index, limit: 1 << 16, doing: "read the tree " + string(base)}, "read-tree", string(base)); err != nil {
			return "", err
		}
	}
	var info bytes.Buffer
	for _, e := range edits {
		if err := safeTreePath(e.Path); err != nil {
			return "", err
		}
		if e.OID == "" {
			fmt.Fprintf(&info, "0 %s\t%s\x00", strings.Repeat("0", len(r.EmptyTree())), e.Path)
			continue
		}
		fmt.Fprintf(&info, "%o %s\t%s\x00", e.Mode, e.OID, e.Path)
	}
	if info.Len() > 0 {
		if _, err := r.run(ctx, runOptions{index: index, stdin: &info, limit: 1 << 16, doing: "change a tree"}, "update-index", "-z", "--index-info"); err != nil {
			return "", err
		}
	}
	return r.writeTree(ctx, index)
}
