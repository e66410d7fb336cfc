package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/aspis-dev/aspis/integration/vm/matrix"
)

// result is one machine with what is wrong about it.
type result struct {
	Cell   matrix.Cell
	Report matrix.Report
	Doctor doctor // as far as it could be read
	Gate   verdict
	Strict verdict
	Wrong  []string
	Took   float64 // seconds, everything included
}

// doctor is what aspis doctor tells.
type doctor struct {
	Mode   string
	WhyNot string
	// Machine is what else was tried.
	Machine []struct {
		Name string
		OK   bool
		Fix  string
	}
	Walls []struct {
		Name     string
		Standing bool
		Seen     string
		Fix      string
	}
}

// verdict is what aspis check tells.
type verdict struct {
	Decision  string
	Assurance struct{ Mode, Detail string }
	Coverage  struct {
		Degraded []struct{ Reason, Detail string }
	}
}

func (d doctor) missing() []string {
	var names []string
	for _, w := range d.Walls {
		if !w.Standing {
			names = append(names, w.Name)
		}
	}
	return names
}

// advice is everything that a person is told to do.
func (d doctor) advice() string {
	var b strings.Builder
	b.WriteString(d.WhyNot)
	for _, m := range d.Machine {
		if !m.OK {
			b.WriteString("\n" + m.Fix)
		}
	}
	for _, w := range d.Walls {
		if !w.Standing {
			b.WriteString("\n" + w.Fix)
		}
	}
	return b.String()
}

// judge holds a machine's report against what it must be.
func judge(c matrix.Cell, r matrix.Report, err error) result {
	res := result{Cell: c, Report: r}
	wrong := func(format string, args ...any) { res.Wrong = append(res.Wrong, fmt.Sprintf(format, args...)) }
	if err != nil {
		wrong("%v", err)
		return res
	}
	if r.Fault != "" || r.Cell != c.Name {
		wrong("the machine %q: %s", r.Cell, r.Fault)
		return res
	}
	for _, p := range []struct {
		name string
		cmd  matrix.Command
		into any
	}{{"doctor", r.Doctor, &res.Doctor}, {"check", r.Check, &res.Gate}, {"check that requires isolation", r.Require, &res.Strict}} {
		if err := json.Unmarshal([]byte(p.cmd.Stdout), p.into, json.MatchCaseInsensitiveNames(true)); err != nil {
			wrong("aspis %s: exit code %d: %v\n%s%s", p.name, p.cmd.Code, err, p.cmd.Stdout, p.cmd.Stderr)
		}
	}
	if len(res.Wrong) > 0 {
		return res
	}
	w, d := c.Want, res.Doctor
	mode := d.Mode
	if d.WhyNot != "" {
		mode = ""
	}
	if mode != w.Mode {
		wrong("the mode is %q, not %q; %s", mode, w.Mode, d.WhyNot)
	}
	missing, want := d.missing(), slices.Clone(w.Missing)
	slices.Sort(missing)
	slices.Sort(want)
	if !slices.Equal(missing, want) {
		wrong("the walls missing are %v, not %v", missing, want)
	}
	for _, wall := range d.Walls {
		if !wall.Standing && (wall.Fix == "" || wall.Seen == "") {
			wrong("nobody is told what to do about %s", wall.Name)
		}
	}
	if !strings.Contains(d.advice(), w.Remedy) {
		wrong("the remedy told is %q and has not %q", d.advice(), w.Remedy)
	}
	if code := map[bool]int{true: 0, false: 2}[w.Mode == "isolated"]; r.Doctor.Code != code {
		wrong("doctor ends with %d, not %d", r.Doctor.Code, code)
	}
	res.judgeGates(wrong)
	res.judgeTests(wrong)
	return res
}

// judgeGates: no gate claims more than the walls earn, and none that requires
// more than there is lets a change in.
func (res *result) judgeGates(wrong func(string, ...any)) {
	w := res.Cell.Want
	able := !w.NoSnapshots
	for _, g := range []struct {
		name  string
		v     verdict
		code  int
		allow bool
	}{
		{"the gate", res.Gate, res.Report.Check.Code, able && (w.Mode == "isolated" || w.Mode == "mediated-write")},
		{"the gate that requires isolation", res.Strict, res.Report.Require.Code, able && w.Mode == "isolated"},
	} {
		want, code := "indeterminate", 2
		if g.allow {
			want, code = "allow", 0
		}
		if g.v.Decision != want || g.code != code {
			wrong("%s decides %s with exit code %d, not %s: %+v", g.name, g.v.Decision, g.code, want, g.v.Coverage.Degraded)
		}
		if g.allow && g.v.Assurance.Mode != w.Mode {
			wrong("%s claims %s, not %s: %s", g.name, g.v.Assurance.Mode, w.Mode, g.v.Assurance.Detail)
		}
		if !g.allow && g.v.Assurance.Mode == "isolated" {
			wrong("%s claims isolation", g.name)
		}
	}
}

func (res *result) judgeTests(wrong func(string, ...any)) {
	if len(res.Report.Tests) != len(res.Cell.Want.Tests) {
		wrong("%d sets of tests ran, not %d", len(res.Report.Tests), len(res.Cell.Want.Tests))
	}
	for _, t := range res.Report.Tests {
		if t.Code != 0 || len(t.Failed) > 0 || len(t.Skipped) > 0 || len(t.Passed) == 0 {
			wrong("tests of %s: exit code %d, %d passed, failed %v, skipped %v\n%s", t.Package, t.Code, len(t.Passed), t.Failed, t.Skipped, t.Output)
		}
	}
}

// print tells of one machine in a few lines.
func (res *result) print(w io.Writer) {
	state := "ok  "
	if len(res.Wrong) > 0 {
		state = "FAIL"
	}
	mode := res.Doctor.Mode
	if res.Doctor.WhyNot != "" {
		mode = "no sandbox"
	}
	passed := 0
	for _, t := range res.Report.Tests {
		passed += len(t.Passed)
	}
	fmt.Fprintf(w, "%s %-22s %-14s gate %-13s strict %-13s %3d tests  %3.0f s  %s\n", state, res.Cell.Name, mode, res.Gate.Decision, res.Strict.Decision, passed, res.Took, res.Report.Kernel)
	if m := res.Doctor.missing(); len(m) > 0 {
		fmt.Fprintf(w, "     missing: %s\n", strings.Join(m, ", "))
	}
	for _, m := range res.Wrong {
		fmt.Fprintf(w, "     %s\n", strings.ReplaceAll(m, "\n", "\n     "))
	}
}

func writeJSON(path string, results []result) error {
	if path == "" {
		return nil
	}
	b, err := json.Marshal(results)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}

// judgeAgain holds what was told before against what the machines must be now.
func judgeAgain(path string, cells []matrix.Cell) ([]result, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var told []struct{ Report matrix.Report }
	if err := json.Unmarshal(text, &told); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	var results []result
	for _, c := range cells {
		for _, t := range told {
			if t.Report.Cell == c.Name {
				results = append(results, judge(c, t.Report, nil))
				results[len(results)-1].print(os.Stdout)
			}
		}
	}
	return results, nil
}
