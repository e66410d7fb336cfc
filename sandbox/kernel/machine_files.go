package kernel

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
)

func (m machine) mounts() Finding {
	f := Finding{Name: "mounts", Tried: "mounted a memory file system and changed its options in the child"}
	walls := []sandbox.WallName{sandbox.WallRootFilesystem, sandbox.WallSnapshotReadOnly, sandbox.WallWorktreeUnreachable, sandbox.WallHostPathsUnwritable}
	if m.notTried(&f, walls...) {
		return f
	}
	for _, a := range []string{"tmpfs", "mount-setattr"} {
		if f.Seen = m.best().failure(a); f.Seen != "" {
			f.Fix, f.Walls = m.fixAdmin(), walls
			return f
		}
	}
	f.OK, f.Seen = true, "can be made and set read-only"
	return f
}

func (m machine) procMount() Finding {
	f := Finding{Name: "proc", Tried: "mounted a process file system in the child"}
	if m.notTried(&f, sandbox.WallProcMasked) {
		return f
	}
	if f.Seen = m.best().failure("proc"); f.Seen != "" {
		f.Fix = "The outer container covers parts of /proc, and the kernel then allows no new one: in Docker add --security-opt systempaths=unconfined, in Kubernetes set procMount: Unmasked."
		f.Walls = []sandbox.WallName{sandbox.WallProcMasked}
		return f
	}
	f.OK, f.Seen = true, "can be mounted"
	return f
}

func (m machine) overlay() Finding {
	f := Finding{Name: "overlay", Tried: "mounted overlays in the child: in memory, and over layers in the state directory"}
	if m.notTried(&f, sandbox.WallSnapshotReadOnly) {
		return f
	}
	t := m.best()
	if f.Seen = t.failure("overlay"); f.Seen != "" {
		f.Fix = "Load the module (sudo modprobe overlay); as an ordinary user Linux 5.11 or later is needed."
		f.Walls = []sandbox.WallName{sandbox.WallSnapshotReadOnly}
		return f
	}
	if m.stateErr != nil {
		f.Seen = "works in memory; not tried over the state directory: " + m.stateErr.Error()
		f.Fix = "Choose a state directory that you can write."
		return f
	}
	if f.Seen = t.failure("overlay-view"); f.Seen != "" {
		f.Fix = "Put the state directory on a local file system that overlays can be made of, such as ext4, xfs or tmpfs."
		f.Walls = []sandbox.WallName{sandbox.WallSnapshotReadOnly}
		return f
	}
	f.OK = true
	f.Seen = "read-only views and writable layers over the state directory"
	if why := t.failure("overlay-state"); why != "" {
		f.Seen = "read-only views over the state directory; writable layers only elsewhere, since there: " + why
		if also := t.failure("overlay-state-tmpfs"); also != "" {
			f.Seen += "; with the upper layer in memory: " + also
		}
		f.Fix = "Put the state directory on a local file system (not overlay, NFS or eCryptfs), or let work areas be kept in memory."
	}
	if why := m.unprivileged.failure("overlay"); m.admin && why != "" {
		f.Seen += "; not in a user namespace: " + why
	}
	return f
}

// fileSystems by their magic numbers, those that matter here.
var fileSystems = map[int64]string{
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "nfs", unix.FUSE_SUPER_MAGIC: "fuse", unix.CIFS_SUPER_MAGIC: "cifs",
	unix.SMB2_SUPER_MAGIC: "smb", unix.V9FS_MAGIC: "9p", unix.ECRYPTFS_SUPER_MAGIC: "ecryptfs", unix.F2FS_SUPER_MAGIC: "f2fs",
	unix.MSDOS_SUPER_MAGIC: "vfat", unix.EXFAT_SUPER_MAGIC: "exfat", 0x2fc12fc1: "zfs", unix.CEPH_SUPER_MAGIC: "ceph",
}

// remote or odd file systems, on which locks, links or layers do not work as
// snapshots need them.
var unfit = map[string]bool{"nfs": true, "fuse": true, "cifs": true, "smb": true, "9p": true, "ecryptfs": true, "vfat": true, "overlay": true, "exfat": true, "ceph": true}

func (m machine) state() Finding {
	f := Finding{Name: "state-directory", Tried: "statfs, and made a directory there"}
	at := nearest(m.stateDir)
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		f.Seen = fmt.Sprintf("%q: %v", at, err)
		f.Fix = "Choose another state directory."
		return f
	}
	name := fileSystems[int64(st.Type)]
	if name == "" {
		name = fmt.Sprintf("a file system of type %#x", st.Type)
	}
	f.Seen = fmt.Sprintf("%q is on %s, %d MiB free", at, name, st.Bavail*uint64(st.Bsize)>>20)
	switch {
	case m.stateErr != nil:
		f.Seen += "; " + m.stateErr.Error()
		f.Fix = "Make it writable for this user, or choose another state directory."
	case st.Flags&unix.ST_RDONLY != 0:
		f.Seen += ", read-only"
		f.Fix = "Choose a state directory on a writable file system."
	case unfit[name]:
		f.Fix = "Set ASPIS_STATE_DIR to a directory on a local file system such as ext4, xfs, btrfs or tmpfs; inside a container, mount a volume there."
	default:
		f.OK = true
	}
	return f
}
