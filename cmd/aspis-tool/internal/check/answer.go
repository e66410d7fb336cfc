package check

import (
	"cmp"
	"net/url"
	"slices"
	"strings"

	"github.com/aspis-dev/aspis/cmd/aspis-tool/internal/match"
	"github.com/aspis-dev/aspis/schemas"
)

// maxDiagnostics bounds an answer; errors come before what is left out.
const maxDiagnostics = 5000

// report compares the sides and fills in the diagnostics. Where what was there
// before is not known, no finding says whether it is new.
func (r *run) report(old, found []item, unknown bool) {
	before, after := plain(old), plain(found)
	same := match.Compare(before, after)
	list, items, was := found, after, same.Old
	if r.q.Comparison == schemas.Resolved {
		list, items, was = old, before, same.Still
	}
	marks := match.Fingerprints(items)
	changed := r.changed()
	for i := range list {
		severity := r.severity(list[i].found)
		switch {
		case severity == "off":
			continue
		case was[i] && r.q.Comparison != schemas.All:
			continue
		case r.q.Comparison == schemas.All && !r.inScope(list[i].Path, changed):
			continue
		}
		introduced := !was[i] && r.q.Comparison != schemas.Resolved
		d := r.diagnostic(list[i], severity)
		d.Fingerprint = marks[i]
		if !unknown {
			d.Introduced = &introduced
		}
		r.answer.Diagnostics = append(r.answer.Diagnostics, d)
	}
	rank := []schemas.Severity{schemas.SeverityError, schemas.SeverityWarning, schemas.SeverityInfo}
	slices.SortStableFunc(r.answer.Diagnostics, func(x, y schemas.Diagnostic) int {
		return cmp.Or(cmp.Compare(slices.Index(rank, x.Severity), slices.Index(rank, y.Severity)), cmp.Compare(x.Location.Path, y.Location.Path))
	})
	if n := len(r.answer.Diagnostics); n > maxDiagnostics {
		r.answer.Diagnostics = r.answer.Diagnostics[:maxDiagnostics]
		r.answer.Coverage.Truncated = true
		r.gap("%d findings are more than an answer holds; the first %d are here", n, maxDiagnostics)
	}
}

func plain(list []item) []match.Item {
	out := make([]match.Item, len(list))
	for i := range list {
		out[i] = list[i].Item
	}
	return out
}

func (r *run) changed() map[string]bool {
	out := map[string]bool{}
	for _, c := range r.q.ChangeSet.Changes {
		out[c.Path] = true
	}
	return out
}

func (r *run) inScope(name string, changed map[string]bool) bool {
	switch r.q.Scope.Name {
	case schemas.ScopeWorkspace:
		return true
	case schemas.ScopeChangeset:
		return changed[name]
	}
	return slices.Contains(r.q.Scope.Paths, name)
}

// severity maps a tool's word; "off" leaves a finding out.
func (r *run) severity(f found) string {
	s := r.tool.Severity
	return cmp.Or(s.Rules[f.Rule], s.Map[f.Level], s.Default, "warning")
}

func (r *run) diagnostic(it item, severity string) schemas.Diagnostic {
	source := r.p.id.Sources[0]
	d := schemas.Diagnostic{Code: source + "/" + it.Rule, Source: source, Severity: schemas.Severity(severity), Message: it.Message,
		Location: schemas.Location{Path: it.Path}}
	if it.Text != nil && it.Place.Known {
		var g schemas.Range
		g.Start.Line, g.Start.Char = it.Text.Position(it.Place.Start)
		g.End.Line, g.End.Char = it.Text.Position(it.Place.End)
		d.Location.Range = &g
	}
	help := cmp.Or(r.tool.Help[it.Rule], it.found.Help, r.tool.Help["*"])
	help = strings.ReplaceAll(help, "{rule}", url.PathEscape(it.Rule))
	switch {
	case strings.HasPrefix(help, "https://"), strings.HasPrefix(help, "http://"):
		d.CodeDescription = &schemas.CodeDescription{Href: help}
	default:
		d.Help = help
	}
	return d
}
