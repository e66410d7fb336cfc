package supervise

import (
	"os"
	"syscall"

	"github.com/aspis-dev/aspis/sandbox"
)

// ExitState says how a process ended. A process whose end could not be
// collected has code -1.
func ExitState(state *os.ProcessState) sandbox.ExitState {
	if state == nil {
		return sandbox.ExitState{Code: -1}
	}
	e := sandbox.ExitState{Code: state.ExitCode()}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.Signal = ws.Signal()
	}
	e.Usage = sandbox.Usage{User: state.UserTime(), System: state.SystemTime()}
	if ru, ok := state.SysUsage().(*syscall.Rusage); ok {
		e.Usage.MaxRSSBytes = ru.Maxrss << 10 // the kernel counts in KiB
	}
	return e
}
