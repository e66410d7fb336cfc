// Package metrics counts how providers fare by call-site: latencies, failures
// by type, evaluations. It keeps a bounded window in memory and writes it as
// Prometheus text; it knows nothing of what is measured.
package metrics

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
)

// window is how many latencies are kept for each provider and call-site.
const window = 1024

// maxSeries bounds the number of providers times call-sites.
const maxSeries = 10_000

// Set is safe for use from several goroutines.
type Set struct {
	mu     sync.Mutex
	series map[key]*series
}

type key struct{ provider, site string }

type series struct {
	count    int64
	latency  []float64 // milliseconds, a ring
	next     int
	failures map[string]int64
}

// New makes an empty set.
func New() *Set { return &Set{series: map[key]*series{}} }

// Observe adds one run of a provider: its latency in milliseconds and, when it
// failed, the reason.
func (s *Set) Observe(provider, site string, ms float64, failure string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{provider, site}
	x := s.series[k]
	if x == nil {
		if len(s.series) >= maxSeries {
			return
		}
		x = &series{failures: map[string]int64{}}
		s.series[k] = x
	}
	x.count++
	if len(x.latency) < window {
		x.latency = append(x.latency, ms)
	} else {
		x.latency[x.next] = ms
		x.next = (x.next + 1) % window
	}
	if failure != "" {
		x.failures[failure]++
	}
}

// Row is one provider at one call-site.
type Row struct {
	Provider string           `json:"provider"`
	CallSite string           `json:"callSite"`
	Count    int64            `json:"count"`
	P50Ms    float64          `json:"p50Ms"`
	P95Ms    float64          `json:"p95Ms"`
	Failures map[string]int64 `json:"failures"`
}

// Rows returns all series, by provider and call-site.
func (s *Set) Rows() []Row {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := make([]Row, 0, len(s.series))
	for k, x := range s.series {
		r := Row{Provider: k.provider, CallSite: k.site, Count: x.count, Failures: map[string]int64{}}
		for reason, n := range x.failures {
			r.Failures[reason] = n
		}
		sorted := slices.Sorted(slices.Values(x.latency))
		r.P50Ms, r.P95Ms = Quantile(sorted, 0.50), Quantile(sorted, 0.95)
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b Row) int {
		if c := strings.Compare(a.Provider, b.Provider); c != 0 {
			return c
		}
		return strings.Compare(a.CallSite, b.CallSite)
	})
	return rows
}

// Quantile returns the q-quantile (nearest rank) of sorted values; 0 of none.
func Quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(q*float64(len(sorted)-1) + 0.5)
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// WritePrometheus writes the text exposition format, version 0.0.4.
func (s *Set) WritePrometheus(w io.Writer) error {
	rows := s.Rows()
	var b strings.Builder
	b.WriteString("# HELP aspis_provider_latency_milliseconds Time from launch to answer.\n# TYPE aspis_provider_latency_milliseconds summary\n")
	for _, r := range rows {
		l := labels(r)
		fmt.Fprintf(&b, "aspis_provider_latency_milliseconds{%s,quantile=\"0.5\"} %g\n", l, r.P50Ms)
		fmt.Fprintf(&b, "aspis_provider_latency_milliseconds{%s,quantile=\"0.95\"} %g\n", l, r.P95Ms)
		fmt.Fprintf(&b, "aspis_provider_latency_milliseconds_count{%s} %d\n", l, r.Count)
	}
	b.WriteString("# HELP aspis_provider_failures_total Runs that failed, by reason.\n# TYPE aspis_provider_failures_total counter\n")
	for _, r := range rows {
		reasons := make([]string, 0, len(r.Failures))
		for reason := range r.Failures {
			reasons = append(reasons, reason)
		}
		slices.Sort(reasons)
		for _, reason := range reasons {
			fmt.Fprintf(&b, "aspis_provider_failures_total{%s,reason=\"%s\"} %d\n", labels(r), escape(reason), r.Failures[reason])
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func labels(r Row) string {
	return fmt.Sprintf("provider=\"%s\",call_site=\"%s\"", escape(r.Provider), escape(r.CallSite))
}

// escape follows the exposition format: backslash, quote and newline.
func escape(s string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s)
}
