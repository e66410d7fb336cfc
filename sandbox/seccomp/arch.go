package seccomp

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// architecture is what a filter must know of one.
type architecture struct {
	audit uint32 // the kernel's name for it, AUDIT_ARCH_
	table string // "name=number" words
}

// Architectures gives those that profiles can be compiled for, in Go's
// spelling.
func Architectures() []string { return []string{"amd64", "arm64"} }

func lookupArch(name string) (architecture, error) {
	switch name {
	case "amd64":
		return architecture{unix.AUDIT_ARCH_X86_64, amd64Calls}, nil
	case "arm64":
		return architecture{unix.AUDIT_ARCH_AARCH64, arm64Calls}, nil
	}
	return architecture{}, fmt.Errorf("no system call filter is known for the architecture %q", name)
}

// numbers reads the table, which a test holds against its source.
func (a architecture) numbers() map[string]uint32 {
	m := make(map[string]uint32, 400)
	for word := range strings.FieldsSeq(a.table) {
		name, number, _ := strings.Cut(word, "=")
		if n, err := strconv.ParseUint(number, 10, 32); err == nil {
			m[name] = uint32(n)
		}
	}
	return m
}
