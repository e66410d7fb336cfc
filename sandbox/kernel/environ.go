package kernel

import "strings"

// ParseEnviron gives the names of the variables in /proc/<pid>/environ, in
// order. An entry without "=" is a name without a value, which the kernel
// allows.
func ParseEnviron(text string) []string {
	var names []string
	for entry := range strings.SplitSeq(text, "\x00") {
		if entry == "" {
			continue
		}
		name, _, _ := strings.Cut(entry, "=")
		names = append(names, name)
	}
	return names
}
