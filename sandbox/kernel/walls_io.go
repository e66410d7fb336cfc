package kernel

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const loopback = "lo"

func (f *facts) networkInterfaces() verdict {
	for _, err := range []error{f.interfaces.err, f.routes.err, f.routes6.err, f.addresses.err, f.inet.err, f.relay.err, f.strayNS} {
		if err != nil {
			return unknown(err)
		}
	}
	for _, name := range f.interfaces.v {
		if name != loopback {
			return falls("there is an interface %q", name)
		}
	}
	for _, list := range [][]Route{f.routes.v, f.routes6.v} {
		for _, r := range list {
			if r.Interface != loopback && r.Leads() {
				return falls("a route leads out by %q", r.Interface)
			}
		}
	}
	for _, a := range f.addresses.v {
		if !strings.HasPrefix(a, "127.") {
			return falls("it has the address %q", a)
		}
	}
	if problem := f.socketProblem(); problem != "" {
		return falls("%s", problem)
	}
	return stands("interfaces: %s; no route out; %s", quoteSome(f.interfaces.v), f.relaySeen())
}

// relaySeen is what the one socket that may be there leads to.
func (f *facts) relaySeen() string {
	if f.ex.Relay == nil {
		return "no socket"
	}
	return fmt.Sprintf("only lo, with a relay to an allow-list of %d destinations", f.ex.Relay.Destinations)
}

// socketProblem finds sockets that nobody asked for, and misses the one that
// was. Nothing of the process has run yet, so that all are the host's.
func (f *facts) socketProblem() string {
	want := map[string]int{}
	if f.ex.Relay != nil {
		want["TCP"] = 1
		l := f.relay
		at, ok := l.v.at.(*unix.SockaddrInet4)
		switch {
		case l.err != nil:
			return fmt.Sprintf("the relay could not be checked: %v", l.err)
		case l.v.ns != f.ns["net"].v:
			return "the relay is in another network namespace"
		case !ok || at.Addr != [4]byte{127, 0, 0, 1} || at.Port != f.ex.Relay.Port || !l.v.listening:
			return "the relay does not listen on the loopback"
		}
	}
	for _, protocol := range slices.Sorted(maps.Keys(f.inet.v)) {
		if n := f.inet.v[protocol]; n != want[protocol] {
			return fmt.Sprintf("%d sockets of %s are in its network namespace, and %d should be", n, protocol, want[protocol])
		}
	}
	return ""
}

// networkNamespace is a namespace of the process's own, and says what is in it.
func (f *facts) networkNamespace() verdict {
	v := ownNamespace("net")(f)
	if v.standing && f.ex.Relay != nil {
		if problem := f.socketProblem(); problem != "" {
			return falls("%s", problem)
		}
		v.seen += "; " + f.relaySeen()
	}
	return v
}

// unixSockets: abstract names belong to the network namespace, which is new
// and empty; path names are files, and none is in what is private to the
// process. What the host shows on purpose it has looked through itself.
func (f *facts) unixSockets() verdict {
	if v := ownNamespace("net")(f); !v.standing {
		return v
	}
	for _, err := range []error{f.sockets.err, f.tree.err, f.tables()} {
		if err != nil {
			return unknown(err)
		}
	}
	if n := len(f.sockets.v); n > 0 {
		return falls("%d sockets are in its network namespace, one named %q", n, f.sockets.v[0].Path)
	}
	for _, o := range f.tree.v.odd {
		if o.mode&(fs.ModeSocket|fs.ModeNamedPipe) != 0 {
			return falls("%q is a socket or a named pipe", o.path)
		}
	}
	for i, m := range f.mounts.v {
		if f.kinds[i] == kindUnknown {
			return falls("mount %q may hold sockets", m.Mountpoint)
		}
	}
	return stands("own network namespace without sockets, none in its root")
}

func (f *facts) fileDescriptors() verdict {
	if f.files.err != nil {
		return unknown(f.files.err)
	}
	if len(f.files.v) != 3 {
		var names []string
		for _, o := range f.files.v {
			names = append(names, o.Target)
		}
		return falls("%d files are open: %s", len(names), quoteSome(names))
	}
	if f.ex.Pipes == nil && f.hostPipes.err != nil {
		return unknown(f.hostPipes.err)
	}
	seen := map[fileID]bool{}
	for i, o := range f.files.v {
		ino, ok := o.Pipe()
		if !ok || o.FD != i {
			return falls("file %d is %q", o.FD, o.Target)
		}
		if seen[o.id] {
			return falls("file %d is the same pipe as another", i)
		}
		seen[o.id] = true
		if want := [...]int{unix.O_RDONLY, unix.O_WRONLY, unix.O_WRONLY}[i]; o.access != want {
			return falls("file %d is the wrong end of a pipe, or both", i)
		}
		if f.ex.Pipes == nil {
			ok = f.hostPipes.v[ino]
		} else {
			ok = i < len(f.ex.Pipes) && o.id == fileID{f.ex.Pipes[i].Dev, f.ex.Pipes[i].Ino}
		}
		if !ok {
			return falls("file %d is a pipe that does not lead to the host", i)
		}
	}
	return stands("three pipes to the host")
}

func (f *facts) environment() verdict {
	if f.environ.err != nil {
		return unknown(f.environ.err)
	}
	given := map[string]bool{}
	for _, e := range f.ex.Spec.Env {
		given[e] = true
	}
	added := f.ex.EnvNames
	if added == nil {
		added = []string{"HOME"}
	}
	for _, e := range f.environ.v {
		if given[e] {
			continue
		}
		name, _, _ := strings.Cut(e, "=")
		if !slices.Contains(added, name) {
			return falls("variable %q was not asked for, or not with this value", name)
		}
	}
	return stands("%d variables, all asked for", len(f.environ.v))
}
