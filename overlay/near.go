package overlay

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
)

const (
	// maxRecent is how many baselines of a repository are thought of when the
	// next is made.
	maxRecent = 4

	// fewChanges may always be a layer of their own; beyond, a sixteenth of the
	// files may: looking for a name in two layers costs every reader a little.
	fewChanges = 256
	nearPart   = 16
)

// recentPath is where the trees of a repository's last baselines are noted, the
// newest first. It is a hint: what it names need not be there any more.
func (s *Store) recentPath(src Source) string {
	return s.path("recent", filepath.Base(src.ID()))
}

func (s *Store) recent(src Source) (trees []gitrepo.OID) {
	b, err := os.ReadFile(s.recentPath(src))
	if err != nil {
		return nil
	}
	for _, f := range strings.Fields(string(b)) {
		if len(trees) < maxRecent && strings.Trim(f, "0123456789abcdef") == "" {
			trees = append(trees, gitrepo.OID(f))
		}
	}
	return trees
}

// noteRecent puts a tree first. Of several that write at once one is heard.
func (s *Store) noteRecent(src Source, tree gitrepo.OID, before []gitrepo.OID) {
	lines := string(tree) + "\n"
	for _, t := range before {
		if t != tree {
			lines += string(t) + "\n"
		}
	}
	tmp, err := os.CreateTemp(s.path("recent"), newBlob)
	if err != nil {
		return
	}
	_, err = tmp.WriteString(lines)
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), s.recentPath(src))
	}
	if err != nil {
		_ = os.Remove(tmp.Name()) // the hint is as it was
	}
}

// nearBaseline makes a tree's snapshot from a whole one of the same repository
// from which little differs. There is none where nil is returned. Like a
// candidate it is not carried over a reboot, so that no disk is waited for.
func (s *Store) nearBaseline(ctx context.Context, src Source, tree gitrepo.OID, recent []gitrepo.OID) (*Snapshot, error) {
	for _, t := range recent {
		if t == tree {
			continue
		}
		base, err := s.find(ctx, baselinePrefix+string(t))
		if err != nil {
			return nil, err
		}
		if base == nil {
			continue
		}
		base.tree = t
		snap, err := s.over(ctx, src, base, tree)
		if snap != nil {
			return snap, nil
		}
		if cerr := base.Close(); err != nil || cerr != nil {
			return nil, errors.Join(err, cerr)
		}
	}
	return nil, nil
}

// over makes a tree's snapshot over a baseline, which it then owns, unless too
// much differs or the baseline's tree is no longer in the repository.
func (s *Store) over(ctx context.Context, src Source, base *Snapshot, tree gitrepo.OID) (*Snapshot, error) {
	m, err := base.manifest()
	var damaged *DamagedError
	if errors.As(err, &damaged) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	changes, err := src.DiffTrees(ctx, base.tree, tree)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, nil // whoever needs the tree itself is told what is wrong with it
	}
	if len(changes) == 0 || len(changes) > max(fewChanges, m.count/nearPart) {
		return nil, nil
	}
	snap, err := s.candidate(ctx, src, base, tree, changes)
	if err != nil {
		return nil, err
	}
	snap.owns = true
	return snap, nil
}
