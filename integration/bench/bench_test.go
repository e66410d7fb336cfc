package main

import (
	"path/filepath"
	"testing"
	"time"
)

func TestSpreadTellsOnlyWhatWasMeasured(t *testing.T) {
	var all []time.Duration
	for i := range 100 {
		all = append(all, time.Duration(100-i)*time.Millisecond)
	}
	if got, want := spreadOf(all), (spread{N: 100, Min: 1, Median: 50, P95: 95}); got != want {
		t.Errorf("of 1 to 100: %+v, wanted %+v", got, want)
	}
	if got, want := spreadOf(all[:1]), (spread{N: 1, Min: 100, Median: 100, P95: 100}); got != want {
		t.Errorf("of one: %+v, wanted %+v", got, want)
	}
	if got := spreadOf(nil); got != (spread{}) {
		t.Errorf("of none: %+v", got)
	}
}

// TestChangeIsWhatTheProviderIsServed: what the provider is measured with by
// itself must be the same change that the host captures.
func TestChangeIsWhatTheProviderIsServed(t *testing.T) {
	dir := t.TempDir()
	repo, err := makeRepo(t.Context(), filepath.Join(dir, "repo"))
	if err != nil {
		t.Fatal(err)
	}
	change, err := captured(t.Context(), repo, filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	blobs := repo.blobs()
	for _, c := range change.Changes {
		if string(blobs[c.After]) != string(repo.after[c.Path]) || len(repo.after[c.Path]) == 0 {
			t.Errorf("%s is not served as it was captured", c.Path)
		}
		if c.Before != "" && blobs[c.Before] == nil {
			t.Errorf("%s is not served as it was before", c.Path)
		}
	}
	if n := len(repo.entries()); n != repoFiles+2 {
		t.Errorf("the listing has %d files, not %d", n, repoFiles+2)
	}
}
