package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/apply/publish"
	"github.com/aspis-dev/aspis/overlay"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// worktree publishes to the files that the user works on. Until it does,
// nothing is written there, not even a lock: what is refused leaves no trace.
type worktree struct {
	s    *Service
	lock *os.File
}

// openWorktree takes the worktree for one apply. What a crash left begun is
// taken back first, and told.
func openWorktree(ctx context.Context, s *Service) (_ *worktree, err error) {
	dir := filepath.Join(s.Host.opt.StateDir, "apply")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a place for locks: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, s.Repo.ID()+".lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("take the workspace: %w", err)
	}
	t := &worktree{s: s, lock: f}
	if err = lockFile(ctx, f); err == nil {
		err = Recover(ctx, s.Repo.Root(), s.Host.opt.StateDir, s.Host.log)
	}
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// applyWait bounds the wait for another apply to the same workspace.
const applyWait = 2 * time.Minute

// lockFile waits for a lock, which the kernel takes from a holder that dies.
func lockFile(ctx context.Context, f *os.File) error {
	ctx, cancel := context.WithTimeoutCause(ctx, applyWait, fmt.Errorf("another apply has held the workspace for %v; try again", applyWait))
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Recover finishes or takes back what an apply that a crash ended has left in a
// worktree, and says so. It costs next to nothing where nothing is left.
func Recover(ctx context.Context, root, stateDir string, log *slog.Logger) error {
	if root == "" {
		return nil
	}
	left, err := publish.NeedsRecovery(root)
	if err != nil || !left {
		return err
	}
	ws, err := publish.Open(ctx, root, stateDir)
	if err != nil {
		return fmt.Errorf("recover an apply that a crash has ended: %w", err)
	}
	for _, r := range ws.Recovered() {
		how := "taken back"
		if r.Forward {
			how = "finished"
		}
		log.Warn("an apply that a crash had ended was "+how, "workspace", root, "id", r.ID, "restored", r.Restored, "left", r.Left)
	}
	return ws.Close()
}

func (t *worktree) close() error { return t.lock.Close() }

// current looks at the worktree itself: an edit is published onto what is there,
// not onto what was reported of it.
func (t *worktree) current(ctx context.Context) (Place, gitrepo.OID, error) { return t.s.look(ctx) }

func (t *worktree) moved(at *attempt) func(context.Context) (string, error) {
	was := at.place.Baseline
	return func(ctx context.Context) (string, error) {
		now, _, err := t.s.follower().Within(ctx, gateLook)
		if err != nil || now.Same(was) {
			return "", err
		}
		return "the workspace moved while the edit was judged", nil
	}
}

// publish exchanges every file, or none, and then looks at what is there.
func (t *worktree) publish(ctx context.Context, at *attempt, todo []move, candidate gitrepo.OID, base *overlay.Snapshot) (_ *published, err error) {
	changes, err := t.asCheckedOut(ctx, todo, base)
	if err != nil {
		return nil, err
	}
	ws, err := publish.Open(ctx, t.s.Repo.Root(), t.s.Host.opt.StateDir)
	if err != nil {
		return nil, fmt.Errorf("take the workspace: %w", err)
	}
	res, err := ws.Publish(ctx, changes, inStore{t.s, base}, publish.Options{Checked: true})
	if cerr := ws.Close(); err == nil && cerr != nil {
		err = errors.Join(cerr, t.undo(context.WithoutCancel(ctx)))
	}
	if err != nil {
		return nil, explained(err)
	}
	at.notes = append(at.notes, res.Notes...)
	for _, k := range res.Kept {
		at.notes = append(at.notes, fmt.Sprintf("%q was written by another program meanwhile; those bytes are in %q", k.Path, k.File))
	}
	done := &published{guarantee: res.Guarantee, limits: res.Limits, undo: res.ID}
	done.failed = t.undo
	return t.lookAfter(ctx, done, candidate)
}

// lookAfter reads the worktree again and compares it with the tree that was
// checked. One that cannot be read is put back.
func (t *worktree) lookAfter(ctx context.Context, done *published, candidate gitrepo.OID) (*published, error) {
	place, tree, err := t.s.look(ctx)
	if err != nil {
		return nil, fmt.Errorf("the edit was published and taken back, since the workspace could not be read afterwards: %w", errors.Join(err, done.failed(context.WithoutCancel(ctx))))
	}
	done.after = place.Baseline
	if tree != candidate && done.guarantee == schemas.GuaranteeStagedSnapshot {
		// Every file of the plan is there; others have changed since the checks.
		done.guarantee = schemas.GuaranteeWorkspaceTransactional
		done.limits = append(done.limits, "other files changed while the edit was published, so that the workspace as a whole is not the tree that was checked")
	}
	return done, nil
}

// undo takes the last publish back.
func (t *worktree) undo(ctx context.Context) error {
	ws, err := publish.Open(ctx, t.s.Repo.Root(), t.s.Host.opt.StateDir)
	if err != nil {
		return err
	}
	_, err = ws.Undo(ctx, "", publish.Options{})
	return errors.Join(err, ws.Close())
}

// look takes the workspace's baseline from the workspace itself.
func (s *Service) look(ctx context.Context) (Place, gitrepo.OID, error) {
	if _, _, err := s.follower().Current(ctx); err != nil {
		return Place{}, "", err
	}
	return s.current(ctx)
}

// maxConverted bounds a file whose line endings or encoding git converts, in bytes.
const maxConverted = 64 << 20

// asCheckedOut is the change in the bytes that lie in a worktree: git may convert
// line endings and encodings, and may run filters, which aspis does not.
func (t *worktree) asCheckedOut(ctx context.Context, todo []move, base *overlay.Snapshot) ([]publish.Change, error) {
	paths := make([]string, len(todo))
	for i, m := range todo {
		paths[i] = m.path
	}
	conversions, err := t.s.Repo.Conversions(ctx, paths)
	if err != nil {
		return nil, err
	}
	changes := make([]publish.Change, len(todo))
	for i, m := range todo {
		changes[i] = publish.Change{Path: m.path, Before: publish.State{Mode: m.before.mode, Blob: m.before.blob}, After: publish.State{Mode: m.after.mode, Blob: m.after.blob}}
		c, ok := conversions[m.path]
		if !ok {
			continue
		}
		if c.Filter != "" {
			return nil, &refusal{reason: "unsupported", detail: fmt.Sprintf("%q goes through the filter %q on its way into the worktree, which aspis does not run", m.path, c.Filter)}
		}
		for _, s := range []*publish.State{&changes[i].Before, &changes[i].After} {
			if s.Mode != gitrepo.ModeFile && s.Mode != gitrepo.ModeExec {
				continue
			}
			if s.Blob, err = t.convert(ctx, m.path, s.Blob, base); err != nil {
				return nil, err
			}
		}
	}
	return changes, nil
}

// convert stores a blob as git would check it out, and names it.
func (t *worktree) convert(ctx context.Context, path string, ref schemas.BlobRef, base *overlay.Snapshot) (schemas.BlobRef, error) {
	b, err := t.s.read(ctx, base, ref)
	if err != nil {
		return "", fmt.Errorf("read %q: %w", path, err)
	}
	oid, err := t.s.Repo.PutBlob(ctx, bytes.NewReader(b))
	if err != nil {
		return "", err
	}
	out, err := t.s.Repo.AsCheckedOut(ctx, oid, path, maxConverted)
	if err != nil {
		return "", err
	}
	return t.s.Store.PutBlob(ctx, bytes.NewReader(out), maxConverted)
}

// inStore gives bytes from the store or the baseline.
type inStore struct {
	s    *Service
	base *overlay.Snapshot
}

func (c inStore) OpenBlob(ref schemas.BlobRef) (io.ReadCloser, int64, error) {
	return c.s.opener(c.base)(context.Background(), ref)
}
