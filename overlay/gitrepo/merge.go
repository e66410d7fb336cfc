package gitrepo

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
)

// maxMerged bounds what a merge makes, in bytes.
const maxMerged = 256 << 20

// MergeFile merges what two sides made of one text, as git merge-file does.
// clean is false where they changed the same lines; then merged means nothing.
func (r *Repo) MergeFile(ctx context.Context, base, ours, theirs []byte) (merged []byte, clean bool, err error) {
	err = r.inScratch(func(dir string) error {
		args := []string{"merge-file", "-p", "-q", "--diff3"}
		for _, f := range []struct {
			name string
			text []byte
		}{{"ours", ours}, {"base", base}, {"theirs", theirs}} {
			at := filepath.Join(dir, f.name)
			if err := os.WriteFile(at, f.text, 0o600); err != nil {
				return err
			}
			args = append(args, at)
		}
		merged, err = r.run(ctx, runOptions{limit: maxMerged, doing: "merge a file"}, args...)
		// The exit code is the number of conflicts, up to 127, or 255.
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() > 0 && exit.ExitCode() < 128 {
			return nil
		}
		clean = err == nil
		return err
	})
	return merged, clean, err
}
