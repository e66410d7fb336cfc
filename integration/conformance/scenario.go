package conformance

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/aspis-dev/aspis/schemas"
)

// testID and testVersion name the provider that most scenarios install.
const (
	testID      = "testprovider"
	testVersion = "1.0.0"
	requirement = "test-check"
)

// Case is one behaviour id with what proves it.
type Case struct {
	ID        string
	Scenarios []Scenario
	// Run proves what needs more than one evaluation.
	Run func(ctx context.Context, l *Lab) error
}

// Lab is what cases work with.
type Lab struct {
	opt    HostOptions
	digest string // of the test provider
	// AlsoCheck runs each scenario by `aspis check` as well; both seams must agree.
	AlsoCheck bool
}

// NewLab looks at the test provider. The options' paths are made absolute.
func NewLab(opt HostOptions) (*Lab, error) {
	for _, p := range []*string{&opt.Bin, &opt.TestProvider} {
		full, err := exec.LookPath(*p)
		if err != nil {
			return nil, err
		}
		if *p, err = filepath.Abs(full); err != nil {
			return nil, err
		}
	}
	d, err := FileDigest(opt.TestProvider)
	if err != nil {
		return nil, fmt.Errorf("digest of the test provider: %w", err)
	}
	return &Lab{opt: opt, digest: d}, nil
}

// Confined are the modes in which a provider cannot write the worktree.
func Confined() []schemas.AssuranceMode {
	return []schemas.AssuranceMode{schemas.MediatedWrite, schemas.Isolated}
}

// NewConfig installs the test provider with some behaviour and requires it
// everywhere.
func (l *Lab) NewConfig(behave ...string) *Config {
	c := &Config{Version: "aspis-config/1"}
	for _, g := range []*schemas.PolicyGate{&c.Gates.Interactive, &c.Gates.Gate, &c.Gates.Sweep} {
		*g = schemas.PolicyGate{RequiredRequirements: []string{}, OptionalRequirements: []string{}}
	}
	l.Install(c, testID, requirement, true, behave...)
	return c
}

// Install adds a provider with a requirement of its own.
func (l *Lab) Install(c *Config, id, req string, required bool, behave ...string) {
	args := append(slices.Clone(behave), "record", "id="+id)
	c.Providers = append(c.Providers, Provider{ID: id, Version: testVersion, Capabilities: []schemas.CapabilityFamily{schemas.Check},
		Executable: l.opt.TestProvider, Args: args, Digest: l.digest})
	c.Requirements = append(c.Requirements, schemas.Requirement{ID: req, Capabilities: []schemas.CapabilityFamily{schemas.Check}, Assurance: Confined(),
		Authority: schemas.RequirementAuthority{Providers: []schemas.PinnedProvider{l.Pin(id)}}})
	c.Grants = append(c.Grants, Grant{Requirement: req, CallSites: schemas.CallSites[:], Provider: id, Version: testVersion, Integrity: l.digest})
	for _, g := range []*schemas.PolicyGate{&c.Gates.Interactive, &c.Gates.Gate, &c.Gates.Sweep} {
		if required {
			g.RequiredRequirements = append(g.RequiredRequirements, req)
		} else {
			g.OptionalRequirements = append(g.OptionalRequirements, req)
		}
	}
}

// Pin pins the test provider under an id.
func (l *Lab) Pin(id string) schemas.PinnedProvider {
	return schemas.PinnedProvider{ID: id, Version: testVersion, Identity: "local:" + id, Integrity: l.digest, Conformance: "unproven"}
}

// World makes a world; the caller closes it.
func (l *Lab) World(ctx context.Context, c *Config) (*World, error) { return NewWorld(ctx, l.opt, c) }

// Scenario is one evaluation with what must come of it.
type Scenario struct {
	Behave []string
	// Text is the new file's; empty means a clean one.
	Text      string
	Site      schemas.CallSite // empty means gate
	TimeoutMs int
	Setup     func(l *Lab, c *Config)
	// Decision is what is wanted; empty means deny or indeterminate, Any anything.
	Decision schemas.Decision
	// Reason must be among the degradations, unless empty.
	Reason schemas.DegradationReason
	// State is the provider's state in that degradation, unless empty.
	State schemas.LifecycleState
	Also  func(w *World, v *schemas.Verdict, stderr string) error
}

// Any accepts every decision.
const Any schemas.Decision = "any"

const cleanText = "package main\n\nvar fresh = 1\n"

func (s Scenario) name() string {
	return strings.TrimSpace(strings.Join(s.Behave, " ") + " " + string(s.Site))
}

// newFile is what scenarios change.
const newFile = "src/new.go"

func (s Scenario) run(ctx context.Context, l *Lab) error {
	cfg := l.NewConfig(s.Behave...)
	if s.Setup != nil {
		s.Setup(l, cfg)
	}
	if s.Site == "" {
		s.Site = schemas.Gate
	}
	if s.Text == "" {
		s.Text = cleanText
	}
	err := l.inWorld(ctx, cfg, func(w *World) error {
		h, err := w.Serve()
		if err != nil {
			return err
		}
		v, err := h.Evaluate(ctx, s.Site, Change{newFile: text(s.Text)}, s.TimeoutMs)
		if err != nil {
			return err
		}
		if err := h.Close(30 * time.Second); err != nil {
			return err
		}
		return errors.Join(h.Breaches(), s.judge(w, v, h.Stderr()))
	})
	if err != nil || !l.AlsoCheck {
		return err
	}
	return l.inWorld(ctx, cfg, func(w *World) error {
		if err := w.Write(newFile, s.Text); err != nil {
			return err
		}
		v, stderr, err := w.Check(ctx, s.Site, s.TimeoutMs)
		if err != nil {
			return fmt.Errorf("by check: %w", err)
		}
		if err := s.judge(w, v, stderr); err != nil {
			return fmt.Errorf("by check: %w", err)
		}
		return nil
	})
}

func (l *Lab) inWorld(ctx context.Context, cfg *Config, do func(*World) error) error {
	w, err := l.World(ctx, cfg)
	if err != nil {
		return err
	}
	return errors.Join(do(w), w.Close())
}

func (s Scenario) judge(w *World, v *schemas.Verdict, stderr string) error {
	switch {
	case s.Decision == Any:
	case s.Decision == "" && v.Decision == schemas.Allow:
		return fmt.Errorf("the decision is allow; %s", describe(v))
	case s.Decision != "" && v.Decision != s.Decision:
		return fmt.Errorf("the decision is %s, not %s; %s", v.Decision, s.Decision, describe(v))
	}
	if s.Reason != "" {
		d, ok := degraded(v, s.Reason)
		if !ok {
			return fmt.Errorf("no degradation %s; %s", s.Reason, describe(v))
		}
		if s.State != "" && d.ProviderState != s.State {
			return fmt.Errorf("the provider's state is %q, not %q; %s", d.ProviderState, s.State, describe(v))
		}
	}
	if err := recordings(v); err != nil {
		return err
	}
	if s.Also != nil {
		return s.Also(w, v, stderr)
	}
	return nil
}

// recordings checks what the test provider was sent by the host.
func recordings(v *schemas.Verdict) error {
	for _, f := range v.Findings {
		if f.Diagnostic.Code != "test/record" {
			continue
		}
		if err := ValidateMessage([]byte(f.Diagnostic.Message), f.Diagnostic.Help); err != nil {
			return fmt.Errorf("the host sent its provider %.200s: %w", f.Diagnostic.Message, err)
		}
	}
	return nil
}

// recorded counts the host's messages of a method to the provider.
func recorded(v *schemas.Verdict, method string) int {
	n := 0
	for _, f := range v.Findings {
		var m message
		if f.Diagnostic.Code == "test/record" && json.Unmarshal([]byte(f.Diagnostic.Message), &m) == nil && (m.Method == method || f.Diagnostic.Help == method) {
			n++
		}
	}
	return n
}

func degraded(v *schemas.Verdict, reason schemas.DegradationReason) (schemas.Degradation, bool) {
	i := slices.IndexFunc(v.Coverage.Degraded, func(d schemas.Degradation) bool { return d.Reason == reason })
	if i < 0 {
		return schemas.Degradation{}, false
	}
	return v.Coverage.Degraded[i], true
}

func describe(v *schemas.Verdict) string {
	if len(v.Coverage.Degraded) == 0 {
		return "no degradation"
	}
	var parts []string
	for _, d := range v.Coverage.Degraded {
		parts = append(parts, fmt.Sprintf("%s %s (%s): %.160s", d.Source, d.Reason, d.ProviderState, d.Detail))
	}
	return strings.Join(parts, "; ")
}

// Prove runs a case.
func (c Case) Prove(ctx context.Context, l *Lab) error {
	var errs []error
	for _, s := range c.Scenarios {
		if err := s.run(ctx, l); err != nil {
			errs = append(errs, fmt.Errorf("[%s] %w", s.name(), err))
		}
	}
	if c.Run != nil {
		errs = append(errs, c.Run(ctx, l))
	}
	return errors.Join(errs...)
}

// RunHost runs the whole suite against a host; only, if not empty, names the
// ids to run.
func RunHost(ctx context.Context, opt HostOptions, only []string) (*Report, error) {
	l, err := NewLab(opt)
	if err != nil {
		return nil, err
	}
	r := &Report{Suite: "host", Subject: []string{l.opt.Bin}}
	for _, c := range HostCases() {
		if len(only) > 0 && !slices.Contains(only, c.ID) {
			continue
		}
		r.add(measure(ctx, c.ID, func(ctx context.Context) error { return c.Prove(ctx, l) }))
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
	}
	return r, nil
}

// HostCases lists every id of the host suite.
func HostCases() []Case {
	return slices.Concat(coreCases(), hostileCases(), editCases(), assuranceCases())
}

// HostCase finds one by its id.
func HostCase(id string) (Case, bool) {
	all := HostCases()
	i := slices.IndexFunc(all, func(c Case) bool { return c.ID == id })
	if i < 0 {
		return Case{}, false
	}
	return all[i], true
}
