package hygiene

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// binaryProbe is how much is looked at to tell binary from text, as git does.
const binaryProbe = 8000

func isBinary(b []byte) bool {
	return bytes.IndexByte(b[:min(len(b), binaryProbe)], 0) >= 0
}

// scanText applies the rules that look at lines.
func scanText(path string, content []byte) []hit {
	var hits []hit
	var open bool // a <<<<<<< has been seen and no >>>>>>> yet
	var pending []hit
	n := 0
	for raw := range bytes.Lines(content) {
		line := string(bytes.TrimRight(raw, "\r\n"))
		if n == 0 {
			line = strings.TrimPrefix(line, "\uFEFF")
		}
		switch marker := conflictMarker(line); {
		case marker == '<':
			open, pending = true, []hit{conflictHit(path, n, line)}
		case marker == '=' && open:
			pending = append(pending, conflictHit(path, n, line))
		case marker == '>' && open:
			hits = append(hits, append(pending, conflictHit(path, n, line))...)
			open, pending = false, nil
		}
		hits = append(hits, hiddenCharacters(path, n, line)...)
		n++
	}
	if open && len(pending) > 1 {
		// An opening marker and a separator are no accident either.
		hits = append(hits, pending...)
	}
	return hits
}

// conflictMarker returns the character of a merge marker line, or 0.
func conflictMarker(line string) byte {
	for _, c := range []byte{'<', '=', '>'} {
		seven := strings.Repeat(string(c), 7)
		if line == seven || strings.HasPrefix(line, seven+" ") {
			return c
		}
	}
	return 0
}

func conflictHit(path string, n int, line string) hit {
	return hit{rule: ruleConflict, path: path, line: n, start: 0, end: 7, key: line,
		message: fmt.Sprintf("a merge conflict marker (%s)", line[:7])}
}

// hiddenCharacters finds bidirectional controls and characters without width.
func hiddenCharacters(path string, n int, line string) []hit {
	if ascii(line) {
		return nil
	}
	var hits []hit
	col := 0
	for _, r := range line {
		width := 1
		if r > 0xFFFF {
			width = 2
		}
		rule := ""
		switch {
		case r == 0x061C || r == 0x200E || r == 0x200F || (r >= 0x202A && r <= 0x202E) || (r >= 0x2066 && r <= 0x2069):
			rule = ruleBidi
		case r == 0x00AD || r == 0x200B || r == 0x2060 || r == 0xFEFF || r == 0x180E || (r >= 0x2061 && r <= 0x2064) || (r >= 0xE0000 && r <= 0xE007F) || r == 0x3164 || r == 0xFFA0:
			rule = ruleInvisible
		}
		if rule != "" {
			hits = append(hits, hit{rule: rule, path: path, line: n, start: col, end: col + width,
				key: fmt.Sprintf("%U in %s", r, strings.TrimSpace(line)), message: fmt.Sprintf("the invisible character %U", r)})
			if len(hits) == 20 {
				break
			}
		}
		col += width
	}
	return hits
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// utf16Len counts UTF-16 code units; a byte that is not UTF-8 counts one.
func utf16Len(s string) int {
	n := 0
	for _, r := range s {
		n++
		if r > 0xFFFF {
			n++
		}
	}
	return n
}
