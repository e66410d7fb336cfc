package kernel

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
)

// Held is a process that has been inspected, and can be looked at again for
// less.
type Held struct {
	process *process
	facts   *facts
}

// Hold inspects a process that is held at its first stage and keeps what was
// read. The result is to be closed.
func Hold(pid int, ex Expect) (*Held, sandbox.Evidence, error) {
	p, err := openProcess(pid)
	if err != nil {
		return nil, sandbox.Evidence{}, err
	}
	at := time.Now()
	f, err := gather(pid, ex)
	if err != nil {
		p.close()
		return nil, sandbox.Evidence{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	return &Held{p, f}, sandbox.Evidence{Pid: pid, At: at, Walls: f.judge()}, nil
}

// Close gives up what is held. It may be called again.
func (h *Held) Close() {
	if h.process != nil {
		h.process.close()
		h.process = nil
	}
}

// Again looks at what the host itself may have changed since: what is mounted,
// what of it is protected, and what is in the network namespace. Everything
// else could only have been changed by the process, of which nothing has run;
// the walls that rest on it are judged by what was read before.
//
// running tells that the program has been released. Then its threads are read
// again as well, while its own files, sockets and what it wrote are its own
// business and judged by what there was when it was held.
func (h *Held) Again(ex Expect, running bool) (sandbox.Evidence, error) {
	if h.process == nil {
		return sandbox.Evidence{}, os.ErrClosed
	}
	if ex.HostPid == 0 {
		ex.HostPid = os.Getpid()
	}
	at := time.Now()
	f := *h.facts
	f.ex, f.kinds = ex, nil
	f.strayNS = nil
	host, err := openProcess(ex.HostPid)
	if err != nil {
		return sandbox.Evidence{}, err
	}
	defer host.close()
	f.gatherHostMounts(host)
	f.spaces = f.mountSpaces()
	if running {
		f.gatherIdentity(h.process)
	} else {
		f.gatherNetwork(h.process)
	}
	tree, proc := f.tree, f.proc
	f.gatherMounts(h.process)
	if running {
		f.tree, f.proc = tree, proc
	}
	if errors.Is(unix.Kill(f.pid, 0), unix.ESRCH) {
		return sandbox.Evidence{}, fmt.Errorf("process %d ended while it was looked at", f.pid)
	}
	*h.facts = f
	return sandbox.Evidence{Pid: f.pid, At: at, Walls: f.judge()}, nil
}
