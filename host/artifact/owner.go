package artifact

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// onlyOurs refuses what somebody else could change after it was hashed.
func onlyOurs(info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("its owner cannot be told")
	}
	return owner(st.Uid, info.Mode(), foreignRoot())
}

// owner judges one file by what stat shows. stranger is the id under which
// files of a root outside of this user namespace appear, or -1.
func owner(uid uint32, mode fs.FileMode, stranger int64) error {
	if uid != 0 && int64(uid) != int64(os.Geteuid()) && int64(uid) != stranger {
		return fmt.Errorf("it belongs to user %d; it must belong to root or to you", uid)
	}
	if mode.Type() != fs.ModeSymlink && mode.Perm()&0o022 != 0 {
		return fmt.Errorf("it can be written by others (mode %04o); use chmod go-w", mode.Perm())
	}
	return nil
}

// foreignRoot is the overflow id where this process is in a user namespace
// without the id of the root around it, else -1. An ordinary user's host runs
// in such a namespace, and what the machine's root has installed there, as
// packages do, appears as owned by the overflow id (user_namespaces(7)). The
// kernel does not tell it from what belongs to a third user: such a user could
// change a directory between the moment when it is hashed and the launch, but
// only one that the caller's own trusted configuration names.
var foreignRoot = sync.OnceValue(func() int64 {
	m, err := os.ReadFile("/proc/self/uid_map")
	if err != nil || holdsRoot(string(m)) {
		return -1
	}
	b, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err != nil {
		return -1
	}
	id, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil {
		return -1
	}
	return int64(id)
})

// holdsRoot tells whether an id map (inside, outside, count a line) maps the
// outer user 0. A map that cannot be understood is taken to.
func holdsRoot(text string) bool {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 3 {
			return true
		}
		outside, err := strconv.ParseUint(f[1], 10, 32)
		if err != nil || outside == 0 && f[2] != "0" {
			return true
		}
	}
	return false
}
