package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// indexWait bounds the wait for another git that holds the index.
const indexWait = time.Second

// IndexBusyError says that another git was changing the index.
type IndexBusyError struct{ Lock string }

func (e *IndexBusyError) Error() string {
	return fmt.Sprintf("the index is locked by another git (%q); if none runs, remove that file", e.Lock)
}

// maxArgs bounds the paths that are given to one git, in bytes.
const maxArgs = 64 << 10

// chunks parts paths so that they fit into arguments.
func chunks(paths []string, fn func([]string) error) error {
	for len(paths) > 0 {
		n, size := 0, 0
		for n < len(paths) && (n == 0 || size+len(paths[n]) < maxArgs) {
			size += len(paths[n]) + 1
			n++
		}
		if err := fn(paths[:n]); err != nil {
			return err
		}
		paths = paths[n:]
	}
	return nil
}

// InStep tells of which of some paths the index says what the worktree holds
// now, with what it says: "" where neither has the path. A path that was staged
// otherwise, is in conflict, or was touched without git's having looked since,
// is left out.
func (r *Repo) InStep(ctx context.Context, paths []string) (map[string]string, error) {
	if r.place.root == "" {
		return nil, &NoWorktreeError{Dir: r.place.gitDir}
	}
	out := map[string]string{}
	err := r.withIndex(ctx, func(index string) error {
		entries, err := r.indexEntries(ctx, index, paths)
		if err != nil {
			return err
		}
		for _, p := range paths {
			out[p] = entries[p]
		}
		return chunks(paths, func(some []string) error {
			args := append([]string{"--literal-pathspecs", "diff-files", "-z", "--name-only", "--ignore-submodules=dirty", "--no-ext-diff", "--"}, some...)
			changed, err := r.run(ctx, runOptions{index: index, doing: "compare the index with the worktree"}, args...)
			for p := range strings.SplitSeq(string(changed), "\x00") {
				delete(out, p)
			}
			return err
		})
	})
	return out, err
}

// indexEntries gives mode and id of paths of an index. One in conflict has
// several.
func (r *Repo) indexEntries(ctx context.Context, index string, paths []string) (map[string]string, error) {
	out := map[string]string{}
	if _, err := os.Stat(index); errors.Is(err, os.ErrNotExist) {
		return out, nil
	}
	return out, chunks(paths, func(some []string) error {
		args := append([]string{"--literal-pathspecs", "ls-files", "-z", "--stage", "--"}, some...)
		list, err := r.run(ctx, runOptions{index: index, doing: "read the index"}, args...)
		if err != nil {
			return err
		}
		return records(bytes.NewReader(list), func(rec []byte) error {
			head, p, _ := strings.Cut(string(rec), "\t")
			out[p] += head
			return nil
		})
	})
}

// UpdateIndex stages paths in the repository's own index as they lie in the
// worktree, as git add does, but runs no filter and no hook. A path of which the
// index no longer says what was is left alone. It takes git's lock on the index:
// *IndexBusyError where another git holds it for longer than a second. Objects
// go into the repository itself.
func (r *Repo) UpdateIndex(ctx context.Context, was map[string]string) error {
	if len(was) == 0 {
		return nil
	}
	name := filepath.Join(r.place.gitDir, "index")
	lock, err := lockIndex(ctx, name+".lock")
	if err != nil {
		return err
	}
	defer os.Remove(name + ".lock") // gone by then where all went well
	defer lock.Close()
	return r.withIndex(ctx, func(index string) error {
		paths := make([]string, 0, len(was))
		for p := range was {
			paths = append(paths, p)
		}
		slices.Sort(paths)
		now, err := r.indexEntries(ctx, index, paths)
		if err != nil {
			return err
		}
		var found, gone []byte
		for _, p := range paths {
			if now[p] != was[p] {
				continue
			}
			if isFile(r.place.root, p) {
				found = append(append(found, p...), 0)
			} else if now[p] != "" {
				gone = append(append(gone, p...), 0)
			}
		}
		if err := r.dropFromIndex(ctx, index, gone); err != nil {
			return err
		}
		if err := r.addToIndex(ctx, index, found, nil); err != nil {
			return err
		}
		if now, err = r.indexEntries(ctx, index, paths); err != nil {
			return err
		}
		var oids bytes.Buffer
		for _, entry := range now {
			if f := strings.Fields(entry); len(f) == 3 && validOID(f[1]) && f[0] != "160000" {
				fmt.Fprintln(&oids, f[1])
			}
		}
		if err := r.carry(ctx, &oids); err != nil {
			return err
		}
		return replaceIndex(index, lock, name)
	})
}

// isFile tells whether a file or a symlink lies at a path, below directories only.
func isFile(root, p string) bool {
	at := root
	for name := range strings.SplitSeq(p, "/") {
		at = filepath.Join(at, name)
		st, err := os.Lstat(at)
		if err != nil {
			return false
		}
		if at == filepath.Join(root, p) {
			return !st.IsDir()
		}
		if !st.IsDir() {
			return false
		}
	}
	return false
}

// lockIndex takes git's lock, by the rule of git's lockfile API.
func lockIndex(ctx context.Context, path string) (*os.File, error) {
	for end := time.Now().Add(indexWait); ; {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o666)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("lock the index: %w", err)
		}
		if time.Now().After(end) {
			return nil, &IndexBusyError{Lock: path}
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// replaceIndex makes an index the repository's. It keeps its time, by which git
// knows files that may have changed since.
func replaceIndex(from string, lock *os.File, name string) error {
	st, err := os.Stat(from)
	if errors.Is(err, os.ErrNotExist) {
		return nil // there was none, and nothing to add
	}
	if err != nil {
		return fmt.Errorf("write the index: %w", err)
	}
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("write the index: %w", err)
	}
	defer in.Close()
	_, err = lock.ReadFrom(in)
	if err == nil {
		if old, statErr := os.Stat(name); statErr == nil {
			err = lock.Chmod(old.Mode().Perm())
		}
	}
	if err == nil {
		err = os.Chtimes(lock.Name(), st.ModTime(), st.ModTime())
	}
	if err == nil {
		err = os.Rename(lock.Name(), name)
	}
	if err != nil {
		return fmt.Errorf("write the index: %w", err)
	}
	return nil
}
