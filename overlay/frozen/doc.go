// Package frozen keeps directories as they were at a moment: every file with
// its bytes, mode, owner and time, and a record of what was seen.
//
// The files are taken from the directory itself, not from what version control
// has of them: its bytes differ from those that lie there where line ends or
// filters are converted, and build tools go by times that it does not keep.
//
// How a file's bytes are held depends on what the file system can do:
//
//	cloned   shared until one side is written (FICLONE); free, and exact
//	copied   exact, whatever becomes of the original
//	linked   the same inode under a second name: free, and what is removed or
//	         replaced stays as it was, but a program that writes the original in
//	         place is seen through. It also changes the original's ctime, after
//	         which git reads a tracked file again; so it is only for what the
//	         caller names: what version control ignores, and git's own objects,
//	         which git replaces and never writes.
//
// A later state is one layer over an earlier one, with what differs and with
// whiteouts as overlayfs has them (a character device 0:0). What differs is found
// by the record, as git finds it by its index, without reading files.
//
// The package knows nothing of git, of mounts or of where layers lie.
package frozen
