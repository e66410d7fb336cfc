package probe

import (
	"context"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
)

func socketAttempts() []Attempt {
	family := func(domain, kind, protocol int) func(*Facts) Result {
		return func(*Facts) Result {
			fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, protocol)
			if err == nil {
				_ = unix.Close(fd)
			}
			return answered(err)
		}
	}
	to := func(network, addr string) func(*Facts) Result {
		return func(*Facts) Result { return connect(network, addr) }
	}
	return []Attempt{
		{"raw-socket", sandbox.WallCapabilities, family(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)},
		{"raw-socket-6", sandbox.WallCapabilities, family(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6)},
		{"packet-socket", sandbox.WallSeccomp, family(unix.AF_PACKET, unix.SOCK_RAW, 0)},
		{"netlink-route", sandbox.WallSeccomp, family(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)},
		{"netlink-audit", sandbox.WallSeccomp, family(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT)},
		{"netlink-netfilter", sandbox.WallSeccomp, family(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)},
		{"vsock", sandbox.WallSeccomp, family(unix.AF_VSOCK, unix.SOCK_STREAM, 0)},
		{"kernel-crypto-socket", sandbox.WallSeccomp, family(unix.AF_ALG, unix.SOCK_SEQPACKET, 0)},
		{"bluetooth", sandbox.WallSeccomp, family(unix.AF_BLUETOOTH, unix.SOCK_RAW, 1)},
		{"xdp-socket", sandbox.WallSeccomp, family(unix.AF_XDP, unix.SOCK_RAW, 0)},
		{"host-loopback", sandbox.WallNetworkNamespace, func(f *Facts) Result {
			last := notApplicable("the host could listen nowhere")
			for _, addr := range f.TCP {
				if last = connect("tcp", addr); last.State == Open {
					return last
				}
			}
			return last
		}},
		{"host-loopback-udp", sandbox.WallNetworkNamespace, func(f *Facts) Result { return connect("udp", f.UDP) }},
		{"host-abstract-socket", sandbox.WallNetworkNamespace, func(f *Facts) Result { return connect("unix", "@"+f.Abstract) }},
		{"host-path-socket", sandbox.WallUnixSockets, func(f *Facts) Result { return connect("unix", f.Socket) }},
		{"container-daemon-socket", sandbox.WallUnixSockets, to("unix", "/run/docker.sock")},
		{"system-bus-socket", sandbox.WallUnixSockets, to("unix", "/run/dbus/system_bus_socket")},
		{"dns", sandbox.WallNetworkInterfaces, func(*Facts) Result {
			ctx, cancel := context.WithTimeout(context.Background(), netTimeout)
			defer cancel()
			_, err := net.DefaultResolver.LookupHost(ctx, "example.org")
			return answered(err)
		}},
		{"cloud-metadata", sandbox.WallNetworkInterfaces, to("tcp", "169.254.169.254:80")},
		{"cloud-metadata-6", sandbox.WallNetworkInterfaces, to("tcp", "[fd00:ec2::254]:80")},
		{"internet", sandbox.WallNetworkInterfaces, to("tcp", "192.0.2.1:443")},
		{"internet-6", sandbox.WallNetworkInterfaces, to("tcp", "[2001:db8::1]:443")},
		{"internet-udp", sandbox.WallNetworkInterfaces, to("udp", "192.0.2.1:53")},
		{"interfaces", sandbox.WallNetworkInterfaces, func(*Facts) Result { return interfaces() }},
	}
}

const netTimeout = 2 * time.Second

// connect tries to reach an address. For udp, a packet that the kernel takes is
// one that left.
func connect(network, addr string) Result {
	c, err := net.DialTimeout(network, addr, netTimeout)
	if err != nil {
		return answered(err)
	}
	defer c.Close()
	_, err = c.Write([]byte(mark))
	if !strings.HasPrefix(network, "udp") {
		// Whoever was reached may have hung up already: reached is reached.
		return open("connected")
	}
	return answered(err)
}

func interfaces() Result {
	names, err := deviceNames()
	if err != nil {
		return answered(err)
	}
	for _, n := range names {
		if n != "lo" {
			return open("there is %q", n)
		}
	}
	return blocked("lo alone")
}
