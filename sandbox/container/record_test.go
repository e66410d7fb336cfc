package container

import (
	"os/exec"
	"testing"
	"time"
)

// TestEndedIsNotRunning looks at a process that has ended and that nobody has
// waited for yet.
func TestEndedIsNotRunning(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := identify(cmd.Process.Pid)
	if err != nil || !id.runs() {
		t.Fatalf("%v does not run: %v", id, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); id.runs(); {
		if time.Now().After(deadline) {
			t.Fatal("still said to run")
		}
		time.Sleep(time.Millisecond)
	}
	_ = cmd.Wait() // killed, as asked
}
