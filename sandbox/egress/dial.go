package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// maxAddresses are judged of what a name resolves to; a name with more is
// refused, since what was not judged is not connected to. maxTried are tried.
const (
	maxAddresses = 64
	maxTried     = 4
)

// errRefused is what the process is told of anything that is not allowed. The
// reasons are for the evidence: to the process they would describe the network
// around it.
var errRefused = errors.New("not allowed by the list")

// errUnreachable is what it is told of what could not be had.
var errUnreachable = errors.New("destination cannot be reached")

// target is where the process wants to go.
type target struct {
	via  string
	host string // as written
	port uint16
	key  string // canonical name, or address; empty where it is neither
	addr netip.Addr
}

func newTarget(via, host string, port uint16) target {
	t := target{via: via, host: host, port: port}
	if a, err := netip.ParseAddr(host); err == nil {
		t.addr = a.Unmap()
		t.key = t.addr.String()
	} else if name, err := canonicalName(host); err == nil {
		t.key = name
	}
	return t
}

func (t target) String() string { return net.JoinHostPort(t.key, strconv.Itoa(int(t.port))) }

// connect decides, resolves, judges what was resolved, and dials what was
// judged. Everything is in the record when it returns.
func (p *Proxy) connect(ctx context.Context, t target) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.opt.DialTimeout)
	defer cancel()
	attempt := Attempt{At: time.Now(), Via: t.via, Host: cut(t.host), Port: t.port, Credential: p.hasCredential(t)}
	refuse := func(address, why string) (net.Conn, error) {
		p.record.refuse(attempt, address, why)
		return nil, errRefused
	}
	addrs, address, why, err := p.judge(ctx, t)
	if why != "" {
		return refuse(address, why)
	}
	e := p.record.allow(attempt)
	if e == nil {
		return refuse("", fmt.Sprintf("the record of allowed attempts is full (%d)", p.opt.MaxAllowed))
	}
	if err != nil {
		e.failed(err)
		return nil, errUnreachable
	}
	var dialer net.Dialer
	for _, a := range addrs[:min(len(addrs), maxTried)] {
		var c net.Conn
		if c, err = dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(a, t.port).String()); err == nil {
			e.at(a.String())
			return newUpstream(c, e, p.opt.IdleTimeout, p.opt.MaxDuration), nil
		}
	}
	e.failed(err)
	return nil, errUnreachable
}

// judge gives the addresses that may be dialled; or why there are none; or an
// error where the name could not be resolved.
func (p *Proxy) judge(ctx context.Context, t target) (addrs []netip.Addr, address, why string, err error) {
	if t.key == "" {
		return nil, "", "neither a host name nor an address", nil
	}
	if t.addr.IsValid() {
		if !p.list.namesAddress(t.addr, t.port) {
			return nil, t.key, "the list does not name this address", nil
		}
		return []netip.Addr{t.addr}, t.key, "", nil
	}
	if !p.list.allowsName(t.key, t.port) {
		return nil, "", "the list does not name this host with this port", nil
	}
	// As any program of the machine asks, so that its hosts file counts. With a
	// final dot, which would keep search domains out, it does not.
	addrs, err = p.opt.Resolver.LookupNetIP(ctx, "ip", t.key)
	if err == nil && len(addrs) == 0 {
		err = errors.New("the name has no address")
	}
	if err != nil {
		return nil, "", "", err
	}
	if len(addrs) > maxAddresses {
		return nil, "", fmt.Sprintf("the name has more than %d addresses", maxAddresses), nil
	}
	for i, a := range addrs {
		a = a.Unmap()
		addrs[i] = a
		if p.list.namesAddress(a, t.port) {
			continue
		}
		// One is enough to refuse all: a name that leads both out and in is
		// how a guard is led round.
		if what := unfit(a); what != "" {
			return nil, a.String(), "it resolves to an address that the list does not name: " + what, nil
		}
		own, err := ownAddress(a)
		if err != nil {
			return nil, a.String(), "this machine's addresses could not be read: " + err.Error(), nil
		}
		if own {
			return nil, a.String(), "it resolves to an address that the list does not name: this machine's own", nil
		}
	}
	return addrs, "", "", nil
}
