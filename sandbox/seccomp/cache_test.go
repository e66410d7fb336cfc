package seccomp

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

func cachedIn(t *testing.T, dir string) (file string) {
	t.Helper()
	bpf, digest, err := Cached(dir, Default())
	if err != nil {
		t.Fatal(err)
	}
	if digest != Default().Digest() || !bytes.Equal(bpf, mustCompile(t, Default(), runtime.GOARCH)) {
		t.Error("not the compiled profile")
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	return filepath.Join(dir, files[0].Name())
}

func TestCached(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	file := cachedIn(t, dir)
	before, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if before.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", before.Mode())
	}
	cachedIn(t, dir)
	if after, err := os.Stat(file); err != nil || !os.SameFile(before, after) {
		t.Errorf("written again: %v", err)
	}
	if _, _, err := Cached(dir, Profile{Egress: true}); err != nil {
		t.Fatal(err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 2 {
		t.Errorf("two profiles are in %d files", len(files))
	}
}

// TestCachedIsNotTrusted spoils the file in every way: it must be compiled
// again, and the file be good afterwards.
func TestCachedIsNotTrusted(t *testing.T) {
	allowAll := []byte{6, 0, 0, 0, 0, 0, 0xff, 0x7f}
	for name, spoil := range map[string]func(file string) error{
		"empty":     func(f string) error { return os.Truncate(f, 0) },
		"cut short": func(f string) error { return os.Truncate(f, 100) },
		"bit": func(f string) error {
			b, err := os.ReadFile(f)
			if err != nil {
				return err
			}
			b[len(b)-3] ^= 1
			return os.WriteFile(f, b, 0o600)
		},
		"another program": func(f string) error { return os.WriteFile(f, append([]byte(format), allowAll...), 0o600) },
		"another format": func(f string) error {
			sum := sha256.Sum256(allowAll)
			return os.WriteFile(f, append(append([]byte("aspis seccomp program 0\n"), sum[:]...), allowAll...), 0o600)
		},
		"huge": func(f string) error { return os.Truncate(f, 1<<30) },
		"writable by others": func(f string) error {
			if err := os.WriteFile(f, encode(allowAll), 0o600); err != nil {
				return err
			}
			return os.Chmod(f, 0o622)
		},
		"link": func(f string) error {
			other := f + ".other"
			if err := os.WriteFile(other, encode(allowAll), 0o600); err != nil {
				return err
			}
			if err := os.Remove(f); err != nil {
				return err
			}
			return os.Symlink(other, f)
		},
		"foreign": func(f string) error {
			if os.Geteuid() != 0 {
				return os.Truncate(f, 0)
			}
			if err := os.WriteFile(f, encode(allowAll), 0o600); err != nil {
				return err
			}
			return os.Chown(f, 65534, 65534)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := cachedIn(t, dir)
			if err := spoil(file); err != nil {
				t.Fatal(err)
			}
			bpf, _, err := Cached(dir, Default())
			if err != nil || !bytes.Equal(bpf, mustCompile(t, Default(), runtime.GOARCH)) {
				t.Errorf("%d bytes, %v", len(bpf), err)
			}
			if kept, err := readCached(file); err != nil || !bytes.Equal(kept, bpf) {
				t.Errorf("the file is not repaired: %v", err)
			}
		})
	}
}

func TestCachedWithoutDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if bpf, _, err := Cached(file, Default()); err != nil || len(bpf) == 0 {
		t.Errorf("%d bytes, %v", len(bpf), err)
	}
}

func TestCachedAtOnce(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			if bpf, _, err := Cached(dir, Default()); err != nil || len(bpf) == 0 {
				t.Errorf("%d bytes, %v", len(bpf), err)
			}
		})
	}
	all.Wait()
	cachedIn(t, dir)
}
