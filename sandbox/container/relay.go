package container

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/kernel"
)

// relay is the way out of one sandbox: a listening socket in its network
// namespace whose file is ours. A socket belongs to the namespace that it was
// made in, whoever holds it, so that nothing of ours need run inside.
type relay struct {
	to     sandbox.Relay
	ln     *net.TCPListener
	mu     sync.Mutex
	cancel context.CancelFunc
	done   chan struct{} // closed when nobody serves it any more
}

// openRelay makes the socket. Nobody accepts from it before serve.
func openRelay(pid int, to sandbox.Relay) (*relay, error) {
	type made struct {
		ln  *net.TCPListener
		err error
	}
	result := make(chan made, 1)
	go func() {
		// Never unlocked: the thread is in another namespace and ends with this
		// goroutine. Its parent-death signal and its children are nobody's.
		runtime.LockOSThread()
		ln, err := listenIn(pid)
		result <- made{ln, err}
	}()
	m := <-result
	if m.err != nil {
		return nil, fmt.Errorf("relay: %w", m.err)
	}
	r := &relay{to: to, ln: m.ln, done: make(chan struct{}), cancel: func() {}}
	close(r.done)
	return r, nil
}

// listenIn moves this thread into a process's network namespace.
func listenIn(pid int) (*net.TCPListener, error) {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, os.NewSyscallError("setns", err)
	}
	if err := raiseLoopback(); err != nil {
		return nil, err
	}
	// By numbers and on this goroutine, so that the socket is made by this thread.
	return net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: sandbox.RelayPort})
}

// raiseLoopback lets packets through the loopback of the present namespace.
func raiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFFLAGS, uintptr(unsafe.Pointer(req))); errno != 0 {
		return os.NewSyscallError("bring the loopback up", errno)
	}
	return nil
}

// expect describes the socket for the evidence. A nil relay is none.
func (r *relay) expect() *kernel.Listener {
	if r == nil {
		return nil
	}
	return &kernel.Listener{Socket: r.ln, Port: sandbox.RelayPort, Destinations: len(r.to.Destinations())}
}

// serve begins to let connections through.
func (r *relay) serve() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	r.cancel, r.done = cancel, done
	go func() {
		defer close(done)
		// Its error is that of a listener that was closed, or that nothing goes
		// out any more, which the process sees.
		_ = r.to.Serve(ctx, r.ln)
	}()
}

// close ends all connections.
func (r *relay) close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cancel()
	_ = r.ln.Close() // closed before, if it was served
	<-r.done
}
