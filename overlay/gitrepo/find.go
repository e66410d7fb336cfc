package gitrepo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// place is where the parts of a repository lie. All paths are absolute.
type place struct {
	root   string // top of the worktree; "" where there is none
	gitDir string // HEAD and index
	common string // objects and refs
}

// linked tells a linked worktree from the main one.
func (p place) linked() bool { return p.gitDir != p.common }

// find walks up from dir to a repository, as git does, without asking git.
// Something on the way that cannot be looked at is an error: what lies above it
// may be another repository than the one that was meant.
func find(dir string) (place, error) {
	abs, err := filepath.Abs(dir)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return place{}, &NotARepositoryError{Dir: dir, Detail: err.Error()}
	}
	for at := abs; ; at = filepath.Dir(at) {
		p, found, err := lookAt(at)
		if err != nil {
			return place{}, &NotARepositoryError{Dir: dir, Detail: err.Error()}
		}
		if found {
			return p, nil
		}
		if at == filepath.Dir(at) {
			return place{}, &NotARepositoryError{Dir: dir, Detail: "neither it nor a directory above it holds .git"}
		}
	}
}

// lookAt tells whether a directory is the top of a worktree or a git directory.
func lookAt(dir string) (p place, found bool, err error) {
	dot := filepath.Join(dir, ".git")
	st, err := os.Stat(dot)
	switch {
	case absent(err):
	case err != nil:
		return p, false, err
	case st.IsDir():
		if found, err = isGitDir(dot); err != nil || found {
			return finish(dir, dot, err)
		}
	default:
		gitDir, err := followFile(dot)
		return finish(dir, gitDir, err)
	}
	if found, err = isGitDir(dir); err != nil || found {
		return finish("", dir, err)
	}
	return p, false, nil
}

// isGitDir asks for what gitrepository-layout(5) says must be there.
func isGitDir(dir string) (bool, error) {
	if _, err := os.Lstat(filepath.Join(dir, "HEAD")); err != nil {
		return false, unlessAbsent(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "commondir")); err == nil {
		return true, nil
	}
	for _, name := range []string{"objects", "refs"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false, unlessAbsent(err)
		}
	}
	return true, nil
}

func unlessAbsent(err error) error {
	if absent(err) {
		return nil
	}
	return err
}

// followFile reads a .git file: "gitdir: <path>".
func followFile(path string) (string, error) {
	text, err := readSmall(path)
	if err != nil {
		return "", err
	}
	target, ok := strings.CutPrefix(text, "gitdir: ")
	if !ok || target == "" {
		return "", errors.New("its .git file does not begin with \"gitdir: \"")
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(path), target)
	}
	return filepath.Clean(target), nil
}

// finish completes the place of a git directory that was found.
func finish(root, gitDir string, err error) (place, bool, error) {
	if err != nil {
		return place{}, false, err
	}
	p := place{root: root, gitDir: gitDir, common: gitDir}
	text, err := readSmall(filepath.Join(gitDir, "commondir"))
	switch {
	case err == nil:
		p.common = text
		if !filepath.IsAbs(text) {
			p.common = filepath.Join(gitDir, text)
		}
		p.common = filepath.Clean(p.common)
	case !absent(err):
		return place{}, false, err
	}
	if _, err := os.Stat(filepath.Join(p.common, "objects")); err != nil {
		return place{}, false, fmt.Errorf("its git directory %q is no longer whole: %w", gitDir, err)
	}
	return p, true, nil
}
