package stage

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"github.com/opencontainers/runc/libcontainer"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // joins the namespaces before Go's runtime exists
	"golang.org/x/sys/unix"
)

const (
	// Marker as the only argument makes the program run as the first stage.
	Marker = "aspis:first-stage"
	// Path is where the program finds itself inside the container.
	Path = "/.aspis/stage"
)

func init() {
	// The first thread stays with the main goroutine. Goroutines of ours and
	// of libcontainer's enter other mount namespaces and end with their
	// thread, but Go can only park the first one, which would then stay there
	// for ever, and /proc/self would show that namespace as this process's.
	runtime.LockOSThread()
	if len(os.Args) < 2 {
		return
	}
	switch {
	case os.Args[1] == "init" && os.Getenv("_LIBCONTAINER_INITPIPE") != "":
		libcontainer.Init() // does not return
	case os.Args[1] == Marker && len(os.Args) == 2:
		run()
	case os.Args[1] == EnterMarker:
		awaitMapping()
	case os.Args[1] == enteredMarker:
		entered()
	}
}

// run is the first stage. Only raw system calls on the three pipes: a reader
// that buffers would swallow the first bytes meant for the real program, and
// the poller of package os would open files of its own.
func run() {
	// The host's thread that started the container is our parent in the
	// kernel's eyes; libcontainer's own setting was lost in its clones. A host
	// that died before this line has closed our standard input, which the
	// read below sees.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		refuse("ask to die with the host", err)
	}
	var size [4]byte
	readFull(size[:])
	n := binary.LittleEndian.Uint32(size[:])
	if n > maxHeader {
		refuse("read the header", fmt.Errorf("%d bytes announced, limit %d", n, maxHeader))
	}
	body := make([]byte, n)
	readFull(body)
	h, err := decode(body)
	if err != nil {
		refuse("read the header", err)
	}
	if !h.KeepFiles {
		if err := unix.CloseRange(3, ^uint(0), 0); err != nil {
			refuse("close inherited files", err)
		}
	}
	if h.Reap {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			refuse("keep its orphans", err)
		}
	}
	// Asked before the filter stands and before the host looks, so that a
	// missing program is an error of the start and not of the run.
	if err := unix.Faccessat(unix.AT_FDCWD, h.Path, unix.X_OK, 0); err != nil {
		refuse(fmt.Sprintf("find the program %q", h.Path), err)
	}
	if len(h.Filter) > 0 {
		if err := loadFilter(h.Filter); err != nil {
			refuse("load the seccomp filter", err)
		}
	}
	writeAll(1, Ready)

	var word [1]byte
	readFull(word[:])
	if word[0] != Go {
		os.Exit(125)
	}
	err = unix.Exec(h.Path, h.Args, os.Environ())
	writeAll(2, fmt.Sprintf("aspis: cannot execute %q: %v\n", h.Path, err))
	os.Exit(126)
}

// loadFilter installs the program on every thread of this process. It needs
// no_new_privs, which the host's container configuration has set.
func loadFilter(filter []byte) error {
	prog := unix.SockFprog{
		Len:    uint16(len(filter) / filterUnit),
		Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.SliceData(filter))),
	}
	if int(prog.Len) != len(filter)/filterUnit {
		return unix.E2BIG
	}
	// With TSYNC a positive result is the id of a thread that could not
	// follow; it must not pass as success.
	tid, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return errno
	}
	if tid != 0 {
		return fmt.Errorf("thread %d did not take the filter", tid)
	}
	return nil
}

// readFull ends the process when the host has gone away or let go.
func readFull(b []byte) {
	for len(b) > 0 {
		n, err := unix.Read(0, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			os.Exit(125)
		}
		b = b[n:]
	}
}

func writeAll(fd int, s string) {
	b := []byte(s)
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			os.Exit(125)
		}
		b = b[n:]
	}
}

func refuse(doing string, err error) {
	writeAll(1, Refused+fmt.Sprintf("first stage cannot %s: %v", doing, err))
	os.Exit(125)
}
