package supervise

import (
	"fmt"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/aspis-dev/aspis/schemas"
)

// everything is the glob that covers every path.
const everything = "**"

// Narrow makes the grant out of what a provider asks and the most that trusted
// configuration allows. It never widens: a path is readable only when both the
// request and the ceiling cover it, and a limit is the smaller of the two.
// Writing is never granted. Asking for the network without saying where is a
// breach of contract (asp-wire, Permissions).
func Narrow(asked *schemas.Permissions, ceiling schemas.Permissions) (schemas.Permissions, error) {
	no := false
	grant := schemas.Permissions{Write: &no, Network: &no, ResourceLimits: &schemas.ResourceLimits{}}
	var want schemas.Permissions
	if asked != nil {
		want = *asked
	}
	if want.Network != nil && *want.Network && len(want.NetworkAllowlist) == 0 {
		return grant, fmt.Errorf("it asks for the network without an allow-list")
	}
	for _, g := range slices.Concat(want.Read, ceiling.Read) {
		if !doublestar.ValidatePattern(strings.TrimPrefix(g, "!")) {
			return grant, fmt.Errorf("read glob %q is not valid", g)
		}
	}
	grant.Read = intersect(want.Read, ceiling.Read)
	var asks schemas.ResourceLimits
	if want.ResourceLimits != nil {
		asks = *want.ResourceLimits
	}
	var most schemas.ResourceLimits
	if ceiling.ResourceLimits != nil {
		most = *ceiling.ResourceLimits
	}
	grant.ResourceLimits = &schemas.ResourceLimits{
		CPUPct:      smaller(asks.CPUPct, most.CPUPct),
		MemoryMB:    smaller(asks.MemoryMB, most.MemoryMB),
		WallclockMs: smaller(asks.WallclockMs, most.WallclockMs),
		FD:          smaller(asks.FD, most.FD),
	}
	return grant, nil
}

func smaller(a, b *int) *int {
	switch {
	case a == nil:
		return b
	case b == nil || *a < *b:
		return a
	default:
		return b
	}
}

// intersect keeps a positive glob when the other side has the same one or
// covers everything, and every exclusion of either side. Globs cannot be
// intersected in general; what this leaves out is only ever too much.
func intersect(a, b []string) []string {
	var out []string
	keep := func(from, other []string) {
		for _, g := range from {
			if strings.HasPrefix(g, "!") {
				continue
			}
			if (slices.Contains(other, g) || slices.Contains(other, everything)) && !slices.Contains(out, g) {
				out = append(out, g)
			}
		}
	}
	keep(a, b)
	keep(b, a)
	for _, g := range slices.Concat(a, b) {
		if strings.HasPrefix(g, "!") && !slices.Contains(out, g) {
			out = append(out, g)
		}
	}
	return out
}

// Readable reports whether path lies inside the read globs: matched by one
// that is positive and by none that excludes. An empty list grants nothing.
func Readable(globs []string, path string) bool {
	in := false
	for _, g := range globs {
		if ex, ok := strings.CutPrefix(g, "!"); ok {
			if doublestar.MatchUnvalidated(ex, path) {
				return false
			}
			continue
		}
		in = in || doublestar.MatchUnvalidated(g, path)
	}
	return in
}
