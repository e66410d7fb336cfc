package publish_test

import (
	"bufio"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/apply/publish"
)

// sector is what a disk writes whole or not at all, in bytes: file systems count
// on their superblocks not being torn.
const sector = 4096

// TestTXNPowerLoss is TXN-CRASH for power loss: a disk under a real file system
// records what reaches it. For many moments of a publish it is made as the disk
// may be after the power failed: all that was synced before, and of the writes
// since any sectors. Mounted and recovered it is wholly before or wholly after.
func TestTXNPowerLoss(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs: root, to mount file systems")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("needs: /dev/fuse")
	}
	for _, f := range []struct {
		name string
		size int64
		mkfs []string
		pkg  string

		plans, moments int // how many plans of either kind, and moments of each
	}{
		{"ext4", 24 << 20, []string{"mkfs.ext4", "-q", "-E", "lazy_itable_init=0"}, "e2fsprogs", 2, 14},
		{"btrfs", 160 << 20, []string{"mkfs.btrfs", "-q"}, "btrfs-progs", 1, 12},
	} {
		t.Run(f.name, func(t *testing.T) {
			need(t, f.mkfs[0], f.pkg)
			r := rand.New(rand.NewPCG(8, 9))
			counts := map[bool]int{}
			files, links := 0, 0
			for seed := uint64(unspoilt); files < f.plans || links < f.plans; seed++ {
				p := plan(seed)
				hasLinks := slices.ContainsFunc(p.changes, func(c publish.Change) bool { return c.After.Mode == modeLink })
				if len(p.changes) < 4 || hasLinks && links == f.plans || !hasLinks && files == f.plans {
					continue
				}
				if hasLinks { // these are synced as a whole, those one by one
					links++
				} else {
					files++
				}
				dir := shm(t)
				records, from, to := publishRecorded(t, dir, f.size, f.mkfs, p)
				for n := range f.moments {
					at := from + r.IntN(to-from+1)
					switch n {
					case 0:
						at = to
					case 1: // about the commit
						at = max(from, to-r.IntN(6))
					}
					isAfter := afterPowerLoss(t, dir, f.size, records, at, r, p)
					if at == to && !isAfter {
						t.Fatal("what was published is gone")
					}
					counts[isAfter]++
				}
			}
			t.Log(counts)
			if counts[true] == 0 || counts[false] == 0 {
				t.Error("all ended the same way")
			}
		})
	}
}

// publishRecorded publishes a plan on a disk that records. from and to are where
// in its history the publish began and had returned.
func publishRecorded(t *testing.T, dir string, size int64, mkfs []string, p randomPlan) (records []record, from, to int) {
	t.Helper()
	for _, d := range []string{"mount", "fs", "state"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := start(t, "disk", dir, dir, uint64(size), 0)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(cmd.Process.Signal(unix.SIGTERM), cmd.Wait()); err != nil {
			t.Error(err)
		}
	}()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the disk is not ready: %q (%v)", line, err)
	}
	device := run(t, "losetup", "-b", "4096", "-f", "--show", filepath.Join(dir, "mount/disk"))
	defer run(t, "losetup", "-d", device)
	run(t, mkfs[0], append(mkfs[1:], device)...)
	mount := filepath.Join(dir, "fs")
	run(t, "mount", device, mount)
	defer run(t, "umount", mount)
	root := filepath.Join(mount, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	p.make(t, root)
	unix.Sync()
	log := filepath.Join(dir, "log")
	from = len(history(t, log))
	w := open(t, root, filepath.Join(dir, "state"))
	defer w.Close()
	if _, err := w.Publish(context.Background(), p.changes, p.content, publish.Options{}); err != nil {
		t.Fatal(err)
	}
	records = history(t, log)
	return records, from, len(records)
}

// afterPowerLoss makes the disk as it may be when the power fails after the
// record at, recovers and tells whether the publish had happened.
func afterPowerLoss(t *testing.T, dir string, size int64, records []record, at int, r *rand.Rand, p randomPlan) bool {
	t.Helper()
	file := filepath.Join(dir, "crashed")
	f, err := os.Create(file)
	if err == nil {
		err = f.Truncate(size)
	}
	if err != nil {
		t.Fatal(err)
	}
	synced := 0
	for i, rec := range records[:at] {
		if rec.data == nil {
			synced = i
		}
	}
	luck := r.IntN(101) // how many of the unsynced sectors made it, in percent
	for i, rec := range records[:at] {
		for off := 0; off < len(rec.data); off += sector {
			if i > synced && r.IntN(100) >= luck {
				continue
			}
			if _, err := f.WriteAt(rec.data[off:min(off+sector, len(rec.data))], rec.off+int64(off)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	device := run(t, "losetup", "-b", "4096", "-f", "--show", file)
	defer run(t, "losetup", "-d", device)
	mount := filepath.Join(dir, "fs")
	run(t, "mount", device, mount)
	defer run(t, "umount", mount)
	root := filepath.Join(mount, "root")
	recoverAt(t, root, filepath.Join(dir, "state"), 0)
	return p.whole(t, root)
}
