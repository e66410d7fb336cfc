package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// event is one line of `go test -json`; see `go doc test2json`.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

type key struct{ pkg, test string }

// rules say which skips are forgiven.
type rules struct {
	strict bool     // forgive only skips for one of facts
	facts  []string // beginnings of what may be missing
}

// summary is what has been seen so far.
type summary struct {
	out       io.Writer
	output    map[key]*tail
	unended   map[string]bool // packages that began and have not ended
	failedIn  map[string]int  // failed tests of a package
	skipped   []key
	packages  int
	pass, bad int
}

// report copies what matters of a test run to w. It is false where something
// failed; an error means that the stream itself cannot be relied on.
func report(r io.Reader, w io.Writer, rules rules) (bool, error) {
	s := summary{out: w, output: map[key]*tail{}, unended: map[string]bool{}, failedIn: map[string]int{}}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), 64<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(w, lines.Text()) // what the go command says of itself is not JSON
			continue
		}
		s.take(e)
	}
	if err := lines.Err(); err != nil {
		return false, fmt.Errorf("read the test run: %w", err)
	}
	for pkg := range s.unended {
		fmt.Fprintf(w, "FAIL  %s began and did not end\n", pkg)
		s.bad++
	}
	skips := s.listSkips(rules)
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", s.pass, s.bad, skips)
	if s.packages == 0 {
		return false, fmt.Errorf("no package was tested")
	}
	return s.bad == 0, nil
}

func (s *summary) take(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "start":
		s.unended[e.Package] = true
	case "output":
		t := s.output[k]
		if t == nil {
			t = &tail{}
			s.output[k] = t
		}
		t.add(e.Output)
	case "build-output":
		fmt.Fprint(s.out, e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.endPackage(e, k)
		} else {
			s.endTest(e, k)
		}
	}
}

func (s *summary) endPackage(e event, k key) {
	delete(s.unended, e.Package)
	s.packages++
	switch {
	case e.Action == "skip":
		fmt.Fprintf(s.out, "?     %s has no tests\n", e.Package)
	case e.Action == "fail" && s.failedIn[e.Package] == 0:
		// Not one test, but the package: it does not build, or ended early.
		s.bad++
		fmt.Fprintf(s.out, "FAIL  %s %.1fs\n%s", e.Package, e.Elapsed, s.output[k])
	case e.Action == "fail":
		fmt.Fprintf(s.out, "FAIL  %s %.1fs\n", e.Package, e.Elapsed)
	default:
		fmt.Fprintf(s.out, "ok    %s %.1fs\n", e.Package, e.Elapsed)
	}
	delete(s.output, k)
}

func (s *summary) endTest(e event, k key) {
	switch e.Action {
	case "pass":
		s.pass++
		delete(s.output, k)
	case "fail":
		s.bad++
		s.failedIn[e.Package]++
		fmt.Fprintf(s.out, "FAIL  %s %s\n%s", e.Package, e.Test, s.output[k])
		delete(s.output, k)
	case "skip":
		s.skipped = append(s.skipped, k)
	}
}

// listSkips prints each skip with its reason, counts the forbidden ones as
// failures and gives the number of the others.
func (s *summary) listSkips(rules rules) int {
	slices.SortFunc(s.skipped, func(a, b key) int {
		return cmp.Or(strings.Compare(a.pkg, b.pkg), strings.Compare(a.test, b.test))
	})
	forgiven := 0
	for _, k := range s.skipped {
		reason := s.output[k].skipReason()
		if rules.allow(reason) {
			forgiven++
			fmt.Fprintf(s.out, "skip  %s %s: %s\n", k.pkg, k.test, reason)
			continue
		}
		s.bad++
		fmt.Fprintf(s.out, "FAIL  %s %s was skipped, which is not allowed here: %s\n", k.pkg, k.test, reason)
	}
	return forgiven
}

func (r rules) allow(reason string) bool {
	if !r.strict {
		return true
	}
	fact, ok := strings.CutPrefix(reason, "needs: ")
	return ok && slices.ContainsFunc(r.facts, func(f string) bool { return strings.HasPrefix(fact, f) })
}
