package upper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// stack is the directories of an overlay, mounted in a mount namespace of the
// test's own thread.
type stack struct {
	t                             testing.TB
	lower1, lower2, up, work, mnt string
}

func newStack(t testing.TB) *stack {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs: root, or a user namespace in which one is (to make a mount namespace)")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	if err != nil {
		t.Skipf("needs: a mount namespace (%v)", err)
	}
	s := &stack{t: t}
	s.fresh()
	return s
}

func (s *stack) fresh() {
	s.t.Helper()
	top, err := os.MkdirTemp(s.t.TempDir(), "stack")
	s.must(err)
	for i, d := range []*string{&s.lower1, &s.lower2, &s.up, &s.work, &s.mnt} {
		*d = filepath.Join(top, fmt.Sprint(i))
		s.must(os.Mkdir(*d, 0o755))
	}
}

func (s *stack) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *stack) mount(options string) error {
	return unix.Mount("overlay", s.mnt, "overlay", 0, fmt.Sprintf("lowerdir=%s:%s,upperdir=%s,workdir=%s%s", s.lower2, s.lower1, s.up, s.work, options))
}

func (s *stack) unmount() {
	s.t.Helper()
	s.must(unix.Unmount(s.mnt, unix.MNT_DETACH))
}

// read gives every path before and after as type, permissions and content; that
// of directories only where the permissions are others.
func (s *stack) read() (*Diff, map[string]string, map[string]string, error) {
	lower, err := OpenLower([]string{s.lower2, s.lower1})
	s.must(err)
	defer lower.Close()
	dir, err := unix.Open(s.up, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	s.must(err)
	defer unix.Close(dir)
	d, err := Read(context.Background(), dir, lower, Options{})
	if err != nil {
		return nil, nil, nil, err
	}
	before, after := map[string]string{}, map[string]string{}
	for _, op := range d.Ops {
		if op.Before != nil {
			before[op.Path] = s.text(*op.Before)
		}
		if op.After != nil {
			after[op.Path] = s.text(*op.After)
		}
	}
	return d, before, after, nil
}

func (s *stack) text(st State) string {
	head := fmt.Sprintf("%o ", st.Mode)
	switch {
	case st.Dir():
		return head
	case !st.Regular():
		return head + st.Target
	}
	f, err := st.Open()
	s.must(err)
	defer f.Close()
	b := make([]byte, st.Size)
	_, err = f.ReadAt(b, 0)
	if len(b) > 0 {
		s.must(err)
	}
	return head + string(b)
}

func whole(dir string) (map[string]string, error) {
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		out[rel] = fmt.Sprintf("%o ", st.Mode)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			t, err := os.Readlink(p)
			out[rel] += t
			return err
		case unix.S_IFREG:
			b, err := os.ReadFile(p)
			out[rel] += string(b)
			return err
		}
		return nil
	})
	return out, err
}

// TestRandomOperations replays random operations through overlays of every kind
// that leaves marks, and compares what is read from the upper directory with
// what was and is seen through the mount.
func TestRandomOperations(t *testing.T) {
	s := newStack(t)
	names := []string{"a", "b\xff", "c", "d"}
	path := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom(names), 1, 3).Draw(t, "names"), "/")
	})
	rounds, limit := 0, 120
	rapid.Check(t, func(rt *rapid.T) {
		if rounds++; rounds > limit {
			return
		}
		s.fresh()
		for _, lower := range []string{s.lower1, s.lower2} {
			for i := range rapid.IntRange(1, 8).Draw(rt, "files") {
				operate(rt, lower, path, fmt.Sprint(lower[len(lower)-1:], i))
			}
		}
		options := rapid.SampledFrom([]string{",redirect_dir=on,metacopy=on,index=off", ",redirect_dir=on,metacopy=off,index=off", ",redirect_dir=off,metacopy=off,index=off"}).Draw(rt, "options")
		s.must(s.mount(options))
		before, err := whole(s.mnt)
		s.must(err)
		for i := range rapid.IntRange(1, 30).Draw(rt, "operations") {
			operate(rt, s.mnt, path, fmt.Sprint("op", i))
		}
		after, err := whole(s.mnt)
		s.must(err)
		s.unmount()
		d, was, is, err := s.read()
		if err != nil || len(d.Refused) > 0 {
			rt.Fatalf("%v, refused %v", err, d)
		}
		// What is told must be true, and what differs must be told.
		for p, text := range was {
			if before[p] != text {
				rt.Fatalf("%q was %q, and not %q", p, before[p], text)
			}
		}
		for p, text := range is {
			if after[p] != text {
				rt.Fatalf("%q is %q, and not %q", p, after[p], text)
			}
		}
		for _, p := range slices.Concat(slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(after))) {
			if before[p] != after[p] && (was[p] != before[p] || is[p] != after[p]) {
				rt.Fatalf("%q was %q and is %q; told: %q and %q", p, before[p], after[p], was[p], is[p])
			}
		}
	})
}

func operate(rt *rapid.T, dir string, path *rapid.Generator[string], text string) {
	at := filepath.Join(dir, path.Draw(rt, "path"))
	to := filepath.Join(dir, path.Draw(rt, "to"))
	switch rapid.IntRange(0, 9).Draw(rt, "what") {
	case 0, 1:
		_ = os.MkdirAll(filepath.Dir(at), 0o755)
		_ = os.WriteFile(at, []byte(text), 0o644)
	case 2:
		_ = os.RemoveAll(at)
	case 3, 4:
		_ = os.Rename(at, to)
	case 5:
		_ = os.Symlink(text, at)
	case 6:
		_ = os.Chmod(at, 0o755)
	case 7:
		_ = os.Chmod(at, 0o700)
	case 8:
		_ = os.MkdirAll(at, 0o755)
	case 9:
		_ = exec.Command("mv", "-T", at, to).Run()
	}
}

// TestHostileUpper: what only whoever made the directory by hand can have put
// there leads nowhere.
func TestHostileUpper(t *testing.T) {
	s := newStack(t)
	secret := filepath.Join(t.TempDir(), "secret")
	s.must(os.WriteFile(secret, []byte("secret"), 0o600))
	s.must(os.MkdirAll(s.lower1+"/d/e", 0o755))
	s.must(os.WriteFile(s.lower1+"/d/e/f", []byte("f"), 0o644))
	s.must(os.Symlink(filepath.Dir(secret), s.lower1+"/out"))
	for i, redirect := range []string{"/../../../../.." + filepath.Dir(secret), "../../..", "/out", "/d/../out/x", "", "/", "//", ".", "e\x00/x", strings.Repeat("/d", 1000)} {
		dir := fmt.Sprintf("%s/r%d", s.up, i)
		s.must(os.Mkdir(dir, 0o755))
		if err := unix.Setxattr(dir, "trusted.overlay.redirect", []byte(redirect), 0); errors.Is(err, unix.EPERM) {
			t.Skipf("needs: trusted extended attributes (%v)", err)
		} else {
			s.must(err)
		}
		file := fmt.Sprintf("%s/m%d", s.up, i)
		s.must(os.WriteFile(file, nil, 0o644))
		s.must(os.Truncate(file, 6))
		s.must(unix.Setxattr(file, "trusted.overlay.metacopy", nil, 0))
		s.must(unix.Setxattr(file, "trusted.overlay.redirect", []byte(redirect), 0))
	}
	for name, mode := range map[string]uint32{"sock": unix.S_IFSOCK, "pipe": unix.S_IFIFO, "null": unix.S_IFCHR, "disk": unix.S_IFBLK} {
		dev := 0
		if mode == unix.S_IFCHR || mode == unix.S_IFBLK {
			dev = int(unix.Mkdev(1, 3))
		}
		s.must(unix.Mknod(s.up+"/"+name, mode|0o644, dev))
	}
	d, _, is, err := s.read()
	s.must(err)
	for p, text := range is {
		if strings.Contains(text, "secret") {
			t.Errorf("%q holds what lies outside", p)
		}
	}
	var refused []string
	for _, r := range d.Refused {
		if !strings.HasPrefix(r.Path, "m") {
			refused = append(refused, r.Path+" "+r.What)
		}
	}
	if want := []string{"disk block device", "null character device", "pipe fifo", "sock socket"}; !slices.Equal(refused, want) {
		t.Errorf("refused %q", refused)
	}
}

// TestMarksOfNestedOverlays: an overlay that lies inside of another marks what is
// gone by attributes instead of devices.
func TestMarksOfNestedOverlays(t *testing.T) {
	s := newStack(t)
	s.must(os.Mkdir(s.lower1+"/d", 0o755))
	for _, n := range []string{"gone", "stays"} {
		s.must(os.WriteFile(s.lower1+"/d/"+n, []byte(n), 0o644))
	}
	s.must(os.Mkdir(s.up+"/d", 0o755))
	s.must(os.WriteFile(s.up+"/d/gone", nil, 0o644))
	if err := unix.Setxattr(s.up+"/d/gone", "trusted.overlay.whiteout", nil, 0); errors.Is(err, unix.EPERM) {
		t.Skipf("needs: trusted extended attributes (%v)", err)
	} else {
		s.must(err)
	}
	s.must(unix.Setxattr(s.up+"/d", "trusted.overlay.opaque", []byte("x"), 0))
	_, was, is, err := s.read()
	s.must(err)
	if len(is) != 0 || len(was) != 1 || was["d/gone"] != "100644 gone" {
		t.Fatalf("was %q, is %q", was, is)
	}
}

func TestBounds(t *testing.T) {
	s := newStack(t)
	for i := range 20 {
		s.must(os.WriteFile(fmt.Sprintf("%s/f%d", s.up, i), nil, 0o644))
	}
	lower, err := OpenLower([]string{s.lower1})
	s.must(err)
	defer lower.Close()
	dir, err := unix.Open(s.up, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	s.must(err)
	defer unix.Close(dir)
	var many *TooManyError
	if _, err := Read(context.Background(), dir, lower, Options{Max: 19}); !errors.As(err, &many) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Read(ctx, dir, lower, Options{}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	d, err := Read(context.Background(), dir, lower, Options{Prune: func(p string) bool { return p != "f7" }})
	if err != nil || len(d.Ops) != 1 || d.Ops[0].Path != "f7" {
		t.Fatal(d, err)
	}
}
