package seccomp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Call is what a filter looks at.
type Call struct {
	Arch uint32 // AUDIT_ARCH_
	Nr   uint32
	Args [6]uint64
}

// errProgram is given for what Compile does not make.
var errProgram = errors.New("not a program of this package's making")

// Decide runs a compiled program on a call. It knows only the instructions
// that Compile uses, and only forward jumps, so that it always ends.
func Decide(bpf []byte, c Call) (Action, error) {
	var data [offsetArgs + 6*sizeArg]byte
	binary.LittleEndian.PutUint32(data[offsetNr:], c.Nr)
	binary.LittleEndian.PutUint32(data[offsetArch:], c.Arch)
	for i, a := range c.Args {
		binary.LittleEndian.PutUint64(data[offsetArgs+i*sizeArg:], a)
	}
	if len(bpf)%8 != 0 || len(bpf)/8 > maxInstructions {
		return 0, errProgram
	}
	var acc uint32
	for pc := uint64(0); pc*8 < uint64(len(bpf)); pc++ {
		i := bpf[pc*8:]
		k := binary.LittleEndian.Uint32(i[4:])
		holds := false
		switch binary.LittleEndian.Uint16(i) {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			if k > uint32(len(data)-4) {
				return 0, errProgram
			}
			acc = binary.LittleEndian.Uint32(data[k:])
			continue
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			acc &= k
			continue
		case unix.BPF_RET | unix.BPF_K:
			return Action(k), nil
		case unix.BPF_JMP | unix.BPF_JA:
			pc += uint64(k)
			continue
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			holds = acc == k
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			holds = acc >= k
		default:
			return 0, errProgram
		}
		if holds {
			pc += uint64(i[2])
		} else {
			pc += uint64(i[3])
		}
	}
	return 0, errProgram
}

// Open gives those of the named calls that a program for this machine lets
// through. A name that the architecture does not have is not one of them.
func Open(bpf []byte, names []string) (open []string, err error) {
	a, err := lookupArch(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	numbers := a.numbers()
	for _, name := range names {
		nr, ok := numbers[name]
		if !ok {
			continue
		}
		action, err := Decide(bpf, Call{Arch: a.audit, Nr: nr})
		if err != nil {
			return nil, fmt.Errorf("run filter: %w", err)
		}
		if !action.Refuses() {
			open = append(open, name)
		}
	}
	return open, nil
}

// Refuses tells whether a call with this result is never carried out.
func (a Action) Refuses() bool {
	switch uint32(a) & unix.SECCOMP_RET_ACTION_FULL {
	case unix.SECCOMP_RET_ERRNO, unix.SECCOMP_RET_KILL_PROCESS, unix.SECCOMP_RET_KILL_THREAD:
		return true
	}
	return false
}
