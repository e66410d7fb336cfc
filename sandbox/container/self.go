package container

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox/internal/stage"
)

// self is this program, as it is shown in a sandbox for the first stage.
type self struct {
	path string // as the mount space sees it
	// loader is the program interpreter of a dynamically linked build, such as
	// go test makes; releases are linked statically and have none.
	loader string
}

// insideLibs has the libraries of a dynamically linked build, inside.
const insideLibs = "/.aspis/lib"

// findSelf finds this program's file. A program that was replaced while
// running is copied from the kernel's own reference, because the first stage
// must be the very same program.
func findSelf(s *MountSpace) (self, error) {
	path, err := os.Executable()
	if err != nil {
		return self{}, fmt.Errorf("find own program: %w", err)
	}
	err = s.Do(func() error {
		var at, running unix.Stat_t
		if err := unix.Stat("/proc/self/exe", &running); err != nil {
			return err
		}
		if err := unix.Stat(path, &at); err == nil && at.Dev == running.Dev && at.Ino == running.Ino {
			return nil
		}
		path = filepath.Join(s.Dir(), "self")
		return copyFile("/proc/self/exe", path)
	})
	if err != nil {
		return self{}, fmt.Errorf("own program: %w", err)
	}
	loader, err := interpreter("/proc/self/exe")
	if err != nil {
		return self{}, fmt.Errorf("own program: %w", err)
	}
	return self{path: path, loader: loader}, nil
}

// interpreter is what a dynamically linked program names to load it.
func interpreter(path string) (string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		name := make([]byte, min(p.Filesz, unix.PathMax))
		if _, err := p.ReadAt(name, 0); err != nil {
			return "", err
		}
		return filepath.EvalSymlinks(string(bytes.TrimRight(name, "\x00")))
	}
	return "", nil
}

// command starts the first stage inside.
func (s self) command() []string {
	if s.loader == "" {
		return []string{stage.Path, stage.Marker}
	}
	return []string{stage.Loader, "--library-path", insideLibs, stage.Path, stage.Marker}
}

func copyFile(from, to string) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o555)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := dst.Close(); err == nil {
			err = cerr
		}
	}()
	_, err = dst.ReadFrom(src)
	return err
}
