package publish

import (
	"errors"

	"golang.org/x/sys/unix"
)

// unsupported tells an operation that the file system does not know from one
// that failed.
func unsupported(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP)
}

// exchange lets two names change places in one step. false: the file system
// cannot.
func exchange(dirA int, a string, dirB int, b string) (bool, error) {
	err := unix.Renameat2(dirA, a, dirB, b, unix.RENAME_EXCHANGE)
	if unsupported(err) {
		return false, nil
	}
	return true, err
}

// place moves a name to one that is free, and fails with EEXIST where it is not.
// sure is false where the file system could only be asked beforehand.
func place(from int, name string, to int, target string) (sure bool, err error) {
	err = unix.Renameat2(from, name, to, target, unix.RENAME_NOREPLACE)
	if err == nil || !unsupported(err) {
		return true, err
	}
	if err = unix.Linkat(from, name, to, target, 0); err == nil {
		return true, unix.Unlinkat(from, name, 0)
	}
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) {
		return true, err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(to, target, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
		return true, unix.EEXIST
	}
	return false, unix.Renameat(from, name, to, target)
}

// inode is the inode that a name has, 0 for none.
func inode(dir int, name string) (uint64, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	return st.Ino, err
}
