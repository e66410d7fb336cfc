package main

import (
	"bytes"
	"fmt"
)

// archive is an initial memory file system in the form that the kernel reads
// (its Documentation/driver-api/early-userspace/buffer-format.rst, "newc").
type archive struct {
	buf bytes.Buffer
	ino int
}

const (
	modeDir  = 0o040755
	modeFile = 0o100755
)

func (a *archive) dir(name string) { a.entry(name, modeDir, nil) }

func (a *archive) file(name string, content []byte) { a.entry(name, modeFile, content) }

func (a *archive) entry(name string, mode int, content []byte) {
	a.ino++
	// magic, ino, mode, uid, gid, nlink, mtime, size, device and special
	// device, length of the name with its zero byte, checksum
	fmt.Fprintf(&a.buf, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		a.ino, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
	a.buf.WriteString(name + "\x00")
	a.pad()
	a.buf.Write(content)
	a.pad()
}

// pad goes on to a multiple of 4 bytes.
func (a *archive) pad() {
	for a.buf.Len()%4 != 0 {
		a.buf.WriteByte(0)
	}
}

// bytes ends the archive.
func (a *archive) bytes() []byte {
	a.entry("TRAILER!!!", 0, nil)
	return a.buf.Bytes()
}
