package supervise

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/host/rpc"
	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/schemas"
)

// Launch says how one provider is started and what it may have. All of it
// comes from trusted configuration.
type Launch struct {
	ID      string
	Version string
	Spec    sandbox.Spec
	Runtime sandbox.Runtime
	// Least is the weakest mode at which the provider may run at all. Below it
	// the first stage is killed before the provider's own code has run a line.
	Least   sandbox.Mode
	Ceiling schemas.Permissions
	Limits  Limits
	Host    schemas.NameVersion
}

// Limits bound one session; zero values take the defaults.
type Limits struct {
	Start           time.Duration // from launch to initialized; default 10 s
	LineBytes       int           // one message from the provider; default 16 MiB
	CallbackCount   int64         // callbacks in one request; default 20,000
	CallbackBytes   int64         // bytes served in one request; default 1 GiB
	SessionCount    int64         // callbacks in a session; default 2,000,000
	SessionBytes    int64         // bytes served in a session; default 64 GiB
	Notifications   int64         // progress and log messages in one request; default 10,000
	ListEntries     int           // entries in one listTree answer; default 200,000
	ReadBytes       int64         // bytes in one readBlob answer; default 32 MiB
	ShutdownTimeout time.Duration // for shutdown, then for exit, then for TERM; default 1 s
}

func (l Limits) withDefaults() Limits {
	set := func(v *int64, d int64) {
		if *v <= 0 {
			*v = d
		}
	}
	set(&l.CallbackCount, 20_000)
	set(&l.CallbackBytes, 1<<30)
	set(&l.SessionCount, 2_000_000)
	set(&l.SessionBytes, 64<<30)
	set(&l.Notifications, 10_000)
	set(&l.ReadBytes, 32<<20)
	if l.Start <= 0 {
		l.Start = 10 * time.Second
	}
	if l.LineBytes <= 0 {
		l.LineBytes = 16 << 20
	}
	if l.ListEntries <= 0 {
		l.ListEntries = 200_000
	}
	if l.ShutdownTimeout <= 0 {
		l.ShutdownTimeout = time.Second
	}
	return l
}

// Session is one running provider. Its requests are made one at a time: a
// callback does not say which request it belongs to, so that the set of blobs
// served to each could not be known otherwise.
type Session struct {
	launch Launch
	limits Limits
	proc   sandbox.Process
	conn   *rpc.Conn
	stderr tail
	cancel context.CancelFunc
	ended  chan struct{} // the conversation and the draining of stderr are over
	turn   chan struct{}

	mu        sync.Mutex
	state     schemas.LifecycleState
	info      *schemas.InitializeResult
	grant     schemas.Permissions
	baseline  schemas.Baseline
	active    *request
	counts    counters
	served    map[schemas.BlobRef]bool // in the whole session
	exit      *sandbox.ExitState
	unasked   map[string]int // methods the provider called that do not exist
	firstByte time.Duration
}

// counters are the session's totals against Limits.
type counters struct{ callbacks, bytes int64 }

// Start launches a provider and shakes hands with it. The returned session is
// active; a *Failure says why there is none. Whatever was started is gone
// again then.
func Start(ctx context.Context, launch Launch, baseline schemas.Baseline) (*Session, *Failure) {
	s := &Session{
		launch: launch, limits: launch.Limits.withDefaults(),
		ended: make(chan struct{}), turn: make(chan struct{}, 1),
		state: schemas.StateLaunched, baseline: baseline,
		served: map[schemas.BlobRef]bool{}, unasked: map[string]int{},
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.limits.Start, context.DeadlineExceeded)
	defer cancel()
	proc, err := launch.Runtime.Start(ctx, launch.Spec)
	if err != nil {
		return nil, &Failure{Reason: schemas.ReasonUnavailable, Class: schemas.FailHealth, State: schemas.StateUnavailable,
			Detail: fmt.Sprintf("its container could not be started: %v", err)}
	}
	s.proc = proc
	if f := s.confined(); f != nil {
		s.discard(ctx)
		close(s.ended)
		return s, f
	}
	if err := proc.Release(ctx); err != nil {
		s.discard(ctx)
		close(s.ended)
		return s, &Failure{Reason: schemas.ReasonCrashed, Class: schemas.FailHealth, State: schemas.StateCrashed,
			Detail: fmt.Sprintf("it could not be executed: %v", err)}
	}
	s.converse(ctx)
	if f := s.handshake(ctx); f != nil {
		s.setState(f.State)
		s.Abort(context.WithoutCancel(ctx))
		return s, f
	}
	return s, nil
}

// confined compares the walls that were found with the weakest that will do.
func (s *Session) confined() *Failure {
	mode, missing := s.proc.Evidence().Mode()
	if mode >= s.launch.Least {
		return nil
	}
	f := &Failure{Reason: schemas.ReasonInsufficientAssurance, Class: schemas.FailPolicy, State: schemas.StateUnavailable,
		Detail: fmt.Sprintf("only %s could be shown, %s is needed; it was not run", mode, s.launch.Least)}
	for i, w := range missing {
		if i == 3 {
			f.Detail += fmt.Sprintf("; and %d more", len(missing)-i)
			break
		}
		f.Detail += fmt.Sprintf("; %s: %s", w.Name, w.Seen)
	}
	return f
}

// converse starts the reading of stdout and stderr. Both end with the process.
func (s *Session) converse(ctx context.Context) {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	s.conn = rpc.New((*callbacks)(s), rpc.Options{
		LineBytes: s.limits.LineBytes, Cancel: schemas.MethodCancelRequest,
	})
	widen(s.proc.Stdin())
	widen(s.proc.Stdout())
	var both sync.WaitGroup
	both.Add(2)
	go func() {
		defer both.Done()
		s.stderr.drain(s.proc.Stderr())
	}()
	go func() {
		defer both.Done()
		_ = s.conn.Run(life, s.proc.Stdout(), s.proc.Stdin())
		var breach *rpc.Violation
		if errors.As(s.conn.Err(), &breach) {
			// Nothing that comes after a breach can be believed; killing it also
			// ends writes that a full pipe holds up.
			_ = s.proc.Kill()
		}
	}()
	go func() {
		both.Wait()
		close(s.ended)
	}()
}

func (s *Session) handshake(ctx context.Context) *Failure {
	s.setState(schemas.StateInitializing)
	mode, _ := s.proc.Evidence().Mode()
	started := time.Now()
	raw, err := s.conn.Call(ctx, schemas.MethodInitialize, schemas.InitializeParams{
		ProtocolVersion:  schemas.ProtocolVersion,
		Host:             s.launch.Host,
		Workspace:        schemas.Workspace{Root: workspaceRoot, Baseline: s.baseline},
		HostCapabilities: jsontext.Value(`{"progress":true,"pullDiagnostics":true,"putBlob":false,"readBlob":true}`),
		AssuranceMode:    schemas.AssuranceMode(mode.String()),
	})
	s.firstByte = time.Since(started)
	if err != nil {
		f := s.callFailure(ctx, schemas.MethodInitialize, err)
		var remote *schemas.Error
		if errors.As(err, &remote) && f.Class == schemas.FailContract {
			// A contract refusal of initialize is a skew, whatever its code.
			f.Reason, f.State = schemas.ReasonSkewed, schemas.StateIncompatible
		}
		f.Fatal = true
		return f
	}
	if pointer, found := schemas.ForbiddenField(raw, false); found {
		return hostOwned("the answer to initialize", pointer)
	}
	info, err := schemas.DecodeInitializeResult(raw, schemas.Limits{})
	if err != nil {
		return malformed("initialize answered with %v", err)
	}
	if info.ServerInfo.Version != s.launch.Version {
		return &Failure{Reason: schemas.ReasonSkewed, Class: schemas.FailContract, State: schemas.StateIncompatible, Fatal: true,
			Detail: fmt.Sprintf("it says that it is version %q; trusted configuration pins %q", clip(info.ServerInfo.Version, 60), s.launch.Version)}
	}
	grant, err := Narrow(info.RequestedPermissions, s.launch.Ceiling)
	if err != nil {
		return malformed("its requestedPermissions cannot be granted: %v", err)
	}
	s.mu.Lock()
	s.info, s.grant = info, grant
	s.mu.Unlock()
	s.setState(schemas.StateInitialized)
	if err := s.conn.Notify(ctx, schemas.MethodInitialized, schemas.InitializedParams{GrantedPermissions: grant, Baseline: s.baseline}); err != nil {
		return s.callFailure(ctx, schemas.MethodInitialized, err)
	}
	s.setState(schemas.StateActive)
	return nil
}

// workspaceRoot is where the candidate lies inside the provider's own view.
const workspaceRoot = "/workspace/candidate"

// State returns where the provider stands.
func (s *Session) State() schemas.LifecycleState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *Session) setState(st schemas.LifecycleState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = st
}

// Info returns what the provider said of itself; nil before the handshake.
func (s *Session) Info() *schemas.InitializeResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info
}

// Grant returns what the provider was granted.
func (s *Session) Grant() schemas.Permissions {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grant
}

// Evidence returns the walls found before the provider's code ran; ok is false
// when nothing was started.
func (s *Session) Evidence() (ev sandbox.Evidence, ok bool) {
	if s == nil || s.proc == nil {
		return sandbox.Evidence{}, false
	}
	return s.proc.Evidence(), true
}

// Alive reports whether another request can be made.
func (s *Session) Alive() bool {
	if s == nil || s.conn == nil {
		return false
	}
	select {
	case <-s.conn.Done():
		return false
	default:
		return s.State() == schemas.StateActive
	}
}

// Offers reports whether the provider advertised a capability family.
func (s *Session) Offers(family schemas.CapabilityFamily) bool {
	info := s.Info()
	return info != nil && slices.Contains(info.CapabilityFamilies, family)
}

// MoveBaseline tells a warm provider of another baseline.
func (s *Session) MoveBaseline(ctx context.Context, b schemas.Baseline) *Failure {
	s.mu.Lock()
	same := s.baseline.Same(b)
	s.baseline = b
	s.mu.Unlock()
	if same {
		return nil
	}
	if err := s.conn.Notify(ctx, schemas.MethodBaselineChanged, schemas.BaselineChangedParams{Baseline: b}); err != nil {
		return s.callFailure(ctx, schemas.MethodBaselineChanged, err)
	}
	return nil
}

// exitDetail waits a moment for the process to be reaped and says how it ended.
func (s *Session) exitDetail() string {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	st, err := s.proc.Wait(ctx)
	if err != nil {
		return ""
	}
	s.mu.Lock()
	s.exit = &st
	s.mu.Unlock()
	switch {
	case st.OOM:
		return "out of memory"
	case st.TimedOut:
		return "over its wall-clock limit"
	case st.Signal != 0:
		return fmt.Sprintf("signal %d", st.Signal)
	default:
		return fmt.Sprintf("exit code %d", st.Code)
	}
}

// discard removes a process that was never spoken to.
func (s *Session) discard(ctx context.Context) {
	s.setState(schemas.StateExited)
	_ = s.proc.Close(context.WithoutCancel(ctx))
}
