package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// lease keeps a snapshot from being collected: a shared lock on a file of its
// own, which the kernel gives up when the process ends.
type lease struct{ f *os.File }

func (s *Store) leasePath(key string) string {
	return filepath.Join(s.dir, "leases", strings.ReplaceAll(key, "/", "_"))
}

func (s *Store) hold(key string) (*lease, error) {
	f, err := os.OpenFile(s.leasePath(key), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("hold a snapshot: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("hold a snapshot that is being removed: %w", err)
	}
	// The time of the last use, for Collect.
	now := time.Now()
	if err := os.Chtimes(f.Name(), now, now); err != nil {
		f.Close()
		return nil, fmt.Errorf("hold a snapshot: %w", err)
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

// activePrefix begins the keys of layers that are being written.
const activePrefix = "active/"

// newActive names a layer being written after this process, so that the next
// one can tell whether it died over it.
func newActive() (string, error) {
	start, err := startTime(os.Getpid())
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s%d-%s-%s", activePrefix, os.Getpid(), start, uuid.NewString()), nil
}

// startTime is when a process began, in clock ticks since boot, together with
// the boot it counts from (proc_pid_stat(5), field 22).
func startTime(pid int) (string, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", err
	}
	_, rest, ok := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	f := strings.Fields(rest)
	if !ok || len(f) < 20 {
		return "", fmt.Errorf("odd /proc/%d/stat", pid)
	}
	// A process that nobody has waited for is still listed after its end.
	if f[0] == "Z" || f[0] == "X" {
		return "", fmt.Errorf("process %d has ended", pid)
	}
	boot, err := bootID()
	return f[19] + "." + boot, err
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return strings.ReplaceAll(strings.TrimSpace(string(b)), "-", "")[:12], nil
}

// collectDead removes layers whose writers have died.
func (s *Store) collectDead(ctx context.Context, sn snapshots.Snapshotter) error {
	keys, err := keysOf(ctx, sn, activePrefix)
	if err != nil {
		return fmt.Errorf("look for layers left behind: %w", err)
	}
	for _, key := range keys {
		f := strings.SplitN(strings.TrimPrefix(key, activePrefix), "-", 3)
		pid, err := strconv.Atoi(f[0])
		if err != nil || len(f) != 3 {
			continue
		}
		if start, err := startTime(pid); err == nil && start == f[1] {
			continue // its writer lives
		}
		if err := sn.Remove(ctx, key); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove a layer left behind: %w", err)
		}
	}
	return sweep(ctx, sn)
}

// sweep removes directories that the database knows nothing of: those of a
// writer that was killed between making one and noting it.
func sweep(ctx context.Context, sn snapshots.Snapshotter) error {
	cleaner, ok := sn.(snapshots.Cleaner)
	if !ok {
		return nil
	}
	if err := cleaner.Cleanup(ctx); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove directories left behind: %w", err)
	}
	return nil
}

// keysOf lists the keys that begin with prefix.
func keysOf(ctx context.Context, sn snapshots.Snapshotter, prefix string) (keys []string, err error) {
	err = sn.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if strings.HasPrefix(info.Name, prefix) {
			keys = append(keys, info.Name)
		}
		return nil
	})
	if errdefs.IsNotFound(err) {
		return nil, nil // nothing has been stored yet
	}
	return keys, err
}

// Collect removes candidates, and then baselines, that nobody holds and that
// were last used before a time. It returns how many went.
func (s *Store) Collect(ctx context.Context, before time.Time) (int, error) {
	removed := 0
	err := s.locked(ctx, func(ctx context.Context, sn snapshots.Snapshotter) error {
		if err := s.collectDead(ctx, sn); err != nil {
			return err
		}
		// Children go before their parents, so one pass for each kind.
		for _, prefix := range []string{candidatePrefix, baselinePrefix} {
			keys, err := keysOf(ctx, sn, prefix)
			if err != nil {
				return err
			}
			for _, key := range keys {
				gone, err := s.collectOne(ctx, sn, key, before)
				if err != nil {
					return err
				}
				if gone {
					removed++
				}
			}
		}
		return nil
	})
	return removed, err
}

func (s *Store) collectOne(ctx context.Context, sn snapshots.Snapshotter, key string, before time.Time) (bool, error) {
	f, err := os.OpenFile(s.leasePath(key), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false, nil // held
	}
	if st, err := f.Stat(); err != nil || st.ModTime().After(before) {
		return false, err
	}
	if err := sn.Remove(ctx, key); err != nil {
		if errdefs.IsFailedPrecondition(err) {
			return false, nil // a candidate stands on it
		}
		return false, fmt.Errorf("remove a snapshot: %w", err)
	}
	return true, errors.Join(os.Remove(s.manifestPath(key)), os.Remove(s.leasePath(key)))
}
