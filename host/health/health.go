// Package health remembers how providers fared: consecutive health failures
// with back-off between restarts, quarantine that outlives the process, and the
// latencies and counts behind the metrics. It knows nothing of what providers
// do or of what a decision is.
package health

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// Rules of quarantine; zero values take the defaults.
type Rules struct {
	Failures int           // consecutive health failures that lead to it; default 3
	Window   time.Duration // failures further apart than this do not add up; default 1 h
	Duration time.Duration // the first quarantine; each further one is twice as long; default 15 min
	Longest  time.Duration // upper bound of one quarantine; default 24 h
}

func (r Rules) withDefaults() Rules {
	if r.Failures <= 0 {
		r.Failures = 3
	}
	if r.Window <= 0 {
		r.Window = time.Hour
	}
	if r.Duration <= 0 {
		r.Duration = 15 * time.Minute
	}
	if r.Longest <= 0 {
		r.Longest = 24 * time.Hour
	}
	return r
}

// Record is what is remembered of one provider build.
type Record struct {
	Failures    int       `json:"failures,omitzero"`
	LastFailure time.Time `json:"lastFailure,omitzero"`
	LastReason  string    `json:"lastReason,omitzero"`
	Until       time.Time `json:"quarantinedUntil,omitzero"`
	Times       int       `json:"quarantines,omitzero"`
}

// Book is the file of all records. Several processes may use it.
type Book struct {
	path  string
	rules Rules
	now   func() time.Time
	mu    sync.Mutex
}

const (
	maxBook = 4 << 20
	maxKeys = 10_000
)

// Open uses dir, which must exist. now is the clock.
func Open(dir string, rules Rules, now func() time.Time) *Book {
	return &Book{path: filepath.Join(dir, "health.json"), rules: rules.withDefaults(), now: now}
}

// Get returns the record of a key (a provider id with its digest). A damaged
// file is an error: forgetting a quarantine would fail open.
func (b *Book) Get(key string) (Record, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all, err := b.load()
	return all[key], err
}

// Quarantined reports whether the record holds a quarantine now. When the clock
// has gone back, a quarantine lasts at most Longest from now.
func (b *Book) Quarantined(r Record) (bool, time.Time) {
	now := b.now()
	if r.Until.Sub(now) > b.rules.Longest {
		return true, now.Add(b.rules.Longest)
	}
	return now.Before(r.Until), r.Until
}

// Failed counts a health failure and returns the record with whatever follows
// from it.
func (b *Book) Failed(ctx context.Context, key, reason string) (Record, error) {
	return b.change(ctx, key, func(r *Record) {
		now := b.now()
		if gap := now.Sub(r.LastFailure); gap > b.rules.Window {
			r.Failures = 0
		}
		r.Failures++
		r.LastFailure, r.LastReason = now, reason
		if r.Failures >= b.rules.Failures {
			length := b.rules.Duration << min(r.Times, 16)
			r.Until = now.Add(min(length, b.rules.Longest))
			r.Times++
			r.Failures = 0
		}
	})
}

// Succeeded forgets the failures in a row, not how often there was a quarantine.
func (b *Book) Succeeded(ctx context.Context, key string) error {
	r, err := b.Get(key)
	if err != nil || r.Failures == 0 {
		return err
	}
	_, err = b.change(ctx, key, func(r *Record) { r.Failures = 0 })
	return err
}

// Lift ends a quarantine by a person's word.
func (b *Book) Lift(ctx context.Context, key string) error {
	_, err := b.change(ctx, key, func(r *Record) { *r = Record{} })
	return err
}

// Backoff returns how long to wait before a provider is started again, after n
// failures in a row: nothing, then 0.25 s doubling up to 8 s.
func Backoff(n int) time.Duration {
	if n <= 0 {
		return 0
	}
	return min(250*time.Millisecond<<min(n-1, 10), 8*time.Second)
}

func (b *Book) load() (map[string]Record, error) {
	all := map[string]Record{}
	f, err := os.OpenFile(b.path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read provider health: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read provider health: %w", err)
	}
	if st.Size() > maxBook {
		return nil, fmt.Errorf("provider health %s is over %d bytes; remove it to start afresh", b.path, maxBook)
	}
	if err := json.UnmarshalRead(f, &all, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("provider health %s is damaged (%w); remove it to start afresh", b.path, err)
	}
	return all, nil
}

// change rewrites the file under a lock that dies with its holder.
func (b *Book) change(ctx context.Context, key string, f func(*Record)) (Record, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	unlock, err := lockFile(ctx, b.path+".lock")
	if err != nil {
		return Record{}, err
	}
	defer unlock()
	all, err := b.load()
	if err != nil {
		return Record{}, err
	}
	r := all[key]
	f(&r)
	if r == (Record{}) {
		delete(all, key)
	} else if all[key] = r; len(all) > maxKeys {
		return Record{}, fmt.Errorf("provider health %s holds over %d providers", b.path, maxKeys)
	}
	raw, err := json.Marshal(all, json.Deterministic(true))
	if err != nil {
		return Record{}, fmt.Errorf("encode provider health: %w", err)
	}
	if err := renameio.WriteFile(b.path, raw, 0o600); err != nil {
		return Record{}, fmt.Errorf("write provider health: %w", err)
	}
	return r, nil
}

func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock provider health: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock provider health: %w", err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock provider health: %w", context.Cause(ctx))
		case <-time.After(2 * time.Millisecond):
		}
	}
}
