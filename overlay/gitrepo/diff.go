package gitrepo

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// RawChange is one row of git's raw diff. Status is A, M, D, R or T.
type RawChange struct {
	Status           byte
	OldMode, NewMode uint32
	OldOID, NewOID   OID
	Path, From       string
}

// renameLimit bounds git's search for renames with changes; above it only
// exact ones are found (git-diff(1), -l).
const renameLimit = 1000

// DiffTrees lists what differs from a to b, renames found. Renames with changes
// are found by reading blobs; where these cannot be had, or are too large to be
// compared, only renames without changes are.
func (r *Repo) DiffTrees(ctx context.Context, a, b OID) ([]RawChange, error) {
	if a == b {
		return nil, nil
	}
	changes, err := r.diffTrees(ctx, a, b, "-M")
	var failed *gitError
	if errors.As(err, &failed) && ctx.Err() == nil {
		changes, err = r.diffTrees(ctx, a, b, "-M100%")
	}
	return changes, err
}

func (r *Repo) diffTrees(ctx context.Context, a, b OID, renames string) ([]RawChange, error) {
	var p rawParser
	// A .gitmodules file, which comes with the change, can ask for changes of a
	// submodule not to be shown: the option overrules it.
	err := r.stream(ctx, fmt.Sprintf("compare the trees %s and %s", a, b),
		[]string{"diff-tree", "-r", "-z", "--raw", "--no-abbrev", renames, "-l" + strconv.Itoa(renameLimit), "--ignore-submodules=none",
			"--no-ext-diff", "--no-textconv", string(a), string(b)}, p.record)
	if err != nil {
		return nil, err
	}
	return p.end()
}

// rawParser reads ":oldmode newmode oldoid newoid status" NUL path [NUL path].
type rawParser struct {
	changes []RawChange
	wait    int // paths that still belong to the last change
}

func (p *rawParser) record(rec []byte) error {
	if p.wait == 0 {
		c, paths, err := parseRawHead(string(rec))
		if err != nil {
			return err
		}
		if p.changes, p.wait = append(p.changes, c), paths; len(p.changes) > maxEntries {
			return &TooLargeError{What: "the change", Limit: maxEntries}
		}
		return nil
	}
	last := &p.changes[len(p.changes)-1]
	path := string(rec)
	if err := safeTreePath(path); err != nil {
		return err
	}
	if p.wait == 2 {
		last.From = path
	} else {
		last.Path = path
	}
	p.wait--
	return nil
}

func (p *rawParser) end() ([]RawChange, error) {
	if p.wait != 0 {
		return nil, &DamagedError{Doing: "compare trees", Detail: "the list of changes is cut short"}
	}
	return p.changes, onceEach(p.changes)
}

// onceEach sees that no path is there twice before or twice after the change,
// as in a crafted tree with two entries of one name.
func onceEach(changes []RawChange) error {
	before, after := make(map[string]bool, len(changes)), make(map[string]bool, len(changes))
	note := func(m map[string]bool, path string) error {
		if m[path] {
			return &DamagedError{Doing: "compare trees", Detail: fmt.Sprintf("the path %q is there twice", path)}
		}
		m[path] = true
		return nil
	}
	for _, c := range changes {
		old := c.Path
		if c.Status == 'R' {
			old = c.From
		}
		if c.Status != 'A' {
			if err := note(before, old); err != nil {
				return err
			}
		}
		if c.Status != 'D' {
			if err := note(after, c.Path); err != nil {
				return err
			}
		}
	}
	return nil
}

func parseRawHead(s string) (RawChange, int, error) {
	odd := fmt.Errorf("git reported the odd change %.120q", s)
	f := strings.Fields(strings.TrimPrefix(s, ":"))
	if !strings.HasPrefix(s, ":") || len(f) != 5 || !validOID(f[2]) || !validOID(f[3]) || f[4] == "" {
		return RawChange{}, 0, odd
	}
	var c RawChange
	for i, m := range []*uint32{&c.OldMode, &c.NewMode} {
		v, err := strconv.ParseUint(f[i], 8, 32)
		if err != nil {
			return RawChange{}, 0, odd
		}
		*m = canonicalMode(uint32(v))
	}
	c.OldOID, c.NewOID, c.Status = OID(f[2]), OID(f[3]), f[4][0]
	switch c.Status {
	case 'A', 'M', 'D', 'T':
		return c, 1, nil
	case 'R':
		return c, 2, nil
	}
	return RawChange{}, 0, odd
}
