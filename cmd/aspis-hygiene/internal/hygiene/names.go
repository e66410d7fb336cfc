package hygiene

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"github.com/aspis-dev/aspis/schemas"
)

// fold maps names that some file systems take for one to one string.
func fold(name string) string { return norm.NFC.String(cases.Fold().String(norm.NFC.String(name))) }

// collisions finds paths of the after-state that a file system which ignores
// case or Unicode form cannot tell apart. Only changed ones are reported.
func collisions(before []schemas.TreeEntry, changes []schemas.Change) []hit {
	paths := map[string]bool{}
	for _, e := range before {
		paths[e.Path] = true
	}
	changed := map[string]bool{}
	for _, c := range changes {
		switch c.Kind {
		case schemas.ChangeDelete:
			delete(paths, c.Path)
		case schemas.ChangeRename:
			delete(paths, c.From)
			paths[c.Path], changed[c.Path] = true, true
		case schemas.ChangeCreate:
			paths[c.Path], changed[c.Path] = true, true
		}
	}
	if len(changed) == 0 {
		return nil
	}
	// Directories collide too: a/x beside A/y.
	first := map[string]string{}
	note := func(p string) {
		if k := fold(p); first[k] == "" || p < first[k] {
			first[k] = p
		}
	}
	for p := range paths {
		for d := p; d != "."; d = path.Dir(d) {
			note(d)
		}
	}
	var hits []hit
	for p := range changed {
		for d := p; d != "."; d = path.Dir(d) {
			other := first[fold(d)]
			if other == d {
				other = otherSpelling(paths, d)
			}
			if other != "" && other != d {
				hits = append(hits, hit{rule: ruleCase, path: p, line: -1, key: p,
					message: fmt.Sprintf("%q and %q are one name where case is ignored", d, other)})
				break
			}
		}
	}
	return hits
}

// otherSpelling looks for another name that folds to the same as d.
func otherSpelling(paths map[string]bool, d string) string {
	k := fold(d)
	for p := range paths {
		for q := p; q != "."; q = path.Dir(q) {
			if q != d && fold(q) == k {
				return q
			}
		}
	}
	return ""
}

// Where the host mounts the snapshots of a provider that may see them.
const (
	candidateDir = "/workspace/candidate"
	baselineDir  = "/workspace/baseline"
)

// modes looks at files in the mounted snapshots. Only lstat and readlink are
// used: bytes come by callback.
type modes struct{ candidate, baseline string }

func findModes() *modes {
	if st, err := os.Stat(candidateDir); err != nil || !st.IsDir() {
		return nil
	}
	return &modes{candidateDir, baselineDir}
}

// scan applies the rules that need a file's mode.
func (m *modes) scan(c schemas.Change) []hit {
	if c.Kind == schemas.ChangeDelete {
		return nil
	}
	now, err := os.Lstat(filepath.Join(m.candidate, c.Path))
	if err != nil {
		return nil
	}
	from := c.Path
	if c.From != "" {
		from = c.From
	}
	was, wasErr := os.Lstat(filepath.Join(m.baseline, from))
	if now.Mode().Type() == fs.ModeSymlink {
		return symlinkHit(c.Path, filepath.Join(m.candidate, c.Path))
	}
	if now.Mode().IsRegular() && now.Mode().Perm()&0o111 != 0 && (wasErr != nil || was.Mode().Perm()&0o111 == 0) {
		return []hit{{rule: ruleExecutable, path: c.Path, line: -1, key: c.Path, message: "the file becomes executable"}}
	}
	return nil
}

// isSymlink reports whether a changed path is a symlink afterwards.
func (m *modes) isSymlink(p string) bool {
	st, err := os.Lstat(filepath.Join(m.candidate, p))
	return err == nil && st.Mode().Type() == fs.ModeSymlink
}

func symlinkHit(name, at string) []hit {
	target, err := os.Readlink(at)
	if err != nil {
		return nil
	}
	why := ""
	switch clean := path.Join(path.Dir(name), target); {
	case path.IsAbs(target):
		why = "is absolute"
	case clean == ".." || strings.HasPrefix(clean, "../"):
		why = "leads out of the repository"
	case clean == ".git" || strings.HasPrefix(strings.ToLower(clean)+"/", ".git/"):
		why = "leads into .git"
	default:
		return nil
	}
	return []hit{{rule: ruleSymlink, path: name, line: -1, key: name + "\x00" + target, message: fmt.Sprintf("the link's target %q %s", target, why)}}
}
