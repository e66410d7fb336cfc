package frozen

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func FuzzDecode(f *testing.F) {
	f.Add(Encode(nil))
	f.Add(Encode([]Entry{{Path: ".", Mode: unix.S_IFDIR}, {Path: "a", Mode: unix.S_IFREG, Mtime: 5, Ctime: 3, Racy: true}, {Path: "a\xff", Mode: unix.S_IFLNK, Target: "x", Linked: true}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		entries, err := Decode(b)
		if err != nil {
			return
		}
		again, err := Decode(Encode(entries))
		if err != nil || !slices.Equal(entries, again) {
			t.Fatalf("%v: %+v and %+v", err, entries, again)
		}
	})
}

func TestEveryByteOfARecordCounts(t *testing.T) {
	good := Encode([]Entry{{Path: ".", Mode: unix.S_IFDIR}, {Path: "a", Mode: unix.S_IFREG, Size: 1 << 40}, {Path: "a/b", Ino: 7}})
	for i := range good {
		bad := slices.Clone(good)
		bad[i] ^= 1
		if _, err := Decode(bad); err == nil {
			t.Errorf("byte %d may be changed", i)
		}
		if _, err := Decode(good[:i]); err == nil {
			t.Errorf("it may end at %d", i)
		}
	}
}

// TestPathOrder: whatever lies below a directory comes right after it.
func TestPathOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		paths := rapid.SliceOfN(rapid.StringMatching(`[a.!-]{1,2}(/[a.!-]{1,2}){0,2}`), 0, 20).Draw(t, "paths")
		slices.SortFunc(paths, compare)
		for i, top := range paths {
			left := false
			for _, p := range paths[i+1:] {
				if p == top {
					continue
				}
				if Under(p, top) && left {
					t.Fatalf("%q is parted from %q in %q", p, top, paths)
				}
				left = left || !Under(p, top)
			}
		}
	})
}
