package check

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aspis-dev/aspis/cmd/internal/provider"
	"github.com/aspis-dev/aspis/cmd/internal/toolspec"
	"github.com/aspis-dev/aspis/schemas"
)

const capabilityVersion = "1"

// Identity is what a provider says of itself. It comes from its arguments, which
// trusted configuration writes: the description is not there yet when the host
// asks.
type Identity struct {
	ID, Version string
	// Sources are those of its findings' codes; the first is used.
	Sources []string
}

// Places are where the provider finds things.
type Places struct {
	Candidate, Baseline string // the views
	Own                 string // the provider's own directory
	Scratch             string // where temporary directories are made
}

// InContainer are the places inside of a container of the host's.
func InContainer() Places {
	own := "/"
	if exe, err := os.Executable(); err == nil {
		own = filepath.Dir(exe)
	}
	return Places{Candidate: "/workspace/candidate", Baseline: "/workspace/baseline", Own: own, Scratch: os.TempDir()}
}

// Provider runs one tool.
type Provider struct {
	id          Identity
	at          Places
	fingerprint func() string

	mu       sync.Mutex
	verified map[string]func() error // programs by what they must be
	told     map[string]string       // versions that were told; one request at a time looks
}

// New makes a provider.
func New(id Identity, at Places) *Provider {
	p := &Provider{id: id, at: at, fingerprint: sync.OnceValue(ownDigest), verified: map[string]func() error{}, told: map[string]string{}}
	go p.fingerprint()
	return p
}

// Handler is what provider.Serve needs.
func (p *Provider) Handler() provider.Handler {
	return provider.Handler{Describe: p.describe, Check: p.check}
}

func ownDigest() string {
	d, err := digestOf("/proc/self/exe")
	if err != nil {
		return "sha256:unknown"
	}
	return d
}

func digestOf(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

func (p *Provider) describe() schemas.InitializeResult {
	no := false
	return schemas.InitializeResult{
		ServerInfo:         schemas.ServerInfo{Name: p.id.ID, Version: p.id.Version, Fingerprint: p.fingerprint()},
		CapabilityFamilies: []schemas.CapabilityFamily{schemas.Check},
		Capabilities: schemas.Capabilities{Check: &schemas.CheckCapability{
			CapabilityVersion: capabilityVersion, DiagnosticSources: p.id.Sources,
			Scopes:         []string{schemas.ScopeChangeset, schemas.ScopeWorkspace},
			Comparisons:    []schemas.Comparison{schemas.Introduced, schemas.All, schemas.Resolved},
			PartialResults: true, Incremental: false, UnsupportedReporting: "assessment-status", Fixes: &no,
		}},
		RequestedPermissions: &schemas.Permissions{Read: []string{"**"}, Write: &no, Network: &no},
	}
}

// check answers check/evaluate.
func (p *Provider) check(ctx context.Context, w *provider.Workspace, q *provider.CheckRequest) (*schemas.Assessment, error) {
	started := time.Now()
	a := p.empty(q)
	defer func() { *a.Timing.ElapsedMs = float64(time.Since(started).Microseconds()) / 1000 }()
	if why := p.cannot(q); why != "" {
		a.Status = schemas.StatusUnsupported
		a.Coverage.Covered.DiagnosticSources = []string{}
		a.Coverage.Unsupported = append(a.Coverage.Unsupported, p.degradation(schemas.ReasonUnsupported, why))
		return a, nil
	}
	tool, err := toolspec.Parse(q.Configuration)
	if err != nil {
		return nil, &schemas.Error{Code: -32602, Message: err.Error(), Data: &schemas.ErrorData{FailClass: schemas.FailInput}}
	}
	r := &run{p: p, w: w, q: q, tool: tool, answer: a}
	err = r.all(ctx)
	switch {
	case ctx.Err() != nil:
		a.Status, a.Diagnostics = schemas.StatusCancelled, []schemas.Diagnostic{}
		a.Coverage.Degraded = append(a.Coverage.Degraded, p.degradation(schemas.ReasonCancelled, "the check was cancelled"))
	case err != nil:
		a.Status, a.Diagnostics = schemas.StatusError, []schemas.Diagnostic{}
		a.Coverage.Degraded = append(a.Coverage.Degraded, p.degradation(reasonOf(err), err.Error()))
	case len(r.gaps) > 0:
		a.Status = schemas.StatusIncomplete
		for _, g := range r.gaps {
			a.Coverage.Degraded = append(a.Coverage.Degraded, p.degradation(schemas.ReasonIncomplete, g))
		}
	default:
		a.Coverage.Exhaustive = true
	}
	return a, nil
}

// cannot says why a question cannot be answered at all.
func (p *Provider) cannot(q *provider.CheckRequest) string {
	if len(q.DiagnosticSources) > 0 && !slices.ContainsFunc(q.DiagnosticSources, func(s string) bool { return slices.Contains(p.id.Sources, s) }) {
		return fmt.Sprintf("none of the sources %.200q is served here, only %q", q.DiagnosticSources, p.id.Sources)
	}
	if len(q.Rules) > 0 {
		return "the tool cannot be asked for single rules"
	}
	if c := strings.TrimSpace(string(q.Configuration)); c == "" || c == "{}" {
		return "no tool is described: trusted configuration has none as this provider's configuration"
	}
	for _, dir := range []string{p.at.Candidate, p.at.Baseline} {
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return fmt.Sprintf("the view %s is not there: the provider needs \"workspace\": \"snapshot\"", dir)
		}
	}
	return ""
}

// empty makes an answer without findings, bound to the question.
func (p *Provider) empty(q *provider.CheckRequest) *schemas.Assessment {
	asked := schemas.CoveragePart{Scope: q.Scope, DiagnosticSources: p.id.Sources, Rules: []string{}, Comparison: q.Comparison}
	if len(q.DiagnosticSources) > 0 {
		asked.DiagnosticSources = q.DiagnosticSources
	}
	if len(q.Rules) > 0 {
		asked.Rules = q.Rules
	}
	covered := asked
	covered.DiagnosticSources, covered.Rules = p.id.Sources, []string{}
	return &schemas.Assessment{
		Status: schemas.StatusComplete, Diagnostics: []schemas.Diagnostic{},
		Coverage:  schemas.AssessmentCoverage{Requested: asked, Covered: covered, Degraded: []schemas.Degradation{}, Unsupported: []schemas.Degradation{}},
		ValidAsOf: schemas.CheckValidAsOf{Baseline: q.ChangeSet.Baseline, ChangesetDigest: q.ChangesetDigest, Blobs: []schemas.BlobRef{}},
		Provider: schemas.CheckProvider{ID: p.id.ID, Version: p.id.Version, ConfigDigest: q.ConfigDigest, CapabilityVersion: capabilityVersion,
			BuildDigest: p.fingerprint(), CapabilityFamily: schemas.Check},
		Timing: schemas.AssessmentTiming{ElapsedMs: new(float64)}, Cache: schemas.Cache{Status: "disabled"},
	}
}

func (p *Provider) degradation(reason schemas.DegradationReason, detail string) schemas.Degradation {
	return schemas.Degradation{Source: p.id.Sources[0], Reason: reason, Detail: detail}
}
