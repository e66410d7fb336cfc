package egress

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"
)

// plainHandler serves what programs send to an HTTP proxy: CONNECT, and
// requests with a whole http URL.
func (p *Proxy) plainHandler() http.Handler {
	forward := p.forwarder(&http.Transport{
		// One connection for each request, so that each is an attempt of its own.
		DisableKeepAlives: true, DisableCompression: true,
		MaxResponseHeaderBytes: int64(p.opt.MaxHeaderBytes), ResponseHeaderTimeout: p.opt.IdleTimeout,
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return p.dialHTTP(ctx, "http", addr)
		},
	}, func(r *httputil.ProxyRequest) {
		r.Out.Host = r.In.URL.Host // and not what the process calls it besides
	})
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodConnect:
			p.serveConnect(rw, r)
		case r.URL.Scheme != "http" || r.URL.Host == "":
			http.Error(rw, "aspis: a request to a proxy has a whole http:// address, or is a CONNECT", http.StatusBadRequest)
		case r.URL.User != nil:
			http.Error(rw, "aspis: an address here has no user", http.StatusBadRequest)
		case p.hasCredential(newTarget("", r.URL.Hostname(), 0)):
			p.record.refuse(Attempt{At: time.Now(), Via: "http", Host: cut(r.URL.Hostname()), Port: 80, Credential: true}, "", "a host with a credential is reached by https only")
			http.Error(rw, "aspis: this host is reached by https only", http.StatusForbidden)
		default:
			forward.ServeHTTP(rw, r)
		}
	})
}

// keyedHandler serves requests inside of TLS that the proxy has ended, to the
// host that the connection was asked for and no other.
func (p *Proxy) keyedHandler() http.Handler {
	forward := p.forwarder(&http.Transport{
		DisableKeepAlives: true, DisableCompression: true,
		MaxResponseHeaderBytes: int64(p.opt.MaxHeaderBytes), ResponseHeaderTimeout: p.opt.IdleTimeout,
		TLSHandshakeTimeout: p.opt.DialTimeout,
		TLSClientConfig:     &tls.Config{RootCAs: p.opt.Roots, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return p.dialHTTP(ctx, "connect", addr)
		},
	}, func(r *httputil.ProxyRequest) {
		t := keyedTarget(r.In)
		r.Out.URL = &url.URL{Scheme: "https", Host: t.String(), Path: r.In.URL.Path, RawPath: r.In.URL.RawPath, RawQuery: r.In.URL.RawQuery}
		r.Out.Host = t.key
		if t.port != DefaultPort || t.addr.Is6() {
			r.Out.Host = t.String()
		}
		c := p.opt.Credentials[t.key]
		r.Out.Header.Del(c.Header)
		r.Out.Header.Set(c.Header, c.Value)
	})
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		// TRACE gives back what was sent, the added header included (RFC 9110,
		// 9.3.8).
		if r.Method == http.MethodTrace || r.Method == http.MethodConnect || r.URL.IsAbs() {
			http.Error(rw, "aspis: not with this host", http.StatusMethodNotAllowed)
			return
		}
		forward.ServeHTTP(rw, r)
	})
}

// forwarder is the standard library's reverse proxy, which knows the headers
// that belong to one hop, upgrades and trailers.
func (p *Proxy) forwarder(t *http.Transport, rewrite func(*httputil.ProxyRequest)) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: rewrite, Transport: t, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		ErrorHandler: func(rw http.ResponseWriter, _ *http.Request, err error) { answerError(rw, err) },
	}
}

// answerError tells the process which of the two it was and nothing of the
// network around it.
func answerError(rw http.ResponseWriter, err error) {
	if isRefused(err) {
		http.Error(rw, "aspis: "+errRefused.Error(), http.StatusForbidden)
		return
	}
	http.Error(rw, "aspis: "+errUnreachable.Error(), http.StatusBadGateway)
}

func (p *Proxy) dialHTTP(ctx context.Context, via, addr string) (net.Conn, error) {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, errRefused
	}
	port, err := parsePort(portText)
	if err != nil {
		return nil, errRefused
	}
	return p.connect(ctx, newTarget(via, host, port))
}

// serveConnect makes a tunnel.
func (p *Proxy) serveConnect(rw http.ResponseWriter, r *http.Request) {
	host, portText, err := net.SplitHostPort(r.Host)
	port, perr := parsePort(portText)
	served, ok := r.Context().Value(connKey{}).(*servedConn)
	if err != nil || perr != nil || !ok {
		http.Error(rw, "aspis: CONNECT names a host and a port", http.StatusBadRequest)
		return
	}
	t := newTarget("connect", host, port)
	open := func() (*client, error) {
		conn, buffered, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			return nil, err
		}
		if err := conn.SetDeadline(time.Time{}); err != nil {
			return nil, err
		}
		_, err = conn.Write([]byte("HTTP/1.1 200 Connection established\r\n\r\n"))
		return &client{Conn: conn, ahead: buffered.Reader, free: func() {}}, err
	}
	if p.hasCredential(t) {
		c, err := open()
		if err != nil {
			return // the server closes what was not taken over
		}
		served.w.endTLS(r.Context(), c, t)
		return
	}
	up, err := p.connect(r.Context(), t)
	if err != nil {
		answerError(rw, err)
		return
	}
	c, err := open()
	if err != nil {
		_ = up.Close()
		return
	}
	tunnel(c, c, up)
}

// keyedConn is a connection whose TLS the proxy has ended.
type keyedConn struct {
	*tls.Conn
	under net.Conn
	to    target
}

// Close does not wait for the process to take the last word of TLS.
func (k *keyedConn) Close() error { return k.under.Close() }

// endTLS takes the TLS of a connection to a host that has a credential, and
// hands what is inside to the server for those.
func (w *worker) endTLS(ctx context.Context, c *client, t target) {
	refuse := func(why string) {
		w.record.refuse(Attempt{At: time.Now(), Via: t.via, Host: cut(t.host), Port: t.port, Credential: true}, "", why)
		_ = c.Close()
	}
	if !w.listed(t) {
		refuse("the list does not name this host with this port")
		return
	}
	inside := tls.Server(c, w.ca.config(t.key))
	ctx, cancel := context.WithTimeout(ctx, w.opt.HeaderTimeout)
	defer cancel()
	if err := inside.HandshakeContext(ctx); err != nil {
		refuse("the process made no TLS with the proxy, which has a credential for this host: " + err.Error())
		return
	}
	w.keyed.give(&keyedConn{inside, c, t})
}

// listed tells whether the list names a target, before anything is resolved.
func (p *Proxy) listed(t target) bool {
	if t.addr.IsValid() {
		return p.list.namesAddress(t.addr, t.port)
	}
	return p.list.allowsName(t.key, t.port)
}

// keyedTarget is where a request inside such a connection goes.
func keyedTarget(r *http.Request) target {
	k, ok := r.Context().Value(connKey{}).(*keyedConn)
	if !ok { // no other connection is handed to that server
		return target{port: 0}
	}
	return k.to
}
