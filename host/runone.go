package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aspis-dev/aspis/host/artifact"
	"github.com/aspis-dev/aspis/host/health"
	"github.com/aspis-dev/aspis/host/supervise"
	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/schemas"
)

// Places inside a provider's view.
const (
	candidateTarget = "/workspace/candidate"
	baselineTarget  = "/workspace/baseline"
	artifactTarget  = "/provider"
)

// runOne takes one provider from its pin to its answer. Whatever goes wrong is
// in the result; nothing of the provider is left when it returns, unless the
// session stays warm.
func (h *Host) runOne(ctx context.Context, ev Evaluation, r *run, digest string, impact *impact) {
	started := time.Now()
	r.trace = ProviderTrace{ID: r.provider.ID, Version: r.provider.Version, Digest: r.provider.Digest,
		State: schemas.StateUnavailable, Mode: schemas.Advisory}
	defer func() {
		r.trace.ElapsedMs = milliseconds(time.Since(started))
		if f := r.result.Failure; f != nil {
			r.trace.State, r.trace.Failure, r.trace.Reason = f.State, f.Error(), string(f.Reason)
		}
		h.observe(ctx, ev.CallSite, r)
	}()
	if f := h.barred(r.provider); f != nil {
		r.result.Failure = f
		return
	}
	content, err := ev.Workspace.Content(ctx)
	if err != nil {
		r.result.Failure = unready("the baseline cannot be served", err)
		return
	}
	for range 2 {
		h.ask(ctx, ev, r, content, digest, impact)
		// A warm session that ended under somebody else's request, while this
		// one waited for its turn, says nothing about this one: it is put to a
		// new session.
		if f := r.result.Failure; f == nil || !f.Unasked || ctx.Err() != nil {
			return
		}
	}
}

// ask puts the change to one session of a provider.
func (h *Host) ask(ctx context.Context, ev Evaluation, r *run, content supervise.Content, digest string, impact *impact) {
	session, release, f := h.session(ctx, ev, r)
	if f != nil {
		r.result.Failure = f
		return
	}
	defer release()
	config, configDigest, err := configuration(r.provider)
	if err != nil {
		r.result.Failure = unready("its configuration cannot be sent", err)
		return
	}
	if info := session.Info(); info != nil {
		r.sources, r.families = declaredSources(info), info.CapabilityFamilies
	}
	q := supervise.CheckRequest{
		Content: content, ConfigDigest: configDigest, ChangesetDigest: digest, SeesSnapshot: r.provider.Snapshot,
		Params: schemas.CheckParams{ChangeSet: ev.ChangeSet, Scope: h.scope(ctx, ev, r.provider, content, impact),
			Comparison: ev.Comparison, Configuration: config},
	}
	r.result = session.Check(ctx, q)
	r.trace.took(r.result)
	r.trace.State = session.State()
}

// declaredSources are the diagnostic sources that a provider may speak for.
func declaredSources(info *schemas.InitializeResult) []string {
	switch {
	case info.Capabilities.Check != nil:
		return info.Capabilities.Check.DiagnosticSources
	case info.Capabilities.Judge != nil:
		return info.Capabilities.Judge.DiagnosticSources
	}
	return nil
}

// barred reports a quarantine.
func (h *Host) barred(p provider) *supervise.Failure {
	rec, err := h.health.Get(p.healthKey())
	if err != nil {
		return unready("its health record cannot be read", err)
	}
	if q, until := h.health.Quarantined(rec); q {
		return &supervise.Failure{Reason: schemas.ReasonQuarantined, Class: schemas.FailHealth, State: schemas.StateQuarantined,
			Detail: fmt.Sprintf("quarantined until %s after repeated failures (last: %s); `aspis provider release %s` lifts it",
				until.UTC().Format(time.RFC3339), rec.LastReason, p.ID)}
	}
	return nil
}

// backOff waits after failures in a row before a provider is started again, as
// long as the budget lasts. A session that is still warm did not fail.
func (h *Host) backOff(ctx context.Context, p provider) *supervise.Failure {
	rec, err := h.health.Get(p.healthKey())
	if err != nil {
		return unready("its health record cannot be read", err)
	}
	// A clock that went back must not make the wait longer than the back-off.
	wait := min(health.Backoff(rec.Failures)-max(h.now().Sub(rec.LastFailure), 0), health.Backoff(rec.Failures))
	if rec.Failures == 0 || wait <= 0 {
		return nil
	}
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		return &supervise.Failure{Reason: schemas.ReasonTimedOut, Class: schemas.FailHealth, State: schemas.StateTimedOut, Unasked: true,
			Detail: fmt.Sprintf("the budget ended while it waited to be started again (last failure: %s)", rec.LastReason)}
	}
}

func unready(what string, err error) *supervise.Failure {
	return &supervise.Failure{Reason: schemas.ReasonUnavailable, Class: schemas.FailHealth, State: schemas.StateUnavailable,
		Detail: what + ": " + err.Error()}
}

// session gives a session to ask, and what to do with it afterwards.
func (h *Host) session(ctx context.Context, ev Evaluation, r *run) (*supervise.Session, func(), *supervise.Failure) {
	if s := h.warm.take(r.provider); s != nil {
		r.trace.started(s)
		r.trace.Warm = true
		return s, func() {}, nil
	}
	if f := h.backOff(ctx, r.provider); f != nil {
		return nil, nil, f
	}
	launch, release, f := h.prepare(ctx, ev, r)
	if f != nil {
		return nil, nil, f
	}
	s, f := supervise.Start(ctx, launch, ev.ChangeSet.Baseline)
	r.trace.started(s)
	if f != nil {
		release()
		return nil, nil, f
	}
	if h.warm.keep(r.provider, s) {
		return s, func() {}, nil
	}
	return s, func() {
		if err := s.Stop(context.WithoutCancel(ctx)); err != nil {
			h.log.Error("a provider was not wholly removed", "provider", r.provider.ID, "error", err)
		}
		release()
	}, nil
}

// prepare verifies the artifact against its pin and describes the sandbox.
func (h *Host) prepare(ctx context.Context, ev Evaluation, r *run) (supervise.Launch, func(), *supervise.Failure) {
	var launch supervise.Launch
	p := r.provider
	v, err := artifact.Verify(ctx, h.artifactDir(), p.Executable, p.ArtifactDir, p.Digest)
	var mismatch *artifact.MismatchError
	var missing *artifact.MissingError
	switch {
	case errors.As(err, &mismatch):
		return launch, nil, &supervise.Failure{Reason: schemas.ReasonIncompatible, Class: schemas.FailContract, State: schemas.StateIncompatible, Detail: err.Error()}
	case errors.As(err, &missing):
		return launch, nil, &supervise.Failure{Reason: schemas.ReasonMissing, Class: schemas.FailHealth, State: schemas.StateUnavailable, Detail: err.Error()}
	case err != nil:
		return launch, nil, unready("its artifact could not be verified", err)
	}
	// Before anything is mounted, which needs what is missing here as well.
	runtime, why := h.opt.Runtime(p.Runtime)
	if runtime == nil {
		r.trace.NoSandbox = why
		return launch, nil, &supervise.Failure{Reason: schemas.ReasonInsufficientAssurance, Class: schemas.FailPolicy, State: schemas.StateUnavailable,
			Detail: "it was not run: nothing would confine it"}
	}
	spec := sandbox.Spec{
		Name: p.ID, Path: artifactTarget + "/" + v.Exe, Dir: artifactTarget, Artifact: v.Dir,
		Args: append([]string{artifactTarget + "/" + v.Exe}, p.Args...), Env: p.Env, System: p.System,
		Protect: h.opt.Protect, Limits: p.Limits, Without: h.opt.Without,
	}
	release := func() {}
	if p.Snapshot {
		candidate, baseline, undo, err := ev.Workspace.Mounts(ctx)
		if err != nil {
			return launch, nil, unready("the snapshot could not be mounted", err)
		}
		spec.Mounts = []sandbox.Mount{{Source: candidate, Target: candidateTarget}, {Source: baseline, Target: baselineTarget}}
		release = func() {
			if err := undo(); err != nil {
				h.log.Error("a snapshot view was not removed", "error", err)
			}
		}
	}
	launch = supervise.Launch{ID: p.ID, Version: p.Version, Spec: spec, Runtime: runtime, Least: p.least,
		Ceiling: p.Ceiling, Limits: h.opt.SessionLimits, Host: h.name()}
	return launch, release, nil
}

// observe keeps the provider's health and the metrics.
func (h *Host) observe(ctx context.Context, site schemas.CallSite, r *run) {
	ctx = context.WithoutCancel(ctx)
	h.learned(r)
	h.metrics.Observe(r.provider.ID, string(site), r.trace.ElapsedMs, failureReason(r.result.Failure))
	if h.opt.Observe != nil {
		h.opt.Observe(r.provider.ID, string(site), r.trace.ElapsedMs, failureReason(r.result.Failure))
	}
	f := r.result.Failure
	if f == nil {
		if err := h.health.Succeeded(ctx, r.provider.healthKey()); err != nil {
			h.log.Error("provider health could not be kept", "error", err)
		}
		return
	}
	if !countsAgainstHealth(f) || (r.hurried && f.Reason == schemas.ReasonTimedOut) {
		return
	}
	rec, err := h.health.Failed(ctx, r.provider.healthKey(), string(f.Reason))
	if err != nil {
		h.log.Error("provider health could not be kept", "error", err)
		return
	}
	if q, until := h.health.Quarantined(rec); q {
		h.log.Warn("provider quarantined", "provider", r.provider.ID, "until", until, "reason", f.Reason)
	}
}

func failureReason(f *supervise.Failure) string {
	if f == nil {
		return ""
	}
	return string(f.Reason)
}

// countsAgainstHealth tells the provider's own failures from those of its
// surroundings: a machine that cannot build a sandbox, a caller that cancels, a
// missing grant and a request that was never put to it are no reason to
// quarantine it.
func countsAgainstHealth(f *supervise.Failure) bool {
	if f.Unasked {
		return false
	}
	switch f.Reason {
	case schemas.ReasonCrashed, schemas.ReasonTimedOut, schemas.ReasonMalformed, schemas.ReasonStale, schemas.ReasonSkewed:
		return true
	case schemas.ReasonError:
		return f.Fatal
	}
	return false
}
