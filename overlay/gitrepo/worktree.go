package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
)

// withIndex runs fn with a private copy of the repository's index, which the
// real one never notices. A copy keeps the stat data by which git knows
// unchanged files without reading them, and the time of the original: git takes
// a file whose time is not before the index's for one that may have changed.
func (r *Repo) withIndex(ctx context.Context, fn func(index string) error) error {
	if err := r.syncRules(ctx); err != nil {
		return err
	}
	return r.inScratch(func(dir string) error {
		index := filepath.Join(dir, "index")
		if err := copyFile(filepath.Join(r.place.gitDir, "index"), index, maxIndex); err != nil && !absent(err) {
			return &DamagedError{Doing: "copy the index", Detail: err.Error()}
		}
		if err := r.copyShared(); err != nil {
			return fmt.Errorf("copy the index: %w", err)
		}
		return fn(index)
	})
}

// copyShared copies the shared parts of a split index, which git looks for in
// its git directory and whose time it changes when it reads them. Their names
// are digests of what they hold.
func (r *Repo) copyShared() error {
	shared, err := filepath.Glob(filepath.Join(globQuote(r.place.gitDir), "sharedindex.*"))
	if err != nil {
		return err
	}
	for _, from := range shared {
		to := filepath.Join(r.shadow, filepath.Base(from))
		if _, err := os.Lstat(to); err == nil {
			continue
		}
		err := r.inScratch(func(dir string) error {
			whole := filepath.Join(dir, "shared")
			if err := copyFile(from, whole, maxIndex); err != nil {
				return err
			}
			return os.Rename(whole, to)
		})
		if err != nil && !absent(err) {
			return err
		}
	}
	return nil
}

// globQuote makes a path mean itself in a pattern.
func globQuote(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// IndexTree writes the tree of the index, into the shadow.
func (r *Repo) IndexTree(ctx context.Context) (tree OID, err error) {
	if r.place.root == "" {
		return "", &NoWorktreeError{Dir: r.place.gitDir}
	}
	err = r.withIndex(ctx, func(index string) error {
		tree, err = r.writeTree(ctx, index)
		return err
	})
	return tree, err
}

// writeTree writes the tree of an index. Objects that the index names need not
// be here: a partial clone lacks those of files that are not checked out.
func (r *Repo) writeTree(ctx context.Context, index string) (OID, error) {
	if _, err := os.Stat(index); errors.Is(err, os.ErrNotExist) {
		return r.EmptyTree(), nil
	}
	out, err := r.run(ctx, runOptions{index: index, limit: 1 << 16, doing: "write the tree of the index"}, "write-tree", "--missing-ok")
	if err != nil {
		return "", r.explainIndex(ctx, index, err)
	}
	oid := strings.TrimSpace(string(out))
	if !validOID(oid) {
		return "", &DamagedError{Doing: "write a tree", Detail: fmt.Sprintf("it answered %.60q", oid)}
	}
	return OID(oid), nil
}

// explainIndex tells an index with conflicts from one that is damaged.
func (r *Repo) explainIndex(ctx context.Context, index string, cause error) error {
	var unmerged []string
	err := r.each(ctx, index, "look for conflicts", nil, func(rec []byte) error {
		_, path, _ := strings.Cut(string(rec), "\t")
		if n := len(unmerged); n == 0 || unmerged[n-1] != path { // once for each side
			unmerged = append(unmerged, path)
		}
		return nil
	}, "ls-files", "-z", "--unmerged")
	if err != nil || len(unmerged) == 0 {
		return cause
	}
	return &UnmergedError{Paths: unmerged}
}

// WorktreeTree writes the tree of the worktree as it lies, into the shadow:
// tracked files with their changes, untracked ones, no ignored ones. It is the
// tree that `git add --all` and a commit would make, with two differences: no
// filter driver runs, so that a file is stored as it lies (one of Git LFS that
// was changed is stored whole); and what git would only warn about or leave out
// is an error.
//
// As git does, it takes the word of the index for files marked skip-worktree or
// assume-unchanged. Line endings, encodings and $Id$ are converted where
// .gitattributes and core.autocrlf say so, which runs no command. Of a submodule
// only the commit that it is at is read.
func (r *Repo) WorktreeTree(ctx context.Context) (tree OID, err error) {
	if r.place.root == "" {
		return "", &NoWorktreeError{Dir: r.place.gitDir}
	}
	err = r.withIndex(ctx, func(index string) error {
		var changed, untracked []byte
		g, gctx := errgroup.WithContext(ctx)
		g.Go(func() (err error) {
			changed, err = r.run(gctx, runOptions{index: index, doing: "look for changed files"},
				"diff-files", "-z", "--name-status", "--ignore-submodules=dirty", "--no-ext-diff")
			return err
		})
		g.Go(func() (err error) {
			untracked, err = r.run(gctx, runOptions{index: index, doing: "look for untracked files"},
				"ls-files", "-z", "--others", "--exclude-standard")
			return err
		})
		if err := g.Wait(); err != nil {
			return err
		}
		if len(changed)+len(untracked) == 0 {
			tree, err = r.treeOfIndex(ctx, index)
			return err
		}
		gone, found, err := sortChanges(changed)
		if err != nil {
			return err
		}
		if err := r.dropFromIndex(ctx, index, gone); err != nil {
			return err
		}
		if err := r.addToIndex(ctx, index, found, untracked); err != nil {
			return err
		}
		tree, err = r.writeTree(ctx, index)
		return err
	})
	return tree, err
}

// sortChanges reads "status NUL path NUL" records of diff-files: gone are the
// deleted paths, found the others, each ended by NUL.
func sortChanges(out []byte) (gone, found []byte, err error) {
	status, odd := "", false
	err = records(bytes.NewReader(out), func(rec []byte) error {
		switch {
		case !odd:
			status = string(rec)
		case status == "D":
			gone = append(append(gone, rec...), 0)
		default:
			found = append(append(found, rec...), 0)
		}
		odd = !odd
		return nil
	})
	if err == nil && odd {
		err = errors.New("git's list of changed files ends in the middle")
	}
	return gone, found, err
}

// dropFromIndex removes paths. It looks at no file: what was a directory may be
// a symlink now, and update-index refuses to look through one.
func (r *Repo) dropFromIndex(ctx context.Context, index string, paths []byte) error {
	if len(paths) == 0 {
		return nil
	}
	var info bytes.Buffer
	for path := range bytes.SplitSeq(paths[:len(paths)-1], []byte{0}) {
		fmt.Fprintf(&info, "0 %s\t%s\x00", strings.Repeat("0", len(r.EmptyTree())), path)
	}
	_, err := r.run(ctx, runOptions{index: index, stdin: &info, limit: 1 << 16, doing: "leave out deleted files"}, "update-index", "-z", "--index-info")
	return err
}

// addToIndex stores files as they lie.
func (r *Repo) addToIndex(ctx context.Context, index string, found, untracked []byte) error {
	// A name that ends in a slash is a repository inside of this one, which
	// becomes an entry for the commit that it is at.
	paths := append(found, bytes.ReplaceAll(untracked, []byte("/\x00"), []byte("\x00"))...)
	if len(paths) == 0 {
		return nil
	}
	var notes limited
	_, err := r.run(ctx, runOptions{index: index, stdin: bytes.NewReader(paths), limit: 1 << 20, notes: &notes, doing: "read changed files"},
		"update-index", "-z", "--add", "--remove", "--replace", "--stdin")
	var failed *gitError
	switch {
	case errors.As(err, &failed) && strings.Contains(failed.stderr, "is a directory - add files inside instead"):
		return &WorktreeError{Detail: "a repository without a commit lies in it (" + failed.detail() + ")"}
	case errors.As(err, &failed) && ctx.Err() == nil:
		return &WorktreeError{Detail: failed.detail()}
	case err != nil:
		return err
	}
	if notes.full() {
		return &WorktreeError{Detail: fmt.Sprintf("git has too much to say about it: %.200q", notes.String())}
	}
	// Git leaves out names that it holds for dangerous, and calls that success.
	var refused []string
	for line := range strings.Lines(notes.String()) {
		if name, ok := strings.CutPrefix(line, "Ignoring path "); ok {
			refused = append(refused, strings.TrimSuffix(name, "\n"))
		}
	}
	if len(refused) > 0 {
		return &UnsupportedNameError{Names: refused}
	}
	return nil
}
