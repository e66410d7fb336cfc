package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"
)

// SOCKS version 5 as RFC 1928 has it: no authentication, and CONNECT alone.
const (
	socksVersion = 5

	socksNoAuth   = 0x00
	socksNoMethod = 0xff
	socksConnect  = 1

	socksIPv4 = 1
	socksName = 3
	socksIPv6 = 4

	socksDone        = 0
	socksNotAllowed  = 2
	socksUnreachable = 4
	socksBadCommand  = 7
	socksBadAddress  = 8
)

// socksError is an answer that ends the conversation.
type socksError struct {
	code byte // 0 where there is nothing to answer
	why  string
}

func (e *socksError) Error() string { return e.why }

// readSocks reads the greeting and the request, and answers the greeting. It
// reads at most 257 and 262 bytes of them.
func readSocks(rw io.ReadWriter) (target, error) {
	var b [257]byte
	if _, err := io.ReadFull(rw, b[:2]); err != nil {
		return target{}, fmt.Errorf("read greeting: %w", err)
	}
	if b[0] != socksVersion {
		return target{}, &socksError{why: "another version"}
	}
	methods := b[2 : 2+int(b[1])]
	if _, err := io.ReadFull(rw, methods); err != nil {
		return target{}, fmt.Errorf("read methods: %w", err)
	}
	method := byte(socksNoMethod)
	for _, m := range methods {
		if m == socksNoAuth {
			method = socksNoAuth
		}
	}
	if _, err := rw.Write([]byte{socksVersion, method}); err != nil {
		return target{}, fmt.Errorf("answer greeting: %w", err)
	}
	if method == socksNoMethod {
		return target{}, &socksError{why: "no method without a password"}
	}
	if _, err := io.ReadFull(rw, b[:4]); err != nil {
		return target{}, fmt.Errorf("read request: %w", err)
	}
	if b[0] != socksVersion || b[2] != 0 {
		return target{}, &socksError{why: "not a request of version 5"}
	}
	command, kind := b[1], b[3]
	host, err := readSocksHost(rw, kind, b[:])
	if err != nil {
		return target{}, err
	}
	if _, err := io.ReadFull(rw, b[:2]); err != nil {
		return target{}, fmt.Errorf("read port: %w", err)
	}
	if command != socksConnect {
		return target{}, &socksError{socksBadCommand, "not a CONNECT"}
	}
	return newTarget("socks5", host, binary.BigEndian.Uint16(b[:2])), nil
}

func readSocksHost(r io.Reader, kind byte, b []byte) (string, error) {
	size := 0
	switch kind {
	case socksIPv4:
		size = 4
	case socksIPv6:
		size = 16
	case socksName:
		if _, err := io.ReadFull(r, b[:1]); err != nil {
			return "", fmt.Errorf("read name: %w", err)
		}
		size = int(b[0])
	default:
		return "", &socksError{socksBadAddress, "an unknown kind of address"}
	}
	if _, err := io.ReadFull(r, b[:size]); err != nil {
		return "", fmt.Errorf("read address: %w", err)
	}
	if kind == socksName {
		return string(b[:size]), nil
	}
	a, _ := netip.AddrFromSlice(b[:size]) // 4 or 16 bytes
	return a.String(), nil
}

func socksAnswer(code byte) []byte {
	return []byte{socksVersion, code, 0, socksIPv4, 0, 0, 0, 0, 0, 0}
}

// socks serves one connection and closes it.
func (w *worker) socks(ctx context.Context, c *client) {
	t, err := readSocks(c)
	if err != nil {
		var wrong *socksError
		if errors.As(err, &wrong) && wrong.code != 0 {
			_, _ = c.Write(socksAnswer(wrong.code)) // closed next, whatever becomes of it
		}
		_ = c.Close()
		return
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		_ = c.Close()
		return
	}
	if w.hasCredential(t) {
		if _, err := c.Write(socksAnswer(socksDone)); err != nil {
			_ = c.Close()
			return
		}
		w.endTLS(ctx, c, t)
		return
	}
	up, err := w.connect(ctx, t)
	code := byte(socksDone)
	switch {
	case isRefused(err):
		code = socksNotAllowed
	case err != nil:
		code = socksUnreachable
	}
	if _, werr := c.Write(socksAnswer(code)); err != nil || werr != nil {
		if up != nil {
			_ = up.Close()
		}
		_ = c.Close()
		return
	}
	tunnel(c, c, up)
}

func isRefused(err error) bool { return errors.Is(err, errRefused) }
