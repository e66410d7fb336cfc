package toolspec

import (
	"path"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// Wants reports whether a tool understands a file by its name. firstLine gives
// the file's first line and is called only for names without an extension, and
// only where the tool cares.
func (t *Tool) Wants(name string, firstLine func() string) bool {
	if included(t.Files, name) {
		return true
	}
	if len(t.Interpreters) == 0 || strings.Contains(path.Base(name), ".") || excluded(t.Files, name) {
		return false
	}
	rest, ok := strings.CutPrefix(firstLine(), "#!")
	if !ok {
		return false
	}
	words := strings.Fields(rest)
	for i, w := range words {
		words[i] = path.Base(w)
	}
	if len(words) > 1 && words[0] == "env" {
		words = slices.DeleteFunc(words[1:], func(w string) bool { return strings.HasPrefix(w, "-") || strings.Contains(w, "=") })
	}
	return len(words) > 0 && slices.Contains(t.Interpreters, words[0])
}

// Configures reports whether a file tells the tool what to look for.
func (t *Tool) Configures(name string) bool {
	return len(t.ConfigFiles) > 0 && included(t.ConfigFiles, name)
}

func included(globs []string, name string) bool {
	in := len(globs) == 0
	for _, g := range globs {
		if !strings.HasPrefix(g, "!") && doublestar.MatchUnvalidated(g, name) {
			in = true
		}
	}
	return in && !excluded(globs, name)
}

func excluded(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(g string) bool {
		ex, ok := strings.CutPrefix(g, "!")
		return ok && doublestar.MatchUnvalidated(ex, name)
	})
}
