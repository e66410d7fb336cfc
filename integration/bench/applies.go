package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/apply/publish"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// applies is what it costs to change files of a worktree durably, beside git,
// which is followed by a flush of the file system. The checks are not in it.
type applies struct {
	Many     int    `json:"files"`
	GitApply spread `json:"gitApplyAndSyncMs"`
	Checkout spread `json:"gitCheckoutAndSyncMs"`
	Publish  spread `json:"publishMs"`
	Few      spread `json:"publishOf10Ms"`
	FewLarge spread `json:"publishOf10InALargeTreeMs"`
	Large    int    `json:"largeTreeFiles"`
}

const (
	applyFiles  = 1000
	applyBytes  = 4 << 10
	applyFew    = 10
	applyRounds = 7
	applyLarge  = 20_000

	manyBudget = 2.0 // of git apply and a flush
	fewBudget  = 15.0
)

// inMemory is the content of both states.
type inMemory map[schemas.BlobRef][]byte

func (m inMemory) OpenBlob(ref schemas.BlobRef) (io.ReadCloser, int64, error) {
	b, ok := m[ref]
	if !ok {
		return nil, 0, errors.New("no such blob")
	}
	return io.NopCloser(bytes.NewReader(b)), int64(len(b)), nil
}

// twoStates is a worktree that goes back and forth between two states.
type twoStates struct {
	repo    *small
	content inMemory
	states  [2]map[string]schemas.BlobRef
	now     int
	patches [2]string // from here to the other
}

func applyName(i int) string { return fmt.Sprintf("d%d/f%d", i%50, i) }

// newTwoStates makes a repository with both states on branches, and checks the
// first out. Files beyond changed are the same in both.
func newTwoStates(ctx context.Context, dir string, files, changed int) (*twoStates, error) {
	t := &twoStates{repo: &small{dir: dir}, content: inMemory{}}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := t.repo.git(ctx, "init", "-q", "-b", "s0", "."); err != nil {
		return nil, err
	}
	for s := range 2 {
		t.states[s] = map[string]schemas.BlobRef{}
		n := files
		if s == 1 {
			n = changed
			if err := t.repo.git(ctx, "checkout", "-q", "-b", "s1"); err != nil {
				return nil, err
			}
		}
		for i := range n {
			raw := make([]byte, applyBytes/2)
			_, _ = rand.Read(raw) // never fails on Linux
			text := []byte(hex.EncodeToString(raw)[:applyBytes-1] + "\n")
			at := filepath.Join(dir, applyName(i))
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				return nil, err
			}
			if err := os.WriteFile(at, text, 0o644); err != nil {
				return nil, err
			}
			if i < changed {
				ref := schemas.BlobRefOf(text)
				t.content[ref], t.states[s][applyName(i)] = text, ref
			}
		}
		if err := errors.Join(t.repo.git(ctx, "add", "-A"), t.repo.git(ctx, "commit", "-q", "-m", "state")); err != nil {
			return nil, err
		}
	}
	for s, pair := range [2][2]string{{"s0", "s1"}, {"s1", "s0"}} {
		t.patches[s] = dir + fmt.Sprintf("-%d.patch", s)
		out, err := os.Create(t.patches[s])
		if err != nil {
			return nil, err
		}
		cmd := exec.CommandContext(ctx, "git", "diff", pair[0], pair[1])
		cmd.Dir, cmd.Stdout = dir, out
		if err := errors.Join(cmd.Run(), out.Close()); err != nil {
			return nil, fmt.Errorf("git diff: %w", err)
		}
	}
	return t, t.repo.git(ctx, "checkout", "-q", "s0")
}

// git goes to the other state by a command of git and a flush.
func (t *twoStates) byGit(ctx context.Context, args ...string) (time.Duration, error) {
	began := time.Now()
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = t.repo.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("git %v: %w: %.300s", args, err, out)
	}
	d, err := os.Open(t.repo.dir)
	if err != nil {
		return 0, err
	}
	err = errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
	t.now = 1 - t.now
	return time.Since(began), err
}

// byPublish goes there by publishing.
func (t *twoStates) byPublish(ctx context.Context, state string) (took time.Duration, err error) {
	var changes []publish.Change
	for path, ref := range t.states[t.now] {
		changes = append(changes, publish.Change{Path: path, Before: publish.State{Mode: gitrepo.ModeFile, Blob: ref},
			After: publish.State{Mode: gitrepo.ModeFile, Blob: t.states[1-t.now][path]}})
	}
	began := time.Now()
	ws, err := publish.Open(ctx, t.repo.dir, state)
	if err != nil {
		return 0, err
	}
	res, err := ws.Publish(ctx, changes, t.content, publish.Options{Checked: true})
	if err := errors.Join(err, ws.Close()); err != nil {
		return 0, err
	}
	took = time.Since(began)
	if res.Guarantee != schemas.GuaranteeStagedSnapshot {
		return 0, fmt.Errorf("published as %s: %v", res.Guarantee, res.Limits)
	}
	t.now = 1 - t.now
	return took, nil
}

func measureApplies(ctx context.Context, opt options) (*applies, error) {
	dir := filepath.Join(opt.dir, "applies")
	state := filepath.Join(dir, "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, err
	}
	var places [3]*twoStates
	for i := range places {
		var err error
		if places[i], err = newTwoStates(ctx, filepath.Join(dir, fmt.Sprintf("many-%d", i)), applyFiles, applyFiles); err != nil {
			return nil, err
		}
	}
	few, err := newTwoStates(ctx, filepath.Join(dir, "few"), 100, applyFew)
	if err != nil {
		return nil, err
	}
	fewLarge, err := newTwoStates(ctx, filepath.Join(dir, "few-large"), applyLarge, applyFew)
	if err != nil {
		return nil, err
	}
	var all [5][]time.Duration
	contenders := []func() (time.Duration, error){
		func() (time.Duration, error) { return places[0].byGit(ctx, "apply", places[0].patches[places[0].now]) },
		func() (time.Duration, error) {
			return places[1].byGit(ctx, "checkout", "-q", fmt.Sprintf("s%d", 1-places[1].now))
		},
		func() (time.Duration, error) { return places[2].byPublish(ctx, state) },
		func() (time.Duration, error) { return few.byPublish(ctx, state) },
		func() (time.Duration, error) { return fewLarge.byPublish(ctx, state) },
	}
	for round := range applyRounds {
		for k := range contenders {
			i := (k + round) % len(contenders)
			time.Sleep(opt.idle)
			took, err := contenders[i]()
			if err != nil {
				return nil, err
			}
			if round > 0 { // the first warms caches for all alike
				all[i] = append(all[i], took)
			}
		}
	}
	return &applies{Many: applyFiles, GitApply: spreadOf(all[0]), Checkout: spreadOf(all[1]), Publish: spreadOf(all[2]),
		Few: spreadOf(all[3]), FewLarge: spreadOf(all[4]), Large: applyLarge}, nil
}

func (a *applies) print(w io.Writer) {
	fmt.Fprintf(w, "\nchanging %d files of %d bytes in a worktree, durably; ms, without the checks\n", a.Many, applyBytes)
	fmt.Fprintf(w, "  %-40s %8s %8s\n", "", "median", "p95")
	for _, r := range []struct {
		name string
		s    spread
	}{{"git apply, then a flush", a.GitApply}, {"git checkout, then a flush", a.Checkout}, {"aspis, all or nothing", a.Publish},
		{fmt.Sprintf("aspis, %d files", applyFew), a.Few}, {fmt.Sprintf("aspis, %d files of a tree of %d", applyFew, a.Large), a.FewLarge}} {
		fmt.Fprintf(w, "  %-40s %8.1f %8.1f\n", r.name, r.s.Median, r.s.P95)
	}
	fmt.Fprintf(w, "  aspis / git apply: %.2f (budget %.1f); %d files: budget %.0f\n", a.Publish.Median/a.GitApply.Median, manyBudget, applyFew, fewBudget)
}
