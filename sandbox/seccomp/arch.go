package seccomp

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// architecture is what a filter must know of one.
type architecture struct {
	audit   uint32 // the kernel's name for it, AUDIT_ARCH_
	numbers func() map[string]uint32
}

// The tables are read when they are first needed, never at a start.
var (
	amd64 = architecture{unix.AUDIT_ARCH_X86_64, sync.OnceValue(func() map[string]uint32 { return readTable(amd64Calls) })}
	arm64 = architecture{unix.AUDIT_ARCH_AARCH64, sync.OnceValue(func() map[string]uint32 { return readTable(arm64Calls) })}
)

// Architectures gives those that profiles can be compiled for, in Go's
// spelling.
func Architectures() []string { return []string{"amd64", "arm64"} }

func lookupArch(name string) (architecture, error) {
	switch name {
	case "amd64":
		return amd64, nil
	case "arm64":
		return arm64, nil
	}
	return architecture{}, fmt.Errorf("no system call filter is known for the architecture %q", name)
}

// readTable reads "name=number" words. A test holds them against their source.
func readTable(table string) map[string]uint32 {
	m := make(map[string]uint32, 400)
	for word := range strings.FieldsSeq(table) {
		name, number, _ := strings.Cut(word, "=")
		if n, err := strconv.ParseUint(number, 10, 32); err == nil {
			m[name] = uint32(n)
		}
	}
	return m
}
