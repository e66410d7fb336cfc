package container

import (
	"os"
	"strconv"
	"testing"
)

// soakEnv makes the tests that repeat something repeat it so many times.
const soakEnv = "ASPIS_SOAK"

func soak(usual int) int {
	if n, err := strconv.Atoi(os.Getenv(soakEnv)); err == nil {
		return n
	}
	return usual
}

// TestSoak starts and removes many sandboxes in one process.
func TestSoak(t *testing.T) {
	rt := newRuntime(t)
	run(t, rt, probeSpec())
	before := footprint(t, rt)
	for range soak(20) {
		run(t, rt, probeSpec("see"))
	}
	compare(t, before, footprint(t, rt))
}
