package kernel

import (
	"fmt"
	"strconv"
	"strings"
)

// IDMap is how a user namespace's ids are those of another.
type IDMap []IDRange

// IDRange maps Count ids from Inside on to those from Outside on.
type IDRange struct{ Inside, Outside, Count uint32 }

// maxRanges is the kernel's own limit (UID_GID_MAP_MAX_EXTENTS).
const maxRanges = 340

// ParseIDMap reads the format of uid_map and gid_map, user_namespaces(7).
func ParseIDMap(text string) (IDMap, error) {
	var m IDMap
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		var v [3]uint32
		if len(f) != len(v) || len(m) == maxRanges {
			return nil, fmt.Errorf("id map line %q", line)
		}
		for i := range v {
			n, err := strconv.ParseUint(f[i], 10, 32)
			if err != nil {
				return nil, fmt.Errorf("id map line %q: %w", line, err)
			}
			v[i] = uint32(n)
		}
		r := IDRange{v[0], v[1], v[2]}
		if r.Count == 0 || uint64(r.Inside)+uint64(r.Count) > 1<<32 || uint64(r.Outside)+uint64(r.Count) > 1<<32 {
			return nil, fmt.Errorf("id map line %q is no range of ids", line)
		}
		m = append(m, r)
	}
	return m, nil
}

// Outside translates an id of the namespace.
func (m IDMap) Outside(inside uint32) (outside uint32, ok bool) {
	for _, r := range m {
		if inside >= r.Inside && inside-r.Inside < r.Count {
			return r.Outside + (inside - r.Inside), true
		}
	}
	return 0, false
}

// Inside translates an id into the namespace.
func (m IDMap) Inside(outside uint32) (inside uint32, ok bool) {
	for _, r := range m {
		if outside >= r.Outside && outside-r.Outside < r.Count {
			return r.Inside + (outside - r.Outside), true
		}
	}
	return 0, false
}

// Size is how many ids the namespace has.
func (m IDMap) Size() (n uint64) {
	for _, r := range m {
		n += uint64(r.Count)
	}
	return n
}

func (m IDMap) String() string {
	var parts []string
	for i, r := range m {
		if i == 4 {
			parts = append(parts, fmt.Sprintf("and %d more", len(m)-i))
			break
		}
		parts = append(parts, fmt.Sprintf("%d->%d x%d", r.Inside, r.Outside, r.Count))
	}
	return strings.Join(parts, ", ")
}
