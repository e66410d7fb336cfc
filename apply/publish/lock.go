package publish

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lockWait bounds the wait for another publish where the context does not.
	lockWait = 30 * time.Second

	pollFirst = time.Millisecond
	pollLast  = 20 * time.Millisecond
)

// lockName is the name of a workspace's lock: its path, and which directory that
// is now.
func lockName(root string, st *unix.Stat_t) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%d", root, st.Dev, st.Ino))
	return hex.EncodeToString(sum[:16]) + ".lock"
}

// lockWorkspace takes the lock that every publish to a workspace takes. The
// kernel gives it up when its holder ends, however it ends.
func lockWorkspace(ctx context.Context, root, stateDir string, st *unix.Stat_t) (*os.File, error) {
	dir := filepath.Join(stateDir, "publish")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of locks: %w", err)
	}
	return lockFile(ctx, root, filepath.Join(dir, lockName(root, st)))
}

// lockFile opens and locks a file, which stays. It waits until the context ends
// or for lockWait.
func lockFile(ctx context.Context, root, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the workspace's lock: %w", err)
	}
	began := time.Now()
	// A blocking flock(2) cannot be given up when the context ends.
	for wait := pollFirst; ; wait = min(2*wait, pollLast) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock the workspace: %w", err)
		}
		if time.Since(began) > lockWait {
			f.Close()
			return nil, &BusyError{Root: root, Waited: lockWait}
		}
		select {
		case <-ctx.Done():
			f.Close()
			if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
				return nil, &BusyError{Root: root, Waited: time.Since(began).Round(time.Millisecond)}
			}
			return nil, fmt.Errorf("wait for another publish: %w", context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}
