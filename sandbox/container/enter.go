package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox/internal/stage"
)

// Entered is what Enter did.
type Entered struct {
	// Identity is this process's own, before.
	Identity Identity
	// Child tells that the whole command has been run by a child in a user
	// namespace. The caller must end with Code and do nothing else.
	Child bool
	Code  int
	// Ids is what the child had: "range" or "single".
	Ids string
	// WhySingle says why there was no range of ids, if there was none.
	WhySingle string
	// WhyNot says, where sandboxes cannot be built, what forbids it and what
	// would allow it. The caller goes on without them.
	WhyNot string
}

// Enter makes sure that mount namespaces can be made, which needs
// CAP_SYS_ADMIN over a user namespace. A caller that has it goes on at once.
// For any other caller the program is executed again, with the same
// arguments and files, in a new user namespace where it is root; this process
// then only hands on signals and the exit code, and the child dies with it.
//
// It must be called early, before anything is opened or started: all of that
// would be done twice. note is handed to the child, which gets it from Inner;
// it may be nil and has at most 1 MiB.
func Enter(ctx context.Context, note []byte) (Entered, error) {
	who, err := CurrentIdentity()
	if err != nil {
		return Entered{}, err
	}
	e := Entered{Identity: who}
	able, err := hasSysAdmin()
	if err != nil {
		return e, err
	}
	if able {
		return e, nil
	}
	return e.run(ctx, note)
}

// Inner tells that this process is the child of an Enter, and what its parent
// handed over. What lies outside of the user namespace, such as what the caller
// may do on the machine, was for the parent to see.
func Inner() (note []byte, inner bool) { return stage.Note, stage.Inner }

// hasSysAdmin reads this process's effective capabilities.
func hasSysAdmin() (bool, error) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return false, os.NewSyscallError("capget", err)
	}
	return data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0, nil
}

// maxSaid bounds what the child may say before it begins.
const maxSaid = 4096

// run starts the child, maps its ids, and stands in for it.
func (e Entered) run(ctx context.Context, note []byte) (Entered, error) {
	if len(note) > stage.MaxNote {
		return e, fmt.Errorf("a note of %d bytes is over the limit of %d", len(note), stage.MaxNote)
	}
	// The child is killed when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	toParent, fromChild, err := os.Pipe()
	if err != nil {
		return e, err
	}
	defer toParent.Close()
	fromParent, toChild, err := os.Pipe()
	if err != nil {
		fromChild.Close()
		return e, err
	}
	defer toChild.Close()
	handed, err := memoryFile("note", note)
	if err != nil {
		return e, errors.Join(err, fromChild.Close(), fromParent.Close())
	}
	defer handed.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append([]string{os.Args[0], stage.EnterMarker}, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{fromParent, fromChild, handed} // 3 to 5, see package stage
	// A mount namespace is asked for at once, because a kernel may grant a user
	// namespace without the power to make one.
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGCONT, unix.SIGWINCH)
	defer signal.Stop(signals)
	err = cmd.Start()
	fromParent.Close()
	fromChild.Close()
	if err != nil {
		e.WhyNot = whyNoUserNS(err)
		return e, nil
	}
	e.Ids, e.WhySingle, err = mapIDs(ctx, cmd.Process.Pid)
	if err != nil {
		e.WhyNot = fmt.Sprintf("the ids of a user namespace cannot be mapped: %v", err)
		if os.Geteuid() == 0 {
			e.WhyNot += "; run as another user than root, or give root CAP_SETUID, CAP_SETGID and CAP_SETFCAP"
		}
		return e, abandon(cmd)
	}
	if _, err := toChild.Write([]byte{stage.Go}); err != nil {
		return e, errors.Join(fmt.Errorf("start in a user namespace: %w", err), abandon(cmd))
	}
	toChild.Close()
	// The child says "ok" or what it could not do, before it begins with the
	// command itself.
	said, err := io.ReadAll(io.LimitReader(toParent, maxSaid))
	if err != nil {
		return e, errors.Join(fmt.Errorf("start in a user namespace: %w", err), abandon(cmd))
	}
	if string(said) != stage.EnterReady {
		e.WhyNot = fmt.Sprintf("the program cannot begin in a user namespace: %q", said)
		return e, abandon(cmd)
	}
	e.Child = true
	e.Code, err = standIn(ctx, cmd, signals)
	return e, err
}

// memoryFile is a file of no file system, to be read from its beginning.
func memoryFile(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	// Written at its place, so that the position stays at the beginning.
	if _, err := f.WriteAt(content, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("write %s: %w", name, err), f.Close())
	}
	return f, nil
}

// abandon ends a child that has not begun the command.
func abandon(cmd *exec.Cmd) error {
	if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = cmd.Wait() // killed, as asked
	return nil
}

// standIn hands signals on until the child ends.
func standIn(ctx context.Context, cmd *exec.Cmd, signals <-chan os.Signal) (code int, err error) {
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	done := ctx.Done()
	for {
		select {
		case s := <-signals:
			// A terminal sends these to its whole foreground group itself.
			if (s == unix.SIGINT || s == unix.SIGQUIT || s == unix.SIGWINCH) && inForeground() {
				continue
			}
			if err := cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
				return 0, fmt.Errorf("hand on %v: %w", s, err)
			}
		case <-done:
			done = nil
			if err := cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
				return 0, fmt.Errorf("end the command: %w", err)
			}
		case err := <-ended:
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				return 0, fmt.Errorf("wait for the command: %w", err)
			}
			if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
				return 128 + int(ws.Signal()), nil // as a shell reports it
			}
			return cmd.ProcessState.ExitCode(), nil
		}
	}
}

// inForeground tells whether a controlling terminal sends its signals to us.
func inForeground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// mapTimeout bounds the set-user-id programs that map a range.
const mapTimeout = 10 * time.Second

// mapIDs gives the child its ids: user 0 is the caller, and 1 upwards is the
// caller's subordinate range where there is one and the programs that may
// write it are installed.
func mapIDs(ctx context.Context, pid int) (ids, whySingle string, err error) {
	ctx, cancel := context.WithTimeout(ctx, mapTimeout)
	defer cancel()
	proc := "/proc/" + strconv.Itoa(pid)
	if os.Geteuid() == 0 {
		if err := mapAsRoot(proc); err == nil {
			return "range", "", nil
		}
	}
	uids, uerr := subordinate("/etc/subuid")
	gids, gerr := subordinate("/etc/subgid")
	if err := errors.Join(uerr, gerr); err != nil {
		whySingle = err.Error()
	} else if err := mapRange(ctx, pid, uids, gids); err != nil {
		whySingle = err.Error()
	} else {
		return "range", "", nil
	}
	// The kernel wants setgroups given up before an unprivileged gid_map.
	for _, f := range []struct{ name, text string }{
		{"setgroups", "deny"},
		{"uid_map", fmt.Sprintf("0 %d 1", os.Geteuid())},
		{"gid_map", fmt.Sprintf("0 %d 1", os.Getegid())},
	} {
		if err := writeControl(proc, f.name, f.text); err != nil {
			return "", whySingle, err
		}
	}
	return "single", whySingle, nil
}

// mapAsRoot serves a root without CAP_SYS_ADMIN, as containers have it: while
// it may set ids (CAP_SETUID, CAP_SETGID, and CAP_SETFCAP to map its own 0), it
// may map a range by itself.
func mapAsRoot(proc string) error {
	for _, f := range []string{"uid_map", "gid_map"} {
		around, err := readIDMap("/proc/self/" + f)
		if err != nil {
			return err
		}
		sub, ok := spare(around)
		if !ok {
			return fmt.Errorf("%s has no ids to spare", f)
		}
		if err := writeControl(proc, f, fmt.Sprintf("0 0 1\n1 %d %d", sub.inside, sub.count)); err != nil {
			return err
		}
	}
	return nil
}

// spare finds ids that are nobody's: on the machine itself as for its root,
// in a namespace with fewer those of its upper half, above all accounts that
// distributions make and below the highest, of which some are special.
func spare(around []idRange) (idRange, bool) {
	n := contiguous(around)
	if n > DefaultUIDBase+idCount {
		return idRange{inside: DefaultUIDBase, count: idCount}, true
	}
	sub := idRange{inside: n / 2, count: min(n/2-n/64, idCount)}
	return sub, sub.count > providerID+1
}

func mapRange(ctx context.Context, pid int, uids, gids idRange) error {
	for _, m := range []struct {
		program string
		own     int
		sub     idRange
	}{
		{"newuidmap", os.Geteuid(), uids},
		{"newgidmap", os.Getegid(), gids},
	} {
		cmd := exec.CommandContext(ctx, m.program, strconv.Itoa(pid),
			"0", strconv.Itoa(m.own), "1",
			"1", strconv.FormatInt(m.sub.outside, 10), strconv.FormatInt(m.sub.count, 10))
		out, err := cmd.CombinedOutput()
		if errors.Is(err, exec.ErrNotFound) {
			return fmt.Errorf("%s is not installed (package uidmap or shadow-utils)", m.program)
		}
		if err != nil {
			return fmt.Errorf("%s: %w: %q", m.program, err, out)
		}
	}
	return nil
}

// maxSubordinateFile bounds what is read of /etc/subuid.
const maxSubordinateFile = 1 << 20

// subordinate finds the caller's range, by name or number.
func subordinate(file string) (idRange, error) {
	uid := strconv.Itoa(os.Geteuid())
	names := []string{uid}
	if u, err := user.LookupId(uid); err == nil {
		names = append(names, u.Username)
	}
	f, err := os.Open(file)
	if err != nil {
		return idRange{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSubordinateFile))
	if err != nil {
		return idRange{}, fmt.Errorf("read %s: %w", file, err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 3 {
			continue
		}
		start, err1 := strconv.ParseInt(f[1], 10, 64)
		count, err2 := strconv.ParseInt(f[2], 10, 64)
		if err1 != nil || err2 != nil || count <= providerID {
			continue
		}
		for _, n := range names {
			if f[0] == n {
				return idRange{inside: 1, outside: start, count: min(count, idCount)}, nil
			}
		}
	}
	return idRange{}, fmt.Errorf("%s has no range for this user (add one with usermod --add-subuids and --add-subgids)", file)
}
