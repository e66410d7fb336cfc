package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox/seccomp"
)

// What a machine allows cannot be read off its settings: security modules,
// outer containers and kernel options all have a say. So it is tried, by a
// child that has nothing to lose: this program, started again in namespaces
// of its own, which ends before the program's own code begins.

// trialMarker as the first argument makes the program the child.
const trialMarker = "aspis:trial"

const (
	trialTimeout = 10 * time.Second
	maxTrial     = 64 << 10
)

func init() {
	if len(os.Args) == 3 && os.Args[1] == trialMarker {
		os.Exit(beTried(os.Args[2]))
	}
}

// attempt is one thing that is tried inside.
type attempt struct {
	name string
	do   func(dir string) error
}

// attempts, in their order: later ones use what earlier ones made. dir is the
// directory that the parent made; memory, below it, is covered by a file system
// of the child's own.
var attempts = []attempt{
	{"private-mounts", func(string) error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") }},
	{"tmpfs", func(dir string) error {
		return unix.Mount("tmpfs", memory(dir), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=1m,mode=0755")
	}},
	{"mount-setattr", func(dir string) error {
		set := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOEXEC}
		return unix.MountSetattr(unix.AT_FDCWD, memory(dir), 0, &set)
	}},
	{"proc", func(dir string) error {
		return tryMount(memory(dir), "proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}},
	{"overlay", func(dir string) error { return tryOverlay(memory(dir), memory(dir)) }},
	{"overlay-view", tryView},
	{"overlay-state", func(dir string) error { return tryOverlay(dir, dir) }},
	{"overlay-state-tmpfs", func(dir string) error { return tryOverlay(dir, memory(dir)) }},
	{"seccomp", func(string) error { return tryFilter() }},
}

func memory(dir string) string { return filepath.Join(dir, "memory") }

// beTried makes every attempt and prints one line for each.
func beTried(dir string) int {
	// The parent started the real child in a pid namespace of its own, where a
	// parent cannot be seen. Whoever starts the program by hand with this
	// argument must not have its mounts changed.
	if os.Getppid() != 0 {
		fmt.Println("only for this program itself, in namespaces of its own")
		return 1
	}
	runtime.LockOSThread()
	for _, a := range attempts {
		result := "ok"
		if err := a.do(dir); err != nil {
			result = strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Printf("%s %s\n", a.name, result)
	}
	return 0
}

func tryMount(in, fstype, source string, flags uintptr, options string) error {
	dir, err := os.MkdirTemp(in, "mount-")
	if err != nil {
		return err
	}
	if err := unix.Mount(source, dir, fstype, flags, options); err != nil {
		return &os.PathError{Op: "mount " + fstype, Path: dir, Err: err}
	}
	return unix.Unmount(dir, unix.MNT_DETACH)
}

// tryOverlay mounts one with its lower layer in one place and its upper in
// another, and deletes a file of the lower layer, which is what fails where a
// kernel gives half of it.
func tryOverlay(lower, upper string) error {
	low, err := os.MkdirTemp(lower, "lower-")
	if err != nil {
		return err
	}
	up, err := os.MkdirTemp(upper, "upper-")
	if err != nil {
		return err
	}
	for _, d := range []string{"up", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(up, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(low, "file"), []byte("x"), 0o644); err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/up,workdir=%s/work", low, up, up)
	if inUserNamespace() {
		options += ",userxattr"
	}
	merged := filepath.Join(up, "merged")
	if err := unix.Mount("overlay", merged, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return &os.PathError{Op: "mount overlay", Path: merged, Err: err}
	}
	err = os.Remove(filepath.Join(merged, "file"))
	// Removed here and not by the parent: the kernel has made a directory in it
	// that an ordinary user may not open.
	return errors.Join(err, unix.Unmount(merged, unix.MNT_DETACH), os.RemoveAll(up))
}

// tryView mounts two layers read-only, as a snapshot is shown.
func tryView(dir string) error {
	var layers []string
	for range 2 {
		layer, err := os.MkdirTemp(dir, "layer-")
		if err != nil {
			return err
		}
		layers = append(layers, layer)
	}
	options := "lowerdir=" + strings.Join(layers, ":")
	if inUserNamespace() {
		options += ",userxattr"
	}
	return tryMount(memory(dir), "overlay", "overlay", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, options)
}

func inUserNamespace() bool {
	m := ownMap("/proc/self/uid_map")
	return m.err == nil && m.v.Size() < 1<<32-1
}

// tryFilter loads the filter that sandboxes get.
func tryFilter() error {
	code, err := seccomp.Compile(seccomp.Default(), runtime.GOARCH)
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	prog := unix.SockFprog{Len: uint16(len(code) / 8), Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.SliceData(code)))}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(code)
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}

// trialFlags are the namespaces of a sandbox but for the user namespace.
const trialFlags = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP

// tried is what a child reported: an error text, or "ok", by attempt.
type tried struct {
	start   error // the namespaces themselves were refused
	results map[string]string
}

func (t tried) failure(name string) string {
	if t.start != nil {
		return t.start.Error()
	}
	r, there := t.results[name]
	switch {
	case !there:
		return "was not tried"
	case r == "ok":
		return ""
	}
	return r
}

// try runs the child. dir is a directory of ours in which it leaves things.
func try(ctx context.Context, flags uintptr, dir string) tried {
	ctx, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{os.Args[0], trialMarker, dir}
	cmd.Env = []string{}
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: flags, Pdeathsig: unix.SIGKILL}
	if flags&unix.CLONE_NEWUSER != 0 {
		cmd.SysProcAttr.UidMappings = []idMapping{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []idMapping{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	var out limitedBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	// The kernel kills the child when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return tried{start: err}
	}
	err := cmd.Wait()
	t := tried{results: map[string]string{}}
	for line := range strings.Lines(out.String()) {
		name, result, ok := strings.Cut(strings.TrimSpace(line), " ")
		if ok {
			t.results[name] = result
		}
	}
	if err != nil {
		t.start = fmt.Errorf("the trial ended by %w: %.200q", err, out.String())
	}
	return t
}

// limitedBuffer forgets what is over the limit.
type limitedBuffer struct{ bytes.Buffer }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), max(0, maxTrial-b.Len()))])
	return len(p), nil
}
