package publish_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/apply/publish"
	"github.com/aspis-dev/aspis/schemas"
)

func publishOnce(t testing.TB, root string, b blobs, opt publish.Options, changes ...publish.Change) (publish.Result, error) {
	t.Helper()
	w := open(t, root, t.TempDir())
	defer w.Close()
	return w.Publish(context.Background(), changes, b, opt)
}

// two is a workspace with the files one and two, and a change of both.
func two(t testing.TB) (root string, b blobs, changes []publish.Change) {
	t.Helper()
	root, b = t.TempDir(), blobs{}
	for _, p := range []string{"one", "two"} {
		write(t, root, p, "old\n")
		changes = append(changes, publish.Change{Path: p, Before: b.file("old\n"), After: b.file("new\n")})
	}
	return root, b, changes
}

// at calls fn once at a step.
func at(step string, fn func()) publish.Options {
	done := false
	return publish.Options{Fault: func(point string) {
		if point == step && !done {
			done = true
			fn()
		}
	}}
}

func conflicts(t testing.TB, err error) *publish.ConflictError {
	t.Helper()
	var c *publish.ConflictError
	if !errors.As(err, &c) {
		t.Fatalf("not a conflict: %v", err)
	}
	return c
}

// TestAFileThatIsOpenForWritingIsLeftAlone has a program that holds a file open
// and writes into it when the publish has been refused.
func TestAFileThatIsOpenForWritingIsLeftAlone(t *testing.T) {
	root, b, changes := two(t)
	f, err := os.OpenFile(filepath.Join(root, "two"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = publishOnce(t, root, b, publish.Options{}, changes...)
	if c := conflicts(t, err).Conflicts; len(c) != 1 || c[0].Path != "two" || !strings.Contains(c[0].Detail, "open for writing") {
		t.Fatalf("%+v", c)
	}
	if _, err := f.WriteString("more\n"); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]string{"one": "false old\n", "two": "false old\nmore\n"}, snapshot(t, root)); d != "" {
		t.Fatal(d)
	}
}

// TestAWriteToWhatCameOutIsSeen writes through another name into a file that was
// exchanged already.
func TestAWriteToWhatCameOutIsSeen(t *testing.T) {
	root, b, changes := two(t)
	other := filepath.Join(t.TempDir(), "other")
	if err := os.Link(filepath.Join(root, "one"), other); err != nil {
		t.Fatal(err)
	}
	_, err := publishOnce(t, root, b, at("exchange 1", func() {
		if err := os.WriteFile(other, []byte("late\n"), 0o644); err != nil {
			t.Error(err)
		}
	}), changes...)
	if c := conflicts(t, err).Conflicts; len(c) != 1 || c[0].Path != "one" {
		t.Fatalf("%+v", c)
	}
	if d := cmp.Diff(map[string]string{"one": "false late\n", "two": "false old\n"}, snapshot(t, root)); d != "" {
		t.Fatal(d)
	}
}

// TestAProgramThatHoldsWhatCameOutOpenIsSeen opens a file through another name
// after it was exchanged, and only then writes.
func TestAProgramThatHoldsWhatCameOutOpenIsSeen(t *testing.T) {
	root, b, changes := two(t)
	other := filepath.Join(t.TempDir(), "other")
	if err := os.Link(filepath.Join(root, "one"), other); err != nil {
		t.Fatal(err)
	}
	var f *os.File
	_, err := publishOnce(t, root, b, at("exchange 1", func() {
		var err error
		if f, err = os.OpenFile(other, os.O_WRONLY|os.O_APPEND, 0); err != nil {
			t.Error(err)
		}
	}), changes...)
	defer f.Close()
	conflicts(t, err)
	if _, err := f.WriteString("later\n"); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]string{"one": "false old\nlater\n", "two": "false old\n"}, snapshot(t, root)); d != "" {
		t.Fatal(d)
	}
}

// TestAWriteToWhatWasPublishedStays writes a published file before the publish is
// refused for another.
func TestAWriteToWhatWasPublishedStays(t *testing.T) {
	root, b, changes := two(t)
	_, err := publishOnce(t, root, b, at("exchange 1", func() {
		write(t, root, "one", "mine\n")
		write(t, root, "two", "mine too\n")
	}), changes...)
	c := conflicts(t, err)
	if d := cmp.Diff(map[string]string{"one": "false mine\n", "two": "false mine too\n"}, snapshot(t, root)); d != "" {
		t.Fatal(d)
	}
	if len(c.Left) != 1 || c.Left[0].Path != "one" {
		t.Fatalf("%+v", c.Left)
	}
	if kept, err := os.ReadFile(c.Left[0].Kept); err != nil || string(kept) != "old\n" {
		t.Fatalf("%q, %v", kept, err)
	}
}

// TestOriginalsThatWereWrittenLaterAreKept writes an original of the last publish
// through another name; the next publish must not drop it.
func TestOriginalsThatWereWrittenLaterAreKept(t *testing.T) {
	root, b, changes := two(t)
	other := filepath.Join(t.TempDir(), "other")
	if err := os.Link(filepath.Join(root, "one"), other); err != nil {
		t.Fatal(err)
	}
	res, err := publishOnce(t, root, b, publish.Options{}, changes...)
	if err != nil || len(res.Notes) != 1 || !strings.Contains(res.Notes[0], "hard links") {
		t.Fatalf("%+v %v", res, err)
	}
	if err := os.WriteFile(other, []byte("precious\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	w := open(t, root, t.TempDir())
	defer w.Close()
	var nothing *publish.NothingToUndoError
	if _, err := w.Undo(context.Background(), "", publish.Options{}); !errors.As(err, &nothing) {
		t.Fatalf("an original that was written goes back: %v", err)
	}
	res, err = w.Publish(context.Background(), []publish.Change{{Path: "three", After: b.file("3")}}, b, publish.Options{})
	if err != nil || len(res.Kept) != 1 || res.Kept[0].Path != "one" || time.Until(res.Kept[0].Until) < time.Hour {
		t.Fatalf("%+v %v", res, err)
	}
	if kept, err := os.ReadFile(res.Kept[0].File); err != nil || string(kept) != "precious\n" {
		t.Fatalf("%q, %v", kept, err)
	}
}

// TestNothingIsWrittenOutside has symlinks, repositories and odd files in the way.
func TestNothingIsWrittenOutside(t *testing.T) {
	outside := t.TempDir()
	write(t, outside, "f", "old\n")
	for name, tc := range map[string]struct {
		make   func(root string) error
		change func(b blobs) publish.Change
		wrong  bool // an *InvalidError, else a conflict
	}{
		"directory is a symlink": {func(root string) error { return os.Symlink(outside, filepath.Join(root, "d")) },
			func(b blobs) publish.Change {
				return publish.Change{Path: "d/f", Before: b.file("old\n"), After: b.file("new\n")}
			}, false},
		"create below a symlink": {func(root string) error { return os.Symlink(outside, filepath.Join(root, "d")) },
			func(b blobs) publish.Change { return publish.Change{Path: "d/g", After: b.file("new\n")} }, false},
		"symlink in place of a file": {func(root string) error { return os.Symlink(filepath.Join(outside, "f"), filepath.Join(root, "f")) },
			func(b blobs) publish.Change {
				return publish.Change{Path: "f", Before: b.file("old\n"), After: b.file("new\n")}
			}, false},
		"nested repository": {func(root string) error { return os.MkdirAll(filepath.Join(root, "sub/.git"), 0o755) },
			func(b blobs) publish.Change { return publish.Change{Path: "sub/deep/f", After: b.file("new\n")} }, false},
		"below a file": {func(root string) error { return os.WriteFile(filepath.Join(root, "d"), nil, 0o644) },
			func(b blobs) publish.Change { return publish.Change{Path: "d/f", After: b.file("new\n")} }, false},
		"pipe": {func(root string) error { return unix.Mkfifo(filepath.Join(root, "p"), 0o644) },
			func(b blobs) publish.Change {
				return publish.Change{Path: "p", Before: b.file("old\n"), After: b.file("new\n")}
			}, false},
		"directory with files": {func(root string) error { write(t, root, "d/x", "x"); return nil },
			func(b blobs) publish.Change { return publish.Change{Path: "d", After: b.file("new\n")} }, false},
		"link leads out": {func(string) error { return nil },
			func(b blobs) publish.Change {
				return publish.Change{Path: "a/l", After: b.state(modeLink, "../../x")}
			}, true},
		"absolute link": {func(string) error { return nil },
			func(b blobs) publish.Change {
				return publish.Change{Path: "l", After: b.state(modeLink, "/etc/passwd")}
			}, true},
		"git directory": {func(string) error { return nil },
			func(b blobs) publish.Change { return publish.Change{Path: ".GIT/hooks/x", After: b.file("x")} }, true},
		"parent": {func(string) error { return nil },
			func(b blobs) publish.Change { return publish.Change{Path: "../x", After: b.file("x")} }, true},
		"setuid": {func(string) error { return nil },
			func(b blobs) publish.Change { return publish.Change{Path: "s", After: b.state(0o104755, "x")} }, true},
		"device": {func(string) error { return nil },
			func(b blobs) publish.Change { return publish.Change{Path: "s", After: b.state(0o020644, "x")} }, true},
		"submodule": {func(string) error { return nil },
			func(b blobs) publish.Change { return publish.Change{Path: "s", After: b.state(0o160000, "x")} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			root, b := t.TempDir(), blobs{}
			if err := tc.make(root); err != nil {
				t.Fatal(err)
			}
			write(t, root, "first", "old\n")
			names := func() (out []string) {
				entries, err := os.ReadDir(root)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range entries {
					if !strings.HasPrefix(e.Name(), ".aspis-publish-") {
						out = append(out, e.Name()+e.Type().String())
					}
				}
				return out
			}
			before := names()
			_, err := publishOnce(t, root, b, publish.Options{}, publish.Change{Path: "first", Before: b.file("old\n"), After: b.file("new\n")}, tc.change(b))
			var invalid *publish.InvalidError
			if errors.As(err, &invalid) != tc.wrong {
				t.Fatal(err)
			}
			if !tc.wrong {
				conflicts(t, err)
			}
			if d := cmp.Diff(before, names()); d != "" {
				t.Error(d)
			}
			if got, err := os.ReadFile(filepath.Join(root, "first")); err != nil || string(got) != "old\n" {
				t.Errorf("%q, %v", got, err)
			}
			if d := cmp.Diff(map[string]string{"f": "false old\n"}, snapshot(t, outside)); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestADirectoryThatBecomesASymlinkIsNotFollowed swaps a directory in the middle
// of a publish.
func TestADirectoryThatBecomesASymlinkIsNotFollowed(t *testing.T) {
	root, outside, b := t.TempDir(), t.TempDir(), blobs{}
	write(t, root, "a", "old\n")
	write(t, root, "d/f", "old\n")
	write(t, outside, "f", "old\n")
	_, err := publishOnce(t, root, b, at("exchange 1", func() {
		err := errors.Join(os.Rename(filepath.Join(root, "d"), filepath.Join(root, "moved")), os.Symlink(outside, filepath.Join(root, "d")))
		if err != nil {
			t.Error(err)
		}
	}), publish.Change{Path: "a", Before: b.file("old\n"), After: b.file("new\n")}, publish.Change{Path: "d/f", Before: b.file("old\n"), After: b.file("new\n")})
	conflicts(t, err)
	want := map[string]string{"a": "false old\n", "d": "link " + outside, "moved/": "", "moved/f": "false old\n"}
	if d := cmp.Diff(want, snapshot(t, root)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]string{"f": "false old\n"}, snapshot(t, outside)); d != "" {
		t.Error(d)
	}
}

// TestPermissionsAreKept changes a private file and a script.
func TestPermissionsAreKept(t *testing.T) {
	root, b := t.TempDir(), blobs{}
	for p, mode := range map[string]os.FileMode{"private": 0o600, "script": 0o700, "shared": 0o664, "set": 0o755 | os.ModeSetuid} {
		write(t, root, p, "old\n")
		if err := os.Chmod(filepath.Join(root, p), mode); err != nil {
			t.Fatal(err)
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(filepath.Join(root, "private"), 12, 34); err != nil {
			t.Fatal(err)
		}
	}
	old, oldExec, newExec := b.file("old\n"), b.state(modeExec, "old\n"), b.state(modeExec, "new\n")
	res, err := publishOnce(t, root, b, publish.Options{}, publish.Change{Path: "private", Before: old, After: b.file("new\n")},
		publish.Change{Path: "script", Before: oldExec, After: newExec}, publish.Change{Path: "shared", Before: old, After: newExec},
		publish.Change{Path: "set", Before: oldExec, After: newExec})
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]os.FileMode{"private": 0o600, "script": 0o700, "shared": 0o775, "set": 0o755} {
		st, err := os.Lstat(filepath.Join(root, p))
		if err != nil || st.Mode() != want {
			t.Errorf("%s has the mode %v, not %v (%v)", p, st.Mode(), want, err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(root, "private"), &st); err != nil || os.Geteuid() == 0 && (st.Uid != 12 || st.Gid != 34) {
		t.Errorf("private belongs to %d:%d (%v)", st.Uid, st.Gid, err)
	}
	if res.Guarantee != schemas.GuaranteeWorkspaceTransactional {
		t.Errorf("%+v", res)
	}
}

// TestAFullDiskChangesNothing publishes more than a file system has room for.
func TestAFullDiskChangesNothing(t *testing.T) {
	mount := mounted(t, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs")
	b := blobs{}
	write(t, mount, "f", "old\n")
	before := snapshot(t, mount)
	w := open(t, mount, t.TempDir())
	defer w.Close()
	_, err := w.Publish(context.Background(), []publish.Change{{Path: "f", Before: b.file("old\n"), After: b.file("new\n")},
		{Path: "big", After: b.file(strings.Repeat("x", 2<<20))}}, b, publish.Options{})
	var full *publish.FullError
	if !errors.As(err, &full) {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, snapshot(t, mount)); d != "" {
		t.Fatal(d)
	}
	// Nothing of it remains that takes room.
	if _, err := w.Publish(context.Background(), []publish.Change{{Path: "big", After: b.file(strings.Repeat("x", 700<<10))}}, b, publish.Options{}); err != nil {
		t.Fatal(err)
	}
}

// TestOnePublishAtATime waits for a lock no longer than the context says, and
// takes it from a holder that was killed.
func TestOnePublishAtATime(t *testing.T) {
	root, state := t.TempDir(), t.TempDir()
	w := open(t, root, state)
	for _, dir := range []string{state, t.TempDir()} { // also with another state directory
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		_, err := publish.Open(ctx, root, dir)
		cancel()
		var busy *publish.BusyError
		if !errors.As(err, &busy) {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, root, state).Close()
}

// TestACancelledPublishIsTakenBack cancels between two exchanges.
func TestACancelledPublishIsTakenBack(t *testing.T) {
	root, b, changes := two(t)
	before := snapshot(t, root)
	ctx, cancel := context.WithCancel(context.Background())
	w := open(t, root, t.TempDir())
	defer w.Close()
	if _, err := w.Publish(ctx, changes, b, at("exchange 0", cancel)); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, snapshot(t, root)); d != "" {
		t.Fatal(d)
	}
}

// TestWrongContentIsRefused is given other bytes than it asked for.
func TestWrongContentIsRefused(t *testing.T) {
	root, b, changes := two(t)
	before := snapshot(t, root)
	b[changes[1].After.Blob] = []byte("neu\n")
	if _, err := publishOnce(t, root, b, publish.Options{}, changes...); err == nil {
		t.Fatal("it was published")
	}
	if d := cmp.Diff(before, snapshot(t, root)); d != "" {
		t.Fatal(d)
	}
}

// TestAPlantedAreaHarmsNothing has symlinks where the area keeps files.
func TestAPlantedAreaHarmsNothing(t *testing.T) {
	outside := t.TempDir()
	write(t, outside, "precious/f", "f\n")
	long := time.Now().Add(-1000 * time.Hour)
	if err := os.Chtimes(filepath.Join(outside, "precious"), long, long); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kept", "last", "tx-1", "drop-1", ""} {
		root := t.TempDir()
		area := filepath.Join(root, fmt.Sprintf(".aspis-publish-%d", os.Geteuid()))
		if name != "" {
			if err := os.Mkdir(area, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(outside, filepath.Join(area, name)); err != nil {
			t.Fatal(err)
		}
		if w, err := publish.Open(context.Background(), root, t.TempDir()); err == nil && name != "last" {
			w.Close()
			t.Errorf("%q is a symlink, and nobody minds", name)
		}
		if d := cmp.Diff(map[string]string{"precious/": "", "precious/f": "false f\n"}, snapshot(t, outside)); d != "" {
			t.Fatal(d)
		}
	}
}

// TestATornJournalIsNoPublish cuts and garbles a journal before anything was
// exchanged.
func TestATornJournalIsNoPublish(t *testing.T) {
	root, b, changes := two(t)
	state := t.TempDir()
	before := snapshot(t, root)
	for n, damage := range []func([]byte) []byte{
		func([]byte) []byte { return nil },
		func(j []byte) []byte { return j[:len(j)/2] },
		func(j []byte) []byte { j[len(j)/3] ^= 1; return j },
		func(j []byte) []byte { return slices.Concat(j[:90], make([]byte, len(j)-90)) },
	} {
		w := open(t, root, state)
		_, err := w.Publish(context.Background(), changes, b, at("exchange 0", func() {
			found, err := filepath.Glob(filepath.Join(root, ".aspis-publish-*/tx-*/journal"))
			if err != nil || len(found) != 1 {
				t.Fatalf("%q %v", found, err)
			}
			j, err := os.ReadFile(found[0])
			if err != nil {
				t.Fatal(err)
			}
			// As a copy, which a process that was killed here would have left.
			dir := filepath.Join(filepath.Dir(filepath.Dir(found[0])), "tx-torn")
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, "new"), 0o700), os.WriteFile(filepath.Join(dir, "new/0"), []byte("new\n"), 0o600),
				os.WriteFile(filepath.Join(dir, "journal"), damage(j), 0o600), os.WriteFile(filepath.Join(root, "two"), []byte("conflict\n"), 0o644)); err != nil {
				t.Fatal(err)
			}
		}))
		conflicts(t, err)
		w.Close()
		write(t, root, "two", "old\n")
		w = open(t, root, state)
		if r := w.Recovered(); len(r) > 0 {
			t.Errorf("%+v", r)
		}
		w.Close()
		if left, err := publish.NeedsRecovery(root); err != nil || left {
			t.Errorf("the torn publish is still there (%v)", err)
		}
		// The disk may have garbled it after the exchange.
		kept, err := filepath.Glob(filepath.Join(root, ".aspis-publish-*/kept/*-tx-torn/new/0"))
		if err != nil || len(kept) != n {
			t.Errorf("%q is kept of %d (%v)", kept, n, err)
		}
		if d := cmp.Diff(before, snapshot(t, root)); d != "" {
			t.Fatal(d)
		}
	}
}
