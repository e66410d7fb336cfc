package hygiene

import (
	"slices"
	"strings"

	"github.com/aspis-dev/aspis/schemas"
)

// source is one file on one side of a change.
type source struct {
	path string
	ref  schemas.BlobRef
	// origin is the path that the file had in the baseline. Findings about a
	// file as a whole go by it, so that a rename does not make them new.
	origin string
	kind   fileKind // absent when it is not known
	size   int64    // bytes, where the kind is known
	in     bool     // it is asked about
	// fresh is true when the file is executable and was not before.
	fresh bool
}

// scope tells which paths are asked about.
type scope struct{ schemas.Scope }

// has reports whether a path, or a directory above it, is in scope.
func (s scope) has(name string) bool {
	if s.Name != "" {
		return true
	}
	return slices.ContainsFunc(s.Paths, func(p string) bool { return p == name || strings.HasPrefix(name, p+"/") })
}

// sides lists what the changes found and what they leave. A deleted file whose
// bytes turn up in a created one was moved.
func sides(changes []schemas.Change, s scope, snap *snapshot) (before, after []source) {
	gone := map[schemas.BlobRef]string{}
	for _, c := range changes {
		if c.Kind == schemas.ChangeDelete {
			gone[c.Before] = c.Path
		}
	}
	for _, c := range changes {
		in := s.has(c.Path) || (c.From != "" && s.has(c.From))
		was := source{path: c.Path, ref: c.Before, origin: c.Path, in: in}
		now := source{path: c.Path, ref: c.After, origin: c.Path, in: in}
		if c.Kind == schemas.ChangeRename {
			was.path, was.origin, now.origin = c.From, c.From, c.From
			if c.After == "" {
				now.ref = c.Before
			}
		}
		if from, ok := gone[c.After]; ok && c.Kind == schemas.ChangeCreate {
			now.origin = from
		}
		if snap != nil {
			was.kind, was.size = snap.baseline.look(was.path)
			now.kind, now.size = snap.candidate.look(now.path)
			origin, _ := snap.baseline.look(now.origin)
			now.fresh = now.kind == executable && origin != executable
		}
		if was.ref != "" {
			before = append(before, was)
		}
		if now.ref != "" {
			after = append(after, now)
		}
	}
	return before, after
}

// inScope keeps what is asked about.
func inScope(all []source) []source {
	return slices.DeleteFunc(slices.Clone(all), func(s source) bool { return !s.in })
}

// renamed lists the names in scope that the changes bring in or take away.
func renamed(changes []schemas.Change, s scope) []string {
	var out []string
	for _, c := range changes {
		if in := s.has(c.Path) || (c.From != "" && s.has(c.From)); !in || c.Kind == schemas.ChangeModify {
			continue
		}
		out = append(out, c.Path)
		if c.From != "" {
			out = append(out, c.From)
		}
	}
	return out
}

// overlaid yields the paths of the candidate, given those of the baseline.
func overlaid(entries []schemas.TreeEntry, changes []schemas.Change) func(yield func(string) bool) {
	hide := map[string]bool{}
	var added []string
	for _, c := range changes {
		switch c.Kind {
		case schemas.ChangeDelete:
			hide[c.Path] = true
		case schemas.ChangeRename:
			hide[c.From] = true
			added = append(added, c.Path)
		case schemas.ChangeCreate:
			added = append(added, c.Path)
		}
	}
	return func(yield func(string) bool) {
		for _, e := range entries {
			if !hide[e.Path] && !yield(e.Path) {
				return
			}
		}
		for _, p := range added {
			if !yield(p) {
				return
			}
		}
	}
}

func paths(entries []schemas.TreeEntry) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for _, e := range entries {
			if !yield(e.Path) {
				return
			}
		}
	}
}
