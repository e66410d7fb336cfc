package publish

import (
	"context"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
)

// inStep remembers what the index says of the paths that are about to change.
func inStep(ctx context.Context, repo *gitrepo.Repo, changes []Change) (map[string]string, error) {
	paths := make([]string, 0, len(changes))
	for _, c := range changes {
		if c.Before != c.After {
			paths = append(paths, c.Path)
		}
	}
	return repo.InStep(ctx, paths)
}

// updateIndex brings the index up to date after a publish. What it could not do
// is a note: git status tells the truth all the same, of a change that is not
// staged.
func updateIndex(ctx context.Context, repo *gitrepo.Repo, changes []Change, was map[string]string) []string {
	if err := repo.UpdateIndex(ctx, was); err != nil {
		return []string{"the index was left as it is: " + err.Error()}
	}
	var left []string
	for _, c := range changes {
		if _, ok := was[c.Path]; !ok && c.Before != c.After {
			left = append(left, c.Path)
		}
	}
	if len(left) > 0 {
		return []string{"the index was left as it is where it had been staged otherwise: " + some(left)}
	}
	return nil
}
