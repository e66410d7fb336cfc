package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/aspis-dev/aspis/overlay"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/sandbox/container"
)

// snapshots is what a large repository costs beside what git and cp take for the
// same tree. Every contender writes into a directory of its own, and nothing is
// removed until the end.
type snapshots struct {
	Files      int              `json:"files"`
	Megabytes  int              `json:"megabytes"`
	Rounds     []snapshotRound  `json:"rounds"`
	Candidate  spread           `json:"candidateAndViewMs"`
	Small      spread           `json:"candidateAndViewOf100FilesMs"`
	Frozen     spread           `json:"workAreaOverUnchangedMs"` // made and mounted
	Live       spread           `json:"liveWorkAreaMs"`          // made and mounted
	Found      spread           `json:"changesFoundMs"`          // ten, in a work area
	FreezeNext float64          `json:"workAreaAfterTenChangesMs"`
	Held       map[string]int64 `json:"frozenBytes"`
}

// snapshotRound is one turn of the long ones, in milliseconds.
type snapshotRound struct {
	WorktreeAdd float64 `json:"gitWorktreeAddMs"`
	HardLinks   float64 `json:"hardLinkCopyMs"`
	FullCopy    float64 `json:"fullCopyMs"`
	Baseline    float64 `json:"firstBaselineMs"`
	Next        float64 `json:"nextBaselineMs"`
	Freeze      float64 `json:"firstWorkAreaMs"`
	Status      float64 `json:"gitStatusMs"`
}

const (
	snapshotBytes  = 12 << 10 // of a file: with 90,000 of them a little over 1 GiB
	snapshotRounds = 2
	snapshotTurns  = 11 // of the short ones

	candidateBudget = 20.0
	foundBudget     = 2.0
)

// large makes a repository of many files with a commit, and checks it out.
func large(ctx context.Context, dir string, files int) (*small, error) {
	r := &small{dir: dir}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a repository: %w", err)
	}
	if err := r.git(ctx, "init", "-q", "-b", "main", "."); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "git", "fast-import", "--quiet", "--depth=4")
	cmd.Dir = dir
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("git fast-import: %w", err)
	}
	w := bufio.NewWriterSize(in, 1<<20)
	fmt.Fprint(w, "commit refs/heads/main\ncommitter bench <bench@example.org> 1700000000 +0000\ndata 4\nbase\n")
	for i := range files {
		text := largeText(i)
		fmt.Fprintf(w, "M 100644 inline %s\ndata %d\n%s\n", largeName(i), len(text), text)
	}
	if err := errors.Join(w.Flush(), in.Close(), cmd.Wait()); err != nil {
		return nil, fmt.Errorf("git fast-import: %w", err)
	}
	return r, r.git(ctx, "checkout", "-q", "-f", "main")
}

func largeName(i int) string { return fmt.Sprintf("part%02d/dir%03d/file%05d.txt", i%30, i%900, i) }

func largeText(i int) string {
	row := fmt.Sprintf("line of the file %d, which is like no other: %x\n", i, uint64(i)*0x9E3779B97F4A7C15)
	return strings.Repeat(row, snapshotBytes/len(row)+1)
}

// took tells how long something took, in milliseconds.
func took(fn func() error) (float64, error) {
	began := time.Now()
	err := fn()
	return ms(time.Since(began)), err
}

// bench of snapshots: an open repository with a store.
type shelf struct {
	*small
	repo  *gitrepo.Repo
	store *overlay.Store
	space *container.MountSpace
}

func (b *shelf) open(ctx context.Context, state string, space *container.MountSpace) (err error) {
	b.space = space
	if err := os.MkdirAll(state, 0o711); err != nil {
		return fmt.Errorf("make a state directory: %w", err)
	}
	if b.repo, err = gitrepo.Open(ctx, b.dir, gitrepo.Options{StateDir: filepath.Join(state, "git")}); err != nil {
		return err
	}
	b.store, err = overlay.Open(filepath.Join(state, "overlay"))
	return err
}

func measureSnapshots(ctx context.Context, opt options, files int) (_ *snapshots, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	space, err := container.NewSpace("")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, space.Close()) }()
	res := &snapshots{Files: files, Megabytes: files * len(largeText(1)) >> 20, Held: map[string]int64{}}
	repo, err := large(ctx, filepath.Join(opt.dir, "large"), files)
	if err != nil {
		return nil, err
	}
	b := &shelf{small: repo}
	for round := range snapshotRounds {
		r, err := b.round(ctx, opt, space, round)
		if err != nil {
			return nil, err
		}
		res.Rounds = append(res.Rounds, *r)
	}
	if res.Candidate, err = b.candidates(ctx); err != nil {
		return nil, err
	}
	if err := b.workAreas(ctx, res); err != nil {
		return nil, err
	}
	few, err := large(ctx, filepath.Join(opt.dir, "few"), 100)
	if err != nil {
		return nil, err
	}
	s := &shelf{small: few}
	if err := s.open(ctx, filepath.Join(opt.dir, "shelf-few"), space); err != nil {
		return nil, err
	}
	res.Small, err = s.candidates(ctx)
	return res, errors.Join(err, s.repo.Close(), b.repo.Close())
}

// round takes each of the long ones once, into fresh directories. The file system
// is slower for whoever comes later, so that git and we take turns in being first.
func (b *shelf) round(ctx context.Context, opt options, space *container.MountSpace, n int) (r *snapshotRound, err error) {
	r = &snapshotRound{}
	at := func(name string) string { return filepath.Join(opt.dir, fmt.Sprintf("%s-%d", name, n)) }
	if err := b.open(ctx, at("shelf"), space); err != nil {
		return nil, err
	}
	tree, err := b.repo.TreeOf(ctx, "HEAD")
	if err != nil {
		return nil, err
	}
	add := func() (err error) {
		r.WorktreeAdd, err = took(func() error { return b.git(ctx, "worktree", "add", "-q", "--detach", at("worktree"), "main") })
		return err
	}
	if n%2 == 0 {
		if err := add(); err != nil {
			return nil, err
		}
	}
	var first *overlay.Snapshot
	if r.Baseline, err = took(func() (err error) { first, err = b.store.Baseline(ctx, b.repo, tree); return err }); err != nil {
		return nil, err
	}
	if n%2 == 1 {
		if err := add(); err != nil {
			return nil, err
		}
	}
	for _, c := range []struct {
		into *float64
		flag string
		name string
	}{{&r.HardLinks, "-al", "links"}, {&r.FullCopy, "-a", "copy"}} {
		if *c.into, err = took(func() error {
			return exec.CommandContext(ctx, "cp", c.flag, "--reflink=never", at("worktree"), at(c.name)).Run()
		}); err != nil {
			return nil, fmt.Errorf("cp %s: %w", c.flag, err)
		}
	}
	if err := b.touch(); err != nil {
		return nil, err
	}
	after, err := b.repo.WorktreeTree(ctx)
	if err != nil {
		return nil, err
	}
	var next *overlay.Snapshot
	if r.Next, err = took(func() (err error) { next, err = b.store.Baseline(ctx, b.repo, after); return err }); err != nil {
		return nil, err
	}
	if r.Status, err = took(func() error { return b.git(ctx, "status", "--porcelain") }); err != nil {
		return nil, err
	}
	var w *overlay.WorkArea
	if r.Freeze, err = took(func() (err error) {
		w, err = b.store.CreateWorkArea(ctx, overlay.WorkSource{Dir: b.dir}, overlay.WorkOptions{})
		return err
	}); err != nil {
		return nil, err
	}
	return r, errors.Join(next.Close(), first.Close(), w.Drop(ctx))
}

// touch changes ten files.
func (b *shelf) touch() error {
	for i := range changed {
		if err := b.write(largeName(i*7), []byte(largeText(i)+rand.Text()+"\n")); err != nil {
			return err
		}
	}
	return nil
}

// candidates makes candidates of ten changed files, and mounts each.
func (b *shelf) candidates(ctx context.Context) (spread, error) {
	tree, err := b.repo.TreeOf(ctx, "HEAD")
	if err != nil {
		return spread{}, err
	}
	base, err := b.store.Baseline(ctx, b.repo, tree)
	if err != nil {
		return spread{}, err
	}
	defer base.Close()
	var all []time.Duration
	for range snapshotTurns {
		if err := b.touch(); err != nil {
			return spread{}, err
		}
		after, err := b.repo.WorktreeTree(ctx)
		if err != nil {
			return spread{}, err
		}
		began := time.Now()
		c, err := b.store.Candidate(ctx, b.repo, base, after)
		if err != nil {
			return spread{}, err
		}
		v, err := b.store.View(ctx, b.space, c)
		all = append(all, time.Since(began))
		if err := errors.Join(err, v.Close(), c.Close()); err != nil {
			return spread{}, err
		}
	}
	return spreadOf(all), nil
}

// workAreas makes work areas over the project, which does not change meanwhile,
// changes ten files in each and looks for them.
func (b *shelf) workAreas(ctx context.Context, res *snapshots) error {
	src := overlay.WorkSource{Dir: b.dir}
	w, err := b.store.CreateWorkArea(ctx, src, overlay.WorkOptions{})
	if err != nil {
		return err
	}
	for _, p := range w.Parts() {
		res.Held = map[string]int64{"cloned": p.Held.ClonedBytes, "copied": p.Held.CopiedBytes, "linked": p.Held.LinkedBytes}
	}
	if err := b.touch(); err != nil {
		return err
	}
	time.Sleep(100 * time.Millisecond) // else their times could not be relied on
	if res.FreezeNext, err = took(func() error { w, err = b.store.CreateWorkArea(ctx, src, overlay.WorkOptions{}); return err }); err != nil {
		return err
	}
	var frozen, live, found []time.Duration
	for range snapshotTurns {
		for _, o := range []overlay.WorkOptions{{}, {Live: true}} {
			began := time.Now()
			w, err := b.store.CreateWorkArea(ctx, src, o)
			if err != nil {
				return err
			}
			m, err := w.Mount(ctx, b.space)
			if err != nil {
				return err
			}
			if o.Live {
				live = append(live, time.Since(began))
			} else {
				frozen = append(frozen, time.Since(began))
			}
			err = b.space.Do(func() error { return (&small{dir: m.Path}).touchAll() })
			began = time.Now()
			d, cerr := w.Changes(ctx, overlay.ChangesOptions{})
			found = append(found, time.Since(began))
			if err := errors.Join(err, cerr, m.Close(), w.Drop(ctx)); err != nil {
				return err
			}
			if len(d.Changes) != changed {
				return fmt.Errorf("%d changes were found, and %d made", len(d.Changes), changed)
			}
		}
	}
	res.Frozen, res.Live, res.Found = spreadOf(frozen), spreadOf(live), spreadOf(found)
	return w.Drop(ctx)
}

func (r *small) touchAll() error { return (&shelf{small: r}).touch() }

func (s *snapshots) print(w io.Writer) {
	fmt.Fprintf(w, "\nsnapshots of a repository of %d files and %d MiB, ms\n", s.Files, s.Megabytes)
	fmt.Fprintf(w, "  %-34s %10s %10s\n", "", "ms", "of add")
	for _, r := range s.Rounds {
		for _, row := range []struct {
			name string
			ms   float64
		}{{"git worktree add", r.WorktreeAdd}, {"hard-link copy", r.HardLinks}, {"full copy", r.FullCopy}, {"first baseline (budget 1.0)", r.Baseline},
			{"next baseline (budget 0.02)", r.Next}, {"first frozen work area", r.Freeze}, {"git status", r.Status}} {
			fmt.Fprintf(w, "  %-34s %10.1f %10.3f\n", row.name, row.ms, row.ms/r.WorktreeAdd)
		}
	}
	fmt.Fprintf(w, "  %-34s %10s %10s\n", "", "median", "p95")
	for _, row := range []struct {
		name string
		s    spread
	}{{fmt.Sprintf("candidate and view (budget %.0f)", candidateBudget), s.Candidate}, {"the same of 100 files", s.Small},
		{"work area, nothing changed since", s.Frozen}, {"live work area", s.Live}, {fmt.Sprintf("ten changes found (budget %.0f)", foundBudget), s.Found}} {
		fmt.Fprintf(w, "  %-34s %10.1f %10.1f\n", row.name, row.s.Median, row.s.P95)
	}
	fmt.Fprintf(w, "  work area after ten changes %.1f; frozen bytes: %v\n", s.FreezeNext, s.Held)
}
