package apply

import (
	"path"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"

	"github.com/aspis-dev/aspis/schemas"
)

// Refusal says why a path may never be written by a plan.
func Refusal(p string) string {
	if err := schemas.ValidPath(p); err != nil {
		return err.Error()
	}
	for seg := range strings.SplitSeq(p, "/") {
		if isDotGit(seg) {
			return "it lies in .git, or in what some file systems take for it"
		}
	}
	return ""
}

// isDotGit reports whether any file system that git runs on could take a name
// for .git: HFS+ ignores some characters and folds Unicode, NTFS ignores case,
// trailing dots and spaces, streams, and knows the short name GIT~1.
func isDotGit(seg string) bool {
	s := strings.Map(func(r rune) rune {
		if ignoredByHFS(r) {
			return -1
		}
		return unicode.ToLower(r)
	}, norm.NFKC.String(seg))
	s, _, _ = strings.Cut(s, ":")
	s = strings.TrimRight(s, ". ")
	if s == "" {
		return false
	}
	return s == ".git" || s == "git~1"
}

// ignoredByHFS lists the code points that HFS+ leaves out when it compares
// names, as git's own check does (CVE-2014-9390).
func ignoredByHFS(r rune) bool {
	return (r >= 0x200c && r <= 0x200f) || (r >= 0x202a && r <= 0x202e) || (r >= 0x206a && r <= 0x206f) || r == 0xfeff
}

// Protected reports why a path, though it may be written, makes some machine run
// code by being there; "" when it does not. Writing one must be allowed by
// policy, and is always named.
func Protected(p string) string {
	low := strings.ToLower(p)
	base := path.Base(low)
	for _, rule := range []struct {
		match bool
		why   string
	}{
		{inDir(low, ".asp"), "it is policy"},
		{inDir(low, ".github/workflows") || inDir(low, ".github/actions") || base == ".gitlab-ci.yml" || inDir(low, ".circleci") || base == "jenkinsfile" ||
			base == ".travis.yml" || base == "azure-pipelines.yml" || inDir(low, ".buildkite") || base == "bitbucket-pipelines.yml" || inDir(low, ".woodpecker"), "a CI system runs it"},
		{base == ".envrc" || base == ".direnvrc" || base == ".mise.toml" || base == ".tool-versions", "a shell runs it on entering the directory"},
		{inDir(low, ".vscode") || inDir(low, ".idea") || inDir(low, ".zed") || inDir(low, ".devcontainer") || base == ".exrc" || base == ".nvimrc" || base == ".dir-locals.el", "an editor runs what it says"},
		{inDir(low, ".claude") || inDir(low, ".cursor") || inDir(low, ".codex") || inDir(low, ".gemini") || inDir(low, ".aider") || base == ".aider.conf.yml" || base == ".mcp.json", "an agent does what it says"},
		{inDir(low, ".husky") || inDir(low, ".githooks") || base == ".pre-commit-config.yaml" || base == "lefthook.yml", "git hooks run it"},
		{base == ".gitattributes" || base == ".gitmodules", "git does what it says"},
	} {
		if rule.match {
			return rule.why
		}
	}
	return ""
}

// LinkRefusal says why a symlink may not be made at a path of the workspace: one
// that leads out of it, or into the git directory, would let a later write
// through it go where no plan may.
func LinkRefusal(at, target string) string {
	switch {
	case target == "" || strings.ContainsRune(target, 0) || len(target) > 4095:
		return "leads to no path"
	case path.IsAbs(target):
		return "leads to an absolute path"
	}
	to := path.Join(path.Dir(at), target)
	if to == ".." || strings.HasPrefix(to, "../") {
		return "leads out of the workspace"
	}
	for seg := range strings.SplitSeq(to, "/") {
		if isDotGit(seg) {
			return "leads into .git"
		}
	}
	return ""
}

// inDir reports whether p lies in dir, at the top or anywhere below.
func inDir(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, dir+"/") || strings.Contains(p, "/"+dir+"/")
}
