package supervise

import (
	"context"
	"io"

	"github.com/aspis-dev/aspis/schemas"
)

// Content is what one request refers to: a baseline and the blobs of a change.
// Whatever it gives is still filtered by the session's grant.
type Content interface {
	Baseline() schemas.Baseline
	// Entries calls fn for each file and symlink of the baseline in path order
	// until fn returns an error, which it returns.
	Entries(ctx context.Context, fn func(schemas.TreeEntry) error) error
	// Entry finds one path of the baseline.
	Entry(ctx context.Context, path string) (schemas.TreeEntry, bool, error)
	// Paths returns the paths at which the baseline or the change refers to a
	// blob; none means that the blob is not referenced.
	Paths(ctx context.Context, ref schemas.BlobRef) ([]string, error)
	// Open gives the verified bytes of a blob and their number.
	Open(ctx context.Context, ref schemas.BlobRef) (io.ReadCloser, int64, error)
}
