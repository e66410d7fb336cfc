package hygiene

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// fold maps names that some file system takes for one to one string: those
// that differ in case, or in how an accent is composed.
func fold(name string) string {
	if ascii([]byte(name)) {
		return strings.ToLower(name)
	}
	return norm.NFC.String(cases.Fold().String(norm.NFC.String(name)))
}

// tree tells which names a directory has; "" is the root.
type tree func(dir string) ([]string, error)

// collisions finds the first place in each path where its directory has names
// that are one file elsewhere. Each name beyond the first is a finding, however
// many paths lie below; a path need not exist, so that the same question can be
// asked of both sides of a change.
func collisions(paths []string, names tree) ([]hit, error) {
	folded := map[string]map[string][]string{} // by directory: names by their fold
	var hits []hit
	seen := map[string]bool{}
	for _, p := range slices.Sorted(slices.Values(paths)) {
		dir := ""
		for segment := range strings.SplitSeq(p, "/") {
			by := folded[dir]
			if by == nil {
				list, err := names(dir)
				if err != nil {
					return nil, err
				}
				by = make(map[string][]string, len(list))
				for _, name := range list {
					by[fold(name)] = append(by[fold(name)], name)
				}
				folded[dir] = by
			}
			same := by[fold(segment)]
			if len(same) < 2 {
				dir = path.Join(dir, segment)
				continue
			}
			if key := path.Join(dir, fold(segment)); !seen[key] {
				seen[key] = true
				hits = append(hits, collision(p, dir, segment, key, same)...)
			}
			break
		}
	}
	return hits, nil
}

// collision words the findings of one group of names, from one of them on.
func collision(p, dir, segment, key string, same []string) []hit {
	first := slices.Index(same, segment)
	if first < 0 {
		first = 0
	}
	var hits []hit
	for i, name := range same {
		if i != first {
			hits = append(hits, hit{rule: ruleCollision, path: p, key: key,
				message: fmt.Sprintf("%q and %q are one name where case or composition is ignored", path.Join(dir, same[first]), path.Join(dir, name))})
		}
	}
	return hits
}

// listed makes a tree out of a list of paths. Only the directories above paths
// of interest are kept.
func listed(all func(yield func(string) bool), interest []string) tree {
	names := map[string]map[string]bool{"": {}}
	for _, p := range interest {
		for d := path.Dir(p); d != "."; d = path.Dir(d) {
			names[d] = map[string]bool{}
		}
	}
	for p := range all {
		dir := ""
		for rest := p; ; {
			segment, below, more := strings.Cut(rest, "/")
			if set := names[dir]; set != nil {
				set[segment] = true
			} else {
				break // nothing below is of interest either
			}
			if !more {
				break
			}
			dir, rest = path.Join(dir, segment), below
		}
	}
	return func(dir string) ([]string, error) {
		out := make([]string, 0, len(names[dir]))
		for name := range names[dir] {
			out = append(out, name)
		}
		slices.Sort(out)
		return out, nil
	}
}

// escapes tells why a symlink leads out of the repository, or returns "". The
// path is taken by its letters: links on the way are not followed.
func escapes(at, target string) string {
	clean := path.Join(path.Dir(at), target)
	switch {
	case target == "":
		return ""
	case path.IsAbs(target):
		return "is absolute"
	case len(target) > 2 && target[1] == ':' && (target[2] == '\\' || target[2] == '/'), strings.HasPrefix(target, `\`):
		return "is absolute on Windows"
	case clean == ".." || strings.HasPrefix(clean, "../"):
		return "leads out of the repository"
	}
	for segment := range strings.SplitSeq(clean, "/") {
		switch strings.TrimRight(fold(segment), ". ") {
		case ".git", "git~1":
			return "leads into .git"
		}
	}
	return ""
}

func linkHits(at string, content []byte) []hit {
	target := string(content)
	why := escapes(at, target)
	if why == "" {
		return nil
	}
	shown := target
	if len(shown) > 200 {
		shown = shown[:200] + "…"
	}
	return []hit{{rule: ruleSymlink, path: at, key: why + "\x00" + target, message: fmt.Sprintf("the link's target %q %s", shown, why)}}
}
