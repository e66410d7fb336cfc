package health

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"
)

func TestQuarantineIsReachedKeptAndLifted(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	b := Open(dir, Rules{}, func() time.Time { return now })
	for range 2 {
		r, err := b.Failed(ctx, "p", "crashed")
		if err != nil {
			t.Fatal(err)
		}
		if q, _ := b.Quarantined(r); q {
			t.Fatal("too early")
		}
	}
	if err := b.Succeeded(ctx, "p"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := b.Failed(ctx, "p", "crashed"); err != nil {
			t.Fatal(err)
		}
	}
	// Another process sees it.
	b = Open(dir, Rules{}, func() time.Time { return now })
	r, err := b.Get("p")
	if err != nil {
		t.Fatal(err)
	}
	if q, until := b.Quarantined(r); !q || !until.Equal(now.Add(15*time.Minute)) {
		t.Fatalf("%v %v", q, until)
	}
	now = now.Add(15 * time.Minute)
	if q, _ := b.Quarantined(r); q {
		t.Fatal("time did not lift it")
	}
	for range 3 {
		r, _ = b.Failed(ctx, "p", "crashed")
	}
	if q, until := b.Quarantined(r); !q || !until.Equal(now.Add(30*time.Minute)) {
		t.Fatalf("the second is not twice as long: %v", until)
	}
	if err := b.Lift(ctx, "p"); err != nil {
		t.Fatal(err)
	}
	if r, _ = b.Get("p"); r != (Record{}) {
		t.Fatalf("%+v", r)
	}
}

func TestFailuresFarApartDoNotAddUp(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	b := Open(t.TempDir(), Rules{}, func() time.Time { return now })
	for range 10 {
		r, err := b.Failed(context.Background(), "p", "crashed")
		if err != nil {
			t.Fatal(err)
		}
		if q, _ := b.Quarantined(r); q {
			t.Fatal("quarantined")
		}
		now = now.Add(2 * time.Hour)
	}
}

func TestClockGoingBackDoesNotLockForever(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	b := Open(t.TempDir(), Rules{}, func() time.Time { return now })
	r := Record{Until: now.Add(10 * 365 * 24 * time.Hour)}
	if q, until := b.Quarantined(r); !q || until.Sub(now) > 24*time.Hour {
		t.Fatal(q, until)
	}
}

func TestDamagedFileIsNotForgotten(t *testing.T) {
	dir := t.TempDir()
	b := Open(dir, Rules{}, time.Now)
	if err := os.WriteFile(b.path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get("p"); err == nil {
		t.Fatal("no error")
	}
}

func TestConcurrentFailuresAreAllCounted(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			b := Open(dir, Rules{Failures: 1000}, time.Now)
			for range 10 {
				if _, err := b.Failed(context.Background(), "p", "x"); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	r, err := Open(dir, Rules{}, time.Now).Get("p")
	if err != nil || r.Failures != 80 {
		t.Fatal(r, err)
	}
}

func TestBackoffGrowsAndIsBounded(t *testing.T) {
	last := time.Duration(-1)
	for n := range 40 {
		d := Backoff(n)
		if d < last || d > 8*time.Second {
			t.Fatal(n, d)
		}
		last = d
	}
}
