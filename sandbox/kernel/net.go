package kernel

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ParseInterfaces gives the names in /proc/<pid>/net/dev.
func ParseInterfaces(text string) ([]string, error) {
	var names []string
	n := 0
	for line := range strings.Lines(text) {
		if n++; n <= 2 {
			continue // two lines of headings
		}
		// A name may have any character but '/', white space and ':'.
		name, _, ok := strings.Cut(line, ":")
		if !ok {
			return nil, fmt.Errorf("interface line %q", line)
		}
		names = append(names, strings.TrimSpace(name))
	}
	if n < 2 {
		return nil, errors.New("interface table has no headings")
	}
	return names, nil
}

// Route is one line of /proc/<pid>/net/route or ipv6_route.
type Route struct {
	Interface string
	Dest      string // hexadecimal, as the kernel prints it
	Prefix    string // mask (version 4) or length (version 6), hexadecimal
	Flags     uint64
	Metric    uint64
}

const (
	routeUp     = 0x1
	routeReject = 0x200
)

// Leads tells whether packets can take the route.
func (r Route) Leads() bool { return r.Flags&routeUp != 0 && r.Flags&routeReject == 0 }

// ParseRoutes reads /proc/<pid>/net/route. A network namespace without any
// route gives an empty file or the heading alone.
func ParseRoutes(text string) ([]Route, error) {
	var routes []Route
	first := true
	for line := range strings.Lines(text) {
		if first {
			first = false
			if !strings.HasPrefix(line, "Iface") {
				return nil, fmt.Errorf("route table begins with %q", line)
			}
			continue
		}
		// Iface Destination Gateway Flags RefCnt Use Metric Mask ...
		f := strings.Fields(line)
		if len(f) < 8 {
			return nil, fmt.Errorf("route line %q", line)
		}
		flags, err := strconv.ParseUint(f[3], 16, 32)
		if err != nil {
			return nil, fmt.Errorf("route line %q: %w", line, err)
		}
		metric, err := strconv.ParseUint(f[6], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("route line %q: %w", line, err)
		}
		routes = append(routes, Route{f[0], f[1], f[7], flags, metric})
	}
	return routes, nil
}

// ParseRoutes6 reads /proc/<pid>/net/ipv6_route, which has no heading. The
// kernel always lists a rejecting route of its own on the loopback.
func ParseRoutes6(text string) ([]Route, error) {
	var routes []Route
	for line := range strings.Lines(text) {
		// dest len src len next-hop metric refcnt use flags device
		f := strings.Fields(line)
		if len(f) != 10 {
			return nil, fmt.Errorf("route line %q", line)
		}
		metric, err := strconv.ParseUint(f[5], 16, 64)
		if err != nil {
			return nil, fmt.Errorf("route line %q: %w", line, err)
		}
		flags, err := strconv.ParseUint(f[8], 16, 32)
		if err != nil {
			return nil, fmt.Errorf("route line %q: %w", line, err)
		}
		routes = append(routes, Route{f[9], f[0], f[1], flags, metric})
	}
	return routes, nil
}

// ParseAddresses gives the machine's own IPv4 addresses from
// /proc/<pid>/net/fib_trie, once each.
func ParseAddresses(text string) ([]string, error) {
	var out []string
	seen := map[string]bool{}
	last := ""
	for line := range strings.Lines(text) {
		s := strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(s, "|-- "); ok {
			last = rest
			continue
		}
		if !strings.HasSuffix(s, "host LOCAL") {
			continue
		}
		if last == "" {
			return nil, fmt.Errorf("address line %q belongs to no prefix", line)
		}
		if !seen[last] {
			seen[last] = true
			out = append(out, last)
		}
	}
	return out, nil
}

// UnixSocket is one line of /proc/<pid>/net/unix.
type UnixSocket struct {
	Inode uint64
	Path  string // "@name" for an abstract one, empty for one without a name
}

// ParseUnixSockets reads the unix sockets of a network namespace.
func ParseUnixSockets(text string) ([]UnixSocket, error) {
	var list []UnixSocket
	first := true
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if first {
			first = false
			if !strings.HasPrefix(line, "Num") {
				return nil, fmt.Errorf("socket table begins with %q", line)
			}
			continue
		}
		// Num RefCount Protocol Flags Type St Inode [Path]; a path may have
		// spaces, and a new line in one begins a line of its own.
		f := strings.Fields(line)
		if len(f) < 7 || !strings.HasSuffix(f[0], ":") {
			if len(list) > 0 && list[len(list)-1].Path != "" {
				list[len(list)-1].Path += "\n" + line
				continue
			}
			return nil, fmt.Errorf("socket line %q", line)
		}
		ino, err := strconv.ParseUint(f[6], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("socket line %q: %w", line, err)
		}
		s := UnixSocket{Inode: ino}
		if len(f) > 7 {
			s.Path = strings.Join(f[7:], " ")
		}
		list = append(list, s)
	}
	if first {
		return nil, errors.New("socket table has no heading")
	}
	return list, nil
}

// ParseSockstat gives how many sockets of each protocol are in use in a network
// namespace, from /proc/<pid>/net/sockstat or sockstat6. The tables of the
// sockets themselves are no alternative: reading one walks the whole machine's.
func ParseSockstat(text string) (map[string]int, error) {
	used := map[string]int{}
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if !ok {
			return nil, fmt.Errorf("socket count %q", line)
		}
		if len(f) < 2 || f[0] != "inuse" {
			continue // "sockets: used", which counts the kernel's own as well
		}
		n, err := strconv.Atoi(f[1])
		if err != nil {
			return nil, fmt.Errorf("socket count %q: %w", line, err)
		}
		used[name] = n
	}
	if len(used) == 0 {
		return nil, errors.New("socket counts have no protocol")
	}
	return used, nil
}

// seenListener is what the kernel says of a socket of the host's.
type seenListener struct {
	ns        fileID // its network namespace
	at        unix.Sockaddr
	listening bool
}

// lookAt asks the kernel where the host's own socket is. The network namespace
// of a socket is the one that it was made in, whoever holds it.
func lookAt(c syscall.Conn) (l seenListener, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return l, err
	}
	cerr := raw.Control(func(fd uintptr) {
		var ns int
		if ns, err = unix.IoctlRetInt(int(fd), unix.SIOCGSKNS); err != nil {
			err = fmt.Errorf("ask for a socket's namespace: %w", err)
			return
		}
		defer unix.Close(ns)
		var st unix.Stat_t
		if err = unix.Fstat(ns, &st); err != nil {
			return
		}
		l.ns = fileID{st.Dev, st.Ino}
		if l.at, err = unix.Getsockname(int(fd)); err != nil {
			return
		}
		var on int
		on, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		l.listening = on == 1
	})
	return l, errors.Join(err, cerr)
}
