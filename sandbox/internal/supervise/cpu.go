package supervise

import (
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
)

// CPULimit turns a share of a processor into what a process may use in all,
// for want of a control group: its share of the wall clock. It is for
// RLIMIT_CPU, in whole seconds. At the first of the two limits the kernel sends
// SIGXCPU, which tells by itself what happened, and a second later SIGKILL. ok
// is false where the limits ask for no share or for no wall clock.
func CPULimit(lim sandbox.Limits) (l unix.Rlimit, ok bool) {
	if lim.CPUPercent <= 0 || lim.WallClock <= 0 {
		return l, false
	}
	share := uint64(lim.WallClock.Seconds() * float64(lim.CPUPercent) / 100)
	return unix.Rlimit{Cur: max(share, 1), Max: share + 1}, true
}
