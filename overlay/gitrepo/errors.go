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
	return "the change touches paths that cannot be carried (not UTF-8, with a backslash, or a name that git itself refuses): " +
		someNames(e.Names) + "; rename them, nothing was evaluated"
}

// someNames quotes the first few of names that may hold anything.
func someNames(names []string) string {
	shown := make([]string, 0, 6)
	for i, n := range names {
		if i == 5 {
			shown = append(shown, fmt.Sprintf("and %d more", len(names)-5))
			break
		}
		shown = append(shown, fmt.Sprintf("%q", n))
	}
	return strings.Join(shown, ", ")
}

// DamagedError says that git could not read the repository.
type DamagedError struct{ Doing, Detail string }

func (e *DamagedError) Error() string {
	return fmt.Sprintf("git could not %s: %s; run git fsck", e.Doing, e.Detail)
}

// MissingObjectError says that an object is not in this clone.
type MissingObjectError struct {
	Name      string // as it was asked for
	Ambiguous bool   // several objects begin like this
	Partial   bool   // the clone is one that leaves objects out
}

func (e *MissingObjectError) Error() string {
	switch {
	case e.Ambiguous:
		return fmt.Sprintf("several objects begin with %q; give more of its digits", e.Name)
	case e.Partial:
		return fmt.Sprintf("the object %s is not in this partial clone, and nothing is fetched for a check; fetch it with git, or clone without --filter", e.Name)
	}
	return fmt.Sprintf("the object %s is missing in this repository; run git fsck, or clone it anew", e.Name)
}

// UnmergedError lists paths of the index that are in conflict.
type UnmergedError struct{ Paths []string }

func (e *UnmergedError) Error() string {
	return "the index holds conflicts and so is no tree: " + someNames(e.Paths) + "; resolve them with git add or git rm"
}

// EditError says that edits do not make a tree.
type EditError struct{ Path, Detail string }

func (e *EditError) Error() string {
	return fmt.Sprintf("the tree cannot be changed like this: %q %s", e.Path, e.Detail)
}

// WorktreeError says that a file of the worktree cannot be taken.
type WorktreeError struct{ Detail string }

func (e *WorktreeError) Error() string {
	return "the worktree cannot be read: " + e.Detail + "; make it readable, ignore it or move it away"
}

// UnsupportedRepositoryError says that a repository is of a kind that aspis
// does not read.
type UnsupportedRepositoryError struct{ Dir, Why, Advice string }

func (e *UnsupportedRepositoryError) Error() string {
	return fmt.Sprintf("the repository %q %s; %s", e.Dir, e.Why, e.Advice)
}

// TooLargeError says that a tree or a change has more entries than are taken.
type TooLargeError struct {
	What  string
	Limit int
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%s has over %d entries, more than aspis takes; nothing was evaluated", e.What, e.Limit)
}

// NoWorktreeError says that a bare repository was asked for its worktree.
type NoWorktreeError struct{ Dir string }

func (e *NoWorktreeError) Error() string {
	return fmt.Sprintf("%q is a bare repository, it has no worktree; use --base, --range or --tree", e.Dir)
}
