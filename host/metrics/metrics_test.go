package metrics

import (
	"strings"
	"testing"
)

func TestRowsAndPrometheus(t *testing.T) {
	s := New()
	for i := range 100 {
		s.Observe("p", "gate", float64(i), "")
	}
	s.Observe("p", "gate", 1000, "crashed")
	s.Observe(`q"\`+"\n", "sweep", 5, "")
	rows := s.Rows()
	if len(rows) != 2 || rows[0].Count != 101 || rows[0].P50Ms != 50 || rows[0].P95Ms != 95 || rows[0].Failures["crashed"] != 1 {
		t.Fatalf("%+v", rows)
	}
	var b strings.Builder
	if err := s.WritePrometheus(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`aspis_provider_latency_milliseconds{provider="p",call_site="gate",quantile="0.95"} 95`,
		`aspis_provider_failures_total{provider="p",call_site="gate",reason="crashed"} 1`,
		`provider="q\"\\\n"`,
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%s is missing in\n%s", want, b.String())
		}
	}
}

func TestWindowIsBounded(t *testing.T) {
	s := New()
	for i := range 10 * window {
		s.Observe("p", "gate", float64(i), "")
	}
	if r := s.Rows()[0]; r.Count != 10*window || r.P50Ms < 9*window {
		t.Fatalf("%+v", r)
	}
	if n := len(s.series[key{"p", "gate"}].latency); n != window {
		t.Fatal(n)
	}
}
