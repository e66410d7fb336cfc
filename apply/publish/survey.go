package publish

import (
	"context"
	"errors"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/apply"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
)

// batch is how many paths one worker takes at a time: in path order they share
// directories. maxWorkers bounds the workers.
const (
	batch      = 32
	maxWorkers = 8
)

// each calls fn for 0..n-1 from several goroutines, each with a looker and a
// cursor of its own.
func (w *Workspace) each(ctx context.Context, n int, ignoreExec bool, fn func(ctx context.Context, l *looker, c *cursor, i int) error) error {
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range min(runtime.GOMAXPROCS(0), (n+batch-1)/batch, maxWorkers) {
		g.Go(func() error {
			l := &looker{ignoreExec: ignoreExec}
			c := &cursor{tree: w.tree}
			defer c.close()
			for {
				from := int(next.Add(batch)) - batch
				if from >= n {
					return nil
				}
				for i := from; i < min(from+batch, n); i++ {
					if ctx.Err() != nil {
						return context.Cause(ctx)
					}
					if err := fn(ctx, l, c, i); err != nil {
						return err
					}
				}
			}
		})
	}
	return g.Wait()
}

// validate puts changes in the order in which they are carried out: what deletes
// first, then by path. Changes that could never be published are an
// *InvalidError.
func validate(changes []Change) ([]Change, error) {
	if len(changes) > maxOps {
		return nil, &InvalidError{Path: changes[0].Path, Detail: fmt.Sprintf("is one of more than %d paths", maxOps)}
	}
	out := slices.Clone(changes)
	slices.SortFunc(out, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	after := map[string]bool{}
	for i, c := range out {
		if why := apply.Refusal(c.Path); why != "" {
			return nil, &InvalidError{Path: c.Path, Detail: "may never be written: " + why}
		}
		if i > 0 && out[i-1].Path == c.Path {
			return nil, &InvalidError{Path: c.Path, Detail: "is changed twice"}
		}
		for _, s := range []State{c.Before, c.After} {
			if _, ok := s.Blob.Hex(); s.Mode != 0 && !ok || s.Mode == 0 && s.Blob != "" {
				return nil, &InvalidError{Path: c.Path, Detail: "has a state without a proper blob"}
			}
			if s.Mode != 0 && s.Mode != gitrepo.ModeFile && s.Mode != gitrepo.ModeExec && s.Mode != gitrepo.ModeSymlink {
				return nil, &InvalidError{Path: c.Path, Detail: fmt.Sprintf("has the mode %o; only files and symlinks are published", s.Mode)}
			}
		}
		if c.After.Mode != 0 {
			after[c.Path] = true
		}
	}
	for _, c := range out {
		for d := path.Dir(c.Path); c.After.Mode != 0 && d != "."; d = path.Dir(d) {
			if after[d] {
				return nil, &InvalidError{Path: c.Path, Detail: fmt.Sprintf("lies below %q, which is to be a file", d)}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Change) int {
		x, y := a.After.Mode == 0, b.After.Mode == 0
		switch {
		case x && !y:
			return -1
		case y && !x:
			return 1
		}
		return 0
	})
	return out, nil
}

// survey is what was found before anything is changed.
type survey struct {
	found     []sight // by change
	over      []bool  // a directory without files lies there, which makes room
	dirs      []string
	conflicts []Conflict
	folded    map[string]string
}

func (s *survey) isFolded(p string) bool {
	other, ok := s.folded[strings.ToLower(p)]
	return ok && other != p
}

// survey looks at the directories that changes lie in, and at every path.
func (w *Workspace) survey(ctx context.Context, changes []Change, ignoreExec bool) (*survey, error) {
	s := &survey{found: make([]sight, len(changes)), over: make([]bool, len(changes)), folded: foldedNames(changes)}
	deleted := map[string]bool{}
	for _, c := range changes {
		if c.After.Mode == 0 {
			deleted[c.Path] = true
		}
	}
	barred, err := w.surveyDirs(changes, deleted, s)
	if err != nil {
		return nil, err
	}
	found := make([]*Conflict, len(changes))
	err = w.each(ctx, len(changes), ignoreExec, func(ctx context.Context, l *looker, c *cursor, i int) (err error) {
		if found[i] = barred[path.Dir(changes[i].Path)]; found[i] == nil {
			found[i], err = w.surveyPath(ctx, l, c, changes[i], deleted, s, i)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, c := range found {
		if c != nil {
			s.conflicts = append(s.conflicts, Conflict{Path: changes[i].Path, Expected: changes[i].Before, Found: c.Found, Detail: c.Detail})
		}
	}
	return s, w.sameFiles(changes, s)
}

func (w *Workspace) surveyPath(ctx context.Context, l *looker, c *cursor, ch Change, deleted map[string]bool, s *survey, i int) (*Conflict, error) {
	dir, name, err := c.at(ch.Path)
	if noDirectory(err) {
		if ch.Before.Mode == 0 {
			return nil, nil
		}
		return &Conflict{Detail: describe(sight{}, ch.Before)}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the directory of %q: %w", ch.Path, err)
	}
	found, err := l.look(ctx, dir, name)
	if err != nil {
		return nil, fmt.Errorf("look at %q: %w", ch.Path, err)
	}
	s.found[i] = found
	if found.dir && ch.Before.Mode == 0 && ch.After.Mode != 0 {
		// Its files are to be deleted by this very change, or there are none.
		s.over[i], err = w.emptiedBy(dir, name, ch.Path, deleted, 0)
		if err != nil {
			return nil, fmt.Errorf("look into %q: %w", ch.Path, err)
		}
		if s.over[i] {
			return nil, nil
		}
	}
	if found.exists() && ch.Before.Mode == 0 && s.isFolded(ch.Path) {
		return nil, nil
	}
	if !l.matches(found, ch.Before) || found.quiet == quietNo {
		return &Conflict{Found: found.state, Detail: describe(found, ch.Before)}, nil
	}
	return nil, nil
}

// foldedNames gives the paths that are deleted by their names in lower case: on a
// file system that folds case one that is created may be the same.
func foldedNames(changes []Change) map[string]string {
	out := map[string]string{}
	for _, c := range changes {
		if c.After.Mode == 0 {
			out[strings.ToLower(c.Path)] = c.Path
		}
	}
	return out
}

// emptiedBy tells whether every file below a directory is deleted.
func (w *Workspace) emptiedBy(dir int, name, p string, deleted map[string]bool, depth int) (bool, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if noDirectory(err) || depth > maxDepth {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return eachEntry(fd, func(dir int, e string, isDir bool) (bool, error) {
		below := p + "/" + e
		if !isDir {
			return deleted[below], nil
		}
		return w.emptiedBy(dir, e, below, deleted, depth+1)
	})
}

// surveyDirs looks at every directory that is needed, parents first. barred are
// those in which nothing can be published, with the reason.
func (w *Workspace) surveyDirs(changes []Change, deleted map[string]bool, s *survey) (barred map[string]*Conflict, err error) {
	needed := map[string]bool{} // true: something is to be there
	for _, c := range changes {
		for d := path.Dir(c.Path); d != "."; d = path.Dir(d) {
			needed[d] = needed[d] || c.After.Mode != 0
		}
	}
	dirs := make([]string, 0, len(needed))
	for d := range needed {
		dirs = append(dirs, d)
	}
	slices.Sort(dirs)
	barred = map[string]*Conflict{}
	for _, d := range dirs {
		if b := barred[path.Dir(d)]; b != nil {
			barred[d] = b
			continue
		}
		fd, err := w.tree.openDir(d)
		switch {
		case err == nil:
			var st unix.Stat_t
			if unix.Fstatat(fd, ".git", &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
				barred[d] = &Conflict{Detail: fmt.Sprintf("lies in %q, which is a repository of its own", d)}
			}
			unix.Close(fd)
		case errors.Is(err, unix.ENOENT), noDirectory(err) && (deleted[d] || slices.Contains(s.dirs, path.Dir(d))):
			if needed[d] {
				s.dirs = append(s.dirs, d)
			}
		case noDirectory(err):
			barred[d] = &Conflict{Detail: fmt.Sprintf("lies below %q, which is no directory", d)}
		case errors.Is(err, unix.EXDEV):
			barred[d] = &Conflict{Detail: fmt.Sprintf("lies below %q, where another file system is mounted", d)}
		default:
			return nil, fmt.Errorf("open %q: %w", d, err)
		}
	}
	return barred, nil
}

// sameFiles finds paths that are one file by two names, as on a file system that
// folds case.
func (w *Workspace) sameFiles(changes []Change, s *survey) error {
	type id struct{ dev, ino uint64 }
	seen := map[id]int{}
	for i, f := range s.found {
		if f.st.Ino == 0 || f.dir || changes[i].Before.Mode == 0 || f.st.Nlink > 1 {
			continue
		}
		at := id{f.st.Dev, f.st.Ino}
		if j, ok := seen[at]; ok {
			return &InvalidError{Path: changes[i].Path, Detail: fmt.Sprintf("and %q are one file here, as the file system folds names", changes[j].Path)}
		}
		seen[at] = i
	}
	return nil
}
