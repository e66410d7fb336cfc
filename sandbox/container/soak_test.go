package container

import (
	"os"
	"strconv"
	"testing"
)

// soakEnv sets how many sandboxes TestSoak starts.
const soakEnv = "ASPIS_SOAK"

// TestSoak starts and removes many sandboxes in one process.
func TestSoak(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv(soakEnv))
	if err != nil {
		t.Skipf("SKIPPED: set %s to a number of starts, such as 1000", soakEnv)
	}
	rt := newRuntime(t)
	run(t, rt, probeSpec())
	before := footprint(t, rt)
	for range n {
		run(t, rt, probeSpec())
	}
	compare(t, before, footprint(t, rt))
}
