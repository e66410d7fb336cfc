package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
)

// Resolver turns a name into addresses. A net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Credential is a header that the proxy adds to requests to one host. Printing
// it shows no value.
type Credential struct{ Header, Value string }

// String names the header only.
func (c Credential) String() string { return c.Header + ": (hidden)" }

// GoString is String, for %#v.
func (c Credential) GoString() string { return c.String() }

// Options bound a Proxy. A zero value stands for what its comment says.
type Options struct {
	Resolver Resolver // the machine's
	// Credentials by exact host name, which the list must allow. These hosts
	// are reached by TLS only, which the proxy ends and begins anew.
	Credentials map[string]Credential
	// Roots verify the hosts that have a credential. Nil are the machine's.
	Roots Roots

	MaxConnections int           // at once: 64; more wait
	MaxHeaderBytes int           // of one request: 64 KiB
	HeaderTimeout  time.Duration // from a connection's first byte: 10 s
	DialTimeout    time.Duration // name and connection: 10 s
	IdleTimeout    time.Duration // without a byte either way: 2 min
	MaxDuration    time.Duration // of one connection: 1 h
	MaxAllowed     int           // attempts that are allowed in all: 4096
	MaxRefused     int           // refused attempts that are listed: 1024
}

func (o *Options) fill() {
	or := func(n *int, usual int) {
		if *n <= 0 {
			*n = usual
		}
	}
	orTime := func(d *time.Duration, usual time.Duration) {
		if *d <= 0 {
			*d = usual
		}
	}
	if o.Resolver == nil {
		o.Resolver = net.DefaultResolver
	}
	or(&o.MaxConnections, 64)
	or(&o.MaxHeaderBytes, 64<<10)
	or(&o.MaxAllowed, 4096)
	or(&o.MaxRefused, 1024)
	orTime(&o.HeaderTimeout, 10*time.Second)
	orTime(&o.DialTimeout, 10*time.Second)
	orTime(&o.IdleTimeout, 2*time.Minute)
	orTime(&o.MaxDuration, time.Hour)
}

// Proxy serves one sandbox. It is made once for a run and may serve more than
// one listener.
type Proxy struct {
	list   List
	opt    Options
	record record
	ca     *authority // nil without credentials
	plain  http.Handler
	keyed  http.Handler
	places chan struct{} // one for each connection

	mu     sync.Mutex
	closed bool
	open   map[io.Closer]struct{}
	busy   sync.WaitGroup
}

// New makes a proxy for the list.
func New(list List, opt Options) (*Proxy, error) {
	opt.fill()
	p := &Proxy{list: list, opt: opt, places: make(chan struct{}, opt.MaxConnections), open: map[io.Closer]struct{}{}}
	p.record.maxAllowed, p.record.maxListedRefused = opt.MaxAllowed, opt.MaxRefused
	keys := make(map[string]Credential, len(opt.Credentials))
	for host, c := range opt.Credentials {
		t := newTarget("", host, DefaultPort)
		if t.key == "" {
			return nil, fmt.Errorf("credential for %q: not a host", host)
		}
		if !p.reachable(t) {
			return nil, fmt.Errorf("credential for %q: the list allows no such host", host)
		}
		if !httpguts.ValidHeaderFieldName(c.Header) || !httpguts.ValidHeaderFieldValue(c.Value) || c.Value == "" {
			return nil, fmt.Errorf("credential for %q: not a header", host)
		}
		keys[t.key] = c
	}
	p.opt.Credentials = keys
	if len(keys) > 0 {
		var err error
		if p.ca, err = newAuthority(keys, opt.MaxDuration); err != nil {
			return nil, fmt.Errorf("certificate authority of the run: %w", err)
		}
	}
	p.plain, p.keyed = p.plainHandler(), p.keyedHandler()
	return p, nil
}

// reachable tells whether a rule names the host with any port.
func (p *Proxy) reachable(t target) bool {
	for _, r := range p.list.rules {
		if t.addr.IsValid() && r.namesAddress(t.addr, r.port) || !t.addr.IsValid() && r.allowsName(t.key, r.port) {
			return true
		}
	}
	return false
}

func (p *Proxy) hasCredential(t target) bool {
	_, ok := p.opt.Credentials[t.key]
	return ok
}

// Destinations are the list's rules.
func (p *Proxy) Destinations() []string { return p.list.Strings() }

// Log gives what was tried until now.
func (p *Proxy) Log() Record { return p.record.snapshot() }

// Environment is what makes programs use a proxy on a port of their loopback:
// the usual names, in both spellings, and NO_PROXY empty. ALL_PROXY is the HTTP
// proxy as well, since many programs do not know SOCKS and some end at the
// sight of it. bundle, unless empty, is the path inside of a file with Bundle's
// content.
func Environment(port int, bundle string) []string {
	url := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	var env []string
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		env = append(env, name+"="+url, strings.ToLower(name)+"="+url)
	}
	env = append(env, "NO_PROXY=", "no_proxy=")
	if bundle != "" {
		for _, name := range []string{"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"} {
			env = append(env, name+"="+bundle)
		}
	}
	return env
}

// errClosed is what Serve gives after Close.
var errClosed = errors.New("egress proxy is closed")

// Serve takes connections from ln until ctx ends, ln is closed, or the proxy
// is, and closes ln and every connection that it took. The result is nil after
// ctx's end.
func (p *Proxy) Serve(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !p.note(ln) {
		return errors.Join(errClosed, ln.Close())
	}
	defer p.forget(ln)
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	plain, keyed := p.server(ctx, p.plain), p.server(ctx, p.keyed)
	feedPlain, feedKeyed := newFeed(ln.Addr()), newFeed(ln.Addr())
	var serving sync.WaitGroup
	defer serving.Wait()
	for _, s := range []struct {
		server *http.Server
		feed   *feed
	}{{plain, feedPlain}, {keyed, feedKeyed}} {
		serving.Go(func() { _ = s.server.Serve(s.feed) }) // ends when the feed does
		defer s.server.Close()
		defer s.feed.Close()
	}
	w := &worker{Proxy: p, plain: feedPlain, keyed: feedKeyed, open: map[net.Conn]struct{}{}}
	defer func() {
		cancel()
		w.end()
	}()
	for {
		select {
		case p.places <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		c, err := ln.Accept()
		if err != nil {
			<-p.places
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept a connection of the sandbox: %w", err)
		}
		w.take(ctx, c)
	}
}

// server serves HTTP on connections that are fed to it. Its own log would go to
// standard error in the middle of ours.
func (p *Proxy) server(ctx context.Context, h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: p.opt.HeaderTimeout, ReadTimeout: p.opt.MaxDuration, WriteTimeout: p.opt.MaxDuration,
		IdleTimeout: p.opt.IdleTimeout, MaxHeaderBytes: p.opt.MaxHeaderBytes, ErrorLog: log.New(io.Discard, "", 0),
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
}

// connKey is where a handler finds its connection.
type connKey struct{}

// Close ends every Serve and waits for it.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	for c := range p.open {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.busy.Wait()
	return nil
}

func (p *Proxy) note(c io.Closer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.open[c] = struct{}{}
	p.busy.Add(1)
	return true
}

func (p *Proxy) forget(c io.Closer) {
	p.mu.Lock()
	delete(p.open, c)
	p.mu.Unlock()
	p.busy.Done()
}

// feed is a listener whose connections were accepted elsewhere.
type feed struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newFeed(addr net.Addr) *feed {
	return &feed{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
}

func (f *feed) Accept() (net.Conn, error) {
	select {
	case c := <-f.conns:
		return c, nil
	case <-f.done:
		return nil, net.ErrClosed
	}
}

func (f *feed) Addr() net.Addr { return f.addr }

func (f *feed) Close() error {
	f.once.Do(func() { close(f.done) })
	return nil
}

// give hands a connection to the server, which closes it.
func (f *feed) give(c net.Conn) {
	select {
	case f.conns <- c:
	case <-f.done:
		_ = c.Close()
	}
}

// worker is one Serve with its connections.
type worker struct {
	*Proxy
	plain, keyed *feed
	mu           sync.Mutex
	open         map[net.Conn]struct{}
	running      sync.WaitGroup // one for each connection, until it is closed
}

// take looks at the first byte of a connection, which has a place.
func (w *worker) take(ctx context.Context, conn net.Conn) {
	c := &client{Conn: conn}
	c.free = func() {
		w.mu.Lock()
		delete(w.open, conn)
		w.mu.Unlock()
		<-w.places
		w.running.Done()
	}
	w.mu.Lock()
	w.open[conn] = struct{}{}
	w.mu.Unlock()
	w.running.Add(1)
	go func() {
		if err := conn.SetDeadline(time.Now().Add(w.opt.HeaderTimeout)); err != nil {
			_ = c.Close()
			return
		}
		in := bufio.NewReaderSize(conn, 512)
		first, err := in.Peek(1)
		c.ahead = in
		switch {
		case err != nil:
			_ = c.Close()
		case first[0] == socksVersion:
			w.socks(ctx, c)
		default:
			w.plain.give(&servedConn{c, w})
		}
	}()
}

// servedConn carries the worker to the handler.
type servedConn struct {
	*client
	w *worker
}

// end closes what is open and waits until all of it is given up.
func (w *worker) end() {
	w.mu.Lock()
	for c := range w.open {
		_ = c.Close()
	}
	w.mu.Unlock()
	w.running.Wait()
}
