package gitrepo

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// TestBytesAsCheckedOut compares with what git itself writes.
func TestBytesAsCheckedOut(t *testing.T) {
	for _, auto := range []string{"false", "input", "true"} {
		t.Run("autocrlf "+auto, func(t *testing.T) {
			r := newRepo(t)
			r.git("config", "core.autocrlf", "false")
			r.write(".gitattributes", "*.crlf eol=crlf\n*.id ident\n*.u16 working-tree-encoding=UTF-16LE eol=lf\n*.raw -text\n*.big filter=lfs\n")
			files := []string{"plain", "with\nnewline", "a.crlf", "b.id", "d.raw", "e.big"}
			for _, f := range files {
				r.write(f, "one\ntwo $Id$\n")
			}
			r.commit("one")
			r.git("config", "core.autocrlf", auto)
			for _, f := range files {
				if err := os.Remove(filepath.Join(r.dir, f)); err != nil {
					t.Fatal(err)
				}
			}
			r.git("checkout", "-f", "HEAD", "--", ".")
			g := r.open()
			ctx := context.Background()
			conv, err := g.Conversions(ctx, files)
			if err != nil {
				t.Fatal(err)
			}
			if conv["e.big"].Filter != "lfs" || !conv["a.crlf"].Bytes || !conv["b.id"].Bytes {
				t.Errorf("%+v", conv)
			}
			oids := map[string]OID{}
			tree, err := g.TreeOf(ctx, "HEAD")
			if err != nil {
				t.Fatal(err)
			}
			if err := g.ListTree(ctx, tree, func(e TreeEntry) error { oids[e.Path] = e.OID; return nil }); err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				want, err := os.ReadFile(filepath.Join(r.dir, f))
				if err != nil {
					t.Fatal(err)
				}
				got, err := g.AsCheckedOut(ctx, oids[f], f, 1<<20)
				if err != nil || string(got) != string(want) {
					t.Errorf("%q: %q (%v), want %q", f, got, err, want)
				}
				if string(want) != "one\ntwo $Id$\n" && !conv[f].Bytes {
					t.Errorf("%q is converted, and nothing says so", f)
				}
			}
		})
	}
}
