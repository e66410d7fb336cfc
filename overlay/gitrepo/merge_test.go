package gitrepo

import (
	"context"
	"testing"
)

func TestMergeFile(t *testing.T) {
	r := newRepo(t)
	r.write("a", "1\n")
	r.commit("one")
	g := r.open()
	for name, tc := range map[string]struct {
		base, ours, theirs, want string
		clean                    bool
	}{
		"apart":     {"1\n2\n3\n4\n5\n", "1\nb\n3\n4\n5\n", "1\n2\n3\n4\ne\n", "1\nb\n3\n4\ne\n", true},
		"same":      {"1\n2\n", "1\nx\n", "1\nx\n", "1\nx\n", true},
		"one side":  {"1\n2\n", "1\n2\n", "", "", true},
		"no end":    {"1\n2\n3\n4", "0\n1\n2\n3\n4", "1\n2\n3\n5", "0\n1\n2\n3\n5", true},
		"crlf":      {"1\r\n2\r\n3\r\n4\r\n", "x\r\n2\r\n3\r\n4\r\n", "1\r\n2\r\n3\r\ny\r\n", "x\r\n2\r\n3\r\ny\r\n", true},
		"collision": {"1\n2\n3\n", "1\nx\n3\n", "1\ny\n3\n", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			got, clean, err := g.MergeFile(context.Background(), []byte(tc.base), []byte(tc.ours), []byte(tc.theirs))
			if err != nil || clean != tc.clean || (clean && string(got) != tc.want) {
				t.Fatalf("%q %v (%v), want %q %v", got, clean, err, tc.want, tc.clean)
			}
		})
	}
}
