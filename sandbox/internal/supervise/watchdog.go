package supervise

import (
	"sync"
	"time"

	"github.com/aspis-dev/aspis/sandbox"
)

// pollInterval is how often the watchdog looks at a tree that no control
// group limits. A hog can go over its limit for about this long.
const pollInterval = 20 * time.Millisecond

// Watchdog ends a process tree that is over a limit which only the host can
// enforce.
type Watchdog struct {
	quit    chan struct{}
	started chan struct{}
	once    sync.Once
	ended   chan struct{}

	timedOut   bool // read after ended is closed
	overMemory bool
}

// NewWatchdog starts one for the tree below pid. Of the limits it enforces
// MemoryBytes (resident, shared pages counted for each process), Pids, and
// WallClock from Released on; zero is no limit. kill must end the whole tree;
// it is called once at most.
func NewWatchdog(pid int, lim sandbox.Limits, kill func() error) *Watchdog {
	w := &Watchdog{quit: make(chan struct{}), started: make(chan struct{}), ended: make(chan struct{})}
	go w.run(pid, lim, kill)
	return w
}

// Released starts the wall clock.
func (w *Watchdog) Released() { w.once.Do(func() { close(w.started) }) }

func (w *Watchdog) run(pid int, lim sandbox.Limits, kill func() error) {
	defer close(w.ended)
	var poll, clock <-chan time.Time
	if lim.MemoryBytes > 0 || lim.Pids > 0 {
		t := time.NewTicker(pollInterval)
		defer t.Stop()
		poll = t.C
	}
	started := w.started
	for {
		select {
		case <-w.quit:
			return
		case <-started:
			started = nil
			if lim.WallClock > 0 {
				t := time.NewTimer(lim.WallClock)
				defer t.Stop()
				clock = t.C
			}
		case <-clock:
			w.timedOut = true
			_ = kill() // the end of the process is what is waited for; Close kills again
			clock, poll = nil, nil
		case <-poll:
			tasks, rss := use(Tree(pid))
			switch {
			case lim.MemoryBytes > 0 && rss > lim.MemoryBytes:
				w.overMemory = true
			case lim.Pids > 0 && tasks > int64(lim.Pids):
			default:
				continue
			}
			_ = kill()
			clock, poll = nil, nil
		}
	}
}

// Stop ends the watchdog and tells what it did. It must be called once.
func (w *Watchdog) Stop() (timedOut, overMemory bool) {
	close(w.quit)
	<-w.ended
	return w.timedOut, w.overMemory
}
