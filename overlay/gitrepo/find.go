package gitrepo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
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

// find walks up from dir to a repository, as git does, without asking git.
func find(dir string) (place, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return place{}, fmt.Errorf("find the repository: %w", err)
	}
	abs, err = filepath.EvalSymlinks(abs)
	if err != nil {
		return place{}, &NotARepositoryError{Dir: dir, Detail: err.Error()}
	}
	for at := abs; ; at = filepath.Dir(at) {
		dot := filepath.Join(at, ".git")
		switch st, err := os.Stat(dot); {
		case err == nil && st.IsDir():
			if looksLikeGitDir(dot) {
				return finish(at, dot)
			}
		case err == nil && st.Mode().IsRegular():
			gitDir, err := followFile(dot)
			if err != nil {
				return place{}, err
			}
			return finish(at, gitDir)
		case err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission):
			return place{}, &NotARepositoryError{Dir: dir, Detail: err.Error()}
		}
		if looksLikeGitDir(at) {
			return finish("", at)
		}
		if at == filepath.Dir(at) {
			return place{}, &NotARepositoryError{Dir: dir, Detail: "neither it nor a directory above it holds .git"}
		}
	}
}

func looksLikeGitDir(dir string) bool {
	for _, name := range []string{"HEAD"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	_, objects := os.Stat(filepath.Join(dir, "objects"))
	_, common := os.Stat(filepath.Join(dir, "commondir"))
	return objects == nil || common == nil
}

// followFile reads a .git file: "gitdir: <path>".
func followFile(path string) (string, error) {
	text, err := readSmall(path)
	if err != nil {
		return "", &NotARepositoryError{Dir: path, Detail: err.Error()}
	}
	target, ok := strings.CutPrefix(text, "gitdir: ")
	if !ok {
		return "", &NotARepositoryError{Dir: path, Detail: "the file does not begin with \"gitdir: \""}
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(path), target)
	}
	return filepath.Clean(target), nil
}

func finish(root, gitDir string) (place, error) {
	p := place{root: root, gitDir: gitDir, common: gitDir}
	text, err := readSmall(filepath.Join(gitDir, "commondir"))
	if err == nil {
		p.common = text
		if !filepath.IsAbs(text) {
			p.common = filepath.Join(gitDir, text)
		}
		p.common = filepath.Clean(p.common)
	} else if !errors.Is(err, os.ErrNotExist) {
		return place{}, &NotARepositoryError{Dir: gitDir, Detail: err.Error()}
	}
	if _, err := os.Stat(filepath.Join(p.common, "objects")); err != nil {
		return place{}, &NotARepositoryError{Dir: gitDir, Detail: err.Error()}
	}
	return p, nil
}

// readSmall reads the one line of a file of git's.
func readSmall(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return "", err
	}
	return string(bytes.TrimRight(b, "\r\n")), nil
}
