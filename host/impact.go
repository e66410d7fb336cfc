package host

import (
	"context"
	"slices"
	"sync"

	"github.com/aspis-dev/aspis/host/decide"
	"github.com/aspis-dev/aspis/host/supervise"
	"github.com/aspis-dev/aspis/schemas"
)

// impact is what inspect providers say a change reaches, asked once an
// evaluation and only when a check provider wants it.
type impact struct {
	once     sync.Once
	files    []string
	answered bool
	lost     []schemas.Degradation
}

// scope is what a check provider is asked to look at. A provider that wants the
// impacted files gets the whole workspace when nobody could tell them: a missing
// or partial answer must never make it look at less.
func (h *Host) scope(ctx context.Context, ev Evaluation, p provider, content supervise.Content, im *impact) schemas.Scope {
	switch p.Scope {
	case schemas.ScopeWorkspace:
		return schemas.Scope{Name: schemas.ScopeWorkspace}
	case "impacted":
		im.once.Do(func() { h.askImpact(ctx, ev, content, im) })
		if !im.answered {
			return schemas.Scope{Name: schemas.ScopeWorkspace}
		}
		return schemas.Scope{Paths: im.files}
	}
	return schemas.Scope{Name: schemas.ScopeChangeset}
}

func (h *Host) askImpact(ctx context.Context, ev Evaluation, content supervise.Content, im *impact) {
	params := &schemas.ImpactParams{ChangeSet: ev.ChangeSet, Scope: schemas.Scope{Name: schemas.ScopeWorkspace}, Baseline: &ev.ChangeSet.Baseline}
	req := &schemas.InspectRequest{Method: schemas.MethodImpact, Params: params}
	files := map[string]bool{}
	asked := 0
	for _, p := range h.providers() {
		if !slices.Contains(p.Capabilities, schemas.Inspect) {
			continue
		}
		asked++
		a := &inspectAnswer{provider: p}
		h.inspectOne(ctx, a, req, Place{Baseline: ev.ChangeSet.Baseline}, content)
		if a.failure == nil {
			m, err := schemas.DecodeImpact(a.raw, schemas.Limits{})
			if err == nil && (m.Truncated == nil || !*m.Truncated) {
				for _, f := range m.ImpactedFiles {
					files[f] = true
				}
				continue
			}
			a.failure = &supervise.Failure{Reason: schemas.ReasonIncomplete, Class: schemas.FailHealth, State: schemas.StateDegraded, Detail: "it listed only a part of the impacted files"}
		}
		im.lost = append(im.lost, a.failure.Degradation(p.ID, "", schemas.Inspect))
	}
	if asked == 0 {
		im.lost = append(im.lost, schemas.Degradation{Source: "aspis", Reason: schemas.ReasonMissing, Capability: schemas.Inspect,
			ProviderState: schemas.StateUnavailable, Detail: "no inspect provider is installed that could tell the impacted files"})
	}
	if len(im.lost) > 0 {
		return
	}
	for _, c := range ev.ChangeSet.Changes {
		files[c.Path] = true
	}
	for f := range files {
		im.files = append(im.files, f)
	}
	slices.Sort(im.files)
	im.answered = len(im.files) > 0
}

// losses shows lost inspect answers in the coverage. Inspect never blocks: the
// check looked at more instead.
func (im *impact) losses(h *Host, site schemas.CallSite) []decide.Requirement {
	if len(im.lost) == 0 {
		return nil
	}
	r := decide.Requirement{ID: "impact"}
	for _, d := range im.lost {
		r.Losses = append(r.Losses, h.loss(site, schemas.FailHealth, d))
	}
	return []decide.Requirement{r}
}
