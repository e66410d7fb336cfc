package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Leftovers is what CollectLeftovers found and did.
type Leftovers struct {
	Collected []string // sandboxes of dead hosts, now gone
	Running   int      // sandboxes of hosts that still run, left alone
}

// unfinishedGrace is how long a run directory without a record may be one
// that its host is just writing.
const unfinishedGrace = time.Minute

// CollectLeftovers removes what hosts that were killed have left behind in
// stateDir: their sandboxes' control groups, with whatever may still be in
// them, and their run directories. It is safe to call while other hosts run.
// It goes on after an error and gives all of them.
func CollectLeftovers(ctx context.Context, stateDir string) (Leftovers, error) {
	var out Leftovers
	dir := filepath.Join(stateDir, runDir)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("look for leftovers: %w", err)
	}
	boot, err := bootID()
	if err != nil {
		return out, err
	}
	var errs []error
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return out, errors.Join(append(errs, err)...)
		}
		switch gone, err := collect(ctx, filepath.Join(dir, e.Name()), boot); {
		case err != nil:
			errs = append(errs, fmt.Errorf("leftover %q: %w", e.Name(), err))
		case gone:
			out.Collected = append(out.Collected, e.Name())
		default:
			out.Running++
		}
	}
	return out, errors.Join(errs...)
}

// collect removes one sandbox if its host is dead.
func collect(ctx context.Context, dir, boot string) (gone bool, err error) {
	rec, err := readRecord(dir)
	if err != nil {
		// Killed between making the directory and writing the record, which
		// comes before anything else is made.
		info, serr := os.Stat(dir)
		if errors.Is(serr, os.ErrNotExist) {
			return true, nil
		}
		if serr == nil && time.Since(info.ModTime()) < unfinishedGrace {
			return false, nil
		}
		return true, os.RemoveAll(dir)
	}
	if rec.alive(boot) {
		return false, nil
	}
	if rec.Boot == boot {
		for _, g := range rec.Groups {
			// A record is ours alone to write (the directory is 0700); the
			// check keeps a damaged one from naming somebody else's group.
			if filepath.Base(g) != filepath.Base(dir) || !strings.HasPrefix(filepath.Base(g), idPrefix) {
				return false, fmt.Errorf("record names the control group %q", g)
			}
			if err := removeGroup(ctx, g); err != nil {
				return false, err
			}
		}
	}
	return true, os.RemoveAll(dir)
}
