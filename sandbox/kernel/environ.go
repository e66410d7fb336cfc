package kernel

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// splitEnviron gives the entries of /proc/<pid>/environ, in order.
func splitEnviron(text string) []string {
	var entries []string
	for entry := range strings.SplitSeq(text, "\x00") {
		if entry != "" {
			entries = append(entries, entry)
		}
	}
	return entries
}

// parseFlags finds the open flags in /proc/<pid>/fdinfo/<fd>.
func parseFlags(text string) (int, error) {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, "flags:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(v), 8, 31)
			if err != nil {
				return 0, fmt.Errorf("open flags: %w", err)
			}
			return int(n), nil
		}
	}
	return 0, errors.New("no open flags")
}
