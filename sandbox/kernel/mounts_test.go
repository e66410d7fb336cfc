package kernel

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/moby/sys/mountinfo"
)

// dockerMounts is the table of a process in a Docker container.
const dockerMounts = `1543 1303 0:137 / / rw,relatime master:371 - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/4ZB:/var/lib/docker/overlay2/l/W5C,upperdir=/var/lib/docker/overlay2/9d7/diff,workdir=/var/lib/docker/overlay2/9d7/work
1544 1543 0:140 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
1545 1543 0:141 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755,inode64
1546 1545 0:142 / /dev/pts rw,nosuid,noexec,relatime - devpts devpts rw,gid=5,mode=620,ptmxmode=666
1547 1543 0:143 / /sys ro,nosuid,nodev,noexec,relatime - sysfs sysfs ro
1548 1547 0:29 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate,memory_recursiveprot
1549 1543 8:1 /home/user/with\040space /work rw,relatime - ext4 /dev/sda1 rw,errors=remount-ro
1550 1543 8:1 /var/lib/docker/containers/ab/resolv.conf /etc/resolv.conf rw,relatime - ext4 /dev/sda1 rw,errors=remount-ro
1304 1544 0:140 /bus /proc/bus ro,nosuid,nodev,noexec,relatime - proc proc rw
1305 1544 0:141 /null /proc/kcore rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755,inode64
1306 1544 0:144 / /proc/scsi ro,relatime - tmpfs tmpfs ro,inode64
`

func TestParseMounts(t *testing.T) {
	mounts, err := ParseMounts(dockerMounts)
	if err != nil || len(mounts) != 11 {
		t.Fatalf("%d, %v", len(mounts), err)
	}
	work := mounts[6]
	if work.Root != "/home/user/with space" || work.Mountpoint != "/work" || deviceOf(work) != (device{8, 1}) || readOnly(work) {
		t.Errorf("%+v", work)
	}
	if v, ok := option(mounts[2].VFSOptions, "size"); !ok || v != "65536k" {
		t.Errorf("size %q", v)
	}
	// The file system may be written, the mount not, and the other way round.
	if !readOnly(mounts[5]) || readOnly(mounts[1]) {
		t.Error("read-only is not the mount's own")
	}
	f := &facts{}
	for i, want := range []kind{
		kindRoot, kindProc, kindDev, kindUnknown, kindSys, kindUnknown, kindUnknown, kindUnknown, kindProcCover, kindProcCover, kindProcCover,
	} {
		if got := f.kindOf(mounts[i]); got != want {
			t.Errorf("%s is of kind %d, want %d", mounts[i].Mountpoint, got, want)
		}
	}
	for _, bad := range []string{"1\n", "1 2 3:4 / / rw\n"} {
		if _, err := ParseMounts(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestShows(t *testing.T) {
	m := func(root string) *mountinfo.Info { return &mountinfo.Info{Major: 8, Minor: 1, Root: root} }
	p := place{device{8, 1}, "/home/user/work"}
	for root, want := range map[string][2]bool{
		"/":                    {true, false},
		"/home":                {true, false},
		"/home/user/work":      {true, true},
		"/home/user/work/.git": {false, true},
		"/home/user/workshop":  {false, false},
		"/home/user/wor":       {false, false},
		"/usr":                 {false, false},
	} {
		if got := [2]bool{shows(m(root), p), partOf(m(root), p)}; got != want {
			t.Errorf("%s: %v", root, got)
		}
	}
	if shows(&mountinfo.Info{Major: 8, Minor: 2, Root: "/"}, p) {
		t.Error("another file system shows it")
	}
	if !shows(m("/"), place{device{8, 1}, "/"}) {
		t.Error("the root does not show itself")
	}
}

// TestPlaces resolves real paths in the real table.
func TestPlaces(t *testing.T) {
	text, err := readText("/proc/self/mountinfo", maxMounts)
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := ParseMounts(text)
	if err != nil {
		t.Fatal(err)
	}
	table := newTable(mounts)
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	direct, err := table.places(dir)
	if err != nil || len(direct) != 1 {
		t.Fatalf("%v, %v", direct, err)
	}
	if byLink, err := table.places(link); err != nil || len(byLink) != 1 || byLink[0] != direct[0] {
		t.Errorf("by a link: %v, %v", byLink, err)
	}
	if none, err := table.places(filepath.Join(dir, "none")); err != nil || none != nil {
		t.Errorf("what is not there: %v, %v", none, err)
	}
	if _, err := table.places("relative"); err != nil {
		t.Logf("relative: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := table.places(filepath.Join(dir, "file", "x")); err == nil {
		t.Error("a path through a file has a place")
	}
	// The whole machine: everything that holds files and is mounted below.
	all, err := table.places("/")
	if err != nil || len(all) < 1 {
		t.Fatalf("%v, %v", all, err)
	}
	byHand, err := table.mountOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	table.byID = nil // as before Linux 5.8
	if m, err := table.mountOf(dir); err != nil || m.ID != byHand.ID {
		t.Errorf("without mount ids: %v, %v", m, err)
	}
}
