package frozen

import (
	"path"
	"slices"

	"golang.org/x/sys/unix"
)

// Delta is what makes one state of another.
type Delta struct {
	// Put are the entries that are new or other than before, and the directories
	// above them, in path order.
	Put []Entry
	// Gone are the topmost paths that are there no more, in path order.
	Gone []string
	// Changed counts the paths of both without directories that only lie above.
	Changed int
}

// Compare finds what differs between two scans of one directory, both in path
// order. An entry whose times cannot be relied on counts as changed.
func Compare(before, after []Entry) Delta {
	var d Delta
	changed := make([]bool, len(after))
	i, j := 0, 0
	for i < len(before) || j < len(after) {
		order := 0
		switch {
		case i == len(before):
			order = 1
		case j == len(after):
			order = -1
		default:
			order = compare(before[i].Path, after[j].Path)
		}
		switch {
		case order < 0:
			d.Gone = append(d.Gone, before[i].Path)
			if k, ok := Find(after, path.Dir(before[i].Path)); ok {
				changed[k] = true // the whiteout needs it
			}
			i = skipBelow(before, i)
		case order > 0:
			changed[j] = true
			j++
		default:
			changed[j] = changed[j] || differs(before[i], after[j])
			if before[i].Dir() && !after[j].Dir() {
				i = skipBelow(before, i) // hidden by what lies there now
			} else {
				i++
			}
			j++
		}
	}
	d.Put = withParents(after, changed)
	for _, c := range changed {
		if c {
			d.Changed++
		}
	}
	d.Changed += len(d.Gone)
	return d
}

func skipBelow(entries []Entry, i int) int {
	top := entries[i].Path
	for i++; i < len(entries) && Under(entries[i].Path, top); i++ {
	}
	return i
}

// withParents picks the changed entries and the directories above each.
func withParents(after []Entry, changed []bool) []Entry {
	n := 0
	for _, c := range changed {
		if c {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	put := make([]Entry, 0, min(n+n/8+16, len(after)))
	var above []int // indexes of the directories above the entry at hand
	taken := make([]bool, len(after))
	for j, e := range after {
		for len(above) > 0 && !Under(e.Path, after[above[len(above)-1]].Path) {
			above = above[:len(above)-1]
		}
		if changed[j] {
			for _, a := range above {
				if !taken[a] {
					taken[a] = true
					put = append(put, after[a])
				}
			}
			taken[j] = true
			put = append(put, e)
		}
		if e.Dir() {
			above = append(above, j)
		}
	}
	return put
}

// differs goes by what a change cannot but touch: the kernel sets ctime and
// nobody else can.
func differs(a, b Entry) bool {
	if a.Mode != b.Mode || a.UID != b.UID || a.GID != b.GID || a.Target != b.Target {
		return true
	}
	if b.Mode&unix.S_IFMT != unix.S_IFREG {
		return a.Mtime != b.Mtime
	}
	if a.Size != b.Size || a.Mtime != b.Mtime || a.Ino != b.Ino {
		return true
	}
	// Each link that is made or removed sets the ctime anew.
	return !a.Linked && (a.Ctime != b.Ctime || a.Racy)
}

// Find looks an entry up by its path.
func Find(entries []Entry, p string) (int, bool) {
	return slices.BinarySearchFunc(entries, p, func(e Entry, p string) int { return compare(e.Path, p) })
}
