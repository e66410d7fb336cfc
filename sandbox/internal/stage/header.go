package stage

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Header is what the host tells the first stage, over its standard input,
// before it is let go.
type Header struct {
	Path   string   // the program to become, inside the container
	Args   []string // its argv, Args[0] included
	Filter []byte   // a seccomp program: struct sock_filter records in host byte order; empty loads none
	// KeepFiles leaves files above standard error open. A host sets it only
	// when it deliberately builds a container without that wall.
	KeepFiles bool
	// Reap makes the program the parent of its tree's orphans, so that they
	// can still be found below it. In a pid namespace the kernel does so anyway.
	Reap bool
}

const (
	// maxHeader bounds the header; argv and a BPF program of the kernel's
	// largest size (BPF_MAXINSNS times 8 bytes) fit several times over.
	maxHeader  = 1 << 20
	maxStrings = 4096
	filterUnit = 8 // sizeof(struct sock_filter)

	flagKeepFiles = 1
	flagReap      = 2
)

// Ready and Refused are the two frames, of equal length, that the first stage
// writes to standard output: Ready when it only waits for Go, Refused followed
// by a sentence and the end of the stream when it cannot go on.
const (
	Ready   = "aspis-stage:ready\n"
	Refused = "aspis-stage:error\n"
)

// Go is the byte that releases the first stage.
const Go = 'g'

// Encode gives the length-prefixed form that Decode reads.
func (h Header) Encode() ([]byte, error) {
	if len(h.Filter)%filterUnit != 0 {
		return nil, fmt.Errorf("seccomp program of %d bytes is not a whole number of instructions", len(h.Filter))
	}
	b := make([]byte, 4, 4+len(h.Path)+len(h.Filter)+64)
	var flags byte
	if h.KeepFiles {
		flags |= flagKeepFiles
	}
	if h.Reap {
		flags |= flagReap
	}
	b = append(b, flags)
	b = appendBytes(b, []byte(h.Path))
	b = appendBytes(b, h.Filter)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(h.Args)))
	for _, a := range h.Args {
		b = appendBytes(b, []byte(a))
	}
	if len(b)-4 > maxHeader {
		return nil, fmt.Errorf("first stage header of %d bytes is over the limit of %d", len(b)-4, maxHeader)
	}
	if len(h.Args) == 0 || len(h.Args) > maxStrings {
		return nil, fmt.Errorf("argument vector has %d entries, want 1 to %d", len(h.Args), maxStrings)
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	return b, nil
}

func appendBytes(b, s []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

var errShort = errors.New("first stage header is cut short")

// decode reads what follows the length prefix.
func decode(b []byte) (Header, error) {
	var h Header
	if len(b) < 1 {
		return h, errShort
	}
	h.KeepFiles = b[0]&flagKeepFiles != 0
	h.Reap = b[0]&flagReap != 0
	b = b[1:]
	var path []byte
	var err error
	if path, b, err = cutBytes(b); err != nil {
		return h, err
	}
	h.Path = string(path)
	if h.Filter, b, err = cutBytes(b); err != nil {
		return h, err
	}
	if len(h.Filter)%filterUnit != 0 {
		return h, errors.New("seccomp program is not a whole number of instructions")
	}
	if len(b) < 4 {
		return h, errShort
	}
	n := binary.LittleEndian.Uint32(b)
	b = b[4:]
	if n == 0 || n > maxStrings {
		return h, fmt.Errorf("argument vector has %d entries", n)
	}
	h.Args = make([]string, n)
	for i := range h.Args {
		var s []byte
		if s, b, err = cutBytes(b); err != nil {
			return h, err
		}
		h.Args[i] = string(s)
	}
	if len(b) != 0 {
		return h, fmt.Errorf("first stage header has %d bytes too many", len(b))
	}
	return h, nil
}

func cutBytes(b []byte) (s, rest []byte, err error) {
	if len(b) < 4 {
		return nil, nil, errShort
	}
	n := binary.LittleEndian.Uint32(b)
	b = b[4:]
	if uint64(n) > uint64(len(b)) {
		return nil, nil, errShort
	}
	return b[:n], b[n:], nil
}
