package publish

import (
	"io"
	"time"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// State is what lies at a path, as it lies there: of a file whose line endings
// git converts these are the bytes in the worktree, not git's.
type State struct {
	Mode uint32          `json:"mode,omitzero"` // git's: 0100644, 0100755 or 0120000; 0 where there is nothing
	Blob schemas.BlobRef `json:"blob,omitzero"` // of a symlink, its target
}

// Change is what becomes of one path. A rename is a deletion and a creation.
type Change struct {
	Path   string
	Before State // what must lie there; a directory without files counts as nothing
	After  State
}

// Content gives the bytes that the states of changes name. It is used from
// several goroutines at once.
type Content interface {
	// OpenBlob opens a blob and tells its size in bytes.
	OpenBlob(ref schemas.BlobRef) (io.ReadCloser, int64, error)
}

// Options of one publish.
type Options struct {
	// Checked is the caller's word that what was checked is exactly the tree that
	// this publish makes. Without it no guarantee is called staged_snapshot.
	Checked bool

	// Index, where not nil, is the repository whose index is brought up to date
	// for the paths that were published and whose entry was what Before says.
	Index *gitrepo.Repo

	// IgnoreExec leaves executable bits out of what is compared, as git does where
	// core.filemode is false.
	IgnoreExec bool

	// Fault is called at each step with its name, for tests that stop there.
	Fault func(point string)
}

// Result tells of a publish that was committed.
type Result struct {
	ID        string // names this publish to Undo
	Guarantee schemas.TransactionGuarantee
	Changed   []string // paths, sorted
	Limits    []string // why the guarantee is not the best one
	Notes     []string // what else the caller may want to know
	Kept      []Kept   // files of others that were set aside meanwhile
}

// Kept is a file that could not stay or be put back where it was, because
// another program had written the path. Its bytes are at File until then.
type Kept struct {
	Path  string
	File  string // absolute
	Until time.Time
}

// Recovery is what Open found of a publish that a crash had ended.
type Recovery struct {
	ID       string
	Forward  bool     // it had been committed and was finished; else it was taken back
	Restored []string // paths that were put back
	Left     []Left   // paths that another program had written since
}

// Left is a path that was not put back, since it was no longer what the publish
// had written.
type Left struct {
	Path   string
	Detail string
	Kept   string // the file in which content lies that could not stay at the path; "" where there is none
}
