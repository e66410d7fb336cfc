package container

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDevicesWhileProcessesStart builds /dev while other goroutines fork: a
// writable descriptor that a fork inherits would keep it from being sealed.
func TestDevicesWhileProcessesStart(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	space, err := NewSpace("")
	if err != nil {
		t.Skipf("SKIPPED: no mount space: %v", err)
	}
	defer space.Close()
	var stop atomic.Bool
	done := make(chan struct{})
	for range 4 {
		go func() {
			for !stop.Load() {
				_ = exec.Command("/bin/true").Run()
			}
			done <- struct{}{}
		}()
	}
	for range 1000 {
		err := space.Do(func() error {
			dir := filepath.Join(space.Dir(), "dev-fork-test")
			if err := buildDevices(dir); err != nil {
				return err
			}
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				return err
			}
			return os.Remove(dir)
		})
		if err != nil {
			t.Error(err)
			break
		}
	}
	stop.Store(true)
	for range 4 {
		<-done
	}
}
