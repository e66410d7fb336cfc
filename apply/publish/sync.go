package publish

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
)

const (
	// maxFsync is up to how many files or directories are synced by themselves.
	// For more one syncfs(2) is faster, though it takes along what others wrote.
	maxFsync = 32

	// maxSyncs is how many are synced at once: the file system makes one commit
	// of its journal for all that wait for it.
	maxSyncs = 16
)

// syncStaged makes staged files and the journal durable. In which order does not
// matter: nothing has been exchanged yet.
func (t *tx) syncStaged(journal *os.File) error {
	links := slices.ContainsFunc(t.j.Ops, func(o op) bool { return o.After.Mode == gitrepo.ModeSymlink })
	if len(t.j.Ops) > maxFsync || links { // a symlink cannot be synced by itself
		return syncAll(t.ws.area.root)
	}
	var g errgroup.Group
	g.SetLimit(maxSyncs)
	for i, o := range t.j.Ops {
		if o.After.Mode == 0 {
			continue
		}
		g.Go(func() error {
			fd, err := unix.Openat(t.new, slot(i), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			if err == nil {
				err = errors.Join(unix.Fsync(fd), unix.Close(fd))
			}
			return full("make the change durable", err)
		})
	}
	for _, fd := range []int{int(journal.Fd()), t.new, t.old, t.dir, t.ws.area.root} {
		g.Go(func() error { return full("make the journal durable", unix.Fsync(fd)) })
	}
	return g.Wait()
}

// syncNames makes the names in the worktree and in the publish durable.
func (t *tx) syncNames() error {
	dirs := map[string]bool{}
	for _, o := range t.j.Ops {
		dirs[path.Dir(o.Path)] = true
	}
	for _, d := range t.j.Dirs {
		dirs[path.Dir(d)] = true
	}
	if len(dirs) > maxFsync {
		return syncAll(t.ws.tree.root)
	}
	var g errgroup.Group
	g.SetLimit(maxSyncs)
	for d := range dirs {
		g.Go(func() error {
			fd, err := t.ws.tree.openDir(d)
			if noDirectory(err) {
				return nil // it was taken back, or somebody moved it
			}
			if err == nil {
				err = errors.Join(unix.Fsync(fd), unix.Close(fd))
			}
			return full(fmt.Sprintf("make %q durable", d), err)
		})
	}
	for _, fd := range []int{t.new, t.old} {
		if fd >= 0 {
			g.Go(func() error { return full("make the originals durable", unix.Fsync(fd)) })
		}
	}
	return g.Wait()
}

// syncAll makes everything on a file system durable.
func syncAll(fd int) error { return full("make the change durable", unix.Syncfs(fd)) }
