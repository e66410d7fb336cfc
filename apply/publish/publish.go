package publish

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// Publish makes all changes or none. What it returns without an error was
// committed and is durable. An error means that nothing was published: what had
// been exchanged was put back, and a *ConflictError names the paths that could
// not be, because other programs had written them meanwhile. Where even putting
// back fails, the next Open does it.
//
// Errors: *InvalidError, *ConflictError, *FullError, the context's, and those of
// the file system and of content.
func (w *Workspace) Publish(ctx context.Context, changes []Change, content Content, opt Options) (Result, error) {
	return w.publish(ctx, changes, opt, func(t *tx, o *op, i int, over sight, n *notes) error {
		return t.stageFile(o, i, content, over, n)
	})
}

// stager stages the new file of one op.
type stager func(t *tx, o *op, i int, over sight, n *notes) error

func (w *Workspace) publish(ctx context.Context, changes []Change, opt Options, stage stager) (Result, error) {
	changes, err := validate(changes)
	if err != nil {
		return Result{}, err
	}
	opt.IgnoreExec = opt.IgnoreExec || w.noExec
	s, err := w.survey(ctx, changes, opt.IgnoreExec)
	if err != nil {
		return Result{}, err
	}
	if len(s.conflicts) > 0 {
		return Result{}, &ConflictError{Conflicts: s.conflicts}
	}
	if len(unchanged(changes)) == len(changes) {
		return Result{Guarantee: schemas.GuaranteeNone, Limits: []string{"there was nothing to publish"}}, nil
	}
	var staged map[string]string
	if opt.Index != nil {
		if staged, err = inStep(ctx, opt.Index, changes); err != nil {
			return Result{}, fmt.Errorf("look at the index: %w", err)
		}
	}
	t, n, err := w.prepare(ctx, changes, s, opt, stage)
	if err != nil {
		return Result{}, err
	}
	defer t.close()
	p := &publication{t: t, opt: opt, unchanged: unchanged(changes)}
	if err := p.run(ctx); err != nil {
		return Result{}, err
	}
	kept, err := t.settle(ctx)
	res := p.result(n)
	res.Kept = kept
	if err != nil {
		// It is committed; the next Open tidies up.
		res.Notes = append(res.Notes, "tidying up was left to the next time: "+err.Error())
	}
	if opt.Index != nil {
		res.Notes = append(res.Notes, updateIndex(context.WithoutCancel(ctx), opt.Index, changes, staged)...)
	}
	return res, nil
}

// unchanged are the changes that change nothing.
func unchanged(changes []Change) []Change {
	var out []Change
	for _, c := range changes {
		if c.Before == c.After {
			out = append(out, c)
		}
	}
	return out
}

// prepare stages the new files and the journal and makes both durable. When it
// fails nothing remains.
func (w *Workspace) prepare(ctx context.Context, changes []Change, s *survey, opt Options, stage stager) (_ *tx, _ *notes, err error) {
	id := newID()
	t, err := w.makeTx(id)
	if err != nil {
		return nil, nil, errors.Join(err, w.remove(txPrefix+id))
	}
	t.fault, t.look.ignoreExec = opt.Fault, opt.IgnoreExec
	defer func() {
		if err != nil {
			t.close()
			err = errors.Join(err, w.remove(t.name))
		}
	}()
	t.at("made")
	t.j = journal{Version: journalVersion, ID: id, Time: time.Now().UTC(), Exec: opt.IgnoreExec, Dirs: s.dirs}
	var over []sight
	for i, c := range changes {
		if c.Before == c.After {
			continue
		}
		t.j.Ops = append(t.j.Ops, op{Path: c.Path, Before: c.Before, After: c.After, Over: s.over[i]})
		over = append(over, s.found[i])
	}
	n := &notes{}
	err = w.each(ctx, len(t.j.Ops), opt.IgnoreExec, func(_ context.Context, _ *looker, _ *cursor, i int) error {
		if t.j.Ops[i].After.Mode == 0 {
			return nil
		}
		t.at("stage " + slot(i))
		return stage(t, &t.j.Ops[i], i, over[i], n)
	})
	if err != nil {
		return nil, nil, err
	}
	if len(n.modesLost) > 0 && !t.j.Exec {
		t.j.Exec, t.look.ignoreExec = true, true
	}
	f, _, err := writeJournal(t.dir, &t.j)
	if err != nil {
		return nil, nil, err
	}
	t.at("journal")
	if err := errors.Join(t.syncStaged(f), f.Close()); err != nil {
		return nil, nil, err
	}
	t.at("synced")
	return t, n, nil
}

// publication is the part of a publish that other programs see.
type publication struct {
	t         *tx
	opt       Options
	unchanged []Change

	unquiet  []string // originals of which no lease could be had
	reread   bool     // what lies in the workspace is what was to be published
	textOnly bool
}

// run exchanges everything and commits, or takes everything back.
func (p *publication) run(ctx context.Context) error {
	conflicts, err := p.exchange(ctx)
	if err == nil && len(conflicts) == 0 {
		conflicts, err = p.verify(ctx)
	}
	if err == nil && len(conflicts) == 0 {
		p.t.at("verified")
		err = p.t.syncNames()
	}
	if err == nil && len(conflicts) == 0 {
		p.t.at("durable")
		if err = p.commit(); err == nil {
			p.t.at("committed")
			return nil
		}
	}
	_, left, backErr := p.t.rollBack(ctx)
	if backErr != nil {
		return errors.Join(err, fmt.Errorf("take the publish back, which the next start does again: %w", backErr))
	}
	if err == nil || len(left) > 0 {
		return errors.Join(err, &ConflictError{Conflicts: conflicts, Left: left})
	}
	return err
}

func (p *publication) exchange(ctx context.Context) ([]Conflict, error) {
	t := p.t
	c := &cursor{tree: t.ws.tree}
	defer c.close()
	first := t.deletes()
	for i := range t.j.Ops {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("publish: %w", context.Cause(ctx))
		}
		if i == first {
			if conflict, err := t.makeDirs(c); conflict != nil || err != nil {
				return list(conflict), err
			}
		}
		t.at("exchange " + slot(i))
		if conflict, err := t.forward(ctx, c, i); conflict != nil || err != nil {
			return list(conflict), err
		}
	}
	return nil, nil
}

func list(c *Conflict) []Conflict {
	if c == nil {
		return nil
	}
	return []Conflict{*c}
}

// makeDirs makes the directories that new files need.
func (t *tx) makeDirs(c *cursor) (*Conflict, error) {
	for _, d := range t.j.Dirs {
		t.at("mkdir")
		dir, name, err := c.at(d)
		if err == nil {
			err = unix.Mkdirat(dir, name, 0o777)
		}
		switch {
		case errors.Is(err, unix.EEXIST), noDirectory(err):
			// A directory that somebody made meanwhile is not ours to remove later.
			return &Conflict{Path: d, Detail: "was to be made a directory, but something else happened there"}, nil
		case err != nil:
			return nil, full(fmt.Sprintf("make the directory %q", d), err)
		}
		if os.Geteuid() != 0 {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstat(dir, &st); err != nil {
			return nil, fmt.Errorf("make the directory %q: %w", d, err)
		}
		if err := unix.Fchownat(dir, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil && !errors.Is(err, unix.EPERM) {
			return nil, fmt.Errorf("make the directory %q: %w", d, err)
		}
	}
	c.close() // what was a file may be a directory now
	return nil, nil
}

// verify looks once more at all that came out, and at what lies there now.
func (p *publication) verify(ctx context.Context) ([]Conflict, error) {
	t := p.t
	found := make([]*Conflict, len(t.j.Ops)+len(p.unchanged))
	unquiet := make([]bool, len(t.j.Ops))
	same := make([]bool, len(found))
	err := t.ws.each(ctx, len(found), t.look.ignoreExec, func(ctx context.Context, l *looker, c *cursor, i int) error {
		if i >= len(t.j.Ops) {
			ch := p.unchanged[i-len(t.j.Ops)]
			s, err := lookAt(ctx, l, c, ch.Path)
			if same[i] = l.matches(s, ch.Before); err == nil && !same[i] {
				found[i] = &Conflict{Path: ch.Path, Expected: ch.Before, Found: s.state, Detail: describe(s, ch.Before)}
			}
			return err
		}
		o := t.j.Ops[i]
		conflict, q, err := t.judgeOut(ctx, l, i)
		if err != nil {
			return err
		}
		found[i], unquiet[i] = conflict, q == quietUnknown
		s, err := lookAt(ctx, l, c, o.Path)
		// A directory that was made of a deleted file holds other published files.
		same[i] = l.matches(s, o.After) || o.After.Mode == 0 && s.dir
		return err
	})
	if err != nil {
		return nil, err
	}
	p.reread = !slices.Contains(same, false)
	p.textOnly = true
	for i, o := range t.j.Ops {
		p.textOnly = p.textOnly && o.Before.Mode == o.After.Mode && o.Before.Mode != gitrepo.ModeSymlink
		if unquiet[i] {
			p.unquiet = append(p.unquiet, o.Path)
		}
	}
	var conflicts []Conflict
	for _, c := range found {
		if c != nil {
			conflicts = append(conflicts, *c)
		}
	}
	return conflicts, nil
}

// lookAt looks at a path of the workspace.
func lookAt(ctx context.Context, l *looker, c *cursor, p string) (sight, error) {
	dir, name, err := c.at(p)
	if noDirectory(err) {
		return sight{}, nil
	}
	if err != nil {
		return sight{}, fmt.Errorf("open the directory of %q: %w", p, err)
	}
	s, err := l.once(ctx, dir, name)
	if err != nil {
		return s, fmt.Errorf("look at %q: %w", p, err)
	}
	return s, nil
}

func (p *publication) commit() error {
	fd, err := unix.Openat(p.t.dir, journalName, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	f := os.NewFile(uintptr(fd), journalName)
	_, digest, err := p.t.j.encode()
	if err == nil {
		err = commit(f, digest)
	}
	return errors.Join(err, f.Close())
}

// result says what was earned: from what was used and seen, not from what was
// asked for.
func (p *publication) result(n *notes) Result {
	t := p.t
	r := Result{ID: t.j.ID, Guarantee: schemas.GuaranteeStagedSnapshot}
	for _, o := range t.j.Ops {
		r.Changed = append(r.Changed, o.Path)
	}
	slices.Sort(r.Changed)
	lower := func(to schemas.TransactionGuarantee, why string) {
		r.Limits = append(r.Limits, why)
		if rank(to) < rank(r.Guarantee) {
			r.Guarantee = to
		}
	}
	if !p.opt.Checked {
		lower(schemas.GuaranteeWorkspaceTransactional, "nobody said that exactly this tree was checked")
	}
	if !p.reread {
		lower(schemas.GuaranteeWorkspaceTransactional, "another program wrote published files before they were read again")
	}
	if len(n.modesLost) > 0 || t.ws.noExec {
		to := schemas.GuaranteeWorkspaceTransactional
		if p.textOnly {
			to = schemas.GuaranteeTextOnlyTransactional
		}
		lower(to, "the file system does not keep executable bits")
	}
	if t.gap {
		lower(schemas.GuaranteeRollbackAttempted, "the file system cannot exchange two files: each changed path was missing for a moment")
	}
	if t.weak {
		lower(schemas.GuaranteeRollbackAttempted, "the file system cannot take a name only where it is free: a file that another program created at the same moment could be lost")
	}
	if len(p.unquiet) > 0 {
		r.Notes = append(r.Notes, "it cannot be known whether another program still has the earlier content open for writing; it is kept: "+some(p.unquiet))
	}
	for _, x := range []struct {
		list []string
		what string
	}{{n.hardLinks, "had other hard links, which keep the earlier content: "}, {n.owners, "could not be given the owner of what they replace: "},
		{n.xattrs, "lost extended attributes: "}} {
		if len(x.list) > 0 {
			slices.Sort(x.list)
			r.Notes = append(r.Notes, x.what+some(x.list))
		}
	}
	return r
}

func rank(g schemas.TransactionGuarantee) int {
	return slices.Index([]schemas.TransactionGuarantee{schemas.GuaranteeNone, schemas.GuaranteeRollbackAttempted, schemas.GuaranteeTextOnlyTransactional,
		schemas.GuaranteeWorkspaceTransactional, schemas.GuaranteeStagedSnapshot}, g)
}

// some names the first few of many paths.
func some(paths []string) string {
	if len(paths) <= 3 {
		return fmt.Sprintf("%q", paths)
	}
	return fmt.Sprintf("%q and %d more", paths[:3], len(paths)-3)
}
