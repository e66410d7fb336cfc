package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

// RunProvider runs the provider suite against a program, started as an ordinary
// child process. The suite plays the host, with a repository in memory.
func RunProvider(ctx context.Context, argv []string) (*Report, error) {
	if len(argv) == 0 {
		return nil, errors.New("no provider is named")
	}
	full, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, err
	}
	// It is started elsewhere.
	if full, err = filepath.Abs(full); err != nil {
		return nil, err
	}
	t := &providerTest{argv: append([]string{full}, argv[1:]...)}
	r := &Report{Suite: "provider", Subject: argv}
	for _, c := range []struct {
		id  string
		run func(context.Context) error
	}{
		{"CORE-SERVER-INITIALIZE", t.initializes},
		{"CORE-SERVER-UNSUPPORTED-PROTOCOL", t.refusesProtocol},
		{"CORE-SERVER-PREINITIALIZED", t.refusesEarlyWork},
		{"CORE-SERVER-INITIALIZED-GRANT", t.takesGrant},
		{"CORE-SERVER-CALLBACK-CONTENT", t.readsByCallback},
		{"CORE-SERVER-GRANT-SCOPE", t.keepsToGrant},
		{"CORE-SERVER-VALID-RESULTS", t.validResults},
		{"CORE-SERVER-TYPED-ERROR", t.typedError},
		{"CORE-SERVER-REJECTED-MALFORMED-HOST-FIELDS", t.sendsNoHostFields},
		{"CORE-SERVER-REJECTED-FRESHNESS", t.bindsToRequest},
		{"CORE-SERVER-TIMEOUT", t.answersInTime},
		{"CORE-SERVER-BEHAVIOR-ONLY", t.endsCleanly},
	} {
		r.add(measure(ctx, c.id, c.run))
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
	}
	return r, nil
}

type providerTest struct{ argv []string }

// answerTime is how long a provider may take for anything here.
const answerTime = 20 * time.Second

// memory is a host with a repository in memory.
type memory struct {
	*Peer
	baseline schemas.Baseline
	files    map[string]string // baseline
	after    map[string]string // by path
	grant    []string          // paths that may be read; nil means all

	mu     sync.Mutex
	served map[schemas.BlobRef]bool
	denied int
	lists  int
}

func (t *providerTest) start(ctx context.Context) (*memory, error) {
	m := &memory{baseline: schemas.Baseline{Rev: "git:tree:4b825dc642cb6eb9a060e54bf8d69288fbee4904"}, files: baselineFiles(),
		after: map[string]string{"src/new.go": cleanText, "src/main.go": "package main\n\nfunc main() { println() }\n"}, served: map[schemas.BlobRef]bool{}}
	cmd := exec.CommandContext(ctx, t.argv[0], t.argv[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8"}
	cmd.Dir = os.TempDir()
	p, err := startPeer(cmd, m.callback)
	if err != nil {
		return nil, err
	}
	m.Peer = p
	return m, nil
}

func (m *memory) callback(method string, params jsontext.Value) (any, *schemas.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch method {
	case schemas.MethodListTree:
		var p schemas.ListTreeParams
		_ = json.Unmarshal(params, &p)
		m.lists++
		res := schemas.ListTreeResult{Entries: []schemas.TreeEntry{}}
		for path, text := range m.files {
			if m.readable(path) && (len(p.Paths) == 0 || slices.Contains(p.Paths, path)) {
				res.Entries = append(res.Entries, schemas.TreeEntry{Path: path, BlobID: schemas.BlobRefOf([]byte(text)), Kind: "file"})
			}
		}
		return res, nil
	case schemas.MethodReadBlob:
		var p schemas.ReadBlobParams
		_ = json.Unmarshal(params, &p)
		res := schemas.ReadBlobResult{Blobs: []schemas.Blob{}}
		for _, ref := range p.Blobs {
			text, ok := m.find(ref)
			if !ok {
				m.denied++
				return nil, &schemas.Error{Code: schemas.CodeScopeDenied, Message: "outside the grant", Data: &schemas.ErrorData{FailClass: schemas.FailPolicy}}
			}
			res.Blobs = append(res.Blobs, encodeBlob(ref, text))
		}
		for _, ref := range p.Blobs {
			m.served[ref] = true
		}
		return res, nil
	}
	return nil, &schemas.Error{Code: -32601, Message: "no such method", Data: &schemas.ErrorData{FailClass: schemas.FailContract}}
}

func (m *memory) readable(path string) bool { return m.grant == nil || slices.Contains(m.grant, path) }

func (m *memory) find(ref schemas.BlobRef) (string, bool) {
	for _, files := range []map[string]string{m.files, m.after} {
		for path, text := range files {
			if m.readable(path) && schemas.BlobRefOf([]byte(text)) == ref {
				return text, true
			}
		}
	}
	return "", false
}

func (m *memory) call(ctx context.Context, method string, params any) (jsontext.Value, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	return m.Call(ctx, method, params)
}

func (m *memory) initialize(ctx context.Context) (*schemas.InitializeResult, error) {
	raw, err := m.call(ctx, schemas.MethodInitialize, schemas.InitializeParams{ProtocolVersion: schemas.ProtocolVersion,
		Host: schemas.NameVersion{Name: "aspis-conformance", Version: "1"}, Workspace: schemas.Workspace{Root: "/workspace/candidate", Baseline: m.baseline},
		HostCapabilities: jsontext.Value(`{"progress":true,"pullDiagnostics":true,"putBlob":false,"readBlob":true}`), AssuranceMode: schemas.Gated})
	if err != nil {
		return nil, fmt.Errorf("initialize: %w", err)
	}
	info, err := schemas.DecodeInitializeResult(raw, schemas.Limits{})
	if err != nil {
		return nil, fmt.Errorf("initialize: %w", err)
	}
	return info, nil
}

// ready shakes hands.
func (m *memory) ready(ctx context.Context) (*schemas.InitializeResult, error) {
	info, err := m.initialize(ctx)
	if err != nil {
		return nil, err
	}
	no, seconds := false, 60_000
	read := m.grant
	if read == nil {
		read = []string{"**"}
	}
	return info, m.Notify(schemas.MethodInitialized, schemas.InitializedParams{Baseline: m.baseline,
		GrantedPermissions: schemas.Permissions{Read: read, Write: &no, Network: &no, ResourceLimits: &schemas.ResourceLimits{WallclockMs: &seconds}}})
}

func (m *memory) params() schemas.CheckParams {
	w := &World{Files: m.files}
	c := Change{}
	for path, s := range m.after {
		c[path] = text(s)
	}
	cs, _ := w.ChangeSet(m.baseline, c)
	return schemas.CheckParams{ChangeSet: cs, Scope: schemas.Scope{Name: schemas.ScopeChangeset}, Comparison: schemas.Introduced}
}

// check asks for an assessment and validates it in full.
func (m *memory) check(ctx context.Context, info *schemas.InitializeResult, p schemas.CheckParams) (*schemas.Assessment, error) {
	m.mu.Lock()
	m.served = map[schemas.BlobRef]bool{}
	m.mu.Unlock()
	raw, err := m.call(ctx, schemas.MethodCheckEvaluate, p)
	if err != nil {
		return nil, fmt.Errorf("check/evaluate: %w", err)
	}
	if at, found := schemas.ForbiddenField(raw, false); found {
		return nil, fmt.Errorf("the assessment has the host-owned field %s", at)
	}
	a, err := schemas.DecodeAssessment(raw, schemas.Limits{})
	if err != nil {
		return nil, fmt.Errorf("the assessment: %w", err)
	}
	return a, m.bound(a, info, p)
}

// bound checks an assessment against what was asked and served.
func (m *memory) bound(a *schemas.Assessment, info *schemas.InitializeResult, p schemas.CheckParams) error {
	want, err := schemas.Digest(p.ChangeSet)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	named := map[schemas.BlobRef]bool{}
	for _, ref := range a.ValidAsOf.Blobs {
		named[ref] = true
		if !m.served[ref] {
			err = errors.Join(err, fmt.Errorf("validAsOf names %s, which was not served for this request", ref))
		}
	}
	for ref := range m.served {
		if !named[ref] {
			err = errors.Join(err, fmt.Errorf("validAsOf leaves out %s, which was served", ref))
		}
	}
	if !a.ValidAsOf.Baseline.Same(p.ChangeSet.Baseline) {
		err = errors.Join(err, fmt.Errorf("validAsOf is on %q", a.ValidAsOf.Baseline.Rev))
	}
	if a.ValidAsOf.ChangesetDigest != want {
		err = errors.Join(err, fmt.Errorf("validAsOf names the changeset %s, not %s", a.ValidAsOf.ChangesetDigest, want))
	}
	if a.Provider.Version != info.ServerInfo.Version {
		err = errors.Join(err, fmt.Errorf("it answers as version %q, having introduced itself as %q", a.Provider.Version, info.ServerInfo.Version))
	}
	sources := []string{}
	if c := info.Capabilities.Check; c != nil {
		sources = c.DiagnosticSources
	} else if c := info.Capabilities.Judge; c != nil {
		sources = c.DiagnosticSources
	}
	for _, d := range a.Diagnostics {
		if source, _, _ := strings.Cut(d.Code, "/"); !slices.Contains(sources, source) {
			err = errors.Join(err, fmt.Errorf("the code %q is outside the declared sources %v", d.Code, sources))
		}
	}
	return err
}

// with starts a provider, works with it and ends it; breaches of the schemas fail.
func (t *providerTest) with(ctx context.Context, do func(*memory) error) error {
	m, err := t.start(ctx)
	if err != nil {
		return err
	}
	err = do(m)
	m.Kill()
	return errors.Join(err, m.Breaches())
}

func (t *providerTest) initializes(ctx context.Context) error {
	return t.with(ctx, func(m *memory) error {
		info, err := m.initialize(ctx)
		if err != nil {
			return err
		}
		if !slices.Contains(info.CapabilityFamilies, schemas.Check) {
			return fmt.Errorf("it offers %v and not check, which this suite is for", info.CapabilityFamilies)
		}
		if p := info.RequestedPermissions; p != nil && p.Write != nil && *p.Write {
			return errors.New("a check provider asks for writing")
		}
		return nil
	})
}

func (t *providerTest) refusesProtocol(ctx context.Context) error {
	return t.with(ctx, func(m *memory) error {
		_, err := m.call(ctx, schemas.MethodInitialize, schemas.InitializeParams{ProtocolVersion: "asp/99.0",
			Host: schemas.NameVersion{Name: "aspis-conformance", Version: "1"}, Workspace: schemas.Workspace{Root: "/workspace/candidate", Baseline: m.baseline}})
		return wantRefusal(err, schemas.FailContract)
	})
}

func (t *providerTest) refusesEarlyWork(ctx context.Context) error {
	return t.with(ctx, func(m *memory) error {
		if _, err := m.initialize(ctx); err != nil {
			return err
		}
		_, err := m.call(ctx, schemas.MethodCheckEvaluate, m.params())
		return wantRefusal(err, "")
	})
}

func (t *providerTest) takesGrant(ctx context.Context) error {
	return t.with(ctx, func(m *memory) error {
		info, err := m.ready(ctx)
		if err != nil {
			return err
		}
		_, err = m.check(ctx, info, m.params())
		return err
	})
}

// readsByCallback gives a provider no other way to bytes than callbacks.
func (t *providerTest) readsByCallback(ctx context.Context) error {
	return t.with(ctx, func(m *memory) error {
		info, err := m.ready(ctx)
		if err != nil {
			return err
		}
		a, err := m.check(ctx, info, m.params())
		if err != nil {
			return err
		}
		if a.Status == schemas.StatusComplete && len(m.served) == 0 {
			return errors.New("it calls its answer complete without having read anything")
		}
		return nil
	})
}

// keepsToGrant grants one file: what lies outside is not served, and the answer
// must not name it as read, nor call itself exhaustive.
func (t *providerTest) keepsToGrant(ctx context.Context) error {
	return t.with(ctx, func(m *memory) error {
		m.grant = []string{"src/main.go"}
		info, err := m.ready(ctx)
		if err != nil {
			return err
		}
		a, err := m.check(ctx, info, m.params())
		var typed *schemas.Error
		if errors.As(err, &typed) {
			return nil // refusing to work with so little is an answer
		}
		if err != nil {
			return err
		}
		if a.Status == schemas.StatusComplete && a.Coverage.Exhaustive {
			return errors.New("half of the change was outside its grant, yet it calls its answer complete and exhaustive")
		}
		return nil
	})
}

// validResults asks several questions; whatever status comes back must be valid
// in full.
func (t *providerTest) validResults(ctx context.Context) error {
	return t.with(ctx, func(m *memory) error {
		info, err := m.ready(ctx)
		if err != nil {
			return err
		}
		for _, ask := range []func(*schemas.CheckParams){
			func(*schemas.CheckParams) {},
			func(p *schemas.CheckParams) { p.Comparison = schemas.All },
			func(p *schemas.CheckParams) { p.Comparison = schemas.Resolved },
			func(p *schemas.CheckParams) { p.Scope = schemas.Scope{Name: schemas.ScopeWorkspace} },
			func(p *schemas.CheckParams) { p.Scope = schemas.Scope{Paths: []string{"src/new.go"}} },
			func(p *schemas.CheckParams) { p.ChangeSet.Changes = []schemas.Change{} },
			func(p *schemas.CheckParams) { p.Configuration = jsontext.Value(`{"level":3}`) },
			func(p *schemas.CheckParams) { p.DiagnosticSources = []string{"no-such-source"} },
		} {
			p := m.params()
			ask(&p)
			_, err := m.check(ctx, info, p)
			var typed *schemas.Error
			if errors.As(err, &typed) {
				if typed.Data == nil {
					return fmt.Errorf("an error without failClass: %q (%d)", typed.Message, typed.Code)
				}
				continue
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (t *providerTest) typedError(ctx context.Context) error {
	return t.with(ctx, func(m *memory) error {
		if _, err := m.ready(ctx); err != nil {
			return err
		}
		for method, params := range map[string]any{
			schemas.MethodCheckEvaluate: map[string]any{"changeset": "none"}, "check/noSuchMethod": map[string]any{},
		} {
			_, err := m.call(ctx, method, params)
			if err := wantRefusal(err, ""); err != nil {
				return fmt.Errorf("%s: %w", method, err)
			}
		}
		return nil
	})
}

// sendsNoHostFields asks with a change that gives something to report, if the
// provider knows the marker or looks for secrets.
func (t *providerTest) sendsNoHostFields(ctx context.Context) error {
	return t.with(ctx, func(m *memory) error {
		m.after["src/new.go"] = errorText + "<<<<<<< HEAD\n=======\n>>>>>>> other\n"
		info, err := m.ready(ctx)
		if err != nil {
			return err
		}
		_, err = m.check(ctx, info, m.params())
		return err
	})
}

// bindsToRequest moves the baseline under a warm provider; the second answer
// must be bound to the second question.
func (t *providerTest) bindsToRequest(ctx context.Context) error {
	return t.with(ctx, func(m *memory) error {
		info, err := m.ready(ctx)
		if err != nil {
			return err
		}
		if _, err := m.check(ctx, info, m.params()); err != nil {
			return err
		}
		m.baseline = schemas.Baseline{Rev: "git:tree:" + strings.Repeat("1", 40), Dirty: "sha256:" + strings.Repeat("2", 64)}
		m.after = map[string]string{"src/other.go": "package main\n\nvar other = 2\n"}
		if err := m.Notify(schemas.MethodBaselineChanged, schemas.BaselineChangedParams{Baseline: m.baseline}); err != nil {
			return err
		}
		if _, err := m.check(ctx, info, m.params()); err != nil {
			return fmt.Errorf("after the baseline had moved: %w", err)
		}
		return nil
	})
}

// answersInTime cancels a request: an answer, of whatever kind, comes soon.
func (t *providerTest) answersInTime(ctx context.Context) error {
	return t.with(ctx, func(m *memory) error {
		if _, err := m.ready(ctx); err != nil {
			return err
		}
		for i := range 500 {
			m.after[fmt.Sprintf("gen/file%03d.go", i)] = fmt.Sprintf("package gen\n\nvar v%d = %d\n", i, i)
		}
		id, reply, err := m.Go(schemas.MethodCheckEvaluate, m.params())
		if err != nil {
			return err
		}
		if err := m.Notify(schemas.MethodCancelRequest, schemas.CancelParams{ID: jsontext.Value(id)}); err != nil {
			return err
		}
		wait, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		_, err = m.await(wait, schemas.MethodCheckEvaluate, reply)
		var typed *schemas.Error
		if errors.As(err, &typed) {
			return wantRefusal(err, "")
		}
		return err
	})
}

// endsCleanly checks that a provider behaves: it answers shutdown, ends at exit,
// and has written nothing but messages to standard output.
func (t *providerTest) endsCleanly(ctx context.Context) error {
	m, err := t.start(ctx)
	if err != nil {
		return err
	}
	info, err := m.ready(ctx)
	if err == nil {
		_, err = m.check(ctx, info, m.params())
	}
	if err == nil {
		_, err = m.call(ctx, schemas.MethodShutdown, struct{}{})
	}
	if err == nil {
		err = m.Notify(schemas.MethodExit, struct{}{})
	}
	if err != nil {
		m.Kill()
		return err
	}
	select {
	case <-m.ended:
	case <-time.After(5 * time.Second):
		m.Kill()
		return errors.New("it did not end within 5 s after exit")
	}
	if code := m.ExitCode(); code != 0 {
		return fmt.Errorf("it ended with exit code %d after shutdown and exit", code)
	}
	return m.Breaches()
}
