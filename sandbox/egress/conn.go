package egress

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// upstream is a connection to a destination: what goes over it is counted, and
// it ends when nothing has for a while, or when it has been there too long.
type upstream struct {
	*net.TCPConn
	entry *entry
	idle  time.Duration
	end   time.Time
}

func newUpstream(c net.Conn, e *entry, idle, longest time.Duration) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok { // a dialer of TCP gives nothing else
		return c
	}
	return &upstream{TCPConn: tcp, entry: e, idle: idle, end: time.Now().Add(longest)}
}

// until is the next deadline. Both directions share it, since one that is
// silent is no fault while the other moves.
func (u *upstream) until() error {
	next := time.Now().Add(u.idle)
	if u.end.Before(next) {
		next = u.end
	}
	return u.SetDeadline(next)
}

func (u *upstream) Read(b []byte) (int, error) {
	if err := u.until(); err != nil {
		return 0, err
	}
	n, err := u.TCPConn.Read(b)
	u.entry.received.Add(int64(n))
	return n, err
}

func (u *upstream) Write(b []byte) (int, error) {
	if err := u.until(); err != nil {
		return 0, err
	}
	// Counted before the answer to it can come.
	u.entry.sent.Add(int64(len(b)))
	n, err := u.TCPConn.Write(b)
	u.entry.sent.Add(int64(n - len(b)))
	return n, err
}

// ReadFrom and WriteTo hide those of the TCP connection, which count nothing.
func (u *upstream) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{u}, r) }

// WriteTo is as ReadFrom.
func (u *upstream) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, struct{ io.Reader }{u}) }

// client is a connection from the process. Closing it frees its place, and a
// connection that was looked into gives what was read ahead.
type client struct {
	net.Conn
	ahead  io.Reader // nil when nothing was
	closed sync.Once
	free   func()
}

func (c *client) Read(b []byte) (int, error) {
	if c.ahead != nil {
		return c.ahead.Read(b)
	}
	return c.Conn.Read(b)
}

func (c *client) Close() error {
	err := c.Conn.Close()
	c.closed.Do(c.free)
	return err
}

// CloseWrite tells the process that nothing more will come.
func (c *client) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return nil
}

// tunnel hands bytes both ways until both directions have ended or one has
// failed, and closes both. from is what the process sends.
func tunnel(process net.Conn, from io.Reader, up net.Conn) {
	both := func() { _, _ = process.Close(), up.Close() }
	var copies sync.WaitGroup
	for _, c := range []struct {
		to   net.Conn
		from io.Reader
	}{{up, from}, {process, up}} {
		copies.Go(func() {
			if err := oneWay(c.to, c.from); err != nil {
				both() // the other direction would wait for its idle time
			}
		})
	}
	copies.Wait()
	both()
}

func oneWay(to net.Conn, from io.Reader) error {
	if _, err := io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{from}); err != nil {
		return err
	}
	h, ok := to.(interface{ CloseWrite() error })
	if !ok {
		return errors.New("the other end cannot be told of the end")
	}
	return h.CloseWrite()
}
