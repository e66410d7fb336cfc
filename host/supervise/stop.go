package supervise

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/aspis-dev/aspis/schemas"
)

// teardownTimeout bounds the removal of a killed process tree.
const teardownTimeout = 10 * time.Second

// Stop ends a provider as asp-wire asks: shutdown, exit, then TERM, then KILL
// of everything in its pid namespace. It returns when nothing is left, or with
// what is. Stop may be called more than once.
func (s *Session) Stop(ctx context.Context) error {
	if s.conn == nil {
		return nil
	}
	if s.Alive() {
		s.setState(schemas.StateShuttingDown)
		s.politely(ctx)
	}
	return s.finish(ctx, schemas.StateExited)
}

// Abort kills a provider that cannot be spoken with any more; its state stays
// what it was.
func (s *Session) Abort(ctx context.Context) {
	if s.conn == nil {
		return
	}
	_ = s.finish(ctx, s.State())
}

func (s *Session) politely(ctx context.Context) {
	wait, cancel := context.WithTimeout(ctx, s.limits.ShutdownTimeout)
	defer cancel()
	if _, err := s.conn.Call(wait, schemas.MethodShutdown, nil); err == nil {
		if err := s.conn.Notify(wait, schemas.MethodExit, nil); err == nil && s.exited(ctx) {
			return
		}
	}
	if s.proc.Signal(syscall.SIGTERM) == nil {
		s.exited(ctx)
	}
}

// exited waits for the process to end by itself.
func (s *Session) exited(ctx context.Context) bool {
	wait, cancel := context.WithTimeout(ctx, s.limits.ShutdownTimeout)
	defer cancel()
	_, err := s.proc.Wait(wait)
	return err == nil
}

func (s *Session) finish(ctx context.Context, state schemas.LifecycleState) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
	defer cancel()
	err := s.proc.Close(ctx)
	s.cancel()
	select {
	case <-s.ended:
	case <-ctx.Done():
		if err == nil {
			err = fmt.Errorf("the pipes of %s did not close", s.launch.ID)
		}
	}
	s.setState(state)
	return err
}
