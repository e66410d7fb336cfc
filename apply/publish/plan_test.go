package publish_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/aspis-dev/aspis/apply/publish"
)

// randomPlan is a workspace and a change to it, the same for the same seed.
type randomPlan struct {
	before  map[string]string // as snapshot reads it
	after   map[string]string
	changes []publish.Change
	content blobs
	spoil   bool // another program writes a path in the middle: the publish is refused
}

func (p randomPlan) paths() []string {
	var out []string
	for _, c := range p.changes {
		if c.Before.Mode != 0 && c.Before.Mode != modeLink && c.After.Mode != 0 {
			out = append(out, c.Path)
		}
	}
	return out
}

// From this seed on no plan is spoilt.
const unspoilt = 1000

// plan makes names that turn from files into directories and back.
func plan(seed uint64) randomPlan {
	r := rand.New(rand.NewPCG(seed, 7))
	p := randomPlan{content: blobs{}}
	draw := func() map[string]publish.State {
		out := map[string]publish.State{}
		for range 1 + r.IntN(9) {
			path := string(rune('a' + r.IntN(4)))
			for range r.IntN(3) {
				path += "/" + string(rune('a'+r.IntN(3)))
			}
			if clashes(out, path) {
				continue
			}
			text := fmt.Sprintf("%d\n", r.IntN(1000))
			switch r.IntN(5) {
			case 0:
				out[path] = p.content.state(modeExec, text)
			case 1:
				out[path] = p.content.state(modeLink, "b")
			default:
				out[path] = p.content.file(text)
			}
		}
		return out
	}
	before := draw()
	after := draw()
	for _, path := range slices.Sorted(maps.Keys(before)) { // some stay
		s := before[path]
		if r.IntN(3) == 0 && !clashes(after, path) {
			after[path] = s
		}
	}
	all := map[string]bool{}
	for path := range before {
		all[path] = true
	}
	for path := range after {
		all[path] = true
	}
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if before[path] != after[path] {
			p.changes = append(p.changes, publish.Change{Path: path, Before: before[path], After: after[path]})
		}
	}
	p.before, p.after = p.content.listing(before), p.content.listing(after)
	p.spoil = seed < unspoilt && r.IntN(4) == 0 && len(p.paths()) > 0
	return p
}

func clashes(have map[string]publish.State, path string) bool {
	for other := range have {
		if other == path || len(other) > len(path) && other[:len(path)+1] == path+"/" || len(path) > len(other) && path[:len(other)+1] == other+"/" {
			return true
		}
	}
	return false
}

// listing is what snapshot reads of a tree.
func (b blobs) listing(states map[string]publish.State) map[string]string {
	out := map[string]string{}
	for p, s := range states {
		for d := filepath.Dir(p); d != "."; d = filepath.Dir(d) {
			out[d+"/"] = ""
		}
		if text := string(b[s.Blob]); s.Mode == modeLink {
			out[p] = "link " + text
		} else {
			out[p] = fmt.Sprintf("%v %s", s.Mode == modeExec, text)
		}
	}
	return out
}

func (p randomPlan) make(t testing.TB, root string) {
	t.Helper()
	for path, text := range p.before {
		full := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch {
		case path[len(path)-1] == '/':
			err = os.MkdirAll(full, 0o755)
		case text[:5] == "link ":
			err = os.Symlink(text[5:], full)
		case text[:5] == "true ":
			err = os.WriteFile(full, []byte(text[5:]), 0o755)
		default:
			err = os.WriteFile(full, []byte(text[6:]), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// foreign is what another program writes in the middle of a spoiled publish.
const foreign = "written by another program\n"

// spoil writes a path once, when the exchanges have begun.
func spoil(root string, paths []string, then func(string)) func(string) {
	done := false
	return func(point string) {
		if point == "exchange 0" && !done {
			done = true
			_ = os.WriteFile(filepath.Join(root, paths[0]), []byte(foreign), 0o644)
		}
		then(point)
	}
}

// whole tells whether a workspace is as before or as after.
func (p randomPlan) whole(t testing.TB, root string) (isAfter bool) {
	t.Helper()
	got := snapshot(t, root)
	before, after := p.before, p.after
	if p.spoil {
		at := p.paths()[0]
		if text := got[at]; len(text) > 5 && text[len(text)-len(foreign):] == foreign {
			before = map[string]string{}
			for k, v := range p.before {
				before[k] = v
			}
			before[at] = text
		}
		after = nil // it must be refused
	}
	if cmp.Equal(got, before) {
		return false
	}
	if after != nil && cmp.Equal(got, after) {
		return true
	}
	t.Fatalf("neither before nor after\nagainst before: %s\nagainst after: %s", cmp.Diff(before, got), cmp.Diff(after, got))
	return false
}
