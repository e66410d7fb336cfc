package publish_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// A recorder is a file that remembers, in order, every write to it and every
// sync: a loop device on it is a disk whose history is known. It is served by a
// process of its own.
type recorder struct {
	fs.Inode
	size int64

	mu   sync.Mutex
	data *os.File
	log  *os.File
}

const (
	recordWrite = 'w'
	recordSync  = 's'
)

// serveDisk serves a disk of size bytes at dir/mount/disk until it is told to
// end. Its history is in dir/log.
func serveDisk(dir string, size int64) int {
	data, err := os.Create(filepath.Join(dir, "data"))
	if err == nil {
		err = data.Truncate(size)
	}
	var log *os.File
	if err == nil {
		log, err = os.Create(filepath.Join(dir, "log"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	disk := &recorder{size: size, data: data, log: log}
	root := &fs.Inode{}
	server, err := fs.Mount(filepath.Join(dir, "mount"), root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "disk"},
		OnAdd: func(ctx context.Context) {
			root.AddChild("disk", root.NewPersistentInode(ctx, disk, fs.StableAttr{Mode: fuse.S_IFREG}), true)
		},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready")
	end := make(chan os.Signal, 1)
	signal.Notify(end, unix.SIGTERM)
	<-end
	// The kernel detaches a loop device a little after it was told to.
	for range 200 {
		if err = server.Unmount(); err == nil {
			return 0
		}
		time.Sleep(50 * time.Millisecond)
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func (d *recorder) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size = fuse.S_IFREG|0o600, uint64(d.size)
	return 0
}

func (d *recorder) Setattr(context.Context, fs.FileHandle, *fuse.SetAttrIn, *fuse.AttrOut) syscall.Errno {
	return 0
}

func (d *recorder) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return d, fuse.FOPEN_DIRECT_IO, 0
}

func (d *recorder) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	n, err := d.data.ReadAt(dest, off)
	if err != nil && err != io.EOF {
		return nil, unix.EIO
	}
	return fuse.ReadResultData(dest[:n]), 0
}

func (d *recorder) Write(_ context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.data.WriteAt(data, off); err != nil {
		return 0, unix.EIO
	}
	head := binary.LittleEndian.AppendUint64([]byte{recordWrite}, uint64(off))
	head = binary.LittleEndian.AppendUint32(head, uint32(len(data)))
	if _, err := d.log.Write(append(head, data...)); err != nil {
		return 0, unix.EIO
	}
	return uint32(len(data)), 0
}

func (d *recorder) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.log.Write([]byte{recordSync}); err != nil {
		return unix.EIO
	}
	return 0
}

// record is one write of a disk's history, or a sync where data is nil.
type record struct {
	off  int64
	data []byte
}

// history reads the log of a disk.
func history(t testing.TB, log string) []record {
	t.Helper()
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var out []record
	for len(b) > 0 {
		if b[0] == recordSync {
			out = append(out, record{})
			b = b[1:]
			continue
		}
		n := int(binary.LittleEndian.Uint32(b[9:]))
		out = append(out, record{off: int64(binary.LittleEndian.Uint64(b[1:])), data: b[13 : 13+n]})
		b = b[13+n:]
	}
	return out
}
