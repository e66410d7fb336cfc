package publish

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Names in the area.
const (
	txPrefix   = "tx-"   // a publish that is under way
	dropPrefix = "drop-" // one that nobody needs any more
	lastName   = "last"  // the last one that was committed
	keptName   = "kept"  // files of others that were set aside
	lockInArea = "lock"
)

// areaPath finds where this user's publishes to root are staged: on the same
// mount, where git and other tools do not look for source. It makes nothing.
func areaPath(root string) (dir string, inRoot bool) {
	name := "aspis-publish-" + strconv.Itoa(os.Geteuid())
	// One that is there may hold a publish from before there was a repository.
	if st, err := os.Lstat(filepath.Join(root, "."+name)); err == nil && st.IsDir() {
		return filepath.Join(root, "."+name), true
	}
	if git := gitDir(root); git != "" && sameMount(root, git) && unix.Access(git, unix.W_OK) == nil {
		return filepath.Join(git, name), false
	}
	return filepath.Join(root, "."+name), true
}

// gitDir is the git directory of a worktree's top, or "" where it has none.
func gitDir(root string) string {
	dot := filepath.Join(root, ".git")
	st, err := os.Lstat(dot)
	if err != nil {
		return ""
	}
	if st.IsDir() {
		return dot
	}
	if !st.Mode().IsRegular() {
		return ""
	}
	f, err := os.Open(dot)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxTarget))
	target, ok := strings.CutPrefix(strings.TrimRight(string(b), "\r\n"), "gitdir: ")
	if err != nil || !ok {
		return ""
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(root, target)
	}
	return target
}

// sameMount tells whether files can be renamed from one directory to another.
func sameMount(a, b string) bool {
	var x, y unix.Statx_t
	const mask = unix.STATX_BASIC_STATS | unix.STATX_MNT_ID
	if unix.Statx(unix.AT_FDCWD, a, 0, mask, &x) != nil || unix.Statx(unix.AT_FDCWD, b, 0, mask, &y) != nil {
		return false
	}
	if x.Mask&y.Mask&unix.STATX_MNT_ID != 0 && x.Mnt_id != y.Mnt_id {
		return false
	}
	return x.Dev_major == y.Dev_major && x.Dev_minor == y.Dev_minor
}

// openArea makes and opens the area of a workspace.
func openArea(root string) (tree, string, error) {
	dir, inRoot := areaPath(root)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return tree{}, "", full("make the staging area", err)
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return tree{}, "", fmt.Errorf("look at the staging area: %w", err)
	}
	if !st.IsDir() {
		return tree{}, "", &DamagedError{Dir: dir, Detail: "it is not a directory"}
	}
	t, err := newTree(dir)
	if err != nil {
		return tree{}, "", fmt.Errorf("open the staging area: %w", err)
	}
	var raw unix.Stat_t
	err = unix.Fstat(t.root, &raw)
	if err == nil && int(raw.Uid) != os.Geteuid() {
		err = &DamagedError{Dir: dir, Detail: fmt.Sprintf("it belongs to the user %d", raw.Uid)}
	}
	if err == nil && inRoot {
		// Git ignores what a .gitignore inside says.
		err = full("make the staging area", os.WriteFile(filepath.Join(dir, ".gitignore"), []byte("*\n"), 0o600))
	}
	if err != nil {
		t.close()
		return tree{}, "", err
	}
	spread(t.root)
	return t, dir, nil
}

// topDir is FS_TOPDIR_FL of linux/fs.h.
const topDir = 0x20000

// spread asks ext4 to put the directories of publishes far from each other. It
// looks for free inodes near the directory and passes over all that were freed
// lately, one by one: after a publish of many files those are many. Other file
// systems know no such wish.
func spread(area int) {
	flags, err := unix.IoctlGetInt(area, unix.FS_IOC_GETFLAGS)
	if err == nil && flags&topDir == 0 {
		_ = unix.IoctlSetPointerInt(area, unix.FS_IOC_SETFLAGS, flags|topDir)
	}
}
