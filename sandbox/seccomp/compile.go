package seccomp

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data. The low half of an argument comes first on
// the little-endian architectures that there are tables for.
const (
	offsetNr   = 0
	offsetArch = 4
	offsetArgs = 16
	sizeArg    = 8
)

// maxInstructions is the kernel's limit (BPF_MAXINSNS).
const maxInstructions = 4096

// Compile translates a profile for an architecture in Go's spelling into the
// instructions that the kernel takes: struct sock_filter records, 8 bytes
// each, in little-endian order.
//
// Neighbouring calls with the same verdict become one range, and the ranges
// are found by halving, so that any call costs about as many comparisons as
// the logarithm of their number. A call of another architecture ends the
// process: it could mean anything there. The calls of the x32 interface have
// numbers beyond every table and are unknown by that.
func Compile(p Profile, arch string) ([]byte, error) {
	a, err := lookupArch(arch)
	if err != nil {
		return nil, err
	}
	calls, err := p.calls(arch)
	if err != nil {
		return nil, err
	}
	code := []unix.SockFilter{
		load(offsetArch),
		jump(unix.BPF_JEQ, a.audit, 1, 0),
		result(ActionKill),
		load(offsetNr),
	}
	code = append(code, search(ranges(calls))...)
	if len(code) > maxInstructions {
		return nil, fmt.Errorf("profile needs %d instructions, the kernel takes %d", len(code), maxInstructions)
	}
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, code); err != nil {
		return nil, fmt.Errorf("encode program: %w", err)
	}
	return b.Bytes(), nil
}

// span is the calls from a number on, up to the next span.
type span struct {
	from    uint32
	verdict verdict
}

// ranges joins neighbours. Numbers between and after the known ones are of
// calls that nobody knows.
func ranges(calls []call) []span {
	unknown := verdict{otherwise: ActionENOSYS}
	var spans []span
	add := func(from uint32, v verdict) {
		if n := len(spans); n == 0 || !spans[n-1].verdict.equal(v) {
			spans = append(spans, span{from, v})
		}
	}
	next := uint32(0)
	for _, c := range calls {
		if c.nr > next {
			add(next, unknown)
		}
		add(c.nr, c.verdict)
		next = c.nr + 1
	}
	add(next, unknown)
	return spans
}

// search finds the span of the number in the accumulator.
func search(spans []span) []unix.SockFilter {
	if len(spans) == 1 {
		return leaf(spans[0].verdict)
	}
	middle := len(spans) / 2
	low, high := search(spans[:middle]), search(spans[middle:])
	var code []unix.SockFilter
	if len(low) <= 255 {
		code = append(code, jump(unix.BPF_JGE, spans[middle].from, uint8(len(low)), 0))
	} else { // a conditional jump has one byte for the distance
		code = append(code,
			jump(unix.BPF_JGE, spans[middle].from, 0, 1),
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(len(low))})
	}
	return append(append(code, low...), high...)
}

// leaf decides about one call.
func leaf(v verdict) []unix.SockFilter {
	var code []unix.SockFilter
	for i, t := range v.tests {
		if i == 0 || v.tests[i-1].arg != t.arg || v.tests[i-1].mask != whole {
			code = append(code, load(offsetArgs+uint32(t.arg)*sizeArg))
		}
		if t.mask != whole {
			code = append(code, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: t.mask})
		}
		code = append(code, jump(unix.BPF_JEQ, t.value, 0, 1), result(t.then))
	}
	return append(code, result(v.otherwise))
}

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func jump(how uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | how | unix.BPF_K, Jt: yes, Jf: no, K: k}
}

func result(a Action) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: uint32(a)}
}
