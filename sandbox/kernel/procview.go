package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// procView is what the process's own /proc shows.
type procView struct {
	err     error
	there   bool // something is there at all
	isProc  bool
	first   fact[fileID]    // pid namespace of the process with number 1
	present map[string]bool // of the files that have to be covered
}

// coveredFiles must not be readable where they exist: they give kernel memory,
// addresses, keys or the hardware. As in the default list of the OCI runtimes.
var coveredFiles = []string{
	"acpi", "asound", "interrupts", "kcore", "keys", "latency_stats", "timer_list", "timer_stats", "sched_debug", "scsi",
}

// fixedFiles must not be writable where they exist.
var fixedFiles = []string{"bus", "fs", "irq", "sys", "sysrq-trigger"}

func (r *rootDir) proc() procView {
	v := procView{present: map[string]bool{}}
	fd, err := r.open("/proc", unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) {
		return v
	}
	if err != nil {
		v.err = fmt.Errorf("open its /proc: %w", err)
		return v
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	if v.err = unix.Fstatfs(fd, &st); v.err != nil {
		return v
	}
	v.isProc = st.Type == unix.PROC_SUPER_MAGIC
	if !v.isProc {
		v.there, v.err = anyEntry(fd, r.buf)
		return v
	}
	v.there = true
	id, err := idAt(fd, "1/ns/pid")
	v.first = fact[fileID]{id, err}
	for _, list := range [][]string{coveredFiles, fixedFiles} {
		for _, n := range list {
			var st unix.Stat_t
			switch err := unix.Fstatat(fd, n, &st, unix.AT_SYMLINK_NOFOLLOW); err {
			case nil:
				v.present[n] = true
			case unix.ENOENT:
			default:
				v.err = fmt.Errorf("look at its /proc/%s: %w", n, err)
			}
		}
	}
	return v
}

// anyEntry tells whether a directory has one.
func anyEntry(fd int, buf []byte) (bool, error) {
	n, err := retry(func() (int, error) { return unix.Getdents(fd, buf) })
	if err != nil {
		return false, fmt.Errorf("list its /proc: %w", err)
	}
	_, count, _ := unix.ParseDirent(buf[:n], 1, nil)
	return count > 0, nil
}
