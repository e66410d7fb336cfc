package publish

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// keepFor is how long files of others and the originals of the last publish are
// kept.
const keepFor = 14 * 24 * time.Hour

// Workspace is a directory tree that is locked for publishing. It is for one
// goroutine.
type Workspace struct {
	root      string
	tree      tree
	area      tree
	areaDir   string
	locks     []*os.File
	noExec    bool // the file system does not keep executable bits
	recovered []Recovery
	fault     func(string) // in recovery; for tests
}

// Open locks a workspace, by its top directory, against every other publish and
// finishes or takes back what a crash left. stateDir holds the locks; it is the
// same for all who publish there. Users of one workspace have areas and locks of
// their own: between them it is the looking at each path that protects.
//
// Errors: *BusyError where another publish does not end within 30 seconds or the
// context's deadline; *DamagedError where the staging area is not as this
// program leaves it.
func Open(ctx context.Context, root, stateDir string) (*Workspace, error) {
	return openFaulty(ctx, root, stateDir, nil)
}

func openFaulty(ctx context.Context, root, stateDir string, fault func(string)) (_ *Workspace, err error) {
	abs, err := filepath.Abs(root)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return nil, fmt.Errorf("find the workspace: %w", err)
	}
	w := &Workspace{root: abs, tree: tree{root: -1}, area: tree{root: -1}, fault: fault}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	if w.tree, err = newTree(abs); err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(w.tree.root, &st); err != nil {
		return nil, fmt.Errorf("look at the workspace: %w", err)
	}
	lock, err := lockWorkspace(ctx, abs, stateDir, &st)
	if err != nil {
		return nil, err
	}
	w.locks = append(w.locks, lock)
	if w.area, w.areaDir, err = openArea(abs); err != nil {
		return nil, err
	}
	// Those who use another state directory meet here.
	if lock, err = lockFile(ctx, abs, filepath.Join(w.areaDir, lockInArea)); err != nil {
		return nil, err
	}
	w.locks = append(w.locks, lock)
	if err := unix.Fstat(int(lock.Fd()), &st); err != nil {
		return nil, fmt.Errorf("look at the lock: %w", err)
	}
	w.noExec = st.Mode&unix.S_IXUSR != 0 // it was made without
	return w, w.recover(ctx)
}

// NeedsRecovery tells, without a lock and without writing, whether a crash may
// have left a publish in the workspace that Open would finish or take back.
func NeedsRecovery(root string) (bool, error) {
	abs, err := filepath.Abs(root)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return false, fmt.Errorf("find the workspace: %w", err)
	}
	dir, _ := areaPath(abs)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at the staging area: %w", err)
	}
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), txPrefix) }), nil
}

// Recovered tells what Open finished or took back.
func (w *Workspace) Recovered() []Recovery { return w.recovered }

// Close gives the lock up.
func (w *Workspace) Close() error {
	var errs []error
	for _, l := range w.locks {
		errs = append(errs, l.Close())
	}
	for _, fd := range []int{w.tree.root, w.area.root} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	return errors.Join(errs...)
}

// names lists the area.
func (w *Workspace) names() ([]string, error) {
	fd, err := w.area.openDir(".")
	if err != nil {
		return nil, fmt.Errorf("list the staging area: %w", err)
	}
	f := os.NewFile(uintptr(fd), w.areaDir)
	defer f.Close()
	names, err := f.Readdirnames(10_000)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("list the staging area: %w", err)
	}
	slices.Sort(names)
	return names, nil
}

// recover finishes what crashes left. A crash while it works is one more.
func (w *Workspace) recover(ctx context.Context) error {
	names, err := w.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		switch {
		case strings.HasPrefix(name, txPrefix):
			err = w.recoverTx(ctx, name)
		case strings.HasPrefix(name, dropPrefix):
			_, err = w.drop(ctx, name)
		case name == lastName:
			err = w.expire(ctx)
		case name == keptName:
			err = w.expireKept()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *Workspace) recoverTx(ctx context.Context, name string) error {
	t, err := w.openTx(name)
	if err != nil {
		return err
	}
	defer t.close()
	t.fault = w.fault
	j, committed, err := readJournal(t.dir)
	if errors.Is(err, errTorn) {
		return w.putAway(t)
	}
	if err != nil {
		return &DamagedError{Dir: filepath.Join(w.areaDir, name), Detail: err.Error()}
	}
	t.j, t.look.ignoreExec = j, j.Exec
	r := Recovery{ID: j.ID, Forward: committed}
	if committed {
		_, err = t.settle(ctx)
	} else {
		r.Restored, r.Left, err = t.rollBack(ctx)
	}
	if err != nil {
		return fmt.Errorf("recover the publish %q: %w", j.ID, err)
	}
	if committed || len(r.Restored)+len(r.Left) > 0 {
		w.recovered = append(w.recovered, r)
	}
	return nil
}

// putAway removes a publish without a whole journal. If the journal is there but
// garbled, the disk may have done that later, and what lies beside it may be what
// came out of the worktree: then it is kept for as long as files of others are.
func (w *Workspace) putAway(t *tx) error {
	var st unix.Stat_t
	if err := unix.Fstatat(t.dir, journalName, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Size == 0 {
		return w.remove(t.name)
	}
	_, err := w.keep(w.area.root, t.name, newID(), t.name)
	return err
}

// expire drops the originals of the last publish when they are old.
func (w *Workspace) expire(ctx context.Context) error {
	var st unix.Stat_t
	if err := unix.Fstatat(w.area.root, lastName, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("look at the last publish: %w", err)
	}
	if time.Since(time.Unix(st.Ctim.Unix())) < keepFor {
		return nil
	}
	name := dropPrefix + newID()
	if err := unix.Renameat(w.area.root, lastName, w.area.root, name); err != nil {
		return fmt.Errorf("drop the last publish: %w", err)
	}
	_, err := w.drop(ctx, name)
	return err
}

// expireKept removes files of others that were kept for long.
func (w *Workspace) expireKept() error {
	dir := filepath.Join(w.areaDir, keptName)
	if st, err := os.Lstat(dir); err != nil || !st.IsDir() {
		return &DamagedError{Dir: w.areaDir, Detail: fmt.Sprintf("%q is not a directory (%v)", keptName, err)}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look at kept files: %w", err)
	}
	for _, e := range entries {
		var st unix.Stat_t
		path := filepath.Join(dir, e.Name())
		// The time of a change of its inode is that of its being set aside.
		if err := unix.Lstat(path, &st); err != nil || time.Since(time.Unix(st.Ctim.Unix())) < keepFor {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove a kept file: %w", err)
		}
	}
	return nil
}

// remove removes a publish of which nothing is needed.
func (w *Workspace) remove(name string) error {
	if err := os.RemoveAll(filepath.Join(w.areaDir, name)); err != nil {
		return fmt.Errorf("tidy the staging area: %w", err)
	}
	return nil
}

// newID names a publish; names sort by time.
func newID() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // it cannot fail
	return time.Now().UTC().Format("20060102T150405") + "-" + hex.EncodeToString(b[:])
}
