package supervise

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// pipeBytes is asked for each pipe to and from a provider: four times the
// usual, so that answers of many MiB take fewer turns. Sixty providers of an
// ordinary user stay below what pipe-user-pages-soft allows (pipe(7)).
const pipeBytes = 256 << 10

// widen asks for a larger pipe; one that stays as it was works as well.
func widen(pipe any) {
	c, ok := pipe.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeBytes) })
}
