package gitrepo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/aspis-dev/aspis/schemas"
)

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

// WorktreeDigest names the state of the workspace: the commit that is checked
// out, the tree of the index and the tree of the worktree. Two that are equal
// mean that no capture would have come out otherwise in between, but for what
// was there only for a moment. It is not empty where Current calls the worktree
// clean.
func (r *Repo) WorktreeDigest(ctx context.Context) (string, error) {
	_, tree, err := r.Current(ctx)
	if err != nil {
		return "", err
	}
	head, err := r.commit(ctx, "HEAD")
	if err != nil && !r.unborn(ctx) {
		return "", err
	}
	staged := ""
	if r.place.root != "" {
		staged, err = r.indexState(ctx)
		if err != nil {
			return "", err
		}
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", head, staged, tree))
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// indexState is the tree of the index, or where conflicts keep it from being
// one a digest of the file.
func (r *Repo) indexState(ctx context.Context) (state string, err error) {
	err = r.withIndex(ctx, func(index string) error {
		tree, err := r.treeOfIndex(ctx, index)
		var unmerged *UnmergedError
		if !errors.As(err, &unmerged) {
			state = string(tree)
			return err
		}
		text, err := readBounded(index, maxIndex)
		state = fmt.Sprintf("conflicts %x", sha256.Sum256(text))
		return err
	})
	return state, err
}
