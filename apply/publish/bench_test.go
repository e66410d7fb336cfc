package publish_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aspis-dev/aspis/apply/publish"
)

// edits changes n files of 4 KiB, 50 in a directory, to and fro.
func edits(b testing.TB, root string, n int) (blobs, [2][]publish.Change) {
	content := blobs{}
	var out [2][]publish.Change
	for i := range n {
		path := fmt.Sprintf("d%d/f%d", i/50, i)
		text := func(v int) string {
			return strings.Repeat(fmt.Sprintf("file %d line\n", i), 4096/12)[:4000] + fmt.Sprintf("\nversion %d\n", v)
		}
		write(b, root, path, text(0))
		old, new := content.file(text(0)), content.file(text(1))
		out[0] = append(out[0], publish.Change{Path: path, Before: old, After: new})
		out[1] = append(out[1], publish.Change{Path: path, Before: new, After: old})
	}
	return content, out
}

func benchmarkPublish(b *testing.B, files, others int) {
	root := b.TempDir()
	content, changes := edits(b, root, files)
	for i := range others {
		write(b, root, fmt.Sprintf("other%d/%d", i/100, i), "other\n")
	}
	run(b, "git", "-C", root, "init", "-q")
	run(b, "sync")
	state := b.TempDir()
	n := 0
	for b.Loop() {
		w := open(b, root, state)
		if _, err := w.Publish(context.Background(), changes[n%2], content, publish.Options{Checked: true}); err != nil {
			b.Fatal(err)
		}
		w.Close()
		n++
	}
}

// BenchmarkPublish1000 is to cost at most twice BenchmarkGitApply1000.
func BenchmarkPublish1000(b *testing.B) { benchmarkPublish(b, 1000, 0) }

// BenchmarkPublish10 is to cost at most 15 ms.
func BenchmarkPublish10(b *testing.B) { benchmarkPublish(b, 10, 0) }

// BenchmarkPublish10OfMany is to cost what BenchmarkPublish10 does: the size of
// the workspace does not count.
func BenchmarkPublish10OfMany(b *testing.B) { benchmarkPublish(b, 10, 20_000) }

// BenchmarkGitApply1000 is git apply of the same change, followed by a sync of
// the file system.
func BenchmarkGitApply1000(b *testing.B) { benchmarkGitApply(b, 1000) }

// BenchmarkGitApply10 is the same for ten files.
func BenchmarkGitApply10(b *testing.B) { benchmarkGitApply(b, 10) }

func benchmarkGitApply(b *testing.B, files int) {
	root := b.TempDir()
	content, changes := edits(b, root, files)
	run(b, "git", "-C", root, "init", "-q")
	run(b, "git", "-C", root, "add", ".")
	for _, c := range changes[0] {
		if err := os.WriteFile(filepath.Join(root, c.Path), content[c.After.Blob], 0o644); err != nil {
			b.Fatal(err)
		}
	}
	patch := run(b, "git", "-C", root, "diff") + "\n"
	run(b, "git", "-C", root, "checkout", "-q", ".")
	run(b, "sync")
	reverse := false
	for b.Loop() {
		args := []string{"-C", root, "apply", "-"}
		if reverse {
			args = []string{"-C", root, "apply", "-R", "-"}
		}
		cmd := exec.Command("git", args...)
		cmd.Stdin = strings.NewReader(patch)
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		run(b, "sync", "-f", root)
		reverse = !reverse
	}
}
