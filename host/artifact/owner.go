package artifact

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// onlyOurs refuses what somebody else could change after it was hashed.
func onlyOurs(info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("its owner cannot be told")
	}
	return owner(st.Uid, info.Mode())
}

func owner(uid uint32, mode fs.FileMode) error {
	if uid != 0 && int64(uid) != int64(os.Geteuid()) {
		return fmt.Errorf("it belongs to user %d; it must belong to root or to you", uid)
	}
	if mode.Type() != fs.ModeSymlink && mode.Perm()&0o022 != 0 {
		return fmt.Errorf("it can be written by others (mode %04o); use chmod go-w", mode.Perm())
	}
	return nil
}
