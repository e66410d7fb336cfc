package container

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Identity says what this process is to the kernel, as far as building
// sandboxes is concerned. It is read from the kernel, not remembered.
type Identity struct {
	Root   bool   // user 0 of the present user namespace
	UserNS bool   // the present user namespace is not the machine's
	Ids    string // "all" on the machine itself; in a user namespace "range" (enough ids for an unprivileged user inside) or "single"
	HostID int    // the machine's user id that user 0 stands for; -1 if none
}

// idRange is one line of uid_map: count ids from inside, seen outside as from outside.
type idRange struct{ inside, outside, count int64 }

// fullMap is the size of the machine's own id map.
const fullMap = 1<<32 - 1

// CurrentIdentity reads it.
func CurrentIdentity() (Identity, error) {
	m, err := readIDMap("/proc/self/uid_map")
	if err != nil {
		return Identity{}, err
	}
	id := Identity{Root: os.Geteuid() == 0, HostID: -1}
	for _, r := range m {
		if r.inside == 0 {
			id.HostID = int(r.outside)
		}
	}
	switch {
	case len(m) == 1 && m[0] == (idRange{0, 0, fullMap}):
		id.Ids = "all"
	case contiguous(m) > providerID:
		id.UserNS, id.Ids = true, "range"
	default:
		id.UserNS, id.Ids = true, "single"
	}
	return id, nil
}

// contiguous is the number of ids from 0 upwards that are mapped without a gap.
func contiguous(m []idRange) int64 {
	var n int64
	for grown := true; grown; {
		grown = false
		for _, r := range m {
			if r.inside <= n && r.inside+r.count > n {
				n, grown = r.inside+r.count, true
			}
		}
	}
	return n
}

func readIDMap(path string) ([]idRange, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read id map: %w", err)
	}
	var out []idRange
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) != 3 {
			return nil, fmt.Errorf("id map %s has the line %q", path, sc.Text())
		}
		var n [3]int64
		for i := range f {
			if n[i], err = strconv.ParseInt(f[i], 10, 64); err != nil {
				return nil, fmt.Errorf("id map %s: %w", path, err)
			}
		}
		out = append(out, idRange{n[0], n[1], n[2]})
	}
	return out, sc.Err()
}
