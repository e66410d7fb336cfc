package main

import (
	"slices"
	"time"
)

// spread is what is told of many durations, in milliseconds.
type spread struct {
	N      int     `json:"n"`
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	P95    float64 `json:"p95"`
}

// spreadOf takes the nearest rank: every number told was really measured.
func spreadOf(all []time.Duration) spread {
	if len(all) == 0 {
		return spread{}
	}
	s := slices.Sorted(slices.Values(all))
	at := func(percent int) float64 { return ms(s[max((len(s)*percent+99)/100-1, 0)]) }
	return spread{N: len(s), Min: ms(s[0]), Median: at(50), P95: at(95)}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
