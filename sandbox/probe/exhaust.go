package probe

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
)

// exhaustionAttempts take more than was given. Each stops by itself at not
// more than twice of what it should have.
func exhaustionAttempts() []Attempt {
	return []Attempt{
		{"fork-bomb", sandbox.WallPidsLimit, forkBomb},
		{"memory", sandbox.WallMemoryLimit, takeMemory},
		{"open-files", sandbox.WallOpenFilesLimit, takeFiles},
		{"disk", sandbox.WallHostPathsUnwritable, takeDisk},
		{"time", sandbox.WallClockLimit, func(*Facts) Result {
			time.Sleep(overtime)
			return open("nobody ended it in %v", overtime)
		}},
		{"outlive-the-run", sandbox.WallPIDNamespace, outlive},
	}
}

// overtime is far longer than the wall clock that the host gives to that one.
const overtime = 20 * time.Second

func forkBomb(f *Facts) Result {
	var children []*exec.Cmd
	defer func() {
		for _, c := range children {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	}()
	for range f.Pids + 4 {
		c := exec.Command("/proc/self/exe", "wait")
		if err := c.Start(); err != nil {
			return blocked("after %d: %v", len(children), err)
		}
		children = append(children, c)
	}
	return open("%d processes run", len(children))
}

func takeMemory(f *Facts) Result {
	const step = 1 << 20
	var all [][]byte
	for taken := int64(0); taken < 2*f.Memory; taken += step {
		b, err := unix.Mmap(-1, 0, step, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return blocked("after %d bytes: %v", taken, err)
		}
		for i := 0; i < step; i += 4096 {
			b[i] = 1
		}
		all = append(all, b)
	}
	time.Sleep(time.Second) // for a watchdog, which looks now and then
	return open("%d MiB were had", len(all))
}

func takeFiles(f *Facts) Result {
	for n := range 2 * f.FileMax {
		if _, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return blocked("after %d: %v", n, err)
		}
	}
	return open("%d are open", 2*f.FileMax)
}

func takeDisk(f *Facts) Result {
	b := make([]byte, 1<<20)
	for i := range 2*f.Tmp/int64(len(b)) + 1 {
		// More than one file, for the size of one is bounded too.
		err := os.WriteFile(fmt.Sprintf("/tmp/fill-%d", i), b, 0o600)
		if errors.Is(err, unix.ENOSPC) {
			return blocked("after %d MiB: %v", i, err)
		}
		if err != nil {
			return blocked("%v", err)
		}
	}
	return open("%d bytes were written", 2*f.Tmp)
}

// outlive leaves a process that is nobody's child, in a session of its own. The
// host looks for it afterwards.
func outlive(f *Facts) Result {
	c := exec.Command("/proc/self/exe", "leave", f.Nonce)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Run(); err != nil {
		return blocked("it cannot be left: %v", err)
	}
	return Result{State: Blocked, Seen: "it was left; the host looks for it"}
}
