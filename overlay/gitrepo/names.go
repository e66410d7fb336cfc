package gitrepo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
)

// IgnoredAmong tells which of paths git would ignore, were they new: the
// worktree's own rules count, whatever other rules lie beside the files.
func (r *Repo) IgnoredAmong(ctx context.Context, paths []string) (map[string]bool, error) {
	out := map[string]bool{}
	if len(paths) == 0 || r.place.root == "" {
		return out, nil
	}
	var in bytes.Buffer
	for _, p := range paths {
		if p == "" || strings.ContainsRune(p, 0) {
			return nil, &EditError{Path: p, Detail: "is no path"}
		}
		in.WriteString(p)
		in.WriteByte(0)
	}
	err := r.withIndex(ctx, func(index string) error {
		return r.each(ctx, index, "look for ignored files", &in, func(rec []byte) error {
			out[string(rec)] = true
			return nil
		}, "check-ignore", "-z", "--stdin")
	})
	return out, err
}

// PutBlobAs stores what lies in a worktree at a path as git would add it: with
// the line endings and the encoding that the repository has it in.
func (r *Repo) PutBlobAs(ctx context.Context, path string, content io.Reader) (oid OID, err error) {
	err = r.withIndex(ctx, func(index string) error {
		out, err := r.run(ctx, runOptions{index: index, stdin: content, limit: 1 << 16, doing: fmt.Sprintf("store %q", path)}, "hash-object", "-w", "--stdin", "--path="+path)
		if err != nil {
			return err
		}
		if oid = OID(strings.TrimSpace(string(out))); !validOID(string(oid)) {
			return &DamagedError{Doing: "store a blob", Detail: fmt.Sprintf("it answered %.60q", oid)}
		}
		return nil
	})
	return oid, err
}

// DiffFormat is how Diff writes a difference.
type DiffFormat string

// Formats of Diff.
const (
	DiffPatch    DiffFormat = "patch"
	DiffStat     DiffFormat = "stat"
	DiffNameOnly DiffFormat = "name-only"
)

// maxDiff bounds a difference in text, in bytes.
const maxDiff = 256 << 20

// Diff writes the difference of two trees as git does, renames found. What a
// repository configures for diffs is not run.
func (r *Repo) Diff(ctx context.Context, a, b OID, format DiffFormat) ([]byte, error) {
	args := []string{"diff-tree", "-r", "-M", "--no-ext-diff", "--no-textconv", "--no-color"}
	switch format {
	case DiffStat:
		args = append(args, "--stat=100", "--summary")
	case DiffNameOnly:
		args = append(args, "--name-only", "-z")
	default:
		args = append(args, "-p", "--binary", "--full-index")
	}
	return r.run(ctx, runOptions{limit: maxDiff, doing: "compare two trees"}, append(args, string(a), string(b))...)
}
