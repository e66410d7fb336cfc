package gitrepo

import (
	"fmt"
	"strings"
)

// NotARepositoryError says that there is no git repository.
type NotARepositoryError struct{ Dir, Detail string }

func (e *NotARepositoryError) Error() string {
	return fmt.Sprintf("%q is not in a git repository (%s); use --repo to name one", e.Dir, e.Detail)
}

// UnknownRevisionError says that a revision names nothing.
type UnknownRevisionError struct{ Rev, Detail string }

func (e *UnknownRevisionError) Error() string {
	return fmt.Sprintf("the revision %q is not known here%s; check the name, or fetch it first (a shallow clone lacks older commits)", e.Rev, e.Detail)
}

// NoMergeBaseError says that two revisions have no common ancestor here.
type NoMergeBaseError struct{ A, B string }

func (e *NoMergeBaseError) Error() string {
	return fmt.Sprintf("%q and %q have no common ancestor in this clone; fetch more history, or compare them directly with --range %s..%s", e.A, e.B, e.A, e.B)
}

// UnsupportedNameError lists paths that ASP cannot carry.
type UnsupportedNameError struct{ Names []string }

func (e *UnsupportedNameError) Error() string {
	shown := make([]string, 0, 5)
	for i, n := range e.Names {
		if i == 5 {
			shown = append(shown, fmt.Sprintf("and %d more", len(e.Names)-5))
			break
		}
		shown = append(shown, fmt.Sprintf("%q", n))
	}
	return "the change touches paths that ASP 1.0 cannot carry (not UTF-8, or with a backslash): " + strings.Join(shown, ", ") +
		"; rename them, nothing was evaluated"
}

// DamagedError says that git could not read the repository.
type DamagedError struct{ Doing, Detail string }

func (e *DamagedError) Error() string {
	return fmt.Sprintf("git could not %s: %s; run git fsck", e.Doing, e.Detail)
}

// NoWorktreeError says that a bare repository was asked for its worktree.
type NoWorktreeError struct{ Dir string }

func (e *NoWorktreeError) Error() string {
	return fmt.Sprintf("%q is a bare repository, it has no worktree; use --base, --range or --tree", e.Dir)
}
