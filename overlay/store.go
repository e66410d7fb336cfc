package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
)

// Source is where trees and blobs come from; *gitrepo.Repo is one. It must be
// safe for several goroutines.
type Source interface {
	// ID names the repository, so that a baseline is made from another of its own.
	ID() string
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

// Store is a directory of snapshots and blobs. Several processes may use one,
// and several goroutines one Store.
type Store struct {
	dir    string
	userns bool          // not the machine's own user namespace
	turn   chan struct{} // full while this process holds or awaits the lock
	swept  atomic.Bool   // what the dead had left was looked for

	settling sync.Mutex     // held by the one that forces layers to disk
	settlers sync.WaitGroup // those that do, or wait to
}

// Open makes the directory ready. It must lie on a file system that overlayfs
// takes as a lower layer and where whiteouts can be made.
func Open(dir string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find the snapshot store: %w", err)
	}
	s := &Store{dir: dir, turn: make(chan struct{}, 1)}
	// Nobody else needs to look inside: a view is opened by whoever mounts it.
	for _, d := range []string{"", "layers", "blobs", "blobs/sha256", "leases", "recent", "trash",
		"work", "work/areas", "work/layers", "work/tmp", "work/locks"} {
		if err := makeDir(s.path(d)); err != nil {
			return nil, s.advise(fmt.Errorf("make the snapshot store: %w", err))
		}
	}
	if s.userns, err = inUserNamespace(); err != nil {
		return nil, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil, fmt.Errorf("look at the snapshot store: %w", err)
	}
	if st.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return nil, &UnfitError{Dir: dir, Detail: "it lies on overlayfs, which cannot hold the layers of another overlay"}
	}
	return s, nil
}

// makeDir takes a directory that is there as it is.
func makeDir(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, os.ErrNotExist) {
		err = os.MkdirAll(dir, 0o700)
	}
	if !errors.Is(err, os.ErrExist) {
		return err
	}
	st, err := os.Stat(dir)
	if err == nil && !st.IsDir() {
		err = &os.PathError{Op: "use", Path: dir, Err: unix.ENOTDIR}
	}
	return err
}

// inUserNamespace reports whether ids here are not the machine's own
// (user_namespaces(7), uid_map).
func inUserNamespace() (bool, error) {
	b, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false, fmt.Errorf("read the id map: %w", err)
	}
	f := strings.Fields(string(b))
	return len(f) != 3 || f[0] != "0" || f[1] != "0" || f[2] != "4294967295", nil
}

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// A layer is known by the number that the database gave it.

func (s *Store) layerDir(id string) string     { return s.path("layers", "snapshots", id, "fs") }
func (s *Store) manifestPath(id string) string { return s.path("layers", "snapshots", id, "manifest") }
