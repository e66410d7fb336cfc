package container

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// bindReadOnly shows source at target, with everything mounted below it,
// read-only and without device files or set-user-id programs. The flags are
// set before the mount is attached, so that it is never there in a weaker form.
// In a sandbox with a user namespace the kernel then locks them: not even the
// sandbox's own root can take them off.
func bindReadOnly(source, target string) error {
	return bind(source, target, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
}

// bindDevice shows one device file.
func bindDevice(source, target string) error {
	return bind(source, target, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
}

func bind(source, target string, attr uint64) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return &os.PathError{Op: "open_tree", Path: source, Err: err}
	}
	defer unix.Close(tree)
	if attr != 0 {
		set := unix.MountAttr{Attr_set: attr, Propagation: unix.MS_PRIVATE}
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &set); err != nil {
			return &os.PathError{Op: "mount_setattr", Path: source, Err: err}
		}
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach %s: %w", source, &os.PathError{Op: "move_mount", Path: target, Err: err})
	}
	return nil
}
