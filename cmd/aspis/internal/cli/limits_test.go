package cli

import (
	"testing"
	"time"

	"github.com/aspis-dev/aspis/sandbox"
)

func TestLimitsAreRead(t *testing.T) {
	l := sandbox.Limits{Pids: 5, OpenFiles: 6}
	if err := setLimits(&l, []string{"memory=2G", "tmp=64M", "pids=100", "cpu=150%", "time=90s"}); err != nil {
		t.Fatal(err)
	}
	if want := (sandbox.Limits{MemoryBytes: 2 << 30, TmpBytes: 64 << 20, Pids: 100, OpenFiles: 6, CPUPercent: 150, WallClock: 90 * time.Second}); l != want {
		t.Errorf("%+v, want %+v", l, want)
	}
	for _, bad := range []string{"memory", "memory=", "memory=-1", "memory=1X", "memory=1GG", "memory=9999999T", "pids=0", "pids=x", "time=0s", "time=soon", "colour=red"} {
		if err := setLimits(&l, []string{bad}); err == nil {
			t.Errorf("%q was taken: %+v", bad, l)
		}
	}
}
