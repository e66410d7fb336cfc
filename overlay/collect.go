package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// staleBlob is the age at which a blob that was never finished is nobody's.
const staleBlob = time.Hour

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

// sweep drops layers whose writers have died, and moves every directory that
// the database does not know into the trash.
func (s *Store) sweep(ctx context.Context, db database) error {
	keys, err := keysOf(ctx, db, activePrefix)
	if err != nil {
		return fmt.Errorf("look for layers left behind: %w", err)
	}
	for _, key := range keys {
		f, err := tryLock(s.leasePath(key), unix.LOCK_EX)
		if errors.Is(err, errHeld) {
			continue // its writer lives
		}
		if err != nil {
			return fmt.Errorf("look for layers left behind: %w", err)
		}
		err = db.Remove(ctx, key)
		if err == nil || errdefs.IsNotFound(err) {
			err = os.Remove(f.Name())
		}
		f.Close()
		if err != nil {
			return fmt.Errorf("remove a layer left behind: %w", err)
		}
	}
	if err := s.dropOtherBoots(ctx, db); err != nil {
		return err
	}
	return s.trashUnknown(ctx, db)
}

// dropOtherBoots drops what was written without being forced to disk before the
// machine was started: nobody asks for it any more.
func (s *Store) dropOtherBoots(ctx context.Context, db database) error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	for again := true; again; { // what stands on others goes first
		again = false
		for _, prefix := range []string{candidatePrefix, narrowPrefix} {
			keys, err := keysOf(ctx, db, prefix)
			if err != nil {
				return fmt.Errorf("look for what other boots left: %w", err)
			}
			for _, key := range keys {
				if strings.HasPrefix(key, prefix+boot+"/") {
					continue
				}
				gone, err := s.collectOne(ctx, db, key, time.Now())
				if err != nil {
					return err
				}
				again = again || gone
			}
		}
	}
	return nil
}

// trashUnknown must be called with the store locked: directories come and go
// only then.
func (s *Store) trashUnknown(ctx context.Context, db database) error {
	var known map[string]string
	err := db.meta.WithTransaction(ctx, false, func(ctx context.Context) (err error) {
		known, err = storage.IDMap(ctx)
		return err
	})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("list the layers: %w", err)
	}
	dirs, err := os.ReadDir(s.path("layers", "snapshots"))
	if err != nil {
		return fmt.Errorf("list the layers: %w", err)
	}
	for _, d := range dirs {
		if _, ok := known[d.Name()]; ok {
			continue
		}
		if err := os.Rename(s.path("layers", "snapshots", d.Name()), s.path("trash", uuid.NewString())); err != nil {
			return fmt.Errorf("remove a layer: %w", err)
		}
	}
	return nil
}

// emptyTrash removes files, which may take long: the store must not be locked.
func (s *Store) emptyTrash() error {
	var errs []error
	dirs, err := os.ReadDir(s.path("trash"))
	if err != nil {
		return fmt.Errorf("empty the store's trash: %w", err)
	}
	for _, d := range dirs {
		errs = append(errs, os.RemoveAll(s.path("trash", d.Name())))
	}
	var unfinished []string
	for _, d := range []string{"blobs", "recent"} {
		found, err := filepath.Glob(filepath.Join(globQuote(s.path(d)), newBlob+"*"))
		errs = append(errs, err)
		unfinished = append(unfinished, found...)
	}
	for _, p := range unfinished {
		if st, err := os.Lstat(p); err == nil && time.Since(st.ModTime()) > staleBlob {
			errs = append(errs, os.Remove(p))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("empty the store's trash: %w", err)
	}
	return nil
}

// globQuote takes the meaning from what filepath.Match would see as a pattern.
func globQuote(p string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(p)
}

// Collect removes what nobody uses and was last used before a time: snapshots,
// frozen states that no work area lies over, and blobs. It returns how many went.
// What something else stands on stays, and so does a blob that was put or asked
// for within the hour: who means to use it has no other way to say so. A work
// area is never removed, since what was done in it is nowhere else.
func (s *Store) Collect(ctx context.Context, before time.Time) (int, error) {
	snaps, err := s.collectSnapshots(ctx, before)
	if err != nil {
		return snaps, errors.Join(err, s.emptyTrash())
	}
	layers, err := s.collectFrozen(ctx, before)
	if err != nil {
		return snaps + layers, errors.Join(err, s.emptyTrash())
	}
	blobs, err := s.collectBlobs(ctx, before)
	return snaps + layers + blobs, errors.Join(err, s.emptyTrash())
}

// collectSnapshots removes candidates, and then the baselines below them.
func (s *Store) collectSnapshots(ctx context.Context, before time.Time) (int, error) {
	removed := 0
	err := s.locked(ctx, func(ctx context.Context, db database) error {
		if err := s.sweep(ctx, db); err != nil {
			return err
		}
		// Children go before their parents: as often as something was removed.
		for again := true; again; {
			again = false
			keys, err := keysOf(ctx, db, "")
			if err != nil {
				return err
			}
			for _, key := range keys {
				if strings.HasPrefix(key, activePrefix) {
					continue
				}
				if err := ctx.Err(); err != nil {
					return context.Cause(ctx)
				}
				gone, err := s.collectOne(ctx, db, key, before)
				if err != nil {
					return err
				}
				if gone {
					removed++
					again = true
				}
			}
		}
		if err := s.forgetLeases(ctx, db, before); err != nil {
			return err
		}
		return s.trashUnknown(ctx, db)
	})
	return removed, err
}

// forgetLeases removes the locks of snapshots that never came to be.
func (s *Store) forgetLeases(ctx context.Context, db database, before time.Time) error {
	keys, err := keysOf(ctx, db, "")
	if err != nil {
		return err
	}
	known := make(map[string]bool, len(keys))
	for _, key := range keys {
		known[leaseName(key)] = true
	}
	files, err := os.ReadDir(s.path("leases"))
	if err != nil {
		return fmt.Errorf("list the leases: %w", err)
	}
	for _, d := range files {
		if known[d.Name()] {
			continue
		}
		if st, err := d.Info(); err != nil || st.ModTime().After(before) {
			continue // gone meanwhile, or of use to somebody soon
		}
		f, err := tryLock(s.path("leases", d.Name()), unix.LOCK_EX)
		if errors.Is(err, errHeld) {
			continue
		}
		if err == nil {
			err = os.Remove(f.Name())
			f.Close()
		}
		if err != nil {
			return fmt.Errorf("remove a lease: %w", err)
		}
	}
	return nil
}

func (s *Store) collectOne(ctx context.Context, db database, key string, before time.Time) (bool, error) {
	st, err := os.Lstat(s.leasePath(key))
	if err == nil && st.ModTime().After(before) {
		return false, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("look when %s was used: %w", key, err)
	}
	f, err := tryLock(s.leasePath(key), unix.LOCK_EX)
	if errors.Is(err, errHeld) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look whether %s is used: %w", key, err)
	}
	defer f.Close()
	// Again, now that nobody can begin to use it.
	if st != nil {
		if now, err := f.Stat(); err != nil || now.ModTime().After(before) {
			return false, err
		}
	}
	if err := db.Remove(ctx, key); err != nil {
		if errdefs.IsFailedPrecondition(err) {
			return false, nil // another snapshot stands on it
		}
		return false, fmt.Errorf("remove a snapshot: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		return true, fmt.Errorf("remove a snapshot: %w", err)
	}
	return true, nil
}
