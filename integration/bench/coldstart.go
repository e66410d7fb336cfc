package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/aspis-dev/aspis/sandbox/container"
)

// reference is the contender that the others are told as a share of.
const reference = "runc+limits"

// budget is the most that a cold start with its evidence should take of it.
const budget = 0.5

type coldStarts struct {
	Rounds int        `json:"rounds"`
	IdleMs float64    `json:"idleMs"`
	Budget float64    `json:"budgetOfRunc"`
	Rows   []startRow `json:"contenders"`
}

type startRow struct {
	Name      string  `json:"name"`
	What      string  `json:"what"`
	LeftOut   string  `json:"leftOut,omitzero"`
	FirstByte spread  `json:"firstByteMs"`
	Whole     spread  `json:"wholeMs"` // until nothing is left of it
	OfRunc    float64 `json:"ofRunc,omitzero"`
}

func coldStart(ctx context.Context, opt options) (_ *coldStarts, err error) {
	artifact := filepath.Join(opt.dir, "artifact")
	if err := copyProgram(filepath.Join(opt.bin, "bench-byte"), artifact); err != nil {
		return nil, err
	}
	space, err := container.NewSpace("")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, space.Close()) }()
	rt, err := container.New(container.Options{StateDir: filepath.Join(opt.dir, "run"), Space: space})
	if err != nil {
		return nil, err
	}
	all, err := contenders(opt, rt, artifact)
	if err != nil {
		return nil, err
	}
	first, whole := make([][]time.Duration, len(all)), make([][]time.Duration, len(all))
	// Once each without measuring: who cannot run here is told so and left out,
	// and files are in memory for everybody.
	for i := range all {
		if all[i].missing == "" {
			if _, _, err := all[i].start(ctx); err != nil {
				all[i].missing = err.Error()
			}
		}
	}
	for range opt.rounds {
		for _, i := range rand.Perm(len(all)) { //nolint:gosec // an order that means nothing
			if all[i].missing != "" {
				continue
			}
			select {
			case <-time.After(opt.idle):
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			f, w, err := all[i].start(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s ran before and does not now: %w", all[i].name, err)
			}
			first[i], whole[i] = append(first[i], f), append(whole[i], w)
		}
	}
	res := &coldStarts{Rounds: opt.rounds, IdleMs: ms(opt.idle), Budget: budget}
	against := 0.0
	for i, c := range all {
		row := startRow{Name: c.name, What: c.what, LeftOut: c.missing, FirstByte: spreadOf(first[i]), Whole: spreadOf(whole[i])}
		if c.name == reference {
			against = row.FirstByte.Median
		}
		res.Rows = append(res.Rows, row)
	}
	for i := range res.Rows {
		if against > 0 {
			res.Rows[i].OfRunc = res.Rows[i].FirstByte.Median / against
		}
	}
	return res, nil
}

// copyProgram puts the program alone into a directory that sandboxes can show.
func copyProgram(from, dir string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("read the program to start: %w; make bench builds it", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the artifact directory: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(from)), b, 0o755); err != nil {
		return fmt.Errorf("copy the program to start: %w", err)
	}
	return nil
}

func (r *coldStarts) print(w io.Writer) {
	fmt.Fprintf(w, "\ncold start of a static program, ms (%d rounds, taking turns, each after %.0f ms of idling)\n", r.Rounds, r.IdleMs)
	fmt.Fprintf(w, "  %-13s %18s %18s %8s\n", "", "to first byte", "until all is gone", "of runc")
	fmt.Fprintf(w, "  %-13s %9s %8s %9s %8s %8s\n", "", "median", "p95", "median", "p95", "+limits")
	for _, c := range r.Rows {
		if c.LeftOut != "" {
			continue
		}
		share := "-"
		if c.OfRunc > 0 {
			share = fmt.Sprintf("%.2f", c.OfRunc)
		}
		fmt.Fprintf(w, "  %-13s %9.1f %8.1f %9.1f %8.1f %8s  %s\n", c.Name, c.FirstByte.Median, c.FirstByte.P95, c.Whole.Median, c.Whole.P95, share, c.What)
	}
	for _, c := range r.Rows {
		if c.LeftOut != "" {
			fmt.Fprintf(w, "  %-13s left out: %s\n", c.Name, c.LeftOut)
		}
	}
	fmt.Fprintf(w, "  budget: aspis at most %.2f of %s\n", r.Budget, reference)
}
