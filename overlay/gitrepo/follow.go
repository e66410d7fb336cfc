package gitrepo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/schemas"
)

// Follower answers what Current answers, without looking at every file again
// while nothing has happened.
//
// Looking anew costs a walk over the worktree. Instead the kernel is asked to
// report what happens in its directories (inotify(7)), and the files outside of
// them that have a say (HEAD, index, configuration, ignore rules) are compared
// by their state. A report is queued within the system call that it is about,
// so that a question asked after a change always meets the report of it.
//
// Not every change is reported: not one through a shared memory mapping, nor
// one through another hard link outside of the worktree. Latest is therefore
// for answers that may be a hint, Within for those that may be blind to such a
// change for a bounded time, and Current looks always. A look that finds a
// change of which there was no report ends the belief in reports.
type Follower struct {
	r *Repo

	mu       sync.Mutex
	watch    *watch // nil where nothing can be watched
	hopeless int    // looks to go before watching is tried again
	valid    bool
	looked   time.Time // when the look began that last and tree are from
	before   fingerprint
	last     schemas.Baseline
	tree     OID
}

// tryAgain is how often a worktree is looked at before watching it is tried
// again, which costs about as much as a look.
const tryAgain = 50

// Follow begins to follow the worktree. Close must be called.
func (r *Repo) Follow() *Follower { return &Follower{r: r} }

// Close ends it.
func (f *Follower) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.valid = false
	if f.watch == nil {
		return nil
	}
	err := f.watch.close()
	f.watch = nil
	return err
}

// Latest gives the baseline of the workspace, from memory where nothing is
// reported to have changed.
func (f *Follower) Latest(ctx context.Context) (schemas.Baseline, OID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unchanged(ctx) {
		return f.last, f.tree, nil
	}
	return f.look(ctx)
}

// Within answers as Latest does while the last look at the worktree began no
// longer than age ago, and looks otherwise.
func (f *Follower) Within(ctx context.Context, age time.Duration) (schemas.Baseline, OID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.looked) <= age && f.unchanged(ctx) {
		return f.last, f.tree, nil
	}
	return f.look(ctx)
}

// unchanged reports whether nothing is known to have happened since the last look.
func (f *Follower) unchanged(ctx context.Context) bool {
	if !f.valid || f.watch == nil {
		return false
	}
	now, err := f.r.fingerprint(ctx)
	return err == nil && now == f.before && f.watch.quiet()
}

// Current looks at the worktree, whatever is known of it.
func (f *Follower) Current(ctx context.Context) (schemas.Baseline, OID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.look(ctx)
}

// look asks git. What it says is kept only if nothing happened meanwhile.
func (f *Follower) look(ctx context.Context) (schemas.Baseline, OID, error) {
	silent := f.unchanged(ctx)
	f.valid = false
	if f.watch != nil {
		f.watch.quiet() // forgets what happened until now, but for moved
	}
	began := time.Now()
	if f.watch != nil && (f.watch.moved || f.watch.rules != f.r.outside()) {
		// Directories, ignore rules or the index have changed: what to watch is
		// found anew.
		if err := f.watch.close(); err != nil {
			return schemas.Baseline{}, "", err
		}
		f.watch = nil
	}
	if f.hopeless--; f.watch == nil && f.hopeless < 0 {
		if f.watch = f.r.watchWorktree(ctx); f.watch == nil {
			f.hopeless = tryAgain
		}
	}
	before, ferr := f.r.fingerprint(ctx)
	b, tree, err := f.r.Current(ctx)
	if err != nil {
		return b, tree, err
	}
	after, aerr := f.r.fingerprint(ctx)
	if f.watch == nil || ferr != nil || aerr != nil || before != after || !f.watch.quiet() || f.watch.moved {
		return b, tree, nil
	}
	if silent && (!b.Same(f.last) || tree != f.tree) {
		err := f.watch.close()
		f.watch, f.hopeless = nil, tryAgain
		return b, tree, err
	}
	f.valid, f.before, f.last, f.tree, f.looked = true, before, b, tree, began
	return b, tree, nil
}

// fingerprint is the state of everything outside of the watched directories
// that decides what Current answers.
type fingerprint struct {
	head  string // what HEAD says
	tree  OID    // what it means
	files outside
}

// outside are the files that are not watched.
type outside [9]fileState

// fileState changes with a file's content: nobody sets the time of the last
// change but by setting the clock.
type fileState struct {
	dev, ino     uint64
	size         int64
	mtime, ctime int64
}

func stateOf(path string) fileState {
	var st unix.Stat_t
	if path == "" || unix.Stat(path, &st) != nil {
		return fileState{}
	}
	return fileState{dev: st.Dev, ino: st.Ino, size: st.Size, mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano()}
}

func (r *Repo) fingerprint(ctx context.Context) (fingerprint, error) {
	var p fingerprint
	var err error
	if p.tree, err = r.BaseTree(ctx); err != nil {
		return p, err
	}
	if p.head, err = readSmall(filepath.Join(r.place.gitDir, "HEAD")); err != nil {
		return p, err
	}
	p.files = r.outside()
	return p, nil
}

func (r *Repo) outside() (o outside) {
	for i, path := range append([]string{filepath.Join(r.place.gitDir, "index")}, r.rules()...) {
		o[i] = stateOf(path)
	}
	return o
}

// watchable are file systems whose every change passes through this kernel.
var watchable = map[int64]bool{
	unix.EXT4_SUPER_MAGIC: true, unix.XFS_SUPER_MAGIC: true, unix.BTRFS_SUPER_MAGIC: true, unix.TMPFS_MAGIC: true,
	unix.OVERLAYFS_SUPER_MAGIC: true, unix.F2FS_SUPER_MAGIC: true, 0x2fc12fc1: true, // zfs
}

// watchWorktree watches every directory that is not wholly ignored, or gives
// nil where that cannot be had.
func (r *Repo) watchWorktree(ctx context.Context) *watch {
	if r.place.root == "" {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(r.place.root, &st); err != nil || !watchable[int64(st.Type)] {
		return nil
	}
	rules := r.outside()
	ignored, err := r.ignoredDirs(ctx)
	if err != nil {
		return nil
	}
	w, err := newWatch(r.place.root)
	if err != nil {
		return nil
	}
	w.rules = rules
	if err := w.addTree(r.place.root, ignored); err != nil {
		_ = w.close()
		return nil
	}
	return w
}

// ignoredDirs are the directories in which nothing counts, and an error where
// there are submodules, whose state lies elsewhere.
func (r *Repo) ignoredDirs(ctx context.Context) (map[string]bool, error) {
	dirs := map[string]bool{}
	err := r.withIndex(ctx, func(index string) error {
		var listed bytes.Buffer
		if err := r.each(ctx, index, "look for ignored directories", nil, func(rec []byte) error {
			if n := len(rec); n > 0 && rec[n-1] == '/' {
				listed.Write(rec)
				listed.WriteByte(0)
			}
			return nil
		}, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"); err != nil {
			return err
		}
		// Listed are also those that are not ignored themselves and only happen
		// to hold nothing else: something else may come.
		if listed.Len() > 0 {
			if err := r.each(ctx, index, "look for ignored directories", &listed, func(rec []byte) error {
				dirs[filepath.Join(r.place.root, string(rec))] = true
				return nil
			}, "check-ignore", "-z", "--stdin", "--no-index"); err != nil {
				return err
			}
		}
		return r.each(ctx, index, "look for submodules", nil, func(rec []byte) error {
			if bytes.HasPrefix(rec, []byte("160000")) {
				return fmt.Errorf("%q is a submodule", rec)
			}
			return nil
		}, "ls-files", "-z", "--stage")
	})
	return dirs, err
}

// each runs git and hands on its records.
func (r *Repo) each(ctx context.Context, index, doing string, in io.Reader, fn func([]byte) error, args ...string) error {
	out, err := r.run(ctx, runOptions{index: index, stdin: in, doing: doing}, args...)
	if err != nil && (args[0] != "check-ignore" || exitCode(err) != 1) { // 1: none is ignored
		return err
	}
	return records(bytes.NewReader(out), fn)
}

// addTree watches a directory and those below it. A directory is watched before
// it is read: what appears in it later is reported.
func (w *watch) addTree(dir string, skip map[string]bool) error {
	if err := w.add(dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == ".git" {
			if dir == w.root {
				continue
			}
			// Git takes it for a submodule, the state of which lies inside.
			return fmt.Errorf("%q is a repository of its own", dir)
		}
		if !e.IsDir() {
			continue
		}
		if at := filepath.Join(dir, e.Name()); !skip[at] {
			if err := w.addTree(at, skip); err != nil {
				return err
			}
		}
	}
	return nil
}
