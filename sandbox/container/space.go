package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// MountSpace is one operating-system thread with a mount namespace of its own.
// Everything that is mounted for a sandbox is mounted there and nowhere else,
// so that the kernel takes all of it away when this process ends, however it
// ends. It is also the thread that every sandbox is born from: a sandbox asks
// the kernel to be killed when its parent thread ends.
type MountSpace struct {
	dir   string
	tid   int
	calls chan call
	stop  chan struct{}
	done  chan struct{}
	once  sync.Once

	mu   sync.Mutex
	born map[int]struct{} // first processes of the sandboxes that run
}

type call struct {
	fn  func() error
	res chan error
}

// errSpaceClosed is what Do gives after Close.
var errSpaceClosed = errors.New("mount namespace is closed")

// NewSpace makes the namespace. In it, a small memory-backed file system lies
// over dir, which is created if need be and looks empty to everybody else.
// dir must be reachable by every user (mode o+x all the way), because a
// sandbox's own unprivileged root walks to its file system through it; an
// empty dir chooses such a place. It needs CAP_SYS_ADMIN over the present user
// namespace: see Enter.
func NewSpace(dir string) (*MountSpace, error) {
	dir, err := spaceDir(dir)
	if err != nil {
		return nil, err
	}
	s := &MountSpace{dir: dir, calls: make(chan call), stop: make(chan struct{}), done: make(chan struct{}), born: map[int]struct{}{}}
	ready := make(chan error)
	go s.run(ready)
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("private mount namespace over %s: %w", dir, err)
	}
	return s, nil
}

// spaceDir finds or creates the directory that the namespace is seen at.
func spaceDir(dir string) (string, error) {
	candidates := []string{dir}
	if dir == "" {
		who, err := CurrentIdentity()
		if err != nil {
			return "", err
		}
		candidates = []string{"/run/aspis"}
		if run := os.Getenv("XDG_RUNTIME_DIR"); run != "" && who.UserNS {
			candidates = append(candidates, filepath.Join(run, "aspis"))
		}
		candidates = append(candidates, filepath.Join(os.TempDir(), fmt.Sprintf("aspis-%d", who.HostID)))
	}
	var errs []error
	for _, d := range candidates {
		if err := openDir(d); err != nil {
			errs = append(errs, err)
			continue
		}
		real, err := filepath.EvalSymlinks(d)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		return real, nil
	}
	return "", fmt.Errorf("find a directory to mount on: %w", errors.Join(errs...))
}

// openDir makes d a directory of ours that others may pass through. Somebody
// else's directory is refused: its owner could put links under our feet.
func openDir(d string) error {
	if err := os.Mkdir(d, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(d, &st); err != nil {
		return fmt.Errorf("look at %s: %w", d, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is not a directory of this user", d)
	}
	return os.Chmod(d, 0o711)
}

// run is the thread. It is never unlocked, so that the thread ends with the
// goroutine and never runs anything else in this namespace.
func (s *MountSpace) run(ready chan<- error) {
	runtime.LockOSThread()
	defer close(s.done)
	if err := s.enter(); err != nil {
		ready <- err
		return
	}
	s.tid = unix.Gettid()
	ready <- nil
	for {
		select {
		case c := <-s.calls:
			c.res <- guard(c.fn)
		case <-s.stop:
			return
		}
	}
}

// guard turns a panic into an error, because a dead thread would take every
// running sandbox with it.
func guard(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in mount namespace: %v", p)
		}
	}()
	return fn()
}

func (s *MountSpace) enter() error {
	// The file-system attributes are shared between threads and must be
	// parted before a thread may have a mount namespace of its own.
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	// The thread's own from here on; what is made for a sandbox must be
	// reachable by its unprivileged ids.
	unix.Umask(0o022)
	// Private, not slave: what the machine mounts later must not appear in the
	// middle of a sandbox's root, nor ours on the machine.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("make mounts private", err)
	}
	if err := unix.Mount("tmpfs", s.dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0711,size=64m,nr_inodes=65536"); err != nil {
		return os.NewSyscallError("mount tmpfs", err)
	}
	return nil
}

// Do runs fn on the thread and gives its error. Calls are served one at a
// time in the order they come; fn must not call Do.
func (s *MountSpace) Do(fn func() error) error {
	c := call{fn: fn, res: make(chan error, 1)}
	select {
	case <-s.done:
		return errSpaceClosed
	case s.calls <- c:
		return <-c.res
	}
}

// Dir is the private directory for mount points, as seen inside Do.
func (s *MountSpace) Dir() string { return s.dir }

// Close ends the thread; the namespace, its mounts, and every sandbox born
// there end with it.
func (s *MountSpace) Close() error {
	s.once.Do(func() { close(s.stop) })
	<-s.done
	return nil
}

// keep notes a child of the thread that has an owner who waits for it.
func (s *MountSpace) keep(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.born[pid] = struct{}{}
}

// forget is for a child that has been waited for.
func (s *MountSpace) forget(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.born, pid)
}

// maxReapRounds bounds reapLost against children that still fork.
const maxReapRounds = 100

// reapLost ends the children of the thread that nobody waits for. A start that
// is broken off can leave some: libcontainer's first processes make the next
// ones in their parent's name. It must run on the thread.
func (s *MountSpace) reapLost() error {
	for range maxReapRounds {
		b, err := os.ReadFile("/proc/thread-self/children")
		if err != nil {
			return fmt.Errorf("look for lost children: %w", err)
		}
		lost := 0
		for f := range strings.FieldsSeq(string(b)) {
			pid, err := strconv.Atoi(f)
			if err != nil {
				return fmt.Errorf("look for lost children: %w", err)
			}
			s.mu.Lock()
			_, kept := s.born[pid]
			s.mu.Unlock()
			if kept {
				continue
			}
			lost++
			_ = unix.Kill(pid, unix.SIGKILL) // ours until waited for, so this cannot fail
			for {
				if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != unix.EINTR {
					break
				}
			}
		}
		if lost == 0 {
			return nil
		}
	}
	return errors.New("children of a failed start do not end")
}
