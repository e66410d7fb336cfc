package seccomp

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The test program is also the program under test: started with this variable
// it loads the filter in the named file and then does as its arguments say.
const filterEnv = "ASPIS_TEST_FILTER"

func TestMain(m *testing.M) {
	if name := os.Getenv(filterEnv); name != "" {
		underFilter(name, os.Args[1:])
	}
	os.Exit(m.Run())
}

// underFilter does not return.
func underFilter(name string, args []string) {
	runtime.LockOSThread()
	filter, err := os.ReadFile(name)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	prog := unix.SockFprog{Len: uint16(len(filter) / 8), Filter: (*unix.SockFilter)(unsafe.Pointer(&filter[0]))}
	if tid, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog))); errno != 0 || tid != 0 {
		fmt.Println("load filter:", tid, errno)
		os.Exit(1)
	}
	if args[0] == "call" {
		tryCalls(args[1:])
	}
	fmt.Println(unix.Exec(args[0], args, []string{"PATH=/usr/bin:/bin", "HOME=/tmp", "LC_ALL=C"}))
	os.Exit(1)
}

// tryCalls makes system calls given as "number,argument,..." and prints what
// each returns: an error's number, or 0.
func tryCalls(calls []string) {
	for _, c := range calls {
		var a [7]uintptr
		for i, s := range strings.Split(c, ",") {
			n, err := strconv.ParseUint(s, 0, 64)
			if err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			a[i] = uintptr(n)
		}
		_, _, errno := unix.Syscall6(a[0], a[1], a[2], a[3], a[4], a[5], a[6])
		fmt.Println(int(errno))
	}
	os.Exit(0)
}

func filterFile(t *testing.T, p Profile) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "filter")
	if err := os.WriteFile(name, mustCompile(t, p, runtime.GOARCH), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func command(filter string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = []string{filterEnv + "=" + filter}
	return cmd
}

// TestCallsInTheKernel loads the program into a real process and makes calls.
// The arguments are such that without the filter the answer would be another
// one, mostly EFAULT, EBADF or success for root.
func TestCallsInTheKernel(t *testing.T) {
	a, err := lookupArch(runtime.GOARCH)
	if err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	numbers := a.numbers()
	const eperm, enosys, family = int(unix.EPERM), int(unix.ENOSYS), int(unix.EAFNOSUPPORT)
	type try struct {
		name string
		args string
		want int
	}
	var tries []try
	for _, name := range Forbidden() {
		tries = append(tries, try{name, ",0,0,0,0,0,0", eperm})
	}
	tries = append(tries, []try{
		{"clone", fmt.Sprintf(",%#x", unix.CLONE_NEWUSER|int(unix.SIGCHLD)), eperm},
		{"clone", fmt.Sprintf(",%#x", 1<<32|unix.CLONE_NEWNS|int(unix.SIGCHLD)), eperm},
		{"clone3", ",0,0", enosys},
		{"socket", fmt.Sprintf(",%d,%d", unix.AF_INET, unix.SOCK_STREAM), family},
		{"socket", fmt.Sprintf(",%d,%d", unix.AF_INET6, unix.SOCK_DGRAM), family},
		{"socket", fmt.Sprintf(",%d,%d", unix.AF_NETLINK, unix.SOCK_RAW), family},
		{"socket", fmt.Sprintf(",%d,%d", unix.AF_PACKET, unix.SOCK_RAW), family},
		{"socket", fmt.Sprintf(",%d,%d", unix.AF_VSOCK, unix.SOCK_STREAM), family},
		{"socket", fmt.Sprintf(",%d,%d", unix.AF_ALG, unix.SOCK_SEQPACKET), family},
		{"socket", fmt.Sprintf(",%d,%d", unix.AF_UNIX, unix.SOCK_STREAM), 0},
		{"ioctl", fmt.Sprintf(",0,%#x,0", unix.TIOCSTI), eperm},
		{"ioctl", fmt.Sprintf(",0,%#x,0", 1<<32|unix.TIOCSTI), eperm},
		{"ioctl", fmt.Sprintf(",0,%#x,0", tioclinux), eperm},
		{"ioctl", fmt.Sprintf(",99,%#x,0", unix.TCGETS), int(unix.EBADF)},
		{"personality", ",0x0040000", eperm},
		{"personality", ",0xffffffff", 0},
		{"mknodat", fmt.Sprintf(",99,0,%#o", 0o20600), eperm},
		{"getpid", "", 0}, {"gettid", "", 0}, {"sched_yield", "", 0}, {"getuid", "", 0},
		{"read", ",99,0,0", int(unix.EBADF)}, {"openat", ",99,0,0", int(unix.EFAULT)},
		{"futex", ",0,99", enosys}, // the kernel's own answer to an unknown operation
	}...)
	args := []string{"call"}
	var made []try
	for _, c := range tries {
		if nr, ok := numbers[c.name]; ok {
			args = append(args, strconv.Itoa(int(nr))+c.args)
			made = append(made, c)
		}
	}
	for _, nr := range []string{"600", "0x40000001", "1000"} { // unknown, x32, unknown
		args = append(args, nr)
		made = append(made, try{"number " + nr, "", enosys})
	}
	out, err := command(filterFile(t, Profile{}), args...).Output()
	lines := strings.Fields(string(out))
	if err != nil || len(lines) != len(made) {
		t.Fatalf("%v, %d answers to %d calls: %q", err, len(lines), len(made), out)
	}
	for i, c := range made {
		if lines[i] != strconv.Itoa(c.want) {
			t.Errorf("%s%s gives %s, want %d", c.name, c.args, lines[i], c.want)
		}
	}
	t.Logf("%d calls", len(made))
}

func TestEgressInTheKernel(t *testing.T) {
	a, err := lookupArch(runtime.GOARCH)
	if err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	call := func(family int) string {
		return fmt.Sprintf("%d,%d,%d", a.numbers()["socket"], family, unix.SOCK_STREAM)
	}
	out, err := command(filterFile(t, Profile{Egress: true}), "call", call(unix.AF_INET), call(unix.AF_NETLINK)).Output()
	if err != nil || string(out) != fmt.Sprintf("0\n%d\n", unix.EAFNOSUPPORT) {
		t.Errorf("%q, %v", out, err)
	}
}

// TestOtherArchitecture enters the kernel by the 32-bit door, where the same
// numbers are other calls.
func TestOtherArchitecture(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("SKIPPED: only amd64 has a second door that a program can be made for here")
	}
	dir := t.TempDir()
	// getpid by int $0x80, then exit(0) by it.
	src := "_start: .globl _start\n mov $20,%eax\n int $0x80\n mov $1,%eax\n xor %ebx,%ebx\n int $0x80\n"
	if err := os.WriteFile(filepath.Join(dir, "a.s"), []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "a")
	if out, err := exec.Command("cc", "-nostdlib", "-static", "-o", program, filepath.Join(dir, "a.s")).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: no assembler: %v %s", err, out)
	}
	if err := exec.Command(program).Run(); err != nil {
		t.Skipf("SKIPPED: this kernel has no 32-bit calls: %v", err)
	}
	err := command(filterFile(t, Profile{}), program).Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGSYS {
		t.Errorf("it ended by %v", err)
	}
}

// TestProgramsRun starts programs that providers are made of.
func TestProgramsRun(t *testing.T) {
	filter := filterFile(t, Profile{})
	hello := filepath.Join(t.TempDir(), "hello")
	build := exec.Command("go", "build", "-o", hello, "./testdata/hello")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{hello}, "hello from 8 goroutines\n"},
		{[]string{"ls", "-d", "/usr"}, "/usr\n"},
		{[]string{"sh", "-c", "echo a | cat; (echo b); mkfifo /tmp/aspis-fifo-$$ && rm /tmp/aspis-fifo-$$"}, "a\nb\n"},
		{[]string{"git", "version"}, "git version "},
		{[]string{"python3", "-c", "import threading, subprocess, socket\n" +
			"t = threading.Thread(target=lambda: print('thread', flush=True)); t.start(); t.join()\n" +
			"print(subprocess.run(['echo', 'child'], capture_output=True, text=True).stdout, end='')\n" +
			"a, b = socket.socketpair(); a.send(b'pair'); print(b.recv(9).decode())"}, "thread\nchild\npair\n"},
		{[]string{"node", "-e", "setTimeout(() => console.log(require('os').platform()), 1)"}, "linux\n"},
		{[]string{"java", "-version"}, ""},
	} {
		path, err := exec.LookPath(c.args[0])
		if err != nil {
			t.Logf("SKIPPED %s: %v", c.args[0], err)
			continue
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			cmd := command(filter, append([]string{path}, c.args[1:]...)...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil || !strings.HasPrefix(string(out), c.want) {
				t.Errorf("%v, output %q, errors %q", err, out, stderr.String())
			}
		})
	}
}
