package publish

import (
	"context"
)

func (w *Workspace) mergeConflicts(ctx context.Context, changes []Change, s *survey, content Content) ([]Change, []string, Content, error) {
	return changes, nil, content, nil
}
