package kernel

import (
	"fmt"
	"strconv"
	"strings"
)

// Status is what /proc/<pid>/status says, as far as walls need it.
type Status struct {
	UIDs, GIDs [4]uint32 // real, effective, saved, file system; in the reader's user namespace
	Groups     []uint32
	NSpid      []int // outermost first; empty before Linux 4.1
	Threads    int

	CapInh, CapPrm, CapEff, CapBnd, CapAmb uint64

	NoNewPrivs bool
	Seccomp    int // 0 none, 1 strict, 2 filter
	// Filters is how many filters are stacked, or -1 where the kernel does not
	// say (before Linux 5.9).
	Filters int
}

// ParseStatus reads the format of proc_pid_status(5). A field that a wall
// rests on and that is absent is an error: a default could make a wall stand.
func ParseStatus(text string) (Status, error) {
	s := Status{Filters: -1}
	want := map[string]bool{
		"Uid": true, "Gid": true, "Groups": true, "CapInh": true, "CapPrm": true, "CapEff": true,
		"CapBnd": true, "CapAmb": true, "NoNewPrivs": true, "Seccomp": true,
	}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		var err error
		switch key {
		case "Uid":
			err = parseIDs(value, s.UIDs[:])
		case "Gid":
			err = parseIDs(value, s.GIDs[:])
		case "Groups":
			s.Groups, err = parseGroups(value)
		case "NSpid":
			s.NSpid, err = parseNSpid(value)
		case "Threads":
			s.Threads, err = strconv.Atoi(value)
		case "CapInh":
			s.CapInh, err = strconv.ParseUint(value, 16, 64)
		case "CapPrm":
			s.CapPrm, err = strconv.ParseUint(value, 16, 64)
		case "CapEff":
			s.CapEff, err = strconv.ParseUint(value, 16, 64)
		case "CapBnd":
			s.CapBnd, err = strconv.ParseUint(value, 16, 64)
		case "CapAmb":
			s.CapAmb, err = strconv.ParseUint(value, 16, 64)
		case "NoNewPrivs":
			var n uint64
			n, err = strconv.ParseUint(value, 10, 8)
			s.NoNewPrivs = n == 1
		case "Seccomp":
			s.Seccomp, err = strconv.Atoi(value)
		case "Seccomp_filters":
			s.Filters, err = strconv.Atoi(value)
		}
		if err != nil {
			return Status{}, fmt.Errorf("status field %s: %w", key, err)
		}
		delete(want, key)
	}
	for key := range want {
		return Status{}, fmt.Errorf("status has no field %s", key)
	}
	return s, nil
}

func parseIDs(value string, ids []uint32) error {
	f := strings.Fields(value)
	if len(f) != len(ids) {
		return fmt.Errorf("%d ids where %d belong", len(f), len(ids))
	}
	for i, s := range f {
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			return err
		}
		ids[i] = uint32(n)
	}
	return nil
}

func parseGroups(value string) ([]uint32, error) {
	f := strings.Fields(value)
	groups := make([]uint32, len(f))
	return groups, parseIDs(value, groups)
}

func parseNSpid(value string) ([]int, error) {
	var pids []int
	for s := range strings.FieldsSeq(value) {
		n, err := strconv.Atoi(s)
		if err != nil {
			return nil, err
		}
		pids = append(pids, n)
	}
	return pids, nil
}
