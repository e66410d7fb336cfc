package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/aspis-dev/aspis/host"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// secondBudget is what a second check should take besides the provider, in ms.
const secondBudget = 150

type checkResult struct {
	LeftOut string  `json:"leftOut,omitzero"`
	Files   int     `json:"files"`
	Changed int     `json:"changed"`
	Mode    string  `json:"mode,omitzero"`
	Cold    spread  `json:"coldMs"`       // nothing known of the repository
	Second  spread  `json:"secondMs"`     // the same check again
	Check   spread  `json:"checkMs"`      // of the second: from asking the provider to its answer
	Alone   spread  `json:"aloneMs"`      // the provider by itself, from exec to answer
	Start   spread  `json:"aloneStartMs"` // of that, until it answers the greeting
	Budget  float64 `json:"secondBudgetMs"`
	Warm    []*warm `json:"warm,omitzero"`
}

// checks measures whole commands, as a person runs them.
func checks(ctx context.Context, opt options) (*checkResult, error) {
	res := &checkResult{Files: repoFiles, Changed: changed, Budget: secondBudget}
	aspis, hygiene := filepath.Join(opt.bin, "aspis"), filepath.Join(opt.bin, "aspis-hygiene")
	for _, program := range []string{aspis, hygiene} {
		if _, err := os.Stat(program); err != nil {
			res.LeftOut = fmt.Sprintf("%s is not built; make build does it", program)
			return res, nil
		}
	}
	repo, err := makeRepo(ctx, filepath.Join(opt.dir, "repo"))
	if err != nil {
		return nil, err
	}
	change, err := captured(ctx, repo, filepath.Join(opt.dir, "capture"))
	if err != nil {
		return nil, err
	}
	mem := memory{entries: repo.entries(), blobs: repo.blobs()}
	var cold, second, check, started, whole []time.Duration
	for i := range opt.checks + 1 {
		r := round{aspis: aspis, repo: repo.dir, state: filepath.Join(opt.dir, fmt.Sprintf("check-%d", i))}
		c, _, err := r.check(ctx)
		if err != nil {
			return nil, err
		}
		s, v, err := r.check(ctx)
		if err != nil {
			return nil, err
		}
		worked, _, err := r.worked(ctx, v.Receipt.ReceiptID)
		if err != nil {
			return nil, err
		}
		st, w, err := alone(ctx, hygiene, change, mem)
		if err != nil {
			return nil, fmt.Errorf("the provider by itself: %w", err)
		}
		res.Mode = string(v.Assurance.Mode)
		if i == 0 {
			continue // programs are read from the disk once
		}
		cold, second, check = append(cold, c), append(second, s), append(check, worked)
		started, whole = append(started, st), append(whole, w)
	}
	res.Cold, res.Second, res.Check = spreadOf(cold), spreadOf(second), spreadOf(check)
	res.Start, res.Alone = spreadOf(started), spreadOf(whole)
	// The host issues the baseline of HEAD, so HEAD must be where the change begins.
	if err := repo.git(ctx, "reset", "-q", "--hard", "HEAD~1"); err != nil {
		return nil, err
	}
	for _, kind := range warmKinds {
		w, err := measureWarm(ctx, opt, aspis, repo, change, kind.name, kind.workspace)
		if err != nil {
			return nil, fmt.Errorf("a host that stays, provider %s: %w", kind.name, err)
		}
		res.Warm = append(res.Warm, w)
	}
	return res, nil
}

// captured is the change as the host would send it.
func captured(ctx context.Context, r *small, state string) (_ schemas.ChangeSet, err error) {
	repo, err := gitrepo.Open(ctx, r.dir, gitrepo.Options{StateDir: state})
	if err != nil {
		return schemas.ChangeSet{}, err
	}
	defer func() { err = errors.Join(err, repo.Close()) }()
	c, err := repo.Capture(ctx, gitrepo.Selection{Kind: gitrepo.KindBase, A: "HEAD~1"})
	if err != nil {
		return schemas.ChangeSet{}, err
	}
	if len(c.ChangeSet.Changes) != changed {
		return schemas.ChangeSet{}, fmt.Errorf("the repository's change has %d files, not %d", len(c.ChangeSet.Changes), changed)
	}
	return c.ChangeSet, nil
}

// round is one state directory of its own.
type round struct{ aspis, repo, state string }

func (r round) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, r.aspis, append([]string{"--repo", r.repo}, args...)...)
	cmd.Env = append(os.Environ(), "ASPIS_STATE_DIR="+r.state)
	return cmd
}

func (r round) run(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := r.command(ctx, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("aspis %s: %w: %q", args[0], err, lastLine(said.String()))
	}
	return out, nil
}

func (r round) check(ctx context.Context) (time.Duration, *schemas.Verdict, error) {
	began := time.Now()
	out, err := r.run(ctx, "check", "--base", "HEAD~1", "--format", "json")
	took := time.Since(began)
	if err != nil {
		return 0, nil, err
	}
	var v schemas.Verdict
	if err := json.Unmarshal(out, &v); err != nil {
		return 0, nil, fmt.Errorf("read the verdict: %w", err)
	}
	return took, &v, nil
}

// worked is how long the host waited for the provider's answer to its check, by
// the host's own account, and whether the provider ran already. The serving of
// blobs is in it.
func (r round) worked(ctx context.Context, receipt string) (took time.Duration, warm bool, err error) {
	out, err := r.run(ctx, "receipt", "show", receipt, "--evidence", "--format", "json")
	if err != nil {
		return 0, false, err
	}
	var rec host.EvidenceRecord
	if err := json.Unmarshal(out, &rec); err != nil {
		return 0, false, fmt.Errorf("read the evidence: %w", err)
	}
	total := 0.0
	for _, p := range rec.Providers {
		total += p.CheckMs
		warm = warm || p.Warm
	}
	return time.Duration(total * float64(time.Millisecond)), warm, nil
}

func (r *checkResult) print(w io.Writer) {
	fmt.Fprintf(w, "\naspis check of %d changed files in a repository of %d, ms\n", r.Changed, r.Files)
	if r.LeftOut != "" {
		fmt.Fprintf(w, "  left out: %s\n", r.LeftOut)
		return
	}
	fmt.Fprintf(w, "  %-28s %9s %8s\n", "", "median", "p95")
	row := func(name string, s spread) { fmt.Fprintf(w, "  %-28s %9.1f %8.1f\n", name, s.Median, s.P95) }
	row("first, "+r.Mode, r.Cold)
	row("second", r.Second)
	row("  of it the provider's check", r.Check)
	row("the provider without a host", r.Alone)
	row("  of it until it greets", r.Start)
	fmt.Fprintf(w, "  the second check besides the provider: %.1f (budget %.0f)\n", r.Second.Median-r.Alone.Median, r.Budget)
	printWarm(w, r.Warm)
}
