package publish_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/aspis-dev/aspis/apply/publish"
	"github.com/aspis-dev/aspis/schemas"
)

// need skips a test for a program that is not there.
func need(t testing.TB, program, pkg string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("needs: %s (apt-get install %s)", program, pkg)
	}
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// image makes a file system in a file and attaches it as a block device.
func image(t testing.TB, size int64, mkfs ...string) (device string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs: root, to mount file systems")
	}
	file := filepath.Join(t.TempDir(), "image")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	f.Close()
	device = run(t, "losetup", "-f", "--show", file)
	t.Cleanup(func() { run(t, "losetup", "-d", device) })
	run(t, mkfs[0], append(mkfs[1:], device)...)
	return device
}

// mounted mounts something for a test and gives the directory.
func mounted(t testing.TB, command ...string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs: root, to mount file systems")
	}
	dir, err := os.MkdirTemp("", "aspis-publish-test-")
	if err != nil {
		t.Fatal(err)
	}
	run(t, command[0], append(command[1:], dir)...)
	t.Cleanup(func() {
		run(t, "umount", dir)
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fileSystems are those that a publish is tried on. limit is what the guarantee
// says of them at best.
var fileSystems = []struct {
	name  string
	mount func(t testing.TB) string
	best  schemas.TransactionGuarantee
	modes bool // executable bits are kept
}{
	{"ext4", func(t testing.TB) string {
		need(t, "mkfs.ext4", "e2fsprogs")
		return mounted(t, "mount", image(t, 64<<20, "mkfs.ext4", "-q"))
	}, schemas.GuaranteeStagedSnapshot, true},
	{"xfs", func(t testing.TB) string {
		need(t, "mkfs.xfs", "xfsprogs")
		return mounted(t, "mount", image(t, 320<<20, "mkfs.xfs", "-q"))
	}, schemas.GuaranteeStagedSnapshot, true},
	{"btrfs", func(t testing.TB) string {
		need(t, "mkfs.btrfs", "btrfs-progs")
		return mounted(t, "mount", image(t, 160<<20, "mkfs.btrfs", "-q"))
	}, schemas.GuaranteeStagedSnapshot, true},
	{"tmpfs", func(t testing.TB) string { return mounted(t, "mount", "-t", "tmpfs", "tmpfs") }, schemas.GuaranteeStagedSnapshot, true},
	{"overlayfs", func(t testing.TB) string {
		base := mounted(t, "mount", "-t", "tmpfs", "tmpfs")
		for _, d := range []string{"lower", "upper", "work"} {
			if err := os.Mkdir(filepath.Join(base, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		return mounted(t, "mount", "-t", "overlay", "overlay", "-o", fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", base))
	}, schemas.GuaranteeStagedSnapshot, true},
	{"ntfs-3g", func(t testing.TB) string { // neither exchange nor renames that replace nothing, but links
		need(t, "ntfs-3g", "ntfs-3g")
		return mounted(t, "ntfs-3g", "-o", "permissions", image(t, 32<<20, "mkfs.ntfs", "-q", "-F", "-f"))
	}, schemas.GuaranteeRollbackAttempted, true},
	{"ntfs-3g without modes", func(t testing.TB) string {
		need(t, "ntfs-3g", "ntfs-3g")
		return mounted(t, "ntfs-3g", image(t, 32<<20, "mkfs.ntfs", "-q", "-F", "-f"))
	}, schemas.GuaranteeRollbackAttempted, false},
}

// TestTXNBound is TXN-BOUND: on each file system a publish does what it says,
// and says no more than it does.
func TestTXNBound(t *testing.T) {
	for _, f := range fileSystems {
		t.Run(f.name, func(t *testing.T) {
			mount := f.mount(t)
			root := filepath.Join(mount, "root")
			b, changes, after := kinds(t, root)
			before := snapshot(t, root)
			w := open(t, root, t.TempDir())
			defer w.Close()
			res, err := w.Publish(context.Background(), changes, b, publish.Options{Checked: true})
			if err != nil {
				t.Fatal(err)
			}
			got := snapshot(t, root)
			if !f.modes {
				withoutModes(before, after, got)
			}
			if d := cmp.Diff(after, got); d != "" {
				t.Fatal(d)
			}
			if res.Guarantee != f.best || (len(res.Limits) == 0) != (f.best == schemas.GuaranteeStagedSnapshot) {
				t.Errorf("%+v", res)
			}
			if _, err := w.Undo(context.Background(), res.ID, publish.Options{}); err != nil {
				t.Fatal(err)
			}
			if got = snapshot(t, root); !f.modes {
				withoutModes(got)
			}
			if d := cmp.Diff(before, got); d != "" {
				t.Fatal(d)
			}
			if f.modes && !testing.Short() {
				crashAtEveryStep(t, mount, t.TempDir(), 20)
			}
		})
	}
}

func withoutModes(trees ...map[string]string) {
	for _, tree := range trees {
		for p, text := range tree {
			tree[p] = strings.TrimPrefix(strings.TrimPrefix(text, "true "), "false ")
		}
	}
}

// TestNamesThatAreOne publishes to a file system that folds case.
func TestNamesThatAreOne(t *testing.T) {
	need(t, "lowntfs-3g", "ntfs-3g")
	root := mounted(t, "lowntfs-3g", "-o", "permissions,ignore_case", image(t, 32<<20, "mkfs.ntfs", "-q", "-F", "-f"))
	b := blobs{}
	write(t, root, "Readme", "old\n")
	write(t, root, "other", "old\n")
	before := snapshot(t, root)
	old, fresh := b.file("old\n"), b.file("new\n")
	w := open(t, root, t.TempDir())
	defer w.Close()
	ctx := context.Background()
	_, err := w.Publish(ctx, []publish.Change{{Path: "README", After: fresh}, {Path: "other", Before: old, After: fresh}}, b, publish.Options{})
	conflicts(t, err)
	_, err = w.Publish(ctx, []publish.Change{{Path: "README", Before: old, After: fresh}, {Path: "Readme", Before: old, After: b.file("newer\n")}}, b, publish.Options{})
	var invalid *publish.InvalidError
	if !errors.As(err, &invalid) {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, snapshot(t, root)); d != "" {
		t.Fatal(d)
	}
	// A rename that changes nothing but case.
	if _, err := w.Publish(ctx, []publish.Change{{Path: "README", After: fresh}, {Path: "Readme", Before: old}}, b, publish.Options{}); err != nil {
		t.Fatal(err)
	}
	// The kernel may take the other spelling for the old file a little longer.
	if got, err := os.ReadFile(filepath.Join(root, "README")); err != nil || string(got) != "new\n" {
		t.Fatalf("%q %v", got, err)
	}
}
