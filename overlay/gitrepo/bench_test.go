package gitrepo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// many is a repository of n files, all changed by its last commit where all is
// set, else ten.
func many(b *testing.B, n int, all bool) repo {
	b.Helper()
	r := newRepo(b)
	for i := range n {
		r.write(fmt.Sprintf("d%d/e%d/f%d", i%10, i/10%50, i), fmt.Sprintln("first", i))
	}
	r.commit("one")
	for i := range n {
		if all || i < 10 {
			r.write(fmt.Sprintf("d%d/e%d/f%d", i%10, i/10%50, i), fmt.Sprintln("second", i))
		}
	}
	r.commit("two")
	return r
}

func BenchmarkCapture(b *testing.B) {
	ctx := context.Background()
	for _, size := range []struct {
		files int
		all   bool
	}{{10, true}, {10_000, false}, {10_000, true}} {
		r := many(b, size.files, size.all)
		state := b.TempDir()
		changed := 10
		if size.all {
			changed = size.files
		}
		for _, kind := range []struct {
			name string
			sel  Selection
		}{{"base", Selection{Kind: KindBase, A: "HEAD~1"}}, {"worktree", Selection{Kind: KindWorktree}}} {
			b.Run(fmt.Sprintf("%s/of=%d/changed=%d/cold", kind.name, size.files, changed), func(b *testing.B) {
				for b.Loop() {
					g, err := Open(ctx, r.dir, Options{StateDir: state})
					if err != nil {
						b.Fatal(err)
					}
					if _, err := g.Capture(ctx, kind.sel); err != nil {
						b.Fatal(err)
					}
					g.Close()
				}
			})
			g, err := Open(ctx, r.dir, Options{StateDir: state})
			if err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("%s/of=%d/changed=%d/warm", kind.name, size.files, changed), func(b *testing.B) {
				for b.Loop() {
					if _, err := g.Capture(ctx, kind.sel); err != nil {
						b.Fatal(err)
					}
				}
			})
			g.Close()
		}
	}
}

func BenchmarkBlob(b *testing.B) {
	ctx := context.Background()
	r := newRepo(b)
	const size = 64 << 20
	content := make([]byte, size)
	for i := range content {
		content[i] = byte(i * i >> 7)
	}
	if err := os.WriteFile(filepath.Join(r.dir, "big"), content, 0o644); err != nil {
		b.Fatal(err)
	}
	r.commit("one")
	g := r.open()
	defer g.Close()
	tree, err := g.TreeOf(ctx, "HEAD")
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(size)
	for b.Loop() {
		if _, _, err := g.BlobAt(ctx, tree, "big", size); err != nil {
			b.Fatal(err)
		}
	}
}
