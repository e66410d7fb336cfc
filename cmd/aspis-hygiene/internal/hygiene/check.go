package hygiene

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/cmd/internal/provider"
	"github.com/aspis-dev/aspis/schemas"
)

// ID is what the provider calls itself.
const ID = "aspis-hygiene"

const capabilityVersion = "1"

// MemoryMB is the memory that the provider asks for, in mebibytes. It is for the
// largest answer that it takes, in its several forms; an ordinary check needs a
// tenth of it.
const MemoryMB = 512

// What else it asks for.
const (
	openFiles   = 64
	wallclockMs = 300_000
)

// Hygiene is the provider.
type Hygiene struct {
	version     string
	fingerprint func() string
	secrets     *secrets
	// candidate and baseline are where snapshots may be mounted.
	candidate, baseline string
}

// New makes it. Reading the secret rules and hashing the executable begin at
// once, in the background.
func New(version string) *Hygiene {
	h := &Hygiene{version: version, secrets: newSecrets(), fingerprint: sync.OnceValue(ownDigest),
		candidate: candidateDir, baseline: baselineDir}
	go h.fingerprint()
	return h
}

// Handler is what provider.Serve needs.
func (h *Hygiene) Handler() provider.Handler {
	return provider.Handler{Describe: h.describe, Check: h.check}
}

// ownDigest is the sha256 of the running executable.
func ownDigest() string {
	const unknown = "sha256:unknown"
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return unknown
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.CopyBuffer(h, onlyReader{f}, make([]byte, 256<<10)); err != nil {
		return unknown
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// onlyReader keeps CopyBuffer from bypassing its buffer.
type onlyReader struct{ io.Reader }

func (h *Hygiene) describe() schemas.InitializeResult {
	no, memory, files, wall := false, MemoryMB, openFiles, wallclockMs
	return schemas.InitializeResult{
		ServerInfo:         schemas.ServerInfo{Name: ID, Version: h.version, Fingerprint: h.fingerprint()},
		CapabilityFamilies: []schemas.CapabilityFamily{schemas.Check},
		Capabilities: schemas.Capabilities{Check: &schemas.CheckCapability{
			CapabilityVersion: capabilityVersion, DiagnosticSources: []string{Source},
			Scopes:      []string{schemas.ScopeChangeset, schemas.ScopeWorkspace},
			Comparisons: []schemas.Comparison{schemas.Introduced, schemas.All, schemas.Resolved},
			// Partial results are given, and called incomplete.
			PartialResults: true, Incremental: false, UnsupportedReporting: "assessment-status", Fixes: &no,
		}},
		RequestedPermissions: &schemas.Permissions{Read: []string{"**"}, Write: &no, Network: &no,
			ResourceLimits: &schemas.ResourceLimits{MemoryMB: &memory, FD: &files, WallclockMs: &wall}},
	}
}

// run is one check.
type run struct {
	w       *provider.Workspace
	q       *provider.CheckRequest
	cfg     settings
	rules   selection
	secrets *secrets
	snap    *snapshot
	started time.Time

	lost      []schemas.Degradation
	lostCount int
	files     int
	bytes     int64
	planned   int
	reported  time.Time
}

// check judges a change.
func (h *Hygiene) check(ctx context.Context, w *provider.Workspace, q *provider.CheckRequest) (*schemas.Assessment, error) {
	cfg, err := readConfig(q.Configuration)
	if err != nil {
		return nil, &schemas.Error{Code: -32602, Message: err.Error(), Data: &schemas.ErrorData{FailClass: schemas.FailInput}}
	}
	snap := openSnapshot(h.candidate, h.baseline)
	defer snap.close()
	r := &run{w: w, q: q, cfg: cfg, rules: choose(cfg, q.Rules, snap != nil), secrets: h.secrets, snap: snap, started: time.Now(), reported: time.Now()}
	a := r.assessment(h)
	if (len(q.DiagnosticSources) > 0 && !slices.Contains(q.DiagnosticSources, Source)) || (len(q.Rules) > 0 && len(r.rules.on) == 0) {
		a.Status = schemas.StatusUnsupported
		a.Coverage.Covered.DiagnosticSources, a.Coverage.Covered.Rules = []string{}, []string{}
		if len(a.Coverage.Unsupported) == 0 {
			a.Coverage.Unsupported = append(a.Coverage.Unsupported, degradation(schemas.ReasonUnsupported,
				fmt.Sprintf("none of the sources %q is served here, only %q", q.DiagnosticSources, Source)))
		}
		return a, nil
	}
	found, err := r.both(ctx)
	switch {
	case ctx.Err() != nil:
		a.Status = schemas.StatusCancelled
		a.Coverage.Degraded = append(a.Coverage.Degraded, degradation(schemas.ReasonCancelled, "the check was cancelled"))
	case err != nil:
		a.Status = schemas.StatusError
		a.Coverage.Degraded = append(a.Coverage.Degraded, degradation(schemas.ReasonError, err.Error()))
	default:
		r.conclude(a, found)
	}
	r.account(a)
	return a, nil
}

// assessment makes an answer without findings, bound to the question.
func (r *run) assessment(h *Hygiene) *schemas.Assessment {
	asked := schemas.CoveragePart{Scope: r.q.Scope, DiagnosticSources: []string{Source}, Rules: []string{}, Comparison: r.q.Comparison}
	if len(r.q.DiagnosticSources) > 0 {
		asked.DiagnosticSources = r.q.DiagnosticSources
	}
	if len(r.q.Rules) > 0 {
		asked.Rules = r.q.Rules
	}
	covered := asked
	covered.DiagnosticSources, covered.Rules = []string{Source}, r.rules.names()
	unsupported := []schemas.Degradation{}
	for _, name := range r.rules.missing {
		why := "there is no such rule"
		if _, ok := rules[name]; ok {
			why = "it needs the snapshot, which the host has not mounted"
		}
		unsupported = append(unsupported, degradation(schemas.ReasonUnsupported, fmt.Sprintf("rule %.60q: %s", name, why)))
	}
	return &schemas.Assessment{
		Status: schemas.StatusComplete, Diagnostics: []schemas.Diagnostic{},
		Coverage:  schemas.AssessmentCoverage{Requested: asked, Covered: covered, Degraded: []schemas.Degradation{}, Unsupported: unsupported},
		ValidAsOf: schemas.CheckValidAsOf{Baseline: r.q.ChangeSet.Baseline, ChangesetDigest: r.q.ChangesetDigest, Blobs: []schemas.BlobRef{}},
		Provider: schemas.CheckProvider{ID: ID, Version: h.version, ConfigDigest: r.q.ConfigDigest, CapabilityVersion: capabilityVersion,
			BuildDigest: h.fingerprint(), CapabilityFamily: schemas.Check},
		Timing: schemas.AssessmentTiming{ElapsedMs: new(float64)}, Cache: schemas.Cache{Status: "disabled"},
	}
}

// account fills in what is known at the end, whatever the end.
func (r *run) account(a *schemas.Assessment) {
	*a.Timing.ElapsedMs = float64(time.Since(r.started).Microseconds()) / 1000
	a.ValidAsOf.Blobs = r.w.Received()
	a.Evidence = []schemas.EvidenceItem{{Kind: "metric", ID: "scanned", Data: jsontext.Value(fmt.Sprintf(`{"files":%d,"bytes":%d}`, r.files, r.bytes))}}
}

// maxDiagnostics bounds an answer; errors come before what is left out.
const maxDiagnostics = 5000

// conclude compares the sides and says how far the answer goes.
func (r *run) conclude(a *schemas.Assessment, found both) {
	for _, c := range compare(found, r.q.Comparison) {
		a.Diagnostics = append(a.Diagnostics, c.diagnostic(r.cfg.Severity))
	}
	if n := len(a.Diagnostics); n > maxDiagnostics {
		rank := []schemas.Severity{schemas.SeverityError, schemas.SeverityWarning, schemas.SeverityInfo}
		slices.SortStableFunc(a.Diagnostics, func(x, y schemas.Diagnostic) int {
			return cmp.Compare(slices.Index(rank, x.Severity), slices.Index(rank, y.Severity))
		})
		a.Diagnostics = a.Diagnostics[:maxDiagnostics]
		r.lose("%d findings are more than an answer holds; the first %d are here", n, maxDiagnostics)
	}
	a.Coverage.Degraded = append(a.Coverage.Degraded, r.lost...)
	if more := r.lostCount - len(r.lost); more > 0 {
		a.Coverage.Degraded = append(a.Coverage.Degraded, degradation(schemas.ReasonIncomplete, fmt.Sprintf("and %d more like these", more)))
	}
	a.Coverage.Truncated = r.lostCount > 0
	a.Coverage.Exhaustive = r.lostCount == 0 && len(a.Coverage.Unsupported) == 0
	if !a.Coverage.Exhaustive {
		a.Status = schemas.StatusIncomplete
	}
}

// both finds what is on each side. What was there before is read only when it
// can matter.
func (r *run) both(ctx context.Context) (both, error) {
	var found both
	s := scope{r.q.Scope}
	before, after := sides(r.q.ChangeSet.Changes, s, r.snap)
	resolved := r.q.Comparison == schemas.Resolved
	if resolved {
		// What has moved out of scope is not resolved.
		before = inScope(before)
	} else {
		// What has moved into scope is not new.
		after = inScope(after)
	}
	r.planned = len(before) + len(after)
	var err error
	if found.after, err = r.scan(ctx, after); err != nil {
		return found, err
	}
	if err := r.tree(ctx, s, &found); err != nil {
		return found, err
	}
	if len(found.after) > 0 || resolved {
		hits, err := r.scan(ctx, before)
		if err != nil {
			return found, err
		}
		found.before = append(found.before, hits...)
	}
	return found, nil
}

// tree finds what needs the names of the whole tree, and where unchanged files
// are asked about, what is in them. Unchanged files introduce and resolve
// nothing, so that only a comparison with all needs them.
func (r *run) tree(ctx context.Context, s scope, found *both) error {
	changes := r.q.ChangeSet.Changes
	whole := r.q.Comparison == schemas.All && s.Name != schemas.ScopeChangeset
	interest := renamed(changes, s)
	names := r.rules.on[ruleCollision] && (whole || len(interest) > 0)
	if !whole && !names {
		return nil
	}
	if !whole && r.snap != nil && readsAll(r.w.Grant()) {
		return r.collide(interest, r.snap.baseline.names, r.snap.candidate.names, found)
	}
	entries, truncated, err := r.w.ListTree(ctx, schemas.ListTreeParams{})
	var refused *schemas.Error
	if errors.As(err, &refused) && ctx.Err() == nil {
		r.lose("the tree could not be listed: %s", refused.Message)
		return nil
	}
	if err != nil {
		return err
	}
	if truncated {
		r.lose("the host listed only a part of the tree")
	}
	if whole {
		if err := r.unchanged(ctx, s, entries, found); err != nil {
			return err
		}
		for _, e := range entries {
			if s.has(e.Path) {
				interest = append(interest, e.Path)
			}
		}
	}
	if !names {
		return nil
	}
	return r.collide(interest, listed(paths(entries), interest), listed(overlaid(entries, changes), interest), found)
}

// collide looks for names that collide on both sides.
func (r *run) collide(interest []string, before, after tree, found *both) error {
	now, err := collisions(interest, after)
	if err != nil {
		return err
	}
	was, err := collisions(interest, before)
	if err != nil {
		return err
	}
	found.after = append(found.after, now...)
	found.before = append(found.before, was...)
	return nil
}

// unchanged scans the files in scope that no change touches; what is in them
// is on both sides.
func (r *run) unchanged(ctx context.Context, s scope, entries []schemas.TreeEntry, found *both) error {
	touched := map[string]bool{}
	for _, c := range r.q.ChangeSet.Changes {
		touched[c.Path], touched[c.From] = true, true
	}
	var sources []source
	for _, e := range entries {
		if touched[e.Path] || !s.has(e.Path) {
			continue
		}
		src := source{path: e.Path, ref: e.BlobID, origin: e.Path}
		switch e.Kind {
		case "file":
		case "symlink":
			src.kind = link
		default:
			continue
		}
		sources = append(sources, src)
	}
	r.planned += len(sources)
	hits, err := r.scan(ctx, sources)
	if err != nil {
		return err
	}
	found.before = append(found.before, hits...)
	found.after = append(found.after, hits...)
	return nil
}

// readsAll reports whether a grant covers every path.
func readsAll(p schemas.Permissions) bool {
	return slices.Contains(p.Read, "**") && !slices.ContainsFunc(p.Read, func(g string) bool { return strings.HasPrefix(g, "!") })
}
