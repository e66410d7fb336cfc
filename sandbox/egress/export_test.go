package egress

import "io"

// ReadSocks is the parser of SOCKS requests, for its fuzz test.
func ReadSocks(rw io.ReadWriter) (host string, port uint16, err error) {
	t, err := readSocks(rw)
	return t.host, t.port, err
}
