package kernel

import "errors"

func (f *facts) memoryLimit() verdict {
	want := f.ex.Spec.Limits.MemoryBytes
	if want <= 0 {
		return falls("no limit was asked for")
	}
	if f.memory.err == nil && f.memory.value <= uint64(want) {
		return stands("control group: %d bytes", f.memory.value)
	}
	if w := f.ex.Watched.MemoryBytes; f.ex.Watchdog && w > 0 && w <= want {
		return stands("%s; the host ends the tree when it has more than %d bytes", f.memory.why(), w)
	}
	return falls("%s", f.memory.why())
}

func (f *facts) pidsLimit() verdict {
	want := uint64(max(f.ex.Spec.Limits.Pids, 0))
	if want == 0 {
		return falls("no limit was asked for")
	}
	if f.pids.err == nil && f.pids.value <= want {
		return stands("control group: %d", f.pids.value)
	}
	// Counted for the user in its user namespace, so only a namespace of its
	// own makes it the tree's.
	if l, ok := f.limits.v["Max processes"]; ok && f.limits.err == nil && l.Hard <= want && ownNamespace("user")(f).standing {
		return stands("%s; resource limit: %d", f.pids.why(), l.Hard)
	}
	if w := f.ex.Watched.Pids; f.ex.Watchdog && w > 0 && uint64(w) <= want {
		return stands("%s; the host ends the tree when it has more than %d", f.pids.why(), w)
	}
	return falls("%s", f.pids.why())
}

func (f *facts) openFilesLimit() verdict {
	want := uint64(max(f.ex.Spec.Limits.OpenFiles, 0))
	if want == 0 {
		return falls("no limit was asked for")
	}
	if f.limits.err != nil {
		return unknown(f.limits.err)
	}
	l, ok := f.limits.v["Max open files"]
	if !ok {
		return unknown(errors.New("the kernel lists no such limit"))
	}
	if l.Hard > want {
		return falls("resource limit: %d, more than %d", l.Hard, want)
	}
	return stands("resource limit: %d", l.Hard)
}

// cpuLimit is a share of time. Where no control group can give one, a total
// does: by resource limit each process has at most what its share of the wall
// clock would have been.
func (f *facts) cpuLimit() verdict {
	want := uint64(max(f.ex.Spec.Limits.CPUPercent, 0))
	if want == 0 {
		return falls("no limit was asked for")
	}
	if f.cpu.err == nil && f.cpu.value <= want {
		return stands("control group: %d%% of a processor", f.cpu.value)
	}
	if uint64(f.processors)*100 <= want {
		return stands("the machine has no more than %d processors", f.processors)
	}
	clock := f.ex.Spec.Limits.WallClock.Seconds()
	if l, ok := f.limits.v["Max cpu time"]; ok && f.limits.err == nil && clock > 0 && float64(l.Hard) <= clock*float64(want)/100+1 {
		return stands("%s; resource limit: %d seconds for each process", f.cpu.why(), l.Hard)
	}
	return falls("%s", f.cpu.why())
}

func (f *facts) clockLimit() verdict {
	want := f.ex.Spec.Limits.WallClock
	if want <= 0 {
		return falls("no limit was asked for")
	}
	if w := f.ex.Watched.WallClock; f.ex.Watchdog && w > 0 && w <= want {
		return stands("the host ends the tree after %v", w)
	}
	return falls("no watchdog of the host's is set to it")
}

// why says what keeps a control group from being the limit.
func (h held) why() string {
	if h.err != nil {
		return h.err.Error()
	}
	return "the control group allows more than was asked for"
}
