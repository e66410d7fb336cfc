package host

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/aspis-dev/aspis/host/supervise"
)

// warmPool keeps sessions of providers that read by callback only, so that the
// next evaluation need not start them again. A provider that sees a mounted
// snapshot cannot stay: its view is that of one candidate.
type warmPool struct {
	enabled  bool
	mu       sync.Mutex
	closed   bool
	retiring sync.WaitGroup // worn sessions that finish what they are at
	log      *slog.Logger
	life     context.Context // ends with the pool, and then nothing is waited for
	end      context.CancelFunc
	sessions map[string]*supervise.Session // by provider id and digest
}

// retireTimeout bounds how long a worn session may still be at work.
const retireTimeout = 10 * time.Minute

func newWarmPool(enabled bool, log *slog.Logger) *warmPool {
	life, end := context.WithCancel(context.Background())
	return &warmPool{life: life, end: end, enabled: enabled, log: log, sessions: map[string]*supervise.Session{}}
}

// take returns a living session of exactly this build, or nil.
func (w *warmPool) take(p provider) *supervise.Session {
	if p.Snapshot {
		return nil // one that was started for a greeting sees no candidate
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.sessions[p.healthKey()]
	if s == nil {
		return nil
	}
	if !s.Alive() {
		delete(w.sessions, p.healthKey())
		return nil
	}
	if s.Worn() {
		delete(w.sessions, p.healthKey())
		w.retiring.Go(func() {
			ctx, cancel := context.WithTimeout(w.life, retireTimeout)
			defer cancel()
			if err := s.Retire(ctx); err != nil {
				w.log.Error("a provider was not wholly removed", "provider", p.ID, "error", err)
			}
		})
		return nil
	}
	return s
}

// keep takes a session over; false means that the caller must stop it.
func (w *warmPool) keep(p provider, s *supervise.Session) bool {
	if !w.enabled || p.Snapshot || p.fleeting {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if old := w.sessions[p.healthKey()]; w.closed || (old != nil && old.Alive()) {
		return false
	}
	w.sessions[p.healthKey()] = s
	return true
}

// close stops every session, side by side.
func (w *warmPool) close(ctx context.Context) error {
	w.mu.Lock()
	w.closed = true
	all := w.sessions
	w.sessions = nil
	w.mu.Unlock()
	errs := make(chan error, len(all))
	for _, s := range all {
		go func() { errs <- s.Stop(ctx) }()
	}
	var out []error
	for range all {
		out = append(out, <-errs)
	}
	w.end()
	w.retiring.Wait()
	return errors.Join(out...)
}
