package main

import (
	"fmt"
	"strings"
)

// tail keeps the first and the last lines of what a test printed: the first tell
// what it did, the last why it ended, and a test that prints without end fills
// no memory.
type tail struct {
	first, last []string
	dropped     int
}

const keep = 500 // lines at either end

func (t *tail) add(line string) {
	if len(t.first) < keep {
		t.first = append(t.first, line)
		return
	}
	t.last = append(t.last, line)
	if len(t.last) == 2*keep {
		t.last = append([]string(nil), t.last[keep:]...)
		t.dropped += keep
	}
}

func (t *tail) String() string {
	if t == nil {
		return ""
	}
	middle := ""
	if t.dropped > 0 {
		middle = fmt.Sprintf("[%d lines are left out here]\n", t.dropped)
	}
	return strings.Join(t.first, "") + middle + strings.Join(t.last, "")
}

// skipReason finds the message of a skip, which is the last thing that a skipped
// test logs: "    file_test.go:12: message".
func (t *tail) skipReason() string {
	if t != nil {
		for _, lines := range [][]string{t.last, t.first} {
			for i := len(lines) - 1; i >= 0; i-- {
				if _, rest, ok := strings.Cut(lines[i], ".go:"); ok {
					if _, message, ok := strings.Cut(rest, ": "); ok {
						return strings.TrimSpace(message)
					}
				}
			}
		}
	}
	return "no reason was given"
}
