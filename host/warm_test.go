package host

import (
	"log/slog"
	"testing"
)

// TestSnapshotProvidersAreNeverWarm: a session that was started without a view
// must not serve a check that needs one.
func TestSnapshotProvidersAreNeverWarm(t *testing.T) {
	w := newWarmPool(true, slog.New(slog.DiscardHandler))
	p := provider{ID: "p", Digest: "d", Snapshot: true}
	if w.keep(p, nil) || w.keep(p.withoutSnapshot(), nil) {
		t.Fatal("a session of a snapshot provider was kept")
	}
	if w.take(p) != nil {
		t.Fatal("a session of a snapshot provider was given")
	}
	if !w.keep(provider{ID: "q", Digest: "d"}, nil) {
		t.Fatal("a session of a callback provider was not kept")
	}
}
