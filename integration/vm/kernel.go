package main

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/aspis-dev/aspis/integration/vm/matrix"
)

// bootModules are needed before the disk can be read, overlay for what is tried.
var bootModules = []string{"virtio_pci", "virtio_blk", "overlay"}

// kernel is an unpacked kernel package.
type kernel struct {
	image   string
	modules string // directory of the modules
}

// fetchKernel downloads the newest build of a kernel and unpacks it below dir,
// once. Nothing is installed.
func fetchKernel(ctx context.Context, dir string, name matrix.Kernel) (kernel, error) {
	into := filepath.Join(dir, string(name))
	if k, err := unpacked(into); err == nil {
		return k, nil
	}
	out, err := output(ctx, "", "apt-cache", "depends", "--important", string(name))
	if err != nil {
		return kernel{}, err
	}
	pkg := ""
	for line := range strings.Lines(out) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok && strings.HasPrefix(p, "linux-image-") {
			pkg = p
			break
		}
	}
	if pkg == "" {
		return kernel{}, fmt.Errorf("the package %s names no kernel; run apt-get update first", name)
	}
	tmp, err := os.MkdirTemp(dir, "fetch-")
	if err != nil {
		return kernel{}, err
	}
	defer os.RemoveAll(tmp)
	if _, err := output(ctx, tmp, "apt-get", "download", "-q", pkg); err != nil {
		return kernel{}, err
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return kernel{}, fmt.Errorf("download %s: %d packages came: %w", pkg, len(debs), err)
	}
	if _, err := output(ctx, tmp, "dpkg-deb", "-x", debs[0], "tree"); err != nil {
		return kernel{}, err
	}
	if err := os.RemoveAll(into); err != nil {
		return kernel{}, err
	}
	if err := os.Rename(filepath.Join(tmp, "tree"), into); err != nil {
		return kernel{}, err
	}
	return unpacked(into)
}

func unpacked(dir string) (kernel, error) {
	images, err := filepath.Glob(filepath.Join(dir, "boot/vmlinuz-*"))
	if err != nil {
		return kernel{}, err
	}
	modules, err := filepath.Glob(filepath.Join(dir, "lib/modules/*"))
	if err != nil {
		return kernel{}, err
	}
	if len(images) != 1 || len(modules) != 1 {
		return kernel{}, fmt.Errorf("%s holds %d kernels and %d sets of modules", dir, len(images), len(modules))
	}
	return kernel{images[0], modules[0]}, nil
}

// module is one that is loaded at boot.
type module struct {
	name string
	code []byte
}

// load gives the boot modules and all that they need, in an order in which
// they can be loaded. What is built into the kernel is left out.
func (k kernel) load(ctx context.Context) ([]module, error) {
	files := map[string]string{}
	err := filepath.WalkDir(k.modules, func(path string, _ fs.DirEntry, err error) error {
		name, _, ok := strings.Cut(filepath.Base(path), ".ko")
		if ok {
			files[strings.ReplaceAll(name, "-", "_")] = path
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var list []module
	seen := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		path := files[name]
		if seen[name] || path == "" {
			return nil
		}
		seen[name] = true
		code, err := moduleCode(ctx, path)
		if err != nil {
			return err
		}
		needs, err := moduleNeeds(code)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		for _, n := range needs {
			if err := add(n); err != nil {
				return err
			}
		}
		list = append(list, module{name, code})
		return nil
	}
	for _, m := range bootModules {
		if err := add(m); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func moduleCode(ctx context.Context, path string) ([]byte, error) {
	if strings.HasSuffix(path, ".xz") {
		out, err := output(ctx, "", "xz", "-dc", path)
		return []byte(out), err
	}
	return os.ReadFile(path)
}

// moduleNeeds reads what a module says of itself (section .modinfo, strings
// that end with a zero byte).
func moduleNeeds(code []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(code))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, errors.New("it has no section .modinfo")
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	for line := range strings.SplitSeq(string(info), "\x00") {
		if list, ok := strings.CutPrefix(line, "depends="); ok && list != "" {
			return strings.Split(strings.ReplaceAll(list, "-", "_"), ","), nil
		}
	}
	return nil, nil
}

// output runs a command and gives what it prints. What it says on standard
// error is in the error.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return string(out), nil
}
