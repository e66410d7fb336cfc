package publish

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Conflict is a path that is not what a change expects.
type Conflict struct {
	Path     string
	Expected State
	Found    State  // zero also where something lies there that git knows not
	Detail   string // a sentence
}

// ConflictError says that paths were not what was expected. Nothing is published;
// what had been exchanged was put back.
type ConflictError struct {
	Conflicts []Conflict
	Left      []Left // paths that could not be put back, as others wrote them meanwhile
}

func (e *ConflictError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "the workspace is not what the change expects: ")
	for i, c := range e.Conflicts {
		if i == 3 {
			fmt.Fprintf(&b, "; and %d more", len(e.Conflicts)-i)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%q %s", c.Path, c.Detail)
	}
	for _, l := range e.Left {
		fmt.Fprintf(&b, "; %q %s", l.Path, l.Detail)
	}
	return b.String()
}

// BusyError says that another publish to the same workspace did not end in time.
type BusyError struct {
	Root   string
	Waited time.Duration
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("another aspis has been publishing to %q for longer than %v; try again", e.Root, e.Waited)
}

// FullError says that the file system had no room. Nothing is published.
type FullError struct{ Doing, Detail string }

func (e *FullError) Error() string {
	return fmt.Sprintf("no room is left to %s (%s); free some, nothing was changed", e.Doing, e.Detail)
}

// InvalidError says that changes can never be published as they are.
type InvalidError struct{ Path, Detail string }

func (e *InvalidError) Error() string { return fmt.Sprintf("%q %s", e.Path, e.Detail) }

// NothingToUndoError says that there is no publish to take back.
type NothingToUndoError struct{ Detail string }

func (e *NothingToUndoError) Error() string { return "there is nothing to undo: " + e.Detail }

// DamagedError says that the area in which publishes are staged holds what this
// program did not write.
type DamagedError struct{ Dir, Detail string }

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the staging area %q is damaged: %s; look into it and move it away", e.Dir, e.Detail)
}

// full turns an error of a file system without room into a *FullError.
func full(doing string, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return &FullError{Doing: doing, Detail: err.Error()}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}
