package container

import (
	"sync"
	"time"

	"github.com/aspis-dev/aspis/sandbox"
)

// pollInterval is how often the watchdog looks at a tree that no control
// group limits. A hog can go over its limit for about this long.
const pollInterval = 20 * time.Millisecond

// watchdog ends a sandbox that is over a limit which only the host can
// enforce: always the wall clock; memory and processes where there is no
// control group for them.
type watchdog struct {
	quit    chan struct{}
	started chan struct{}
	once    sync.Once
	ended   chan struct{}

	timedOut   bool // read after ended is closed
	overMemory bool
}

func newWatchdog(pid int, lim sandbox.Limits, held map[string]bool, without map[sandbox.WallName]bool, kill func() error) *watchdog {
	if without[sandbox.WallMemoryLimit] || held["memory"] {
		lim.MemoryBytes = 0
	}
	if without[sandbox.WallPidsLimit] || held["pids"] {
		lim.Pids = 0
	}
	if without[sandbox.WallClockLimit] {
		lim.WallClock = 0
	}
	w := &watchdog{quit: make(chan struct{}), started: make(chan struct{}), ended: make(chan struct{})}
	go w.run(pid, lim, kill)
	return w
}

// released starts the wall clock.
func (w *watchdog) released() { w.once.Do(func() { close(w.started) }) }

func (w *watchdog) run(pid int, lim sandbox.Limits, kill func() error) {
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
			n, rss := treeUse(pid)
			if lim.MemoryBytes > 0 && rss > lim.MemoryBytes {
				w.overMemory = true
			} else if lim.Pids <= 0 || n <= int64(lim.Pids) {
				continue
			}
			_ = kill()
			clock, poll = nil, nil
		}
	}
}

// stop ends it and tells what it did.
func (w *watchdog) stop() (timedOut, overMemory bool) {
	close(w.quit)
	<-w.ended
	return w.timedOut, w.overMemory
}
