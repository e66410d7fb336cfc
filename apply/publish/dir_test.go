package publish_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/aspis-dev/aspis/apply/publish"
)

// TestAWholeDirectoryIsExchanged exchanges a linked worktree, back and forth.
func TestAWholeDirectoryIsExchanged(t *testing.T) {
	dir := t.TempDir()
	main, linked, staged := filepath.Join(dir, "main"), filepath.Join(dir, "linked"), filepath.Join(dir, "staged")
	git(t, dir, "", "init", "-q", main)
	write(t, main, "f", "old\n")
	git(t, main, "", "add", ".")
	git(t, main, "", "commit", "-q", "-m", "c")
	git(t, main, "", "worktree", "add", "-q", linked)
	write(t, staged, "f", "new\n")
	write(t, staged, "g", "g\n")
	if err := os.Chmod(linked, 0o750); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	refused := errors.New("it is not what was expected")
	seen := func(displaced string) error {
		if b, err := os.ReadFile(filepath.Join(displaced, "f")); err != nil || string(b) != "old\n" {
			t.Errorf("%q came out (%v)", b, err)
		}
		return refused
	}
	if err := publish.ExchangeDir(ctx, linked, staged, dir, seen); !errors.Is(err, refused) {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(linked, "f")); err != nil || string(b) != "old\n" {
		t.Fatalf("%q %v", b, err)
	}
	if err := publish.ExchangeDir(ctx, linked, staged, dir, nil); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(" M f\n?? g\n", git(t, linked, "", "status", "--porcelain")); d != "" {
		t.Fatal(d)
	}
	if st, err := os.Stat(linked); err != nil || st.Mode().Perm() != 0o750 {
		t.Fatalf("%v %v", st.Mode(), err)
	}
	if d := cmp.Diff("f", listed(t, staged)); d != "" {
		t.Fatal(d)
	}

	var invalid *publish.InvalidError
	write(t, dir, "other/f", "x")
	for _, pair := range [][2]string{{main, filepath.Join(dir, "other")}, {main, filepath.Join(main, ".git")}, {filepath.Join(dir, "other"), dir}} {
		if err := publish.ExchangeDir(ctx, pair[0], pair[1], dir, nil); !errors.As(err, &invalid) {
			t.Errorf("%q: %v", pair, err)
		}
	}
}

func listed(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if e.Name() != ".git" {
			out = append(out, e.Name())
		}
	}
	return strings.Join(out, " ")
}
