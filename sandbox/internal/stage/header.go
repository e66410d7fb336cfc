package stage

// #include "first_stage.h"
import "C"

import (
	"encoding/binary"
	"fmt"
	"strings"
)

const (
	// Marker as the only argument makes the program run as the first stage.
	Marker = C.STAGE_MARKER
	// Path is where the program finds itself inside the container.
	Path = "/.aspis/stage"
	// Loader is where a dynamically linked build finds its loader there.
	Loader = C.STAGE_LOADER

	// Ready and Refused are the two frames, of equal length, that the first
	// stage writes to standard output: Ready when it only waits for Go,
	// Refused followed by a sentence and the end of the stream when it cannot
	// go on.
	Ready   = C.STAGE_READY
	Refused = C.STAGE_REFUSED

	// Go is the byte that releases the first stage.
	Go = C.STAGE_GO
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
	// Init leaves an init behind, of which the program is a child.
	Init bool
}

// Encode gives the form that the first stage reads: the size of the rest, the
// four words of its struct header, the filter, then path and arguments with a
// zero after each. All words are of 32 bits in host byte order.
func (h Header) Encode() ([]byte, error) {
	if len(h.Args) == 0 || len(h.Args) > C.STAGE_MAX_ARGS {
		return nil, fmt.Errorf("argument vector has %d entries, want 1 to %d", len(h.Args), C.STAGE_MAX_ARGS)
	}
	size := 0
	for _, s := range append([]string{h.Path}, h.Args...) {
		if strings.IndexByte(s, 0) >= 0 {
			return nil, fmt.Errorf("argument %q has a zero byte", s)
		}
		size += len(s) + 1
	}
	var flags uint32
	if h.KeepFiles {
		flags |= C.STAGE_KEEP_FILES
	}
	if h.Reap {
		flags |= C.STAGE_REAP
	}
	if h.Init {
		flags |= C.STAGE_INIT
	}
	const words = 4 * 4
	total := words + len(h.Filter) + size
	if total > C.STAGE_MAX_HEADER {
		return nil, fmt.Errorf("first stage header of %d bytes is over the limit of %d", total, C.STAGE_MAX_HEADER)
	}
	b := make([]byte, 0, 4+total)
	for _, w := range []uint32{uint32(total), flags, uint32(len(h.Filter)), uint32(len(h.Args)), uint32(size)} {
		b = binary.NativeEndian.AppendUint32(b, w)
	}
	b = append(b, h.Filter...)
	for _, s := range append([]string{h.Path}, h.Args...) {
		b = append(append(b, s...), 0)
	}
	return b, nil
}
