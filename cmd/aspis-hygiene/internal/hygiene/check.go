package hygiene

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/cmd/internal/provider"
	"github.com/aspis-dev/aspis/schemas"
)

// ID is what the provider calls itself.
const ID = "aspis-hygiene"

const capabilityVersion = "1"

// Hygiene is the provider.
type Hygiene struct {
	version     string
	fingerprint func() string
	secrets     *secrets
}

var _ provider.Checker = (*Hygiene)(nil)

// New makes it; compiling the secret rules begins at once.
func New(version string) *Hygiene {
	return &Hygiene{version: version, secrets: newSecrets(), fingerprint: sync.OnceValue(ownDigest)}
}

// ownDigest is the sha256 of the running executable.
func ownDigest() string {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return "sha256:unknown"
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "sha256:unknown"
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// Describe answers initialize.
func (h *Hygiene) Describe() schemas.InitializeResult {
	no := false
	return schemas.InitializeResult{
		ServerInfo:         schemas.ServerInfo{Name: ID, Version: h.version, Fingerprint: h.fingerprint()},
		CapabilityFamilies: []schemas.CapabilityFamily{schemas.Check},
		Capabilities: schemas.Capabilities{Check: &schemas.CheckCapability{
			CapabilityVersion: capabilityVersion, DiagnosticSources: []string{Source}, Scopes: []string{schemas.ScopeChangeset, schemas.ScopeWorkspace},
			Comparisons:    []schemas.Comparison{schemas.Introduced, schemas.All, schemas.Resolved},
			PartialResults: false, Incremental: false, UnsupportedReporting: "assessment-status", Fixes: &no,
		}},
		RequestedPermissions: &schemas.Permissions{Read: []string{"**"}, Write: &no, Network: &no},
	}
}

// config is what trusted configuration may set.
type config struct {
	MaxFileBytes int64    `json:"maxFileBytes,omitzero"`
	Disable      []string `json:"disable,omitzero"`
}

// defaultMaxFile is the size above which a file is reported, in bytes.
const defaultMaxFile = 5 << 20

func readConfig(raw jsontext.Value) (config, error) {
	c := config{MaxFileBytes: defaultMaxFile}
	if len(raw) > 0 {
		if err := schemas.Decode(raw, &c, schemas.Limits{}); err != nil {
			return c, fmt.Errorf("configuration: %w", err)
		}
	}
	for _, name := range c.Disable {
		if _, ok := rules[name]; !ok {
			return c, fmt.Errorf("configuration: there is no rule %q; the rules are %s", name, strings.Join(slices.Sorted(maps.Keys(rules)), ", "))
		}
	}
	if c.MaxFileBytes <= 0 {
		return c, errors.New("configuration: maxFileBytes must be above 0")
	}
	return c, nil
}

// run is one check.
type run struct {
	h      *Hygiene
	w      *provider.Workspace
	cfg    config
	modes  *modes
	lost   []schemas.Degradation
	files  int
	bytes  int64
	before []hit
	after  []hit
}

// Check judges a change.
func (h *Hygiene) Check(ctx context.Context, w *provider.Workspace, p *schemas.CheckParams, raw jsontext.Value) (*schemas.Assessment, error) {
	started := time.Now()
	cfg, err := readConfig(p.Configuration)
	if err != nil {
		return nil, &schemas.Error{Code: -32602, Message: err.Error(), Data: &schemas.ErrorData{FailClass: schemas.FailInput}}
	}
	r := &run{h: h, w: w, cfg: cfg, modes: findModes()}
	if err := r.scan(ctx, p); err != nil {
		return nil, err
	}
	digest, err := changesetDigest(raw)
	if err != nil {
		return nil, err
	}
	configuration := p.Configuration
	if len(configuration) == 0 {
		configuration = jsontext.Value("{}")
	}
	configDigest, err := schemas.DigestRaw(configuration)
	if err != nil {
		return nil, err
	}
	part := schemas.CoveragePart{Scope: p.Scope, DiagnosticSources: []string{Source}, Rules: p.Rules, Comparison: p.Comparison}
	if part.Rules == nil {
		part.Rules = []string{}
	}
	covered := part
	covered.Rules = r.rulesRun()
	blobs := w.Read()
	slices.Sort(blobs)
	elapsed := float64(time.Since(started).Microseconds()) / 1000
	a := &schemas.Assessment{
		Status: schemas.StatusComplete, Diagnostics: r.diagnostics(p.Comparison),
		Coverage: schemas.AssessmentCoverage{Requested: part, Covered: covered, Degraded: r.lost, Unsupported: []schemas.Degradation{},
			Exhaustive: len(r.lost) == 0, Truncated: len(r.lost) > 0},
		ValidAsOf: schemas.CheckValidAsOf{Baseline: p.ChangeSet.Baseline, ChangesetDigest: digest, Blobs: blobs},
		Provider: schemas.CheckProvider{ID: ID, Version: h.version, ConfigDigest: configDigest, CapabilityVersion: capabilityVersion,
			BuildDigest: h.fingerprint(), CapabilityFamily: schemas.Check},
		Timing: schemas.AssessmentTiming{ElapsedMs: &elapsed}, Cache: schemas.Cache{Status: "disabled"},
		Evidence: []schemas.EvidenceItem{{Kind: "metric", ID: "scanned", Data: jsontext.Value(fmt.Sprintf(`{"files":%d,"bytes":%d}`, r.files, r.bytes))}},
	}
	if a.Coverage.Degraded == nil {
		a.Coverage.Degraded = []schemas.Degradation{}
	}
	if len(r.lost) > 0 {
		a.Status = schemas.StatusIncomplete
	}
	return a, nil
}

// changesetDigest is over the changeset member exactly as it was sent.
func changesetDigest(raw jsontext.Value) (string, error) {
	var p struct {
		ChangeSet jsontext.Value `json:"changeset"`
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return "", err
	}
	return schemas.DigestRaw(p.ChangeSet)
}

func (r *run) enabled(rule string) bool { return !slices.Contains(r.cfg.Disable, rule) }

// rulesRun lists the rules that this check could apply.
func (r *run) rulesRun() []string {
	var out []string
	for name, def := range rules {
		if r.enabled(name) && (!def.needsModes || r.modes != nil) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func (r *run) scan(ctx context.Context, p *schemas.CheckParams) error {
	inScope := func(c schemas.Change) bool {
		return len(p.Scope.Paths) == 0 || slices.Contains(p.Scope.Paths, c.Path) || slices.Contains(p.Scope.Paths, c.From)
	}
	changed := map[string]bool{}
	for _, c := range p.ChangeSet.Changes {
		changed[c.Path], changed[c.From] = true, true
		if !inScope(c) {
			continue
		}
		if err := r.change(ctx, c); err != nil {
			return err
		}
	}
	// What was there before matters only when there is something now.
	if len(r.after) > 0 || p.Comparison == schemas.Resolved {
		for _, c := range p.ChangeSet.Changes {
			if err := r.original(ctx, c); err != nil {
				return err
			}
		}
	}
	needTree := p.Scope.Name == schemas.ScopeWorkspace || (r.enabled(ruleCase) && creates(p.ChangeSet.Changes))
	if !needTree {
		return nil
	}
	entries, truncated, err := r.w.List(ctx, schemas.ListTreeParams{})
	if err != nil {
		return err
	}
	if truncated {
		r.lose("the host listed only a part of the tree")
	}
	if r.enabled(ruleCase) {
		r.after = append(r.after, collisions(entries, p.ChangeSet.Changes)...)
	}
	if p.Scope.Name != schemas.ScopeWorkspace {
		return nil
	}
	for _, e := range entries {
		if changed[e.Path] || e.Kind != "file" {
			continue
		}
		hits, err := r.blob(ctx, e.Path, e.BlobID)
		if err != nil {
			return err
		}
		r.before = append(r.before, hits...)
		r.after = append(r.after, hits...)
	}
	return nil
}

// creates reports whether any change brings a new name.
func creates(changes []schemas.Change) bool {
	return slices.ContainsFunc(changes, func(c schemas.Change) bool {
		return c.Kind == schemas.ChangeCreate || c.Kind == schemas.ChangeRename
	})
}

// change scans what a change leaves behind.
func (r *run) change(ctx context.Context, c schemas.Change) error {
	after := c.After
	if c.Kind == schemas.ChangeRename && after == "" {
		after = c.Before
	}
	if after != "" && (r.modes == nil || !r.modes.isSymlink(c.Path)) {
		hits, err := r.blob(ctx, c.Path, after)
		if err != nil {
			return err
		}
		r.after = append(r.after, hits...)
	}
	if r.modes != nil {
		for _, h := range r.modes.scan(c) {
			if r.enabled(h.rule) {
				r.after = append(r.after, h)
			}
		}
	}
	return nil
}

// original scans what a change found, under its old name. Text that only moves,
// within a file or from one to another, is not new.
func (r *run) original(ctx context.Context, c schemas.Change) error {
	if c.Before == "" {
		return nil
	}
	old := c.Path
	if c.From != "" {
		old = c.From
	}
	hits, err := r.blob(ctx, old, c.Before)
	if err != nil {
		return err
	}
	r.before = append(r.before, hits...)
	return nil
}

func (r *run) lose(detail string) {
	r.lost = append(r.lost, schemas.Degradation{Source: ID, Reason: schemas.ReasonIncomplete, Detail: detail, Capability: schemas.Check})
}

// blob scans one content. What the host will not give is a loss, not an error.
func (r *run) blob(ctx context.Context, path string, ref schemas.BlobRef) ([]hit, error) {
	content, err := r.w.Blob(ctx, ref)
	if err != nil {
		var refused *schemas.Error
		if errors.As(err, &refused) && ctx.Err() == nil {
			r.lose(fmt.Sprintf("%s could not be read: %s", path, refused.Message))
			return nil, nil
		}
		return nil, err
	}
	r.files++
	r.bytes += int64(len(content))
	var hits []hit
	if int64(len(content)) > r.cfg.MaxFileBytes {
		hits = append(hits, hit{rule: ruleLarge, path: path, line: -1, key: path,
			message: fmt.Sprintf("the file has %d bytes, over the limit of %d", len(content), r.cfg.MaxFileBytes)})
	}
	if !isBinary(content) {
		hits = append(hits, scanText(path, content)...)
		hits = append(hits, scanSyntax(path, content)...)
		if r.enabled(ruleSecret) {
			found, err := r.h.secrets.scan(path, content)
			if err != nil {
				return nil, err
			}
			hits = append(hits, found...)
		}
	}
	return slices.DeleteFunc(hits, func(h hit) bool { return !r.enabled(h.rule) }), nil
}

// diagnostics compares the two sides as multisets of keys.
func (r *run) diagnostics(comparison schemas.Comparison) []schemas.Diagnostic {
	out := []schemas.Diagnostic{}
	emit := func(list, other []hit, flag bool, all bool) {
		left := map[string]int{}
		for _, h := range other {
			left[h.rule+"\x00"+h.key]++
		}
		seen := map[string]int{}
		for _, h := range list {
			k := h.rule + "\x00" + h.key
			fresh := left[k] == 0
			if !fresh {
				left[k]--
			}
			seen[k]++
			if fresh || all {
				out = append(out, diagnostic(h, seen[k], fresh && flag))
			}
		}
	}
	switch comparison {
	case schemas.Resolved:
		emit(r.before, r.after, false, false)
	default:
		emit(r.after, r.before, true, comparison == schemas.All)
	}
	return out
}

func diagnostic(h hit, occurrence int, introduced bool) schemas.Diagnostic {
	def := rules[h.rule]
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d", h.rule, h.key, occurrence))
	d := schemas.Diagnostic{Code: Source + "/" + h.rule, Severity: def.severity, Source: Source, Message: h.message,
		Location: schemas.Location{Path: h.path}, Fingerprint: hex.EncodeToString(sum[:]), Introduced: &introduced, Help: def.help}
	if h.line >= 0 {
		d.Location.Range = &schemas.Range{Start: schemas.Position{Line: h.line, Char: h.start}, End: schemas.Position{Line: h.line, Char: max(h.end, h.start)}}
	}
	return d
}
