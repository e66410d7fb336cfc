package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/aspis-dev/aspis/integration/vm/matrix"
)

// programs of this machine that are copied, with the libraries they need.
var programs = []string{"sh", "git", "cat", "cp", "ls", "true", "sleep", "mount", "umount", "unshare", "setpriv", "newuidmap", "newgidmap"}

// compiled are the packages whose tests are compiled for the machines.
var compiled = []string{"integration"}

// files that a system must have, with what is in them.
//
//nolint:gosec // G101: nobody can log in with any of this
var files = map[string]string{
	"etc/passwd":   "root:x:0:0:root:/root:/bin/sh\ndev:x:1000:1000:dev:/home/dev:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
	"etc/group":    "root:x:0:\ndev:x:1000:\nnogroup:x:65534:\n",
	"etc/shadow":   "root:*:::::::\n",
	"etc/hostname": "machine\n",
	"etc/hosts":    "127.0.0.1 localhost\n::1 localhost\n",
	"etc/subuid":   "",
	"etc/subgid":   "",
}

// disk makes the disk that every machine starts from, as an ext4 image.
func disk(ctx context.Context, root, bin, image string) error {
	tree, err := os.MkdirTemp(filepath.Dir(image), "tree-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tree)
	if err := os.Chmod(tree, 0o755); err != nil {
		return err
	}
	s := stage{tree}
	if err := s.skeleton(); err != nil {
		return err
	}
	for _, p := range programs {
		if err := s.program(ctx, p); err != nil {
			return err
		}
	}
	for _, p := range []string{"aspis", "aspis-hygiene", "aspis-testprovider"} {
		if err := s.copy(filepath.Join(bin, p), "usr/local/bin/"+p); err != nil {
			return err
		}
	}
	if err := s.compile(ctx, root); err != nil {
		return err
	}
	if err := os.RemoveAll(image); err != nil {
		return err
	}
	_, err = output(ctx, "", mke2fs(), "-q", "-t", "ext4", "-L", "machine", "-d", tree, "-E", "root_owner=0:0", image, "768M")
	return err
}

// mke2fs is not on every user's search path.
func mke2fs() string {
	if p, err := exec.LookPath("mke2fs"); err == nil {
		return p
	}
	return "/usr/sbin/mke2fs"
}

// stage is the tree that the disk is made of.
type stage struct{ dir string }

func (s stage) in(p string) string { return filepath.Join(s.dir, p) }

func (s stage) skeleton() error {
	for _, d := range []string{"dev", "proc", "sys", "run", "tmp", "root", "home/dev", "etc", "var/lib", "var/tmp",
		"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/local/bin", "opt/tests"} {
		if err := os.MkdirAll(s.in(d), 0o755); err != nil {
			return err
		}
	}
	for _, l := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+l, s.in(l)); err != nil {
			return err
		}
	}
	for name, text := range files {
		if err := os.WriteFile(s.in(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// program copies one of this machine's programs and its libraries.
func (s stage) program(ctx context.Context, name string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("the machines need %s: %w", name, err)
	}
	if err := s.copy(path, "usr/bin/"+name); err != nil {
		return err
	}
	return s.libraries(ctx, path)
}

// libraries copies what the dynamic loader would load.
func (s stage) libraries(ctx context.Context, path string) error {
	out, err := output(ctx, "", "ldd", path)
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		// name => /path (address), or /path (address) for the loader itself
		for f := range strings.FieldsSeq(line) {
			if !filepath.IsAbs(f) {
				continue
			}
			to := strings.TrimPrefix(f, "/")
			if !strings.HasPrefix(to, "usr/") {
				to = "usr/" + to
			}
			if err := s.copy(f, to); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s stage) copy(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := os.MkdirAll(filepath.Dir(s.in(to)), 0o755); err != nil {
		return err
	}
	dst, err := os.OpenFile(s.in(to), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	if cerr := dst.Close(); err == nil {
		err = cerr
	}
	return err
}

// compile makes the tests and the first process.
func (s stage) compile(ctx context.Context, root string) error {
	for _, p := range compiled {
		name := strings.ReplaceAll(p, "/", "-") + ".test"
		if _, err := output(ctx, root, "go", "test", "-c", "-tags", "netgo osusergo",
			"-ldflags", "-s -w -linkmode external -extldflags -static", "-o", s.in("opt/tests/"+name), "./"+p); err != nil {
			return err
		}
	}
	_, err := output(ctx, root, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-ldflags=-s -w", "-o", s.in("usr/sbin/guest"), "./integration/vm/guest")
	return err
}

// memory makes the initial memory file system of a kernel.
func memory(ctx context.Context, k kernel, guest, path string) error {
	list, err := k.load(ctx)
	if err != nil {
		return err
	}
	var a archive
	for _, d := range []string{"dev", "proc", "root", "modules"} {
		a.dir(d)
	}
	code, err := os.ReadFile(guest)
	if err != nil {
		return err
	}
	a.file("init", code)
	for i, m := range list {
		a.file(fmt.Sprintf("modules/%02d-%s.ko", i, m.name), m.code)
	}
	return os.WriteFile(path, a.bytes(), 0o644)
}

// kernels of a set of cells, each once.
func kernels(cells []matrix.Cell) []matrix.Kernel {
	var list []matrix.Kernel
	seen := map[matrix.Kernel]bool{}
	for _, c := range cells {
		if !seen[c.Kernel] {
			seen[c.Kernel] = true
			list = append(list, c.Kernel)
		}
	}
	return list
}
