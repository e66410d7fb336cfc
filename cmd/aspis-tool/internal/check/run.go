package check

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/aspis-dev/aspis/cmd/aspis-tool/internal/match"
	"github.com/aspis-dev/aspis/cmd/aspis-tool/internal/report"
	"github.com/aspis-dev/aspis/cmd/internal/provider"
	"github.com/aspis-dev/aspis/cmd/internal/toolspec"
	"github.com/aspis-dev/aspis/schemas"
)

// maxGaps bounds what is told of what is missing.
const maxGaps = 20

// run is one check.
type run struct {
	p      *Provider
	w      *provider.Workspace
	q      *provider.CheckRequest
	tool   *toolspec.Tool
	answer *schemas.Assessment

	scratch       string
	before, after *side
	gaps          []string
}

func (r *run) gap(format string, args ...any) {
	if g := report.Text(fmt.Sprintf(format, args...), 600); len(r.gaps) < maxGaps && !slices.Contains(r.gaps, g) {
		r.gaps = append(r.gaps, g)
	}
}

// all does one check from the views to the diagnostics.
func (r *run) all(ctx context.Context) (err error) {
	if r.after, err = openSide(r.p.at.Candidate); err != nil {
		return err
	}
	defer r.after.close()
	if r.before, err = openSide(r.p.at.Baseline); err != nil {
		return err
	}
	defer r.before.close()
	r.account()
	now, err := r.targets(ctx, r.after, true)
	if err != nil {
		return err
	}
	was, err := r.targets(ctx, r.before, false)
	if err != nil {
		return err
	}
	if len(now) == 0 && len(was) == 0 {
		return nil // nothing that the tool understands
	}
	done, err := r.makeScratch()
	if err != nil {
		return err
	}
	defer done()
	verified, err := r.p.verify(ctx, r.tool, environment(r.tool, r.p.at.Own, r.scratch, "/"))
	if err != nil {
		return err
	}
	found, err := r.items(ctx, r.after, now, true)
	// Another program's answer is none, whatever it says.
	if other := verified(); other != nil {
		return other
	}
	if err != nil {
		return err
	}
	// What was there before matters only beside what is there now, but for what
	// has gone.
	var old []item
	var lost error
	if len(found) > 0 || r.q.Comparison == schemas.Resolved {
		old, lost = r.items(ctx, r.before, r.followed(was, found), false)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if lost != nil {
		if r.q.Comparison == schemas.Resolved {
			return lost
		}
		r.gap("what was there before the change is not known, so that nothing can be told to be old: %v", lost)
	}
	r.report(old, found, lost != nil)
	return nil
}

// followed adds the files that the tool went on to from those that it was given,
// and that no change touches: what it finds there it must have been able to find
// before.
func (r *run) followed(was []string, found []item) []string {
	if r.tool.Scope == "workspace" {
		return was
	}
	changed, known := r.changed(), map[string]bool{}
	for _, name := range was {
		known[name] = true
	}
	for _, it := range found {
		if known[it.Path] || changed[it.Path] {
			continue
		}
		known[it.Path] = true
		if _, file := r.before.kind(it.Path); file {
			was = append(was, it.Path)
		}
	}
	return was
}

// account names the blobs that the tool could see, and what of the change it
// could not.
func (r *run) account() {
	seen := map[schemas.BlobRef]bool{}
	hidden := 0
	look := func(s *side, name string, ref schemas.BlobRef) {
		if ref == "" || name == "" {
			return
		}
		if there, _ := s.kind(name); !there {
			hidden++
			return
		}
		seen[ref] = true
	}
	for _, c := range r.q.ChangeSet.Changes {
		was := c.Path
		if c.From != "" {
			was = c.From
		}
		look(r.after, c.Path, c.After)
		look(r.before, was, c.Before)
		if (r.tool.Configures(c.Path) || (c.From != "" && r.tool.Configures(c.From))) && !r.tool.TrustChangedConfig {
			r.gap("the change edits %q, which tells %s what to look for; a change does not decide about its own check", c.Path, r.tool.Name)
		}
	}
	if hidden > 0 {
		r.gap("%d files of the change cannot be seen", hidden)
	}
	if g := r.w.Grant().Read; r.tool.Scope == "workspace" && (!slices.Contains(g, "**") || slices.ContainsFunc(g, func(s string) bool { return strings.HasPrefix(s, "!") })) {
		r.gap("%s looks at the whole workspace, and a part of it is outside of the grant", r.tool.Name)
	}
	blobs := make([]schemas.BlobRef, 0, len(seen))
	for ref := range seen {
		blobs = append(blobs, ref)
	}
	for _, ref := range r.w.Received() {
		if !seen[ref] {
			blobs = append(blobs, ref)
		}
	}
	slices.Sort(blobs)
	r.answer.ValidAsOf.Blobs = blobs
}

// targets lists what the tool is to look at on one side: what the change touches
// and the tool understands. Files that no change touches introduce nothing; they
// are asked about only where all findings are.
func (r *run) targets(ctx context.Context, s *side, now bool) ([]string, error) {
	names := map[string]bool{}
	want := func(name string) {
		if name == "" || names[name] {
			return
		}
		if there, file := s.kind(name); there && file && r.tool.Wants(name, func() string { return s.firstLine(name) }) {
			names[name] = true
		}
	}
	for _, c := range r.q.ChangeSet.Changes {
		switch {
		case now && c.After != "":
			want(c.Path)
		case !now && c.Before != "" && c.From != "":
			want(c.From)
		case !now && c.Before != "":
			want(c.Path)
		}
	}
	if r.q.Comparison == schemas.All {
		for _, name := range r.q.Scope.Paths {
			want(name)
		}
		if r.q.Scope.Name == schemas.ScopeWorkspace {
			if err := s.each(ctx, func(name string) error { want(name); return nil }); err != nil {
				return nil, fmt.Errorf("list the workspace: %w", err)
			}
		}
	}
	out := make([]string, 0, len(names))
	for name := range names {
		out = append(out, name)
	}
	slices.Sort(out)
	return out, nil
}

func (r *run) makeScratch() (func(), error) {
	dir, err := os.MkdirTemp(r.p.at.Scratch, "aspis-tool-")
	if err != nil {
		return nil, fmt.Errorf("make scratch space: %w", err)
	}
	for _, d := range []string{"home", "tmp", "cache"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			return nil, fmt.Errorf("make scratch space: %w", err)
		}
	}
	r.scratch = dir
	return func() { _ = os.RemoveAll(dir) }, nil
}

// item is one finding of a side.
type item struct {
	match.Item
	found found
}

// items runs the tool on a side and places what it finds.
func (r *run) items(ctx context.Context, s *side, files []string, now bool) ([]item, error) {
	if len(files) == 0 && r.tool.Scope != "workspace" {
		return nil, nil
	}
	if r.tool.Writable {
		name := "baseline"
		if now {
			name = "candidate"
		}
		if err := s.copyTo(ctx, filepath.Join(r.scratch, name)); err != nil {
			return nil, err
		}
		defer func() { _ = os.RemoveAll(s.dir) }()
	}
	limit := time.Duration(r.tool.TimeoutMs) * time.Millisecond
	if limit == 0 {
		limit = toolspec.DefaultTimeoutMs * time.Millisecond
	}
	in := &invocation{tool: r.tool, program: r.p.program(r.tool), own: r.p.at.Own, scratch: r.scratch, side: s, until: time.Now().Add(limit), gaps: r.gap}
	list, err := in.all(ctx, files)
	if err != nil {
		return nil, err
	}
	homes := map[string]string{}
	for _, c := range r.q.ChangeSet.Changes {
		if now && c.From != "" {
			homes[c.Path] = c.From
		}
	}
	var out []item
	outside, lost := 0, 0
	for _, f := range list {
		if f.Path == "" {
			f.Path = f.only
		}
		name, ok := report.Relative(s.dir, f.Path)
		if !ok || schemas.ValidPath(name) != nil {
			outside++
			continue
		}
		it := item{found: f}
		it.Rule, it.Path, it.Home = f.Rule, name, name
		// A copy and a view have different paths; no message should tell them apart.
		it.Message = strings.ReplaceAll(f.Message, s.dir+"/", "")
		if h, ok := homes[name]; ok {
			it.Home = h
		}
		it.Text = s.text(name)
		if it.Text != nil {
			if it.Place, ok = locate(it.Text, f); !ok {
				lost++
			}
		}
		out = append(out, it)
	}
	if outside > 0 {
		r.gap("%d findings of %s name no file of the workspace", outside, r.tool.Name)
	}
	if lost > 0 {
		r.gap("%d findings of %s are at places that their files do not have", lost, r.tool.Name)
	}
	return out, nil
}

func locate(t *match.Text, f found) (match.Place, bool) {
	if f.Offset >= 0 {
		return t.LocateOffsets(f.Offset, f.EndOffset)
	}
	unit := map[string]match.Unit{"bytes": match.Bytes, "utf16": match.UTF16}[f.columns]
	return t.Locate(f.Line, f.Column, f.EndLine, f.EndColumn, unit)
}
