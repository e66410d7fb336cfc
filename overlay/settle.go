package overlay

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// A baseline outlives a reboot, so that its files must be on disk before it is
// believed after one. Those of a large one take the disk seconds, which nobody
// needs to wait for: until it is done the layer is believed by this boot of the
// machine alone. Beside its manifest lie
//
//	boot     the boot that it was written in, where it was not forced to disk
//	synced   empty; made when it was

const (
	// Up to so many files and bytes a baseline is forced to disk at once.
	soonFiles = 2000
	soonBytes = 32 << 20
)

func (s *Store) besideManifest(id, name string) string {
	return s.path("layers", "snapshots", id, name)
}

// onDiskSoon forces a small layer to disk and notes of a large one that it was
// not.
func (s *Store) onDiskSoon(id string, files []File) error {
	if len(files) <= soonFiles && sizeOf(files) <= soonBytes {
		if err := syncAround(s.manifestPath(id)); err != nil {
			return err
		}
		return os.WriteFile(s.besideManifest(id, "synced"), nil, 0o600)
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	return os.WriteFile(s.besideManifest(id, "boot"), []byte(boot), 0o600)
}

func (s *Store) isOnDisk(id string) bool {
	if _, err := os.Lstat(s.besideManifest(id, "synced")); err == nil {
		return true
	}
	was, err := os.ReadFile(s.besideManifest(id, "boot"))
	if err != nil {
		return false
	}
	boot, err := bootID()
	return err == nil && boot == string(was)
}

// settleLater forces a layer to disk while its user goes on. If the process ends
// before, the next that uses the layer tries again.
func (s *Store) settleLater(id string) {
	if _, err := os.Lstat(s.besideManifest(id, "synced")); err == nil {
		return
	}
	s.settlers.Go(func() {
		s.settling.Lock()
		defer s.settling.Unlock()
		if _, err := os.Lstat(s.besideManifest(id, "synced")); err == nil {
			return
		}
		if syncAround(s.manifestPath(id)) == nil {
			// Where it cannot be noted it is done again by the next.
			_ = os.WriteFile(s.besideManifest(id, "synced"), nil, 0o600)
		}
	})
}

// Wait waits until everything that was written is on disk. It is for who wants
// the next boot to find large baselines; nothing is lost without.
func (s *Store) Wait() { s.settlers.Wait() }

// forget removes a baseline that may have been cut short, and what stands on it.
// Nobody uses it: who did went down with the machine. The store must be locked.
func (s *Store) forget(ctx context.Context, db database, key string) error {
	children := map[string][]string{}
	if err := db.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		children[info.Parent] = append(children[info.Parent], info.Name)
		return nil
	}); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	var remove func(key string) error
	remove = func(key string) error {
		for _, c := range children[key] {
			if err := remove(c); err != nil {
				return err
			}
		}
		if err := db.Remove(ctx, key); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove %s, which may have been cut short: %w", key, err)
		}
		return nil
	}
	if err := remove(key); err != nil {
		return err
	}
	return s.trashUnknown(ctx, db)
}

// syncAround forces the file system that holds a path to the disk: with many
// files that is far quicker than one after another.
func syncAround(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("sync a layer: %w", err)
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("sync a layer: %w", err)
	}
	return nil
}
