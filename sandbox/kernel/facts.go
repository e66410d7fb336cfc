package kernel

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// fact is something that was read, or why it could not be.
type fact[T any] struct {
	v   T
	err error
}

func read[T any](p *process, name string, limit int, parse func(string) (T, error)) fact[T] {
	text, err := p.text(name, limit)
	if err != nil {
		return fact[T]{err: err}
	}
	v, err := parse(text)
	if err != nil {
		return fact[T]{err: fmt.Errorf("parse %s: %w", name, err)}
	}
	return fact[T]{v: v}
}

// facts is everything that the walls of one process are judged by. Gathering
// is apart from judging, so that the judgement can be tested with facts of
// every kind.
type facts struct {
	ex  Expect
	pid int

	uid, gid           uint32 // ours
	ownUIDs, ownGIDs   fact[IDMap]
	hostStatus         fact[Status]
	hostNS             map[string]fact[fileID]
	spaces             fact[[]mountSpace]
	hostRoot, root     fact[fileID]
	hostMounts         fact[*table]
	otherDevs          fact[map[device]bool] // file systems that other namespaces of ours show
	protected          fact[[]place]
	hostGroups, groups fact[[]Membership]
	memory, pids, cpu  held
	processors         int
	status             fact[[]Status] // of every thread, the first thread's first
	ns                 map[string]fact[fileID]
	strayNS            error // a thread in other namespaces than the first
	uidMap, gidMap     fact[IDMap]
	mounts             fact[[]*mountinfo.Info]
	kinds              []kind            // of mounts
	shown              map[string]source // by target
	tree               fact[tree]
	proc               procView
	interfaces         fact[[]string]
	routes, routes6    fact[[]Route]
	addresses          fact[[]string]
	sockets            fact[[]UnixSocket]
	inet               fact[map[string]int] // sockets by protocol
	relay              fact[seenListener]
	files              fact[[]openFile]
	hostPipes          fact[map[uint64]bool]
	environ            fact[[]string]
	limits             fact[map[string]RLimit]
}

// namespaces that walls are made of, by their names in /proc/<pid>/ns.
var namespaces = []string{"user", "mnt", "pid", "ipc", "uts", "cgroup", "net"}

// gather reads everything. It fails only when there is no such process.
func gather(pid int, ex Expect) (*facts, error) {
	p, err := openProcess(pid)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if ex.HostPid == 0 {
		ex.HostPid = os.Getpid()
	}
	host, err := openProcess(ex.HostPid)
	if err != nil {
		return nil, err
	}
	defer host.close()

	f := &facts{ex: ex, pid: pid, uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}
	f.gatherHost(host)
	f.spaces = f.mountSpaces()
	f.gatherIdentity(p)
	f.gatherNetwork(p)
	f.gatherLimits(p)
	f.gatherFiles(p, host)
	f.gatherMounts(p)
	if unix.Kill(pid, 0) == unix.ESRCH {
		return nil, fmt.Errorf("process %d ended while it was looked at", pid)
	}
	return f, nil
}

func (f *facts) gatherHost(host *process) {
	f.ownUIDs, f.ownGIDs = ownMap("/proc/self/uid_map"), ownMap("/proc/self/gid_map")
	f.hostStatus = read(host, "status", maxText, ParseStatus)
	f.hostNS = namespacesOf(host, "ns/")
	id, err := idAt(host.fd, "root")
	f.hostRoot = fact[fileID]{id, err}
	f.hostGroups = read(host, "cgroup", maxText, ParseMembership)
	f.gatherHostMounts(host)
}

func (f *facts) gatherHostMounts(host *process) {
	f.hostMounts = read(host, "mountinfo", maxMounts, func(s string) (*table, error) {
		m, err := ParseMounts(s)
		return newTable(m), err
	})
}

func ownMap(path string) fact[IDMap] {
	text, err := readText(path, maxText)
	if err != nil {
		return fact[IDMap]{err: err}
	}
	m, err := ParseIDMap(text)
	return fact[IDMap]{m, err}
}

func namespacesOf(p *process, dir string) map[string]fact[fileID] {
	all := make(map[string]fact[fileID], len(namespaces))
	for _, n := range namespaces {
		id, err := idAt(p.fd, dir+n)
		all[n] = fact[fileID]{id, err}
	}
	return all
}

// gatherIdentity looks at every thread: what an execve gives the program is
// what the thread that calls it has.
func (f *facts) gatherIdentity(p *process) {
	f.ns = namespacesOf(p, "ns/")
	f.uidMap = read(p, "uid_map", maxText, ParseIDMap)
	f.gidMap = read(p, "gid_map", maxText, ParseIDMap)
	f.status = read(p, "status", maxText, func(s string) ([]Status, error) {
		st, err := ParseStatus(s)
		return []Status{st}, err
	})
	if f.status.err != nil {
		return
	}
	threads, err := p.names("task", maxThreads)
	if err != nil {
		f.status.err, f.strayNS = err, err
		return
	}
	for _, tid := range threads {
		if tid == strconv.Itoa(f.pid) {
			continue
		}
		st := read(p, "task/"+tid+"/status", maxText, ParseStatus)
		if errors.Is(st.err, unix.ENOENT) || errors.Is(st.err, unix.ESRCH) {
			continue // ended meanwhile
		}
		if st.err != nil {
			f.status.err = st.err
			return
		}
		f.status.v = append(f.status.v, st.v)
		for name, id := range namespacesOf(p, "task/"+tid+"/ns/") {
			if id.err == nil && id.v != f.ns[name].v {
				f.strayNS = fmt.Errorf("thread %s is in another %s namespace than the first", tid, name)
			}
		}
	}
}

func (f *facts) gatherNetwork(p *process) {
	f.interfaces = read(p, "net/dev", maxText, ParseInterfaces)
	f.routes = optional(read(p, "net/route", maxText, ParseRoutes))
	f.routes6 = optional(read(p, "net/ipv6_route", maxText, ParseRoutes6))
	f.addresses = optional(read(p, "net/fib_trie", maxText, ParseAddresses))
	f.sockets = read(p, "net/unix", maxText, ParseUnixSockets)
	f.inet = read(p, "net/sockstat", maxText, ParseSockstat)
	six := optional(read(p, "net/sockstat6", maxText, ParseSockstat))
	if f.inet.err == nil {
		f.inet.err = six.err
		maps.Copy(f.inet.v, six.v)
	}
	if r := f.ex.Relay; r != nil {
		l, err := lookAt(r.Socket)
		f.relay = fact[seenListener]{l, err}
	}
}

// optional takes a file that a kernel without that part of the network does
// not have as an empty one. The interface table, which every kernel has, has
// been read by then.
func optional[T any](f fact[T]) fact[T] {
	if errors.Is(f.err, os.ErrNotExist) {
		return fact[T]{}
	}
	return f
}

// openFile is an open descriptor with how it was opened.
type openFile struct {
	OpenFile
	id     fileID
	access int // O_RDONLY, O_WRONLY or O_RDWR
}

func (f *facts) gatherFiles(p, host *process) {
	f.environ = read(p, "environ", maxText, func(s string) ([]string, error) { return splitEnviron(s), nil })
	list, err := p.files()
	f.files.err = err
	for _, o := range list {
		file := openFile{OpenFile: o}
		if file.id, err = idAt(p.fd, "fd/"+strconv.Itoa(o.FD)); err == nil {
			file.access, err = accessOf(p, o.FD)
		}
		if err != nil {
			f.files.err = err
		}
		f.files.v = append(f.files.v, file)
	}
	if f.ex.Pipes != nil {
		return
	}
	ours, err := host.files()
	f.hostPipes = fact[map[uint64]bool]{map[uint64]bool{}, err}
	for _, o := range ours {
		if ino, ok := o.Pipe(); ok {
			f.hostPipes.v[ino] = true
		}
	}
}

func accessOf(p *process, fd int) (int, error) {
	info := read(p, "fdinfo/"+strconv.Itoa(fd), maxText, parseFlags)
	return info.v & unix.O_ACCMODE, info.err
}
