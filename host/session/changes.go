package session

import (
	"context"
	"fmt"
	"strings"

	"github.com/aspis-dev/aspis/overlay"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
)

// Changes are what was done in a session, as git would see it.
type Changes struct {
	Base, Tree gitrepo.OID
	// Ignored is how many paths git ignores, and so nobody applies.
	Ignored int
	// Refused are what no change can be made of: devices, sockets, odd names.
	Refused []string
	// InGit is how many paths of the git directory were changed; they stay in the
	// session.
	InGit int
	// Drift are files of the project that the session saw change under it.
	Drift []string
}

// Changes makes a tree of what a session did. keep, unless nil, chooses paths;
// the others are left as they were.
func (b *Book) Changes(ctx context.Context, repo *gitrepo.Repo, s *Session, keep func(path string) bool) (*Changes, error) {
	area, err := b.Store.OpenWorkArea(s.ID)
	if err != nil {
		return nil, err
	}
	c := &Changes{Base: gitrepo.OID(s.Tree)}
	diff, err := area.Changes(ctx, overlay.ChangesOptions{Keep: true, Prune: func(_, path string) bool {
		if path == ".git" || strings.HasPrefix(path, ".git/") || strings.HasSuffix(path, "/.git") {
			c.InGit++
			return true
		}
		return false
	}})
	if err != nil {
		return nil, err
	}
	for _, r := range diff.Refused {
		c.Refused = append(c.Refused, fmt.Sprintf("%q is %s", r.Path, r.What))
	}
	drift, err := area.Drift(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range drift {
		if d.Seen {
			c.Drift = append(c.Drift, d.Path)
		}
	}
	var all []overlay.WorkChange
	var created []string
	for _, ch := range diff.Changes {
		before, after := ch.GitModes()
		if ch.Dir != s.Dir || ch.IsDir() && before == 0 && after == 0 || ch.Metadata && before == after {
			continue
		}
		all = append(all, ch)
		if after != 0 {
			created = append(created, ch.Path)
		}
	}
	ignored, err := repo.IgnoredAmong(ctx, created)
	if err != nil {
		return nil, err
	}
	edits, err := b.edits(ctx, repo, all, func(path string) bool {
		if ignored[path] {
			c.Ignored++
			return false
		}
		return keep == nil || keep(path)
	})
	if err != nil {
		return nil, err
	}
	c.Tree, err = repo.WriteTree(ctx, c.Base, edits)
	return c, err
}

// edits turns changes into what they make of git's tree.
func (b *Book) edits(ctx context.Context, repo *gitrepo.Repo, all []overlay.WorkChange, keep func(string) bool) ([]gitrepo.TreeEdit, error) {
	var edits []gitrepo.TreeEdit
	for _, ch := range all {
		_, after := ch.GitModes()
		if !keep(ch.Path) {
			continue
		}
		if ch.From != "" && keep(ch.From) {
			edits = append(edits, gitrepo.TreeEdit{Path: ch.From})
		}
		if after == 0 {
			edits = append(edits, gitrepo.TreeEdit{Path: ch.Path})
			continue
		}
		oid, err := b.object(ctx, repo, ch, after)
		if err != nil {
			return nil, fmt.Errorf("take %q: %w", ch.Path, err)
		}
		edits = append(edits, gitrepo.TreeEdit{Path: ch.Path, Mode: after, OID: oid})
	}
	return edits, nil
}

func (b *Book) object(ctx context.Context, repo *gitrepo.Repo, ch overlay.WorkChange, mode uint32) (gitrepo.OID, error) {
	r, _, err := b.Store.OpenBlob(ch.After)
	if err != nil {
		return "", err
	}
	defer r.Close()
	if mode == gitrepo.ModeSymlink {
		return repo.PutBlob(ctx, r)
	}
	return repo.PutBlobAs(ctx, ch.Path, r)
}
