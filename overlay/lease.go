package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lease keeps a snapshot from being collected: a shared lock on a file of its
// own, which the kernel gives up when the process ends, however it ends.
type lease struct{ f *os.File }

func leaseName(key string) string { return strings.ReplaceAll(key, "/", "_") }

func (s *Store) leasePath(key string) string { return s.path("leases", leaseName(key)) }

// hold waits no longer than a collector needs to make up its mind.
func (s *Store) hold(ctx context.Context, key string) (*lease, error) {
	f, err := lockFile(ctx, s.leasePath(key), unix.LOCK_SH, storeWait)
	if errors.Is(err, errHeld) {
		return nil, &BusyError{Dir: s.dir, What: "been removing " + key, For: storeWait}
	}
	if err != nil {
		return nil, s.advise(fmt.Errorf("hold a snapshot: %w", err))
	}
	// The time of the last use, for Collect.
	now := time.Now()
	if err := os.Chtimes(f.Name(), now, now); err != nil {
		f.Close()
		return nil, s.advise(fmt.Errorf("hold a snapshot: %w", err))
	}
	return &lease{f}, nil
}

func (l *lease) close() error {
	if l == nil {
		return nil
	}
	err := l.f.Close()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// writeWait bounds the wait for another process that writes the same snapshot.
const writeWait = 10 * time.Minute

// activePrefix begins the keys of layers that are being written. The rest is
// the key that they are written for, since there is one writer for each.
const activePrefix = "active/"

func (s *Store) writerPath(key string) string { return s.leasePath(activePrefix + key) }

// writing makes this goroutine the only one anywhere that writes a snapshot.
// Whoever died over it has lost this lock, which is how their layer is known
// to be nobody's. release must be called.
func (s *Store) writing(ctx context.Context, key string) (release func(), err error) {
	f, err := lockFile(ctx, s.writerPath(key), unix.LOCK_EX, writeWait)
	if errors.Is(err, errHeld) {
		return nil, &BusyError{Dir: s.dir, What: "been writing " + key, For: writeWait}
	}
	if err != nil {
		return nil, fmt.Errorf("wait for another writer of %s: %w", key, err)
	}
	return func() {
		// While it is held, so that nobody else can have taken the same file.
		// One that stays is empty and is taken again by the next writer.
		_ = os.Remove(f.Name())
		f.Close()
	}, nil
}
