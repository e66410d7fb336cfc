package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(s[:])
}

func TestExecutableIsCopiedAndTheCopyIsWhatRuns(t *testing.T) {
	ctx := context.Background()
	dir, cache := t.TempDir(), t.TempDir()
	exe := filepath.Join(dir, "p")
	write(t, exe, "one", 0o755)
	v, err := Verify(ctx, cache, exe, "", sum("one"))
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(v.Dir, v.Exe)
	if b, err := os.ReadFile(copied); err != nil || string(b) != "one" {
		t.Fatal(string(b), err)
	}
	// A copy that was changed behind our back is made anew.
	write(t, copied, "evil", 0o755)
	if _, err := Verify(ctx, cache, exe, "", sum("one")); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(copied); string(b) != "one" {
		t.Fatal("the changed copy was kept")
	}
	// An original that changed no longer fits its pin, whatever lies in the cache.
	write(t, exe, "two", 0o755)
	var mismatch *MismatchError
	if _, err := Verify(ctx, cache, exe, "", sum("one")); !errors.As(err, &mismatch) || mismatch.Got != sum("two") {
		t.Fatal(err)
	}
}

func TestWhatCannotBeUsedIsMissing(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "plain"), "x", 0o644)
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, exe := range []string{filepath.Join(dir, "none"), filepath.Join(dir, "plain"), filepath.Join(dir, "fifo"), dir, "relative"} {
		var missing *MissingError
		if _, err := Verify(ctx, t.TempDir(), exe, "", sum("x")); !errors.As(err, &missing) {
			t.Errorf("%s: %v", exe, err)
		}
	}
	if _, err := Verify(ctx, t.TempDir(), filepath.Join(dir, "plain"), "", "md5:1"); err == nil {
		t.Error("a pin of another form was taken")
	}
}

func TestDirectoryDigestCoversEverything(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "artifact")
	exe := filepath.Join(dir, "bin/p")
	write(t, exe, "one", 0o755)
	write(t, filepath.Join(dir, "lib/data"), "x", 0o644)
	if err := os.Symlink("data", filepath.Join(dir, "lib/link")); err != nil {
		t.Fatal(err)
	}
	pin, err := Digest(ctx, exe, dir)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := Verify(ctx, "", exe, dir, pin); err != nil || v.Exe != "bin/p" {
		t.Fatal(v, err)
	}
	for name, change := range map[string]func() func(){
		"content": func() func() {
			write(t, filepath.Join(dir, "lib/data"), "y", 0o644)
			return func() { write(t, filepath.Join(dir, "lib/data"), "x", 0o644) }
		},
		"new file": func() func() {
			write(t, filepath.Join(dir, "lib/more"), "", 0o644)
			return func() { os.Remove(filepath.Join(dir, "lib/more")) }
		},
		"executable bit": func() func() {
			os.Chmod(filepath.Join(dir, "lib/data"), 0o755)
			return func() { os.Chmod(filepath.Join(dir, "lib/data"), 0o644) }
		},
		"link target": func() func() {
			os.Remove(filepath.Join(dir, "lib/link"))
			os.Symlink("/etc/passwd", filepath.Join(dir, "lib/link"))
			return func() {
				os.Remove(filepath.Join(dir, "lib/link"))
				os.Symlink("data", filepath.Join(dir, "lib/link"))
			}
		},
	} {
		undo := change()
		var mismatch *MismatchError
		if _, err := Verify(ctx, "", exe, dir, pin); !errors.As(err, &mismatch) {
			t.Errorf("%s: %v", name, err)
		}
		undo()
	}
	if _, err := Verify(ctx, "", exe, dir, pin); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(){
		"writable by others": func() { os.Chmod(filepath.Join(dir, "lib/data"), 0o666) },
		"a pipe":             func() { syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644) },
	} {
		change()
		var missing *MissingError
		if _, err := Verify(ctx, "", exe, dir, pin); !errors.As(err, &missing) {
			t.Errorf("%s: %v", name, err)
		}
		os.Chmod(filepath.Join(dir, "lib/data"), 0o644)
		os.Remove(filepath.Join(dir, "fifo"))
	}
	if _, err := Verify(ctx, "", "/bin/sh", dir, pin); err == nil {
		t.Error("an executable outside the artifact was taken")
	}
}

func TestCopyIsForEverybody(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	exe := filepath.Join(t.TempDir(), "p")
	write(t, exe, "one", 0o700)
	v, err := Verify(context.Background(), filepath.Join(t.TempDir(), "cache"), exe, "", sum("one"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{v.Dir, filepath.Join(v.Dir, v.Exe)} {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v", p, info.Mode(), err)
		}
	}
}
