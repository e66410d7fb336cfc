package overlay

import (
	"path/filepath"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
)

// SourceOf is what a work area over a repository's worktree lies over: the
// worktree with its git directory and, where that lies elsewhere (of a linked
// worktree or a submodule), the directory with the objects and refs beside it.
//
// Frozen files are others to git than those that its index knows, by inode and
// ctime: the first git status in the work area reads every file, unless git is
// told to go by size and mtime (core.checkStat=minimal, core.trustctime=false).
func SourceOf(repo *gitrepo.Repo) (WorkSource, error) {
	src := WorkSource{Dir: repo.Root(), Ignored: repo.Ignored}
	if src.Dir == "" {
		return src, &gitrepo.NoWorktreeError{Dir: repo.CommonDir()}
	}
	root, err := filepath.EvalSymlinks(src.Dir)
	if err != nil {
		return src, err
	}
	common, err := filepath.EvalSymlinks(repo.CommonDir())
	if err != nil {
		return src, err
	}
	if in, err := filepath.Rel(root, common); err != nil || !filepath.IsLocal(in) {
		src.Also = []string{common}
	}
	return src, nil
}
