package egress

import (
	"sync"
	"sync/atomic"
	"time"
)

// Attempt is one try to reach something, as evidence keeps it. Host is what the
// process wrote, cut at 300 bytes; it must be escaped before a terminal sees it.
type Attempt struct {
	At      time.Time `json:"at"`
	Via     string    `json:"via"` // "connect", "http" or "socks5"
	Host    string    `json:"host"`
	Port    uint16    `json:"port"`
	Address string    `json:"address,omitzero"` // connected to, or refused for
	Allowed bool      `json:"allowed"`
	// Why says why it was refused, or what became of it where it was allowed
	// and could not be had.
	Why string `json:"why,omitzero"`
	// Credential tells that the proxy added a header.
	Credential bool  `json:"credential,omitzero"`
	Sent       int64 `json:"sentBytes"`     // to the destination
	Received   int64 `json:"receivedBytes"` // from it
}

// Record is all that is known of a proxy's attempts: those that were allowed
// are complete, since no more are allowed when there is no room; of those that
// were refused the first are kept, and the rest counted.
type Record struct {
	Attempts []Attempt `json:"attempts"`
	Refused  int64     `json:"refused"`  // all of them
	Unlisted int64     `json:"unlisted"` // of these, without an entry
}

const maxHost = 300

// entry is an attempt that may still be going on.
type entry struct {
	attempt        Attempt // but for Address, Why and the bytes
	mu             sync.Mutex
	address, why   string
	sent, received atomic.Int64
}

type record struct {
	mu                           sync.Mutex
	entries                      []*entry
	allowed, listed              int
	maxAllowed, maxListedRefused int
	refused                      int64
}

// allow makes an entry, or nil where there is no room.
func (r *record) allow(a Attempt) *entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.allowed >= r.maxAllowed {
		return nil
	}
	r.allowed++
	a.Allowed = true
	e := &entry{attempt: a}
	r.entries = append(r.entries, e)
	return e
}

func (r *record) refuse(a Attempt, address, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused++
	if r.listed >= r.maxListedRefused {
		return
	}
	r.listed++
	r.entries = append(r.entries, &entry{attempt: a, address: address, why: why})
}

func (r *record) snapshot() Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := Record{Refused: r.refused, Unlisted: r.refused - int64(r.listed)}
	for _, e := range r.entries {
		a := e.attempt
		e.mu.Lock()
		a.Address, a.Why = e.address, e.why
		e.mu.Unlock()
		a.Sent, a.Received = e.sent.Load(), e.received.Load()
		out.Attempts = append(out.Attempts, a)
	}
	return out
}

func (e *entry) at(address string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.address = address
}

func (e *entry) failed(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.why = err.Error()
}

func cut(s string) string { return s[:min(len(s), maxHost)] }
