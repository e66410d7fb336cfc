package conformance

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/aspis-dev/aspis/schemas"
)

// Result is what became of one id. Detail says in one line what was wrong, or
// why nothing could be tried.
type Result struct {
	ID        string  `json:"id"`
	Passed    bool    `json:"passed"`
	Skipped   bool    `json:"skipped,omitzero"`
	Detail    string  `json:"detail,omitzero"`
	ElapsedMs float64 `json:"elapsedMs"`
}

// Report is the outcome of a suite.
type Report struct {
	Suite   string   `json:"suite"`
	Subject []string `json:"subject"`
	Passed  int      `json:"passed"`
	Failed  int      `json:"failed"`
	Skipped int      `json:"skipped"`
	Results []Result `json:"results"`
}

// OK reports whether nothing failed.
func (r *Report) OK() bool { return r.Failed == 0 }

// JSON is the report for machines, in one line.
func (r *Report) JSON() ([]byte, error) { return schemas.Marshal(r) }

// Text writes the report for people. What came from the subject is quoted.
func (r *Report) Text(w io.Writer) error {
	for _, res := range r.Results {
		word := "pass"
		switch {
		case res.Skipped:
			word = "skip"
		case !res.Passed:
			word = "FAIL"
		}
		line := fmt.Sprintf("%s  %-44s %7.0f ms", word, res.ID, res.ElapsedMs)
		if res.Detail != "" {
			line += "  " + printable(res.Detail)
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", r.Passed, r.Failed, r.Skipped)
	return err
}

// printable keeps hostile text from reaching a terminal as anything but text.
func printable(s string) string {
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}

func (r *Report) add(res Result) {
	r.Results = append(r.Results, res)
	switch {
	case res.Skipped:
		r.Skipped++
	case res.Passed:
		r.Passed++
	default:
		r.Failed++
	}
}

// skipError says why an id could not be tried here.
type skipError struct{ why string }

func (e *skipError) Error() string { return e.why }

// caseTimeout bounds one id; a subject that hangs fails it.
const caseTimeout = 2 * time.Minute

func measure(ctx context.Context, id string, run func(context.Context) error) Result {
	ctx, cancel := context.WithTimeout(ctx, caseTimeout)
	defer cancel()
	started := time.Now()
	err := run(ctx)
	res := Result{ID: id, Passed: err == nil, ElapsedMs: float64(time.Since(started).Microseconds()) / 1000}
	if err != nil {
		res.Detail = err.Error()
		_, res.Skipped = err.(*skipError) //nolint:errorlint // a skip is never wrapped
	}
	return res
}
