// Command testreport reads the output of `go test -json`, prints failures in
// full and everything else in one line a package, lists the skipped tests with
// their reasons, and ends with one line: N passed, N failed, N skipped.
//
// A test may be skipped only for a fact that the machine lacks: its message
// begins with "needs:". With CI set, the fact must also begin with one of those
// that ALLOWED_SKIPS names (separated by commas), because a test that silently
// stops running on the machine that guards the project guards nothing.
//
// It fails on a failed test, on a skip that is not allowed, and on a stream that
// ends before each package has: what was not seen to pass has not passed.
package main

import (
	"fmt"
	"os"
	"strings"
)

func main() {
	rules := rules{strict: os.Getenv("CI") != ""}
	for fact := range strings.SplitSeq(os.Getenv("ALLOWED_SKIPS"), ",") {
		if fact = strings.TrimSpace(fact); fact != "" {
			rules.facts = append(rules.facts, fact)
		}
	}
	ok, err := report(os.Stdin, os.Stdout, rules)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}
