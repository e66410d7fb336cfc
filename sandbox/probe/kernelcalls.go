package probe

import (
	"bufio"
	"os"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
)

// kernelAttempts ask the kernel for what it gives to the machine's root, each
// in a form that it refuses after it has checked who asks.
func kernelAttempts() []Attempt {
	zero := func(call uintptr, reached ...syscall.Errno) func(*Facts) Result {
		return func(*Facts) Result {
			_, _, errno := unix.Syscall6(call, 0, 0, 0, 0, 0, 0)
			return called(errno, reached...)
		}
	}
	nowhere, _ := unix.BytePtrFromString("/aspis-probe-no-such-file") // has no zero byte
	named := func(call uintptr, reached ...syscall.Errno) func(*Facts) Result {
		return func(*Facts) Result {
			_, _, errno := unix.Syscall(call, uintptr(unsafe.Pointer(nowhere)), 0, 0)
			return called(errno, reached...)
		}
	}
	return []Attempt{
		{"bpf-map", sandbox.WallSeccomp, func(*Facts) Result {
			attr := [32]uint32{1, 4, 4, 1} // a hash of one entry, four bytes each
			_, _, errno := unix.Syscall(unix.SYS_BPF, 0, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
			return called(errno)
		}},
		{"bpf-program", sandbox.WallSeccomp, func(*Facts) Result {
			attr := [32]uint32{1}
			_, _, errno := unix.Syscall(unix.SYS_BPF, 5, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
			return called(errno, unix.EINVAL, unix.EFAULT, unix.E2BIG)
		}},
		{"perf-event", sandbox.WallSeccomp, func(*Facts) Result {
			attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_TASK_CLOCK, Bits: unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv}
			attr.Size = uint32(unsafe.Sizeof(attr))
			_, err := unix.PerfEventOpen(&attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
			return answered(err)
		}},
		{"keyring-read", sandbox.WallSessionKeyring, func(*Facts) Result {
			_, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
			return answered(err)
		}},
		{"keyring-add", sandbox.WallSessionKeyring, func(*Facts) Result {
			_, err := unix.AddKey("user", "aspis-probe", []byte("x"), unix.KEY_SPEC_PROCESS_KEYRING)
			return answered(err)
		}},
		{"keyring-request", sandbox.WallSessionKeyring, func(*Facts) Result {
			_, err := unix.RequestKey("user", "aspis-probe-no-such-key", "", 0)
			return answered(err, unix.ENOKEY)
		}},
		{"io-uring", sandbox.WallSeccomp, func(*Facts) Result {
			var params [120]byte // struct io_uring_params
			_, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)), 0)
			return called(errno)
		}},
		{"userfaultfd", sandbox.WallSeccomp, func(*Facts) Result {
			_, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|1, 0, 0) // UFFD_USER_MODE_ONLY
			return called(errno)
		}},
		{"kexec", sandbox.WallSeccomp, func(*Facts) Result {
			_, _, errno := unix.Syscall6(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0xffff, 0, 0) // flags that there are not
			return called(errno, unix.EINVAL, unix.EBUSY)
		}},
		{"load-module", sandbox.WallSeccomp, zero(unix.SYS_INIT_MODULE, unix.ENOEXEC, unix.EFAULT, unix.EINVAL)},
		{"load-module-file", sandbox.WallSeccomp, func(*Facts) Result {
			return answered(unix.FinitModule(-1, "", 0), unix.EBADF)
		}},
		{"remove-module", sandbox.WallSeccomp, named(unix.SYS_DELETE_MODULE, unix.ENOENT)},
		// Numbers that are not those of any command.
		{"reboot", sandbox.WallSeccomp, zero(unix.SYS_REBOOT, unix.EINVAL)},
		{"swap", sandbox.WallSeccomp, named(unix.SYS_SWAPON, unix.ENOENT)},
		{"swap-off", sandbox.WallSeccomp, named(unix.SYS_SWAPOFF, unix.ENOENT)},
		{"accounting", sandbox.WallSeccomp, named(unix.SYS_ACCT, unix.ENOENT)},
		// A zone that is none, after the question who may.
		{"set-time", sandbox.WallSeccomp, func(*Facts) Result {
			zone := [2]int32{24 * 60, 0}
			_, _, errno := unix.Syscall(unix.SYS_SETTIMEOFDAY, 0, uintptr(unsafe.Pointer(&zone)), 0)
			return called(errno, unix.EINVAL)
		}},
		// A step of nothing.
		{"step-clock", sandbox.WallCapabilities, func(*Facts) Result {
			_, err := unix.Adjtimex(&unix.Timex{Modes: unix.ADJ_SETOFFSET})
			return answered(err)
		}},
		{"host-name", sandbox.WallSeccomp, func(*Facts) Result {
			_, _, errno := unix.Syscall(unix.SYS_SETHOSTNAME, uintptr(unsafe.Pointer(nowhere)), ^uintptr(0), 0)
			return called(errno, unix.EINVAL)
		}},
		{"kernel-log", sandbox.WallSeccomp, func(*Facts) Result {
			_, err := unix.Klogctl(unix.SYSLOG_ACTION_SIZE_BUFFER, nil)
			return answered(err)
		}},
		{"fanotify", sandbox.WallSeccomp, func(*Facts) Result {
			_, err := unix.FanotifyInit(unix.FAN_CLOEXEC|unix.FAN_REPORT_FID, unix.O_RDONLY)
			return answered(err)
		}},
		{"quota", sandbox.WallSeccomp, func(*Facts) Result {
			_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL, 0x800001<<8, 0, 0, 0, 0, 0) // Q_SYNC of everything
			return called(errno)
		}},
		{"personality", sandbox.WallSeccomp, func(*Facts) Result {
			_, _, errno := unix.Syscall(unix.SYS_PERSONALITY, 0x0040000, 0, 0) // ADDR_NO_RANDOMIZE
			return called(errno)
		}},
		{"move-memory", sandbox.WallSeccomp, func(*Facts) Result {
			_, _, errno := unix.Syscall6(unix.SYS_SET_MEMPOLICY, 0, 0, 0, 0, 0, 0)
			return called(errno)
		}},
		{"hardware-ports", sandbox.WallSeccomp, hardwarePorts},
		{"type-into-terminal", sandbox.WallSeccomp, func(*Facts) Result {
			c := byte('\n')
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, 0, unix.TIOCSTI, uintptr(unsafe.Pointer(&c)))
			return called(errno)
		}},
		{"host-message-queues", sandbox.WallIPCNamespace, func(*Facts) Result { return tableIsEmpty("/proc/sysvipc/msg") }},
		{"host-shared-memory", sandbox.WallIPCNamespace, func(*Facts) Result { return tableIsEmpty("/proc/sysvipc/shm") }},
		{"machine-name", sandbox.WallUTSNamespace, func(f *Facts) Result {
			name, err := os.Hostname()
			if err == nil && name == f.Host {
				return open("it is %q, as outside", name)
			}
			return blocked("it is %q (%v)", name, err)
		}},
		{"place-in-cgroups", sandbox.WallCgroupNamespace, placeInGroups},
	}
}

func hardwarePorts(*Facts) Result {
	if runtime.GOARCH != "amd64" {
		return notApplicable("%s has none", runtime.GOARCH)
	}
	const iopl = 172 // x86-64 alone
	_, _, errno := unix.Syscall(iopl, 3, 0, 0)
	return called(errno)
}

// tableIsEmpty looks at a table whose first line is its heading.
func tableIsEmpty(path string) Result {
	f, err := os.Open(path)
	if err != nil {
		return answered(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Scan()
	if lines.Scan() {
		return open("it lists %q", lines.Text())
	}
	return blocked("it is empty")
}

func placeInGroups(*Facts) Result {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return answered(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && f[2] != "/" {
			return open("it is %q", f[2])
		}
	}
	return blocked("it is / everywhere")
}

// deviceNames are the network interfaces, read where no socket is needed.
func deviceNames() ([]string, error) {
	b, err := os.ReadFile("/proc/net/dev")
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(string(b)) {
		if name, _, ok := strings.Cut(line, ":"); ok {
			names = append(names, strings.TrimSpace(name))
		}
	}
	return names, nil
}
