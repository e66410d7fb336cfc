package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/aspis-dev/aspis/sandbox"
)

// MaxWarm bounds the sandboxes that wait, of one profile and of all together.
const MaxWarm = 16

// warm holds sandboxes that were made ahead and wait at their first stage.
type warm struct {
	mu     sync.Mutex
	pools  map[string]*pool
	size   int // waiting and being made
	closed bool
	making sync.WaitGroup
}

// pool is what waits of one profile.
type pool struct {
	spec    sandbox.Spec // without what a taker brings
	places  []string
	want    int
	waiting []*process
	making  int
	idle    time.Duration
	drain   *time.Timer
}

// fixed is all of a Spec that is fixed when a sandbox is made. What is not in
// it comes with the taker: the name, the sources of mounts, what is protected,
// and whom a relay leads to.
type fixed struct {
	Path, Dir, Artifact           string
	Args, Env, Targets            []string
	System, TmpExec, Init, Relays bool
	RunAs                         *sandbox.IDs
	Limits                        sandbox.Limits
}

// profileOf gives the key of a pool. Sandboxes with a hole, or with something
// that can be written, are never made ahead.
func profileOf(s *sandbox.Spec) (key string, ok bool) {
	if len(s.Without) > 0 || len(s.Work) > 0 {
		return "", false
	}
	p := fixed{Path: s.Path, Dir: s.Dir, Artifact: s.Artifact, Args: s.Args, Env: s.Env, Targets: targets(s.Mounts),
		System: s.System, TmpExec: s.TmpExec, Init: s.Init, Relays: s.Relay != nil, RunAs: s.RunAs, Limits: s.Limits}
	b, err := json.Marshal(p)
	return string(b), err == nil
}

func targets(mounts []sandbox.Mount) []string {
	var list []string
	for _, m := range mounts {
		list = append(list, m.Target)
	}
	return list
}

// Warm makes n sandboxes of spec's profile ahead, walls verified, and keeps that
// many waiting until none has been taken for idle; then all of them are removed.
// Start takes one where the profile is the same: the sources of Mounts (which
// must be directories), Protect, Name and Relay may differ. It returns when they
// wait. The total is bounded by MaxWarm. Close removes them at once.
func (r *Runtime) Warm(ctx context.Context, spec sandbox.Spec, n int, idle time.Duration) error {
	key, ok := profileOf(&spec)
	if !ok {
		return fmt.Errorf("sandbox %q cannot be made ahead: it has holes or work areas", spec.Name)
	}
	if n < 1 || idle <= 0 {
		return fmt.Errorf("%d warm sandboxes for %v", n, idle)
	}
	w := &r.warm
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return errSpaceClosed
	}
	p := w.pools[key]
	if p == nil {
		p = &pool{spec: spec, places: targets(spec.Mounts)}
		p.spec.Mounts = nil
		w.pools[key] = p
		p.drain = time.AfterFunc(idle, func() { w.drainPool(key) })
	}
	p.want, p.idle = n, idle
	p.drain.Reset(idle)
	w.mu.Unlock()
	for {
		more, err := r.fill(ctx, p)
		if err != nil || !more {
			return err
		}
	}
}

// fill makes one sandbox if the pool wants one.
func (r *Runtime) fill(ctx context.Context, p *pool) (more bool, err error) {
	w := &r.warm
	w.mu.Lock()
	if w.closed || len(p.waiting)+p.making >= p.want || w.size >= MaxWarm {
		w.mu.Unlock()
		return false, nil
	}
	p.making++
	w.size++
	w.making.Add(1)
	spec, places := p.spec, p.places
	w.mu.Unlock()
	defer w.making.Done()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	made, err := r.startCold(ctx, spec, &ahead{places})
	w.mu.Lock()
	p.making--
	keep := err == nil && !w.closed && len(p.waiting) < p.want
	if keep {
		p.waiting = append(p.waiting, made)
	} else {
		w.size--
	}
	w.mu.Unlock()
	if err != nil {
		return false, fmt.Errorf("make a sandbox ahead: %w", err)
	}
	if !keep {
		return false, discard(made)
	}
	return true, nil
}

// takeWarm gives a waiting sandbox, made into what spec asks for; nil where there is
// none, or none that is of use.
func (r *Runtime) takeWarm(ctx context.Context, spec *sandbox.Spec) *process {
	w := &r.warm
	w.mu.Lock()
	if len(w.pools) == 0 {
		w.mu.Unlock()
		return nil
	}
	key, ok := profileOf(spec)
	p := w.pools[key]
	if !ok || p == nil || len(p.waiting) == 0 || w.closed {
		w.mu.Unlock()
		return nil
	}
	one := p.waiting[0]
	p.waiting = p.waiting[1:]
	w.size--
	p.drain.Reset(p.idle)
	w.mu.Unlock()
	// After the taker, whose time counts. Its error is that of a start which
	// nobody waits for; the next Start meets the same.
	defer func() { go func() { _, _ = r.fill(context.WithoutCancel(ctx), p) }() }()
	if ctx.Err() != nil || one.adopt(spec) != nil {
		_ = discard(one) // the record stays for what could not be removed
		return nil
	}
	return one
}

// adopt makes a waiting sandbox the one that spec asks for.
func (p *process) adopt(spec *sandbox.Spec) error {
	select {
	case <-p.done:
		return errors.New("it has ended while it waited")
	default:
	}
	p.spec = *spec
	if err := p.attach(spec.Mounts, false); err != nil {
		return err
	}
	if spec.Relay != nil {
		var err error
		if p.relay, err = openRelay(p.pid, spec.Relay); err != nil {
			return err
		}
	}
	return p.inspectAgain(false)
}

// drainPool removes a pool that nobody has taken from.
func (w *warm) drainPool(key string) {
	w.mu.Lock()
	p := w.pools[key]
	if p == nil {
		w.mu.Unlock()
		return
	}
	delete(w.pools, key)
	p.want = 0
	gone := p.waiting
	p.waiting = nil
	w.size -= len(gone)
	w.making.Add(1)
	w.mu.Unlock()
	defer w.making.Done()
	for _, one := range gone {
		_ = discard(one) // as in takeWarm
	}
}

func discard(p *process) error {
	ctx, stop := context.WithTimeout(context.Background(), closeTimeout)
	defer stop()
	return p.Close(ctx)
}

// Close removes the sandboxes that wait, and makes no more. Those that were
// started are not touched. It need not be called where Warm was not.
func (r *Runtime) Close() error {
	w := &r.warm
	w.mu.Lock()
	w.closed = true
	var gone []*process
	for _, p := range w.pools {
		p.drain.Stop()
		gone = append(gone, p.waiting...)
		p.waiting, p.want = nil, 0
	}
	w.size -= len(gone)
	clear(w.pools)
	w.mu.Unlock()
	var errs []error
	for _, one := range gone {
		errs = append(errs, discard(one))
	}
	w.making.Wait()
	return errors.Join(errs...)
}
