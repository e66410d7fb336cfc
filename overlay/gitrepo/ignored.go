package gitrepo

import (
	"bytes"
	"context"
)

// Ignored lists what lies in the worktree and is ignored, below its top: files,
// and directories of which all is, with "/" at the end. Whoever copies the
// worktree learns from it what was made by tools and can be made again.
func (r *Repo) Ignored(ctx context.Context) (paths []string, err error) {
	if r.place.root == "" {
		return nil, &NoWorktreeError{Dir: r.place.gitDir}
	}
	err = r.withIndex(ctx, func(index string) error {
		out, err := r.run(ctx, runOptions{index: index, doing: "look for ignored files"},
			"ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
		if err != nil {
			return err
		}
		return records(bytes.NewReader(out), func(rec []byte) error {
			paths = append(paths, string(rec))
			return nil
		})
	})
	return paths, err
}
