package probe

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
)

// view is where the snapshot is shown.
const view = "/workspace/candidate"

// guard is what lies outside for the probe to reach: everything is as open as
// the machine's own permissions can make it, so that only walls are in the way.
type guard struct {
	facts   Facts
	dir     string
	nonce   string
	content []byte
	places  []string // files with that content
	closers []func() error
	touched atomic.Int64 // connections and packets that came
}

func newGuard(dir, nonce string) (_ *guard, err error) {
	g := &guard{dir: dir, nonce: nonce, content: []byte("nobody has written here\n")}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	name := nonce + ".txt"
	for _, sub := range []string{"worktree", "state", "snapshot", "socket"} {
		p := filepath.Join(dir, sub)
		if err := os.MkdirAll(p, 0o755); err != nil {
			return nil, err
		}
		// Whatever the umask is.
		if err := os.Chmod(p, 0o777); err != nil {
			return nil, err
		}
		if sub == "socket" {
			continue
		}
		if err := g.canary(filepath.Join(p, name)); err != nil {
			return nil, err
		}
	}
	tmp := filepath.Join(os.TempDir(), name)
	g.closers = append(g.closers, func() error { return os.Remove(tmp) })
	if err := g.canary(tmp); err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return nil, err
	}
	g.facts = Facts{
		Nested: !slices.Equal(strings.Fields(string(ids)), []string{"0", "0", "4294967295"}),
		Nonce:  nonce, HostPid: os.Getpid(), Files: []string{g.places[0], g.places[1], tmp}, Shown: []string{view + "/" + name},
		Secret: filepath.Join(dir, "state", name), Env: []string{"PATH"}, Host: host,
		Pids: limits.Pids, FileMax: limits.OpenFiles, Memory: limits.MemoryBytes, Tmp: limits.TmpBytes,
	}
	if err := g.listen(); err != nil {
		return nil, err
	}
	return g, g.shareMemory()
}

func (g *guard) canary(p string) error {
	if err := os.WriteFile(p, g.content, 0o600); err != nil {
		return err
	}
	g.places = append(g.places, p)
	return os.Chmod(p, 0o666)
}

func (g *guard) protect() []string {
	return []string{filepath.Join(g.dir, "worktree"), filepath.Join(g.dir, "state")}
}

// listen opens the host's sockets, and counts who comes.
func (g *guard) listen() error {
	g.facts.Abstract = g.nonce
	// Bound by way of /proc, since the name of a unix socket is short.
	dir, err := os.Open(filepath.Join(g.dir, "socket"))
	if err != nil {
		return err
	}
	defer dir.Close()
	g.facts.Socket = filepath.Join(g.dir, "socket", "s")
	for _, l := range []struct{ network, addr string }{
		{"tcp4", "127.0.0.1:0"}, {"tcp6", "[::1]:0"}, {"unix", "@" + g.nonce}, {"unix", fmt.Sprintf("/proc/self/fd/%d/s", dir.Fd())},
	} {
		ln, err := net.Listen(l.network, l.addr)
		if err != nil && l.network == "tcp6" {
			continue // a machine without it has nothing to reach there
		}
		if err != nil {
			return err
		}
		if u, ok := ln.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false) // the directory is taken away
		}
		g.closers = append(g.closers, ln.Close)
		if strings.HasPrefix(l.network, "tcp") {
			g.facts.TCP = append(g.facts.TCP, ln.Addr().String())
		}
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				g.touched.Add(1)
				c.Close()
			}
		}()
	}
	if err := os.Chmod(g.facts.Socket, 0o777); err != nil {
		return err
	}
	udp, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	g.closers = append(g.closers, udp.Close)
	g.facts.UDP = udp.LocalAddr().String()
	go func() {
		b := make([]byte, 64)
		for {
			n, _, err := udp.ReadFrom(b)
			if err != nil {
				return
			}
			if string(b[:n]) == mark {
				g.touched.Add(1)
			}
		}
	}()
	return nil
}

// shareMemory makes a segment that shows in the machine's table.
func (g *guard) shareMemory() error {
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, unix.IPC_CREAT|0o666)
	if errors.Is(err, unix.ENOSYS) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("shmget", err)
	}
	g.closers = append(g.closers, func() error {
		_, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil)
		return os.NewSyscallError("shmctl", err)
	})
	return nil
}

// look is the cross-check, after the last container is gone.
func (g *guard) look() []Result {
	var all []Result
	add := func(name string, wall sandbox.WallName, r Result) {
		r.Name, r.Wall = "host-saw-"+name, wall
		all = append(all, r)
	}
	add("canaries", sandbox.WallHostPathsUnwritable, g.canaries())
	add("directories", sandbox.WallSnapshotReadOnly, g.directories())
	if n := g.touched.Load(); n > 0 {
		add("connections", sandbox.WallNetworkNamespace, open("%d came to sockets of the host", n))
	} else {
		add("connections", sandbox.WallNetworkNamespace, blocked("nobody came to %d sockets", len(g.facts.TCP)+3))
	}
	add("survivors", sandbox.WallPIDNamespace, g.survivors())
	return all
}

func (g *guard) canaries() Result {
	for _, p := range g.places {
		b, err := os.ReadFile(p)
		if err != nil || !bytes.Equal(b, g.content) {
			return open("%q is now %q (%v)", p, b[:min(len(b), 100)], err)
		}
	}
	return blocked("%d files are as they were", len(g.places))
}

// directories must hold their canary and nothing else.
func (g *guard) directories() Result {
	for _, sub := range []string{"worktree", "state", "snapshot"} {
		entries, err := os.ReadDir(filepath.Join(g.dir, sub))
		if err != nil || len(entries) != 1 {
			return open("%q holds %d files (%v)", sub, len(entries), err)
		}
	}
	return blocked("nothing was added or taken away")
}

// survivors are processes that know the nonce.
func (g *guard) survivors() Result {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return open("it could not be seen: %v", err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && bytes.Contains(b, []byte(g.nonce)) && e.Name() != "self" && e.Name() != "thread-self" {
			return open("process %s still runs", e.Name())
		}
	}
	return blocked("no process of it is left")
}

func (g *guard) close() error {
	var errs []error
	for _, c := range g.closers {
		if err := c(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
