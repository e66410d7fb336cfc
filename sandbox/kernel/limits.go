package kernel

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Unlimited is the value of a limit that is none.
const Unlimited = math.MaxUint64

// RLimit is one resource limit.
type RLimit struct{ Soft, Hard uint64 }

// ParseLimits reads /proc/<pid>/limits, by the names that it uses, such as
// "Max open files".
func ParseLimits(text string) (map[string]RLimit, error) {
	limits := map[string]RLimit{}
	column := 0
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if column == 0 {
			// Names have spaces; only the heading tells where they end.
			if column = strings.Index(line, "Soft Limit"); column <= 0 {
				return nil, errors.New("limits table has no heading")
			}
			continue
		}
		if len(line) < column {
			return nil, fmt.Errorf("limits line %q", line)
		}
		f := strings.Fields(line[column:])
		if len(f) < 2 {
			return nil, fmt.Errorf("limits line %q", line)
		}
		soft, err := parseLimit(f[0])
		if err != nil {
			return nil, fmt.Errorf("limits line %q: %w", line, err)
		}
		hard, err := parseLimit(f[1])
		if err != nil {
			return nil, fmt.Errorf("limits line %q: %w", line, err)
		}
		limits[strings.TrimSpace(line[:column])] = RLimit{soft, hard}
	}
	return limits, nil
}

func parseLimit(s string) (uint64, error) {
	if s == "unlimited" {
		return Unlimited, nil
	}
	return strconv.ParseUint(s, 10, 64)
}
