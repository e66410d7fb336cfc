package publish

import (
	"context"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
)

func updateIndex(ctx context.Context, root string, repo *gitrepo.Repo, changes []Change) []string {
	return []string{"the index was left as it is"}
}
