package gitrepo

import (
	"context"
	"errors"
	"io"
	"path/filepath"
)

// PatchError says why a patch does not apply, in git's words.
type PatchError struct{ Detail string }

func (e *PatchError) Error() string { return "the patch does not apply: " + e.Detail }

// maxPatchAnswer bounds what git says of a patch, in bytes.
const maxPatchAnswer = 64 << 10

// ApplyPatch gives the tree that a patch (unified, or git's with modes, renames
// and binary content) makes of base, in the shadow. What does not apply is a
// *PatchError, and so is a path that lies outside of the tree or in .git.
func (r *Repo) ApplyPatch(ctx context.Context, base OID, patch io.Reader) (tree OID, err error) {
	err = r.inScratch(func(dir string) error {
		index := filepath.Join(dir, "index")
		if base != r.EmptyTree() {
			if _, err := r.run(ctx, runOptions{index: index, limit: 1 << 16, doing: "read the tree " + string(base)}, "read-tree", string(base)); err != nil {
				return err
			}
		}
		if _, err := r.run(ctx, runOptions{index: index, stdin: patch, limit: maxPatchAnswer, doing: "apply a patch"},
			"apply", "--cached", "--whitespace=nowarn", "-"); err != nil {
			var said *gitError
			if errors.As(err, &said) && ctx.Err() == nil {
				return &PatchError{Detail: said.detail()}
			}
			return err
		}
		tree, err = r.writeTree(ctx, index)
		return err
	})
	return tree, err
}
