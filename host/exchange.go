package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/apply/publish"
	"github.com/aspis-dev/aspis/overlay"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// wholeDir publishes to the worktree by exchanging it, as a whole directory, with
// a copy in which the edit was made: nobody sees a part of it. What was there
// before stays beside it.
type wholeDir struct{ *worktree }

func (t wholeDir) publish(ctx context.Context, at *attempt, todo []move, candidate gitrepo.OID, base *overlay.Snapshot) (_ *published, err error) {
	root := t.s.Repo.Root()
	changes, err := t.asCheckedOut(ctx, todo, base)
	if err != nil {
		return nil, err
	}
	before, err := metadata(ctx, root)
	if err != nil {
		return nil, fmt.Errorf("look at the worktree: %w", err)
	}
	staged, err := os.MkdirTemp(filepath.Dir(root), "."+filepath.Base(root)+".aspis-")
	if err != nil {
		return nil, fmt.Errorf("make a directory beside the worktree: %w", err)
	}
	exchanged := false
	defer func() {
		if !exchanged {
			err = errors.Join(err, os.RemoveAll(staged))
		}
	}()
	if err := copyDir(ctx, root, staged); err != nil {
		return nil, err
	}
	if err := changeCopy(ctx, staged, t.s.Host.opt.StateDir, changes, inStore{t.s, base}); err != nil {
		return nil, explained(err)
	}
	err = publish.ExchangeDir(ctx, root, staged, t.s.Host.opt.StateDir, func(displaced string) error {
		now, err := metadata(ctx, displaced)
		if err == nil {
			err = before.compare(now)
		}
		return err
	})
	if err != nil {
		return nil, explained(err)
	}
	exchanged = true
	at.notes = append(at.notes, fmt.Sprintf("the worktree as it was before lies in %q; remove it when you no longer need it", staged))
	done := &published{guarantee: schemas.GuaranteeStagedSnapshot, undo: staged}
	done.failed = func(ctx context.Context) error {
		return publish.ExchangeDir(ctx, root, staged, t.s.Host.opt.StateDir, nil)
	}
	return t.lookAfter(ctx, done, candidate)
}

// explained turns what stood in the way into a refusal.
func explained(err error) error {
	var conflict *publish.ConflictError
	var invalid *publish.InvalidError
	var moved *movedError
	switch {
	case errors.As(err, &conflict):
		no := &refusal{reason: "conflict", detail: conflict.Error()}
		for _, c := range conflict.Conflicts {
			no.conflicts = append(no.conflicts, schemas.ApplyConflict{Path: c.Path, Detail: c.Detail})
		}
		for _, l := range conflict.Left {
			no.conflicts = append(no.conflicts, schemas.ApplyConflict{Path: l.Path, Detail: l.Detail + "; what was there before is kept in " + l.Kept})
		}
		return no
	case errors.As(err, &moved):
		return &refusal{reason: "conflict", detail: moved.Error(), conflicts: []schemas.ApplyConflict{{Path: moved.path, Detail: "it changed meanwhile"}}}
	case errors.As(err, &invalid):
		return &refusal{reason: "unsupported", detail: invalid.Error()}
	}
	return err
}

// changeCopy makes the edit in the copy, where nobody else writes.
func changeCopy(ctx context.Context, dir, state string, changes []publish.Change, content publish.Content) error {
	ws, err := publish.Open(ctx, dir, state)
	if err != nil {
		return err
	}
	_, err = ws.Publish(ctx, changes, content, publish.Options{})
	if err := errors.Join(err, ws.Close()); err != nil {
		return err
	}
	areas, err := filepath.Glob(filepath.Join(escapeGlob(dir), ".aspis-publish-*"))
	for _, a := range areas {
		err = errors.Join(err, os.RemoveAll(a))
	}
	return err
}

// escapeGlob takes the meaning from a directory's name.
func escapeGlob(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

// copyDir copies a directory with everything that a copy can have, sharing bytes
// where the file system can. The link to the git directory is left to whoever
// puts the copy in place.
func copyDir(ctx context.Context, from, to string) error {
	cmd := exec.CommandContext(ctx, "cp", "--archive", "--reflink=auto", "--no-target-directory", "--", from, to)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("copy the worktree: %w: %.300s", err, out)
	}
	st, err := os.Lstat(filepath.Join(to, ".git"))
	if errors.Is(err, fs.ErrNotExist) || err == nil && st.IsDir() {
		return nil // refused when it is to be exchanged
	}
	return errors.Join(err, os.Remove(filepath.Join(to, ".git")))
}

// stamps are what shows that a file was written, by path.
type stamps map[string]stamp

type stamp struct {
	mode        uint32
	ino         uint64
	size        int64
	mtim, ctime unix.Timespec
}

// movedError names a file that has changed.
type movedError struct{ path string }

func (e *movedError) Error() string {
	return fmt.Sprintf("%q changed while the worktree was copied", e.path)
}

// maxStamped bounds a worktree that is exchanged, in files.
const maxStamped = 5_000_000

// metadata looks at everything below a directory but .git at its top.
func metadata(ctx context.Context, dir string) (stamps, error) {
	out := stamps{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case p == dir:
			return nil
		case p == filepath.Join(dir, ".git"):
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		case len(out) >= maxStamped:
			return fmt.Errorf("it has more than %d files", maxStamped)
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return &os.PathError{Op: "lstat", Path: p, Err: err}
		}
		s := stamp{mode: st.Mode, ino: st.Ino, size: st.Size, mtim: st.Mtim, ctime: st.Ctim}
		if d.IsDir() {
			s = stamp{mode: st.Mode, ino: st.Ino}
		}
		out[p[len(dir)+1:]] = s
		return nil
	})
	return out, err
}

func (s stamps) compare(now stamps) error {
	for p, was := range s {
		if now[p] != was {
			return &movedError{p}
		}
	}
	for p := range now {
		if _, ok := s[p]; !ok {
			return &movedError{p}
		}
	}
	return nil
}
