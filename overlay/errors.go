package overlay

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// UnfitError says that the store cannot lie where it was asked to.
type UnfitError struct{ Dir, Detail string }

func (e *UnfitError) Error() string {
	return fmt.Sprintf("the state directory %q cannot be used: %s; set ASPIS_STATE_DIR to a directory on a disk or tmpfs (inside a container, mount a volume)", e.Dir, e.Detail)
}

// DamagedError says that the store does not hold what it wrote.
type DamagedError struct{ Dir, Detail string }

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the snapshot store %q is damaged: %s; remove it to have it made again", e.Dir, e.Detail)
}

// BusyError says that another process has kept the store locked for too long.
type BusyError struct {
	Dir  string
	What string
	For  time.Duration
}

func (e *BusyError) Error() string {
	if e.For == 0 {
		return fmt.Sprintf("another process has %s in the snapshot store %q; see which with `fuser -v` and end it if it hangs", e.What, e.Dir)
	}
	return fmt.Sprintf("another process has %s in the snapshot store %q for %s; see which with `fuser -v` and end it if it hangs", e.What, e.Dir, e.For)
}

// TreeError says that a tree cannot be written as files: only a crafted one, or
// one that is too much for the file system, is like that.
type TreeError struct{ Path, Detail string }

func (e *TreeError) Error() string {
	return fmt.Sprintf("the tree cannot be made into a snapshot: %q %s", e.Path, e.Detail)
}

// ErrNoBlob says that neither the snapshot nor the store has a blob.
var ErrNoBlob = errors.New("the blob is not in the store")

// advise adds what can be done about errors that the store's place is the
// reason for.
func (s *Store) advise(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w; free space where %q lies, or set ASPIS_STATE_DIR to a larger file system", err, s.dir)
	case errors.Is(err, unix.EROFS), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w; give this user the directory %q, or set ASPIS_STATE_DIR to one of its own", err, s.dir)
	}
	return err
}
