// Package upper reads the upper directory of an overlay mount as the changes
// that were made through it: what is there now and was not, what was and is not,
// and what is other than it was. It costs as much as was changed.
//
// The kernel's marks are those of Documentation/filesystems/overlayfs.rst: a
// character device 0:0 or, in a directory with the opaque mark "x", an empty
// file with the whiteout mark, where something is gone; the opaque mark "y" on a
// directory that hides what lies below it; the redirect mark on one that was
// renamed and whose contents still lie below under the old name; the metacopy
// mark on a file that has its own metadata and the bytes of the one below.
//
// Whoever works in the mount writes the directory, so that all of it is hostile:
// nothing is followed, and everything is bounded. The known library for this,
// containerd's continuity/fs, looks through full paths and symlinks and knows no
// redirects, which is right for images and wrong here.
//
// The package knows nothing of git, of blobs or of who made the changes.
package upper
