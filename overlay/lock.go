package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// A lock that another process holds is tried again after pollFirst, then
	// ever more slowly up to pollLast: a blocking flock(2) cannot be given up
	// when the context ends.
	pollFirst = time.Millisecond
	pollLast  = 20 * time.Millisecond

	// storeWait bounds the wait for the database, which is held for
	// milliseconds by whoever is sound.
	storeWait = 30 * time.Second
)

// lockFile opens and locks a file that may be removed by whoever holds it
// exclusively. how is LOCK_SH or LOCK_EX. It waits until the context ends or,
// where limit is not zero, for so long.
func lockFile(ctx context.Context, path string, how int, limit time.Duration) (*os.File, error) {
	var deadline <-chan time.Time
	if limit > 0 {
		t := time.NewTimer(limit)
		defer t.Stop()
		deadline = t.C
	}
	for wait := pollFirst; ; wait = min(2*wait, pollLast) {
		f, err := tryLock(path, how)
		if err == nil || !errors.Is(err, errHeld) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-deadline:
			return nil, errHeld
		case <-time.After(wait):
		}
	}
}

var errHeld = errors.New("it is locked")

// tryLock gives errHeld where another holds the lock or has just removed it.
func tryLock(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		err = errHeld
	}
	if err == nil {
		var st unix.Stat_t
		if err = unix.Fstat(int(f.Fd()), &st); err == nil && st.Nlink == 0 {
			err = errHeld // a lock on a file that nobody else can find any more
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// lock takes the store for a change of its database. Those of one process
// queue; only one of them polls.
func (s *Store) lock(ctx context.Context) (unlock func(), err error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the snapshot store: %w", context.Cause(ctx))
	}
	f, err := lockFile(ctx, s.path("lock"), unix.LOCK_EX, storeWait)
	if err != nil {
		<-s.turn
		if errors.Is(err, errHeld) {
			return nil, &BusyError{Dir: s.dir, What: "held the database", For: storeWait}
		}
		return nil, fmt.Errorf("lock the snapshot store: %w", err)
	}
	return func() { f.Close(); <-s.turn }, nil
}
