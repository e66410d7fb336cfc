package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/aspis-dev/aspis/schemas"
)

const (
	repoFiles = 200 // of a small repository
	changed   = 10  // files of the change
)

// small is a small real repository whose last commit changes ten files. after
// holds what those files became.
type small struct {
	dir   string
	after map[string][]byte
}

func makeRepo(ctx context.Context, dir string) (*small, error) {
	r := &small{dir: dir, after: map[string][]byte{}}
	for i := range repoFiles {
		if err := r.write(path(i), text(i, 60)); err != nil {
			return nil, err
		}
	}
	if err := r.git(ctx, "init", "-q", "-b", "main", "."); err != nil {
		return nil, err
	}
	if err := r.commit(ctx, "base"); err != nil {
		return nil, err
	}
	for i := range changed {
		n := i // most are changed, the last two are new
		if i >= changed-2 {
			n = repoFiles + i
		}
		content := append(text(n, 60), text(n+1000, 5)...)
		r.after[path(n)] = content
		if err := r.write(path(n), content); err != nil {
			return nil, err
		}
	}
	return r, r.commit(ctx, "change")
}

func path(i int) string { return fmt.Sprintf("pkg%02d/file%03d.go", i%20, i) }

// text looks like a program, so that a checker has something to read.
func text(seed, functions int) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "package pkg%02d\n", seed%20)
	for i := range functions {
		fmt.Fprintf(&b, "\n// step%d adds what is left over.\nfunc step%d_%d(a, b int) int {\n\treturn a*%d + b\n}\n", i, seed, i, i+1)
	}
	return []byte(b.String())
}

func (r *small) write(name string, content []byte) error {
	full := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		return fmt.Errorf("make a repository: %w", err)
	}
	if err := os.WriteFile(full, content, 0o644); err != nil {
		return fmt.Errorf("make a repository: %w", err)
	}
	return nil
}

func (r *small) commit(ctx context.Context, message string) error {
	if err := r.git(ctx, "add", "-A"); err != nil {
		return err
	}
	return r.git(ctx, "commit", "-q", "-m", message)
}

// git runs without the configuration of whoever runs this.
func (r *small) git(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = r.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=bench", "GIT_AUTHOR_EMAIL=bench@example.org", "GIT_COMMITTER_NAME=bench", "GIT_COMMITTER_EMAIL=bench@example.org"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git %s: %w: %q", args[0], err, lastLine(string(out)))
	}
	return nil
}

// entries are the candidate's files as a provider is told of them.
func (r *small) entries() []schemas.TreeEntry {
	var all []schemas.TreeEntry
	for i := range repoFiles {
		if r.after[path(i)] == nil {
			all = append(all, schemas.TreeEntry{Path: path(i), BlobID: schemas.BlobRefOf(text(i, 60)), Kind: "file"})
		}
	}
	for name, content := range r.after {
		all = append(all, schemas.TreeEntry{Path: name, BlobID: schemas.BlobRefOf(content), Kind: "file"})
	}
	return all
}

// blobs are all contents that the change knows, before and after.
func (r *small) blobs() map[schemas.BlobRef][]byte {
	all := map[schemas.BlobRef][]byte{}
	for i := range repoFiles {
		b := text(i, 60)
		all[schemas.BlobRefOf(b)] = b
	}
	for _, b := range r.after {
		all[schemas.BlobRefOf(b)] = b
	}
	return all
}
