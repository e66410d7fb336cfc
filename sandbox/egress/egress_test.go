package egress_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/net/proxy"

	"github.com/aspis-dev/aspis/sandbox/egress"
)

// serve runs a proxy on a loopback port and gives its address.
func serve(t *testing.T, opt egress.Options, rules ...string) (*egress.Proxy, string) {
	t.Helper()
	list, err := egress.ParseList(rules...)
	if err != nil {
		t.Fatal(err)
	}
	p, err := egress.New(list, opt)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, ln.Addr().String()
}

// through is a client that uses the proxy.
func through(addr string, conf *tls.Config) *http.Client {
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: addr}), TLSClientConfig: conf, DisableKeepAlives: true,
	}}
}

func get(c *http.Client, url string) (int, string, error) {
	resp, err := c.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// dns is a real name server with the answers that a test gives.
type dns struct {
	asked  atomic.Int64
	answer func(name string, nth int64) []netip.Addr
}

func (d *dns) resolver(t *testing.T) *net.Resolver {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		b := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(b[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			r := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}, Questions: m.Questions}
			head := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 0}
			nth := int64(0)
			if q.Type == dnsmessage.TypeA {
				nth = d.asked.Add(1)
			}
			for _, a := range d.answer(q.Name.String(), nth) {
				switch {
				case q.Type == dnsmessage.TypeA && a.Is4():
					r.Answers = append(r.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: a.As4()}})
				case q.Type == dnsmessage.TypeAAAA && a.Is6():
					r.Answers = append(r.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
				}
			}
			if out, err := r.Pack(); err == nil {
				_, _ = c.WriteTo(out, from) // a reader that has gone is no fault
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "udp", c.LocalAddr().String())
	}}
}

func fixed(addrs ...string) *dns {
	var list []netip.Addr
	for _, a := range addrs {
		list = append(list, netip.MustParseAddr(a))
	}
	return &dns{answer: func(string, int64) []netip.Addr { return list }}
}

// hello is a server on the loopback, with its port.
func hello(t *testing.T) (port string, hits *atomic.Int64) {
	t.Helper()
	hits = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		fmt.Fprintf(w, "hello %s", r.Host)
	}))
	t.Cleanup(s.Close)
	_, port, _ = net.SplitHostPort(s.Listener.Addr().String())
	return port, hits
}

func TestPlainHTTP(t *testing.T) {
	port, _ := hello(t)
	p, addr := serve(t, egress.Options{Resolver: fixed("127.0.0.1").resolver(t)}, "in.test:"+port, "127.0.0.1:"+port)
	for _, host := range []string{"in.test", "IN.test.", "127.0.0.1"} {
		code, text, err := get(through(addr, nil), "http://"+host+":"+port+"/")
		if err != nil || code != 200 || text != "hello "+host+":"+port {
			t.Errorf("%s: %d %q, %v", host, code, text, err)
		}
	}
	for _, a := range p.Log().Attempts {
		if !a.Allowed || a.Via != "http" || a.Address != "127.0.0.1" || a.Sent == 0 || a.Received == 0 || a.At.IsZero() {
			t.Errorf("attempt %+v", a)
		}
	}
	if n := len(p.Log().Attempts); n != 3 {
		t.Errorf("%d attempts", n)
	}
}

// TestRefused holds each way of asking against each reason to refuse. The
// server that would be reached must see nothing.
func TestRefused(t *testing.T) {
	port, hits := hello(t)
	n, _ := strconv.Atoi(port)
	next := strconv.Itoa(n - 1)
	for _, c := range []struct {
		name, host, port, why string
		resolves              []string
		rules                 []string
	}{
		{"not listed", "out.test", port, "does not name this host", []string{"127.0.0.1"}, []string{"in.test:" + port, "127.0.0.1:" + port}},
		{"another port", "in.test", port, "does not name this host", []string{"127.0.0.1"}, []string{"in.test:" + next, "127.0.0.1:" + port}},
		{"loopback", "in.test", port, "loopback", []string{"127.0.0.1"}, []string{"in.test:" + port}},
		{"loopback in full", "127.0.0.1", port, "this address", nil, []string{"in.test:" + port}},
		{"mapped", "[::ffff:127.0.0.1]", port, "this address", nil, []string{"in.test:" + port}},
		{"one of two", "in.test", port, "loopback", []string{"1.1.1.1", "127.0.0.1"}, []string{"in.test:" + port}},
		{"private", "in.test", port, "private", []string{"10.1.2.3"}, []string{"in.test:" + port}},
		{"carrier", "in.test", port, "carrier", []string{"100.100.100.200"}, []string{"in.test:" + port}},
		{"metadata", "in.test", port, "cloud metadata", []string{"169.254.169.254"}, []string{"in.test:" + port}},
		{"metadata 6", "in.test", port, "cloud metadata", []string{"fd00:ec2::254"}, []string{"in.test:" + port}},
		{"unique local", "in.test", port, "unique local", []string{"fd12::1"}, []string{"in.test:" + port}},
		{"link-local", "in.test", port, "link-local", []string{"fe80::1"}, []string{"in.test:" + port}},
		{"multicast", "in.test", port, "multicast", []string{"224.0.0.251"}, []string{"in.test:" + port}},
		{"mapped metadata", "in.test", port, "cloud metadata", []string{"::ffff:169.254.169.254"}, []string{"in.test:" + port}},
		{"NAT64 metadata", "in.test", port, "cloud metadata", []string{"64:ff9b::a9fe:a9fe"}, []string{"in.test:" + port}},
		{"NAT64 loopback, loopback listed", "in.test", port, "loopback", []string{"64:ff9b::7f00:1"}, []string{"in.test:" + port, "127.0.0.1:" + port}},
		{"6to4", "in.test", port, "6to4", []string{"2002:7f00:1::1"}, []string{"in.test:" + port}},
		{"compatible", "in.test", port, "IPv4-compatible", []string{"::7f00:1"}, []string{"in.test:" + port}},
		{"a number", "2130706433", port, "neither", nil, []string{"in.test:" + port, "127.0.0.1:" + port}},
		{"short", "127.1", port, "neither", nil, []string{"in.test:" + port, "127.0.0.1:" + port}},
		{"suffix itself", "in.test", port, "does not name this host", []string{"127.0.0.1"}, []string{"*.in.test:" + port, "127.0.0.1:" + port}},
		{"end of a label", "xin.test", port, "does not name this host", []string{"127.0.0.1"}, []string{"*.in.test:" + port, "127.0.0.1:" + port}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, addr := serve(t, egress.Options{Resolver: fixed(c.resolves...).resolver(t)}, c.rules...)
			to := c.host + ":" + c.port
			if code, text, err := get(through(addr, nil), "http://"+to+"/"); err != nil || code != 403 || strings.Contains(text, c.why) {
				t.Errorf("http: %d %q, %v", code, text, err)
			}
			if _, _, err := get(through(addr, nil), "https://"+to+"/"); err == nil || !strings.Contains(err.Error(), "Forbidden") {
				t.Errorf("connect: %v", err)
			}
			if conn, err := socks(t, addr, to); err == nil {
				t.Error("socks5 let it through")
				_ = conn.Close()
			}
			log := p.Log()
			if len(log.Attempts) != 3 || log.Refused != 3 {
				t.Errorf("%d attempts, %d refused", len(log.Attempts), log.Refused)
			}
			for _, a := range log.Attempts {
				if a.Allowed || !strings.Contains(a.Why, c.why) || a.Sent != 0 {
					t.Errorf("attempt %+v", a)
				}
			}
		})
	}
	if hits.Load() != 0 {
		t.Errorf("the server was reached %d times", hits.Load())
	}
}

func socks(t *testing.T, addr, to string) (net.Conn, error) {
	t.Helper()
	d, err := proxy.SOCKS5("tcp", addr, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d.Dial("tcp", to)
}

// TestRebinding has a name that leads out when it is judged and in when it is
// asked for again: it must not be asked for again.
func TestRebinding(t *testing.T) {
	port, hits := hello(t)
	rebind := &dns{answer: func(_ string, nth int64) []netip.Addr {
		if nth <= 1 {
			return []netip.Addr{netip.MustParseAddr("127.0.0.77")}
		}
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	}}
	p, addr := serve(t, egress.Options{Resolver: rebind.resolver(t)}, "in.test:"+port, "127.0.0.77:"+port)
	code, _, err := get(through(addr, nil), "http://in.test:"+port+"/")
	if err != nil || code != 502 { // nothing listens at the address that was judged
		t.Errorf("first: %d, %v", code, err)
	}
	if n := rebind.asked.Load(); n != 1 {
		t.Errorf("the name was resolved %d times for one attempt", n)
	}
	if code, _, err = get(through(addr, nil), "http://in.test:"+port+"/"); err != nil || code != 403 {
		t.Errorf("rebound: %d, %v", code, err)
	}
	if hits.Load() != 0 {
		t.Error("the rebound address was reached")
	}
	log := p.Log()
	if len(log.Attempts) != 2 || log.Attempts[1].Address != "127.0.0.1" || log.Attempts[1].Allowed {
		t.Errorf("log %+v", log)
	}
}

func TestTunnels(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "secret hello") }))
	t.Cleanup(s.Close)
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	conf := &tls.Config{RootCAs: roots, ServerName: "example.com"} // as httptest's certificate has it
	p, addr := serve(t, egress.Options{Resolver: fixed("127.0.0.1").resolver(t)}, "*.in.test:"+port, "127.0.0.0/8:"+port)
	if code, text, err := get(through(addr, conf), "https://a.in.test:"+port+"/"); err != nil || code != 200 || text != "secret hello" {
		t.Errorf("connect: %d %q, %v", code, text, err)
	}
	raw, err := socks(t, addr, "b.in.test:"+port)
	if err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(raw, conf)
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(b), "secret hello") {
		t.Errorf("socks5: %q, %v", b, err)
	}
	for i, via := range []string{"connect", "socks5"} {
		if a := p.Log().Attempts[i]; a.Via != via || !a.Allowed || a.Sent == 0 || a.Received == 0 {
			t.Errorf("attempt %+v", a)
		}
	}
}

// TestHalfClose ends one direction of a tunnel; the other must go on.
func TestHalfClose(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b, _ := io.ReadAll(c) // to the end of what is sent
		fmt.Fprintf(c, "%d bytes", len(b))
	}()
	_, addr := serve(t, egress.Options{}, ln.Addr().String())
	c, err := socks(t, addr, ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(make([]byte, 100_000)); err != nil {
		t.Fatal(err)
	}
	half, ok := c.(*net.TCPConn)
	if !ok {
		t.Fatalf("a connection of type %T", c)
	}
	if err := half.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); err != nil || string(b) != "100000 bytes" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestCredential(t *testing.T) {
	const key = "Bearer the-key-that-must-not-enter"
	type seen struct{ key, host, other string }
	var got atomic.Value
	upstream := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got.Store(seen{r.Header.Get("Authorization"), r.Host, r.Header.Get("X-Other")})
		fmt.Fprint(w, "welcome")
	}))
	t.Cleanup(upstream.Close)
	_, port, _ := net.SplitHostPort(upstream.Listener.Addr().String())
	roots := x509.NewCertPool()
	roots.AddCert(upstream.Certificate())
	p, addr := serve(t, egress.Options{Resolver: fixed("127.0.0.1").resolver(t), Roots: roots,
		Credentials: map[string]egress.Credential{"Example.com": {Header: "Authorization", Value: key}}},
		"example.com:"+port, "127.0.0.1:"+port)
	bundle, err := p.Bundle()
	if err != nil || strings.Contains(string(bundle), "PRIVATE") {
		t.Fatalf("bundle: %v", err)
	}
	inside := x509.NewCertPool()
	if !inside.AppendCertsFromPEM(bundle) {
		t.Fatal("no certificate in the bundle")
	}
	client := through(addr, &tls.Config{RootCAs: inside})
	req, err := http.NewRequest("GET", "https://example.com:"+port+"/x?y=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "somebody-else.example.com"
	req.Header.Set("Authorization", "Bearer guess")
	req.Header.Set("X-Other", "kept")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != 200 || string(b) != "welcome" {
		t.Errorf("%d %q, %v", resp.StatusCode, b, err)
	}
	if want := (seen{key, "example.com:" + port, "kept"}); got.Load() != want {
		t.Errorf("the host saw %+v, want %+v", got.Load(), want)
	}
	req.Method = http.MethodTrace
	if resp, err = client.Do(req); err != nil || resp.StatusCode != 405 {
		t.Errorf("TRACE: %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
	if code, _, err := get(client, "http://example.com:"+port+"/"); err != nil || code != 403 {
		t.Errorf("without TLS: %d, %v", code, err)
	}
	// What does not trust the run's authority gets nowhere, and the key with it.
	if _, _, err := get(through(addr, &tls.Config{RootCAs: roots}), "https://example.com:"+port+"/"); err == nil {
		t.Error("a client that trusts the host itself was served")
	}
	// Without a credential: the same host by its address is tunnelled unseen.
	got.Store(seen{})
	if code, _, err := get(through(addr, &tls.Config{RootCAs: roots, ServerName: "example.com"}), "https://127.0.0.1:"+port+"/"); err != nil || code != 200 {
		t.Errorf("tunnelled: %d, %v", code, err)
	}
	if got.Load().(seen).key != "" {
		t.Error("the key was sent into a blind tunnel")
	}
	log := fmt.Sprintf("%+v", p.Log())
	if strings.Contains(log, key) || !strings.Contains(log, "Credential:true") {
		t.Errorf("log %s", log)
	}
}

func TestCredentialMustBeListed(t *testing.T) {
	list, err := egress.ParseList("api.example.org")
	if err != nil {
		t.Fatal(err)
	}
	for host, c := range map[string]egress.Credential{
		"other.example.org": {Header: "A", Value: "b"}, "api.example.org": {Header: "A b", Value: "c"}, "*.example.org": {Header: "A", Value: "b"},
	} {
		if _, err := egress.New(list, egress.Options{Credentials: map[string]egress.Credential{host: c}}); err == nil || strings.Contains(err.Error(), c.Value+"!") {
			t.Errorf("%q %v was taken: %v", host, c, err)
		}
	}
	if s := fmt.Sprintf("%v %+v %#v", egress.Credential{Header: "A", Value: "xyz"}, egress.Credential{Value: "xyz"}, egress.Credential{Value: "xyz"}); strings.Contains(s, "xyz") {
		t.Error("a credential is printed: " + s)
	}
}

func TestBounds(t *testing.T) {
	port, _ := hello(t)
	p, addr := serve(t, egress.Options{MaxConnections: 2, MaxHeaderBytes: 4096, MaxAllowed: 2, MaxRefused: 1,
		HeaderTimeout: 200 * time.Millisecond}, "127.0.0.1:"+port)
	// Two that say nothing take both places, and lose them.
	for range 2 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	for range 2 {
		if code, _, err := get(through(addr, nil), "http://127.0.0.1:"+port+"/"); err != nil || code != 200 {
			t.Errorf("%d, %v", code, err)
		}
	}
	if code, _, err := get(through(addr, nil), "http://127.0.0.1:"+port+"/"); err != nil || code != 403 {
		t.Errorf("with a full record: %d, %v", code, err)
	}
	if code, _, err := get(through(addr, nil), "http://nowhere.test/"); err != nil || code != 403 {
		t.Errorf("%d, %v", code, err)
	}
	if log := p.Log(); len(log.Attempts) != 3 || log.Refused != 2 || log.Unlisted != 1 {
		t.Errorf("log %+v", log)
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET http://127.0.0.1:%s/ HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n", port, strings.Repeat("x", 20_000))
	if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a large header: %v, %v", resp, err)
	}
}

// TestIdle ends a tunnel over which nothing goes.
func TestIdle(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, addr := serve(t, egress.Options{IdleTimeout: 50 * time.Millisecond}, ln.Addr().String())
	c, err := socks(t, addr, ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); err != nil && !strings.Contains(err.Error(), "reset") || len(b) != 0 {
		t.Errorf("%q, %v", b, err)
	}
}

func TestClosed(t *testing.T) {
	list, err := egress.ParseList("example.org")
	if err != nil {
		t.Fatal(err)
	}
	p, err := egress.New(list, egress.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Serve(t.Context(), ln); err == nil {
		t.Error("a closed proxy serves")
	}
	if _, err := ln.Accept(); err == nil {
		t.Error("its listener is open")
	}
}

func TestEnvironment(t *testing.T) {
	env := egress.Environment(3128, "/b.pem")
	for _, want := range []string{"HTTP_PROXY=http://127.0.0.1:3128", "https_proxy=http://127.0.0.1:3128", "ALL_PROXY=http://127.0.0.1:3128", "NO_PROXY=", "GIT_SSL_CAINFO=/b.pem"} {
		found := false
		for _, e := range env {
			found = found || e == want
		}
		if !found {
			t.Errorf("%q is not in %q", want, env)
		}
	}
}
