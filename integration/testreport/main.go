// Command testreport reads the output of `go test -json`, prints failures in
// full and everything else in one line a package, and lists the skipped tests
// with their reasons. A test may be skipped only for a fact that this machine
// really lacks: its message begins with "needs:", and with CI set the fact must
// be one that ALLOWED_SKIPS names (a comma-separated list of words).
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
)

type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

type key struct{ pkg, test string }

func main() {
	output := map[key][]string{}
	var skipped []key
	passed, failed, badSkips := 0, 0, 0
	s := bufio.NewScanner(os.Stdin)
	s.Buffer(make([]byte, 64<<10), 64<<20)
	for s.Scan() {
		var e event
		if json.Unmarshal(s.Bytes(), &e) != nil {
			fmt.Println(s.Text()) // a build failure is not JSON
			continue
		}
		k := key{e.Package, e.Test}
		switch e.Action {
		case "output":
			if len(output[k]) < 2000 {
				output[k] = append(output[k], e.Output)
			}
		case "build-output":
			fmt.Print(e.Output)
		case "pass", "fail", "skip":
			if e.Test == "" {
				fmt.Printf("%-5s %s %.1fs\n", e.Action, e.Package, e.Elapsed)
				if e.Action == "fail" {
					failed++
					fmt.Print(strings.Join(output[k], ""))
				}
				continue
			}
			switch e.Action {
			case "pass":
				passed++
				delete(output, k)
			case "fail":
				failed++
				fmt.Printf("FAIL %s %s\n%s", e.Package, e.Test, strings.Join(output[k], ""))
			case "skip":
				skipped = append(skipped, k)
			}
		}
	}
	if err := s.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
	sort.Slice(skipped, func(i, j int) bool { return skipped[i].pkg+skipped[i].test < skipped[j].pkg+skipped[j].test })
	for _, k := range skipped {
		reason := reasonOf(output[k])
		verdict := ""
		if os.Getenv("CI") != "" && !allowed(reason) {
			verdict = "  <- this machine has it: the test must run"
			badSkips++
		}
		fmt.Printf("skip  %s %s: %s%s\n", k.pkg, k.test, reason, verdict)
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", passed, failed+badSkips, len(skipped))
	if failed+badSkips > 0 {
		os.Exit(1)
	}
}

// reasonOf finds the message of a skip: "file.go:12: reason".
func reasonOf(lines []string) string {
	for _, l := range lines {
		l = strings.TrimSpace(l)
		if _, msg, ok := strings.Cut(l, ".go:"); ok {
			if _, msg, ok = strings.Cut(msg, ": "); ok {
				return msg
			}
		}
	}
	return "no reason was given"
}

func allowed(reason string) bool {
	fact, ok := strings.CutPrefix(reason, "needs: ")
	if !ok {
		return false
	}
	for _, a := range strings.Split(os.Getenv("ALLOWED_SKIPS"), ",") {
		if a = strings.TrimSpace(a); a != "" && strings.HasPrefix(fact, a) {
			return true
		}
	}
	return false
}
