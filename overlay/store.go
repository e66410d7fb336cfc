package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	snapshotter "github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
)

// Source is where trees and blobs come from; *gitrepo.Repo is one.
type Source interface {
	EmptyTree() gitrepo.OID
	ListTree(ctx context.Context, tree gitrepo.OID, fn func(gitrepo.TreeEntry) error) error
	DiffTrees(ctx context.Context, a, b gitrepo.OID) ([]gitrepo.RawChange, error)
	Blobs(ctx context.Context) (*gitrepo.BlobReader, error)
}

// Mounter is a private mount namespace: what is mounted inside Do is seen
// there only, at a place below Dir, and goes with it.
type Mounter interface {
	Do(fn func() error) error
	Dir() string
}

// Store is a directory of snapshots and blobs. Several processes may use one.
type Store struct {
	dir    string
	userns bool
}

// Open makes the directory ready. It must lie on a file system that overlayfs
// takes as a lower layer and where whiteouts can be made.
func Open(dir string) (*Store, error) {
	s := &Store{dir: dir}
	for _, d := range []string{"", "snap", "manifests", "blobs", "leases"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o711); err != nil {
			return nil, fmt.Errorf("make the snapshot store: %w", err)
		}
	}
	b, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return nil, fmt.Errorf("read the id map: %w", err)
	}
	f := strings.Fields(string(b))
	s.userns = len(f) < 3 || f[0] != "0" || f[1] != "0" || f[2] != "4294967295"
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil, fmt.Errorf("look at the snapshot store: %w", err)
	}
	if st.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return nil, &UnfitError{Dir: dir, Detail: "it lies on overlayfs, which cannot hold the layers of another overlay"}
	}
	return s, nil
}

// UnfitError says that the store cannot lie where it was asked to.
type UnfitError struct{ Dir, Detail string }

func (e *UnfitError) Error() string {
	return fmt.Sprintf("the state directory %q cannot be used: %s; set ASPIS_STATE_DIR to a directory on a disk or tmpfs (inside a container, mount a volume)", e.Dir, e.Detail)
}

// lockPoll is how often a lock that is held by another process is tried again.
const lockPoll = 2 * time.Millisecond

// locked runs fn with the store's database open. Other processes wait.
func (s *Store) locked(ctx context.Context, fn func(context.Context, snapshots.Snapshotter) error) (err error) {
	f, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("lock the snapshot store: %w", err)
	}
	defer f.Close()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock the snapshot store: %w", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for another process that uses the snapshot store: %w", context.Cause(ctx))
		case <-time.After(lockPoll):
		}
	}
	// Said outright, so that the library need not find it out by test mounts.
	options := []string{"index=off"}
	if s.userns {
		options = append(options, "userxattr")
	}
	sn, err := snapshotter.NewSnapshotter(filepath.Join(s.dir, "snap"), snapshotter.WithMountOptions(options))
	if err != nil {
		return fmt.Errorf("open the snapshot store: %w", err)
	}
	defer func() { err = errors.Join(err, sn.Close()) }()
	// The library logs what it also returns.
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	return fn(log.WithLogger(ctx, logrus.NewEntry(quiet)), sn)
}

// prepare makes an active layer and returns its directory, relative to the store.
func (s *Store) prepare(ctx context.Context, active, parent string) (layer string, err error) {
	err = s.locked(ctx, func(ctx context.Context, sn snapshots.Snapshotter) error {
		if err := s.collectDead(ctx, sn); err != nil {
			return err
		}
		mounts, err := sn.Prepare(ctx, active, parent)
		if err != nil {
			return fmt.Errorf("prepare a layer: %w", err)
		}
		dir := mounts[0].Source // a bind mount, where there is no parent
		for _, o := range mounts[0].Options {
			if up, ok := strings.CutPrefix(o, "upperdir="); ok {
				dir = up
			}
		}
		if layer, err = filepath.Rel(s.dir, dir); err != nil {
			return fmt.Errorf("prepare a layer: %w", err)
		}
		return os.Chmod(dir, 0o755)
	})
	return layer, err
}

// commit makes an active layer a snapshot. The manifest is written before, so
// that a snapshot that the database knows is whole. won is false when another
// process has committed the same key first; the layer is gone then.
func (s *Store) commit(ctx context.Context, key, active string, r record) (won bool, err error) {
	won = true
	err = s.locked(ctx, func(ctx context.Context, sn snapshots.Snapshotter) error {
		if _, err := sn.Stat(ctx, key); err == nil {
			won = false
			return sn.Remove(ctx, active)
		}
		if err := writeRecord(s.manifestPath(key), r); err != nil {
			return err
		}
		if err := sn.Commit(ctx, key, active); err != nil {
			return fmt.Errorf("commit a layer: %w", err)
		}
		return nil
	})
	return won, err
}

// discard removes an active layer that came to nothing. Its files go first:
// the database cannot note anything on a disk that they have filled.
func (s *Store) discard(ctx context.Context, active, layer string) error {
	if err := os.RemoveAll(filepath.Join(s.dir, layer)); err != nil {
		return fmt.Errorf("discard a layer: %w", err)
	}
	return s.locked(ctx, func(ctx context.Context, sn snapshots.Snapshotter) error {
		err := sn.Remove(ctx, active)
		if errdefs.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// known reports whether the database has a committed snapshot of a key.
func (s *Store) known(ctx context.Context, key string) (ok bool, err error) {
	if _, err := os.Stat(s.manifestPath(key)); errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	err = s.locked(ctx, func(ctx context.Context, sn snapshots.Snapshotter) error {
		info, err := sn.Stat(ctx, key)
		if errdefs.IsNotFound(err) {
			return nil
		}
		ok = err == nil && info.Kind == snapshots.KindCommitted
		return err
	})
	return ok, err
}

func (s *Store) manifestPath(key string) string {
	return filepath.Join(s.dir, "manifests", strings.ReplaceAll(key, "/", "_"))
}
