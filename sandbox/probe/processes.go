package probe

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
)

func processAttempts() []Attempt {
	return []Attempt{
		{"see-host-processes", sandbox.WallPIDNamespace, seeProcesses},
		{"trace-itself", sandbox.WallSeccomp, func(*Facts) Result {
			_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0, 0, 0, 0)
			return called(errno)
		}},
		{"trace-parent", sandbox.WallSeccomp, func(*Facts) Result {
			_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(os.Getppid()), 0, 0, 0, 0)
			return called(errno)
		}},
		{"trace-host", sandbox.WallPIDNamespace, func(f *Facts) Result {
			_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(f.HostPid), 0, 0, 0, 0)
			return called(errno)
		}},
		{"read-memory-of-parent", sandbox.WallSeccomp, func(*Facts) Result { return processMemory(unix.SYS_PROCESS_VM_READV) }},
		{"write-memory-of-parent", sandbox.WallSeccomp, func(*Facts) Result { return processMemory(unix.SYS_PROCESS_VM_WRITEV) }},
		{"pidfd-of-host", sandbox.WallPIDNamespace, func(f *Facts) Result {
			if own(f.HostPid) {
				return blocked("the number is one of its own processes")
			}
			fd, err := unix.PidfdOpen(f.HostPid, 0)
			if err == nil {
				_ = unix.Close(fd)
			}
			return answered(err)
		}},
		{"pidfd-take-file", sandbox.WallSeccomp, func(*Facts) Result {
			_, err := unix.PidfdGetfd(-1, 0, 0)
			return answered(err, unix.EBADF)
		}},
		{"pidfd-signal-host", sandbox.WallPIDNamespace, func(f *Facts) Result {
			fd, err := unix.PidfdOpen(f.HostPid, 0)
			if err != nil || own(f.HostPid) {
				return blocked("no file for it: %v", err)
			}
			defer unix.Close(fd)
			return answered(unix.PidfdSendSignal(fd, 0, nil, 0))
		}},
		{"signal-host", sandbox.WallPIDNamespace, func(f *Facts) Result {
			if own(f.HostPid) {
				return blocked("the number is one of its own processes")
			}
			return answered(unix.Kill(f.HostPid, 0))
		}},
		{"signal-everybody", sandbox.WallPIDNamespace, func(*Facts) Result {
			if r := seeProcesses(nil); r.State == Open {
				return open("it would reach processes of the machine: %s", r.Seen)
			}
			return blocked("there is nobody but its own processes")
		}},
		{"compare-processes", sandbox.WallSeccomp, func(*Facts) Result {
			_, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(os.Getppid()), 1, 0, 0, 0)
			return called(errno)
		}},
		{"raise-priority", sandbox.WallCapabilities, func(*Facts) Result { return answered(unix.Setpriority(unix.PRIO_PROCESS, 0, -20)) }},
		{"real-time", sandbox.WallCapabilities, func(*Facts) Result {
			return answered(unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0))
		}},
		{"raise-file-limit", sandbox.WallOpenFilesLimit, func(f *Facts) Result {
			n := uint64(f.FileMax) * 2
			return answered(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}))
		}},
	}
}

// own tells whether a process is this program: pids inside begin at 1 again, so
// that a number of the host's may be one of its own.
func own(pid int) bool {
	exe, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return err == nil && strings.HasPrefix(string(exe), programName+"\x00")
}

func seeProcesses(*Facts) Result {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return answered(err)
	}
	n := 0
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if n++; !own(pid) {
			comm, err := os.ReadFile(filepath.Join("/proc", e.Name(), "comm"))
			if err == nil {
				return open("process %d is %q", pid, strings.TrimSpace(string(comm)))
			}
		}
	}
	return blocked("%d processes, all its own", n)
}

// processMemory reads or writes one byte of a variable that has the same place
// in the parent, which is the same program. What is written is what is there.
func processMemory(call uintptr) Result {
	var b byte
	local := unix.Iovec{Base: &b, Len: 1}
	remote := unix.RemoteIovec{Base: uintptr(unsafe.Pointer(&unchanged)), Len: 1}
	_, _, errno := syscall.Syscall6(call, uintptr(os.Getppid()), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	return called(errno, unix.EFAULT)
}

// unchanged is zero and stays so.
var unchanged byte
