package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	snapshotter "github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// database is containerd's account of the layers, while it is open.
type database struct {
	snapshots.Snapshotter
	meta *storage.MetaStore
}

// locked runs fn with the store's database open. Other processes wait, so that
// fn must not do more than note what has been done.
func (s *Store) locked(ctx context.Context, fn func(context.Context, database) error) (err error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	var file *os.File
	meta, err := storage.NewMetaStore(s.path("layers", "metadata.db"), func(o *bolt.Options) error {
		o.Timeout = time.Second // its own lock is free: ours is held
		o.OpenFile = func(name string, flag int, mode os.FileMode) (_ *os.File, err error) {
			file, err = os.OpenFile(name, flag|unix.O_NOFOLLOW, mode)
			return file, err
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("open the snapshot store: %w", err)
	}
	// A damaged database shows itself by a panic in the library, one that was
	// cut short by a fault in the memory that it is mapped to. What the library
	// held then it holds for ever, but for its lock on the file, which the mapping
	// would keep beyond the file's end.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = &DamagedError{Dir: s.dir, Detail: fmt.Sprintf("its database cannot be read (%v)", p)}
			if file != nil {
				err = errors.Join(err, unix.Flock(int(file.Fd()), unix.LOCK_UN), file.Close())
			}
			return
		}
		if cerr := meta.Close(); err == nil {
			err = cerr
		}
		if errors.Is(err, berrors.ErrInvalid) || errors.Is(err, berrors.ErrChecksum) || errors.Is(err, berrors.ErrVersionMismatch) {
			err = &DamagedError{Dir: s.dir, Detail: fmt.Sprintf("its database cannot be read (%v)", err)}
		}
	}()
	// Said outright, so that the library need not find it out by test mounts.
	options := []string{"index=off"}
	if s.userns {
		options = append(options, "userxattr")
	}
	sn, err := snapshotter.NewSnapshotter(s.path("layers"), snapshotter.WithMetaStore(meta),
		snapshotter.AsynchronousRemove, snapshotter.WithMountOptions(options))
	if err != nil {
		return fmt.Errorf("open the snapshot store: %w", err)
	}
	// The library logs what it also returns.
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	return fn(log.WithLogger(ctx, logrus.NewEntry(quiet)), database{sn, meta})
}

// layerOf gives the number of a committed layer, or "".
func (db database) layerOf(ctx context.Context, key string) (id string, err error) {
	err = db.meta.WithTransaction(ctx, false, func(ctx context.Context) error {
		var info snapshots.Info
		id, info, _, err = storage.GetInfo(ctx, key)
		if errdefs.IsNotFound(err) {
			id, err = "", nil
		}
		if err == nil && id != "" && info.Kind != snapshots.KindCommitted {
			err = fmt.Errorf("%q is a layer that is being written", key)
		}
		return err
	})
	return id, err
}

// lookup gives the number of a key's layer, or "" where there is none. A
// baseline that the machine's end has come upon is removed.
func (s *Store) lookup(ctx context.Context, key string) (id string, err error) {
	if err := s.locked(ctx, func(ctx context.Context, db database) error {
		if id, err = db.layerOf(ctx, key); err != nil || id == "" || !strings.HasPrefix(key, baselinePrefix) || s.isOnDisk(id) {
			return err
		}
		id = ""
		return s.forget(ctx, db, key)
	}); err != nil || id == "" {
		return "", err
	}
	if _, err := os.Lstat(s.manifestPath(id)); err != nil {
		return "", &DamagedError{Dir: s.dir, Detail: fmt.Sprintf("the layer %s has no manifest (%v)", id, err)}
	}
	if strings.HasPrefix(key, baselinePrefix) {
		s.settleLater(id)
	}
	return id, nil
}

// prepare makes a layer to be written over a parent ("" for none). What it
// finds left behind by the dead is removed on the way, once for each Store.
func (s *Store) prepare(ctx context.Context, active, parent string) (id string, err error) {
	sweep := s.swept.CompareAndSwap(false, true)
	err = s.locked(ctx, func(ctx context.Context, db database) error {
		if sweep {
			if err := s.sweep(ctx, db); err != nil {
				return err
			}
		}
		// There is one writer for each key, and that is the caller: what is
		// there already was left behind.
		if err := db.Remove(ctx, active); err == nil {
			sweep = true
			if err := s.trashUnknown(ctx, db); err != nil {
				return err
			}
		} else if !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove a layer left behind: %w", err)
		}
		mounts, err := db.Prepare(ctx, active, parent)
		if err != nil {
			return fmt.Errorf("prepare a layer: %w", err)
		}
		id, err = s.layerIn(mounts[0].Source, mounts[0].Options)
		return err
	})
	if err == nil {
		// The process's umask must not decide what a provider may read.
		err = os.Chmod(s.layerDir(id), 0o755)
	}
	if sweep {
		err = errors.Join(err, s.emptyTrash())
	}
	return id, err
}

// layerIn finds the layer's number in what the library would have mounted: a
// bind of its directory, or an overlay that it is the upper directory of.
func (s *Store) layerIn(source string, options []string) (string, error) {
	for _, o := range options {
		if up, ok := strings.CutPrefix(o, "upperdir="); ok {
			source = up
		}
	}
	id := filepath.Base(filepath.Dir(source))
	if s.layerDir(id) != source {
		return "", fmt.Errorf("prepare a layer: it lies at the odd place %q", source)
	}
	return id, nil
}

// commit makes an active layer a snapshot, for which everything has been
// written. size is in bytes.
func (s *Store) commit(ctx context.Context, key, active string, size, files int64) error {
	return s.locked(ctx, func(ctx context.Context, db database) error {
		// Not the library's Commit, which would count the layer's size file by
		// file while every other process waits.
		err := db.meta.WithTransaction(ctx, true, func(ctx context.Context) error {
			_, err := storage.CommitActive(ctx, active, key, snapshots.Usage{Size: size, Inodes: files})
			return err
		})
		if err != nil {
			return fmt.Errorf("commit a layer: %w", err)
		}
		return nil
	})
}

// discard removes an active layer that came to nothing. Its files go first:
// the database cannot note anything on a disk that they have filled.
func (s *Store) discard(ctx context.Context, active, id string) error {
	if err := os.RemoveAll(filepath.Dir(s.layerDir(id))); err != nil {
		return fmt.Errorf("discard a layer: %w", err)
	}
	return s.locked(ctx, func(ctx context.Context, db database) error {
		err := db.Remove(ctx, active)
		if errdefs.IsNotFound(err) {
			return nil
		}
		return err
	})
}
