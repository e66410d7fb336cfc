package supervise

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/process"
	"github.com/aspis-dev/aspis/schemas"
)

var providerBin string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "supervise")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	providerBin = filepath.Join(dir, "testprovider")
	cmd := exec.Command("go", "build", "-o", providerBin, "github.com/aspis-dev/aspis/integration/testprovider")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the test provider: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// files is a Content of a few files at the baseline and in the change.
type files struct {
	base, after map[string]string
}

var testBaseline = schemas.Baseline{Rev: "git:tree:4b825dc642cb6eb9a060e54bf8d69288fbee4904"}

func (f files) Baseline() schemas.Baseline { return testBaseline }

func (f files) Entries(_ context.Context, fn func(schemas.TreeEntry) error) error {
	var paths []string
	for p := range f.base {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	for _, p := range paths {
		if err := fn(schemas.TreeEntry{Path: p, BlobID: schemas.BlobRefOf([]byte(f.base[p])), Kind: "file"}); err != nil {
			return err
		}
	}
	return nil
}

func (f files) Entry(_ context.Context, path string) (schemas.TreeEntry, bool, error) {
	text, ok := f.base[path]
	return schemas.TreeEntry{Path: path, BlobID: schemas.BlobRefOf([]byte(text)), Kind: "file"}, ok, nil
}

func (f files) Paths(_ context.Context, ref schemas.BlobRef) (out []string, _ error) {
	for _, m := range []map[string]string{f.base, f.after} {
		for p, text := range m {
			if schemas.BlobRefOf([]byte(text)) == ref {
				out = append(out, p)
			}
		}
	}
	return out, nil
}

func (f files) Open(_ context.Context, ref schemas.BlobRef) (io.ReadCloser, int64, error) {
	for _, m := range []map[string]string{f.base, f.after} {
		for _, text := range m {
			if schemas.BlobRefOf([]byte(text)) == ref {
				return io.NopCloser(bytes.NewReader([]byte(text))), int64(len(text)), nil
			}
		}
	}
	return nil, 0, os.ErrNotExist
}

var testFiles = files{
	base:  map[string]string{"a.txt": "one\n", "secret/key": "hidden\n"},
	after: map[string]string{"a.txt": "one\nTEST-ERROR\n"},
}

func question(t *testing.T) CheckRequest {
	t.Helper()
	cs := schemas.ChangeSet{Baseline: testBaseline, Changes: []schemas.Change{{Path: "a.txt", Kind: schemas.ChangeModify,
		Before: schemas.BlobRefOf([]byte("one\n")), After: schemas.BlobRefOf([]byte("one\nTEST-ERROR\n"))}}}
	digest, err := schemas.Digest(cs)
	if err != nil {
		t.Fatal(err)
	}
	config, err := schemas.DigestRaw([]byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	return CheckRequest{Content: testFiles, ConfigDigest: config, ChangesetDigest: digest,
		Params: schemas.CheckParams{ChangeSet: cs, Scope: schemas.Scope{Name: "changeset"}, Comparison: schemas.Introduced}}
}

func launch(t *testing.T, behave ...string) Launch {
	t.Helper()
	return Launch{
		ID: "testprovider", Version: "1.0.0", Runtime: process.New(), Host: schemas.NameVersion{Name: "test", Version: "0"},
		Ceiling: schemas.Permissions{Read: []string{"**", "!secret/**"}},
		Spec: sandbox.Spec{Name: "testprovider", Path: providerBin, Args: append([]string{"testprovider"}, behave...), Dir: "/",
			Limits: sandbox.Limits{MemoryBytes: 1 << 30, Pids: 64, OpenFiles: 256, WallClock: time.Minute}},
		Limits: Limits{Start: 5 * time.Second, LineBytes: 4 << 20, CallbackCount: 2000, Notifications: 2000, ShutdownTimeout: 300 * time.Millisecond},
	}
}

// check starts a provider with the given behaviours and asks it once.
func check(t *testing.T, budget time.Duration, behave ...string) CheckResult {
	t.Helper()
	ctx := context.Background()
	s, f := Start(ctx, launch(t, behave...), testBaseline)
	if f != nil {
		return CheckResult{Failure: f}
	}
	defer func() {
		if err := s.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	}()
	work, cancel := context.WithTimeoutCause(ctx, budget, context.DeadlineExceeded)
	defer cancel()
	return s.Check(work, question(t))
}

func TestHonestProviderIsTakenAsItIs(t *testing.T) {
	res := check(t, 5*time.Second)
	if res.Failure != nil {
		t.Fatal(res.Failure)
	}
	a := res.Assessment
	if a.Status != schemas.StatusComplete || len(a.Diagnostics) != 1 || a.Diagnostics[0].Location.Range.Start.Line != 1 {
		t.Fatalf("%+v", a)
	}
	if len(res.Served) != 1 {
		t.Fatalf("served %v", res.Served)
	}
}

func TestEveryHostileBehaviourIsATypedFailure(t *testing.T) {
	for behaviour, want := range map[string]schemas.DegradationReason{
		"not-json":               schemas.ReasonMalformed,
		"malformed-init":         schemas.ReasonMalformed,
		"forge-init=authority":   schemas.ReasonMalformed,
		"ask-network":            schemas.ReasonMalformed,
		"refuse-version":         schemas.ReasonSkewed,
		"version=2.0.0":          schemas.ReasonSkewed,
		"crash-init":             schemas.ReasonCrashed,
		"hang-init":              schemas.ReasonTimedOut,
		"noise":                  schemas.ReasonMalformed,
		"no-check":               schemas.ReasonUnsupported,
		"crash":                  schemas.ReasonCrashed,
		"crash-signal":           schemas.ReasonCrashed,
		"hang":                   schemas.ReasonTimedOut,
		"rpc-error=health":       schemas.ReasonError,
		"rpc-error=input":        schemas.ReasonError,
		"rpc-stale":              schemas.ReasonStale,
		"rpc-cancelled":          schemas.ReasonCancelled,
		"no-method":              schemas.ReasonUnsupported,
		"pass":                   schemas.ReasonMalformed,
		"null":                   schemas.ReasonMalformed,
		"huge":                   schemas.ReasonMalformed,
		"endless":                schemas.ReasonMalformed,
		"deep":                   schemas.ReasonMalformed,
		"doubled":                schemas.ReasonMalformed,
		"bad-utf8":               schemas.ReasonMalformed,
		"unasked":                schemas.ReasonMalformed,
		"batch":                  schemas.ReasonMalformed,
		"callback-flood":         schemas.ReasonTimedOut, // it reads no answer, so it only holds up itself
		"callback-loop":          schemas.ReasonError,
		"progress-flood":         schemas.ReasonError,
		"log-flood":              schemas.ReasonError,
		"forge=decision":         schemas.ReasonMalformed,
		"forge=verdict":          schemas.ReasonMalformed,
		"forge=pass":             schemas.ReasonMalformed,
		"forge-evidence=receipt": schemas.ReasonMalformed,
		"stale-baseline":         schemas.ReasonStale,
		"stale-digest":           schemas.ReasonStale,
		"stale-blob-extra":       schemas.ReasonStale,
		"stale-blob-missing":     schemas.ReasonStale,
		"wrong-config":           schemas.ReasonMalformed,
		"wrong-id":               schemas.ReasonMalformed,
		"wrong-answer-version":   schemas.ReasonMalformed,
		"missing-member":         schemas.ReasonMalformed,
		"unknown-member":         schemas.ReasonMalformed,
		"bad-severity":           schemas.ReasonMalformed,
		"escape-path":            schemas.ReasonMalformed,
		"status=perfect":         schemas.ReasonMalformed,
	} {
		t.Run(strings.ReplaceAll(behaviour, "=", "-"), func(t *testing.T) {
			t.Parallel()
			started := time.Now()
			res := check(t, 4*time.Second, behaviour)
			if res.Failure == nil {
				t.Fatalf("no failure; assessment %+v", res.Assessment)
			}
			if res.Assessment != nil {
				t.Fatal("a failure with an assessment")
			}
			if res.Failure.Reason != want {
				t.Fatalf("%s (%s), want %s", res.Failure.Reason, res.Failure.Detail, want)
			}
			if d := time.Since(started); d > 20*time.Second {
				t.Fatalf("it stalled for %v", d)
			}
		})
	}
}

func TestStaleAnswerIsAskedForOnceMore(t *testing.T) {
	if res := check(t, 5*time.Second, "stale-digest"); !res.Reissued {
		t.Fatal("not re-issued")
	}
}

func TestAnswerTwiceIsSeenBeforeTheNextRequest(t *testing.T) {
	ctx := context.Background()
	s, f := Start(ctx, launch(t, "answer-twice"), testBaseline)
	if f != nil {
		t.Fatal(f)
	}
	defer s.Stop(ctx)
	s.Check(ctx, question(t))
	select {
	case <-s.conn.Done():
	case <-time.After(5 * time.Second):
		t.Fatal("the second answer was not noticed")
	}
	if s.Alive() {
		t.Fatal("still alive")
	}
}

func TestHonestStatusesPass(t *testing.T) {
	for _, status := range []schemas.Status{schemas.StatusIncomplete, schemas.StatusUnsupported, schemas.StatusError, schemas.StatusCancelled} {
		res := check(t, 5*time.Second, "status="+string(status))
		if res.Failure != nil || res.Assessment.Status != status {
			t.Fatalf("%s: %v %+v", status, res.Failure, res.Assessment)
		}
	}
}

func TestStderrFloodDoesNotDisturb(t *testing.T) {
	if res := check(t, 10*time.Second, "stderr-flood"); res.Failure != nil {
		t.Fatal(res.Failure)
	}
}

func TestApplyEditIsAnUnknownMethod(t *testing.T) {
	ctx := context.Background()
	s, f := Start(ctx, launch(t, "apply-edit"), testBaseline)
	if f != nil {
		t.Fatal(f)
	}
	defer s.Stop(ctx)
	if res := s.Check(ctx, question(t)); res.Failure != nil {
		t.Fatal(res.Failure)
	}
	if s.unasked["workspace/applyEdit"] != 1 {
		t.Fatalf("%v", s.unasked)
	}
}

func TestIgnoringTermEndsByKill(t *testing.T) {
	ctx := context.Background()
	s, f := Start(ctx, launch(t, "ignore-term"), testBaseline)
	if f != nil {
		t.Fatal(f)
	}
	started := time.Now()
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(started); d > 5*time.Second {
		t.Fatal(d)
	}
	if s.State() != schemas.StateExited {
		t.Fatal(s.State())
	}
}

func TestWarmSessionAnswersAgain(t *testing.T) {
	ctx := context.Background()
	s, f := Start(ctx, launch(t), testBaseline)
	if f != nil {
		t.Fatal(f)
	}
	defer s.Stop(ctx)
	for range 50 {
		if res := s.Check(ctx, question(t)); res.Failure != nil {
			t.Fatal(res.Failure)
		}
	}
}

func TestGrantKeepsBlobsBack(t *testing.T) {
	ctx := context.Background()
	s, f := Start(ctx, launch(t), testBaseline)
	if f != nil {
		t.Fatal(f)
	}
	defer s.Stop(ctx)
	r := s.begin(testFiles, nil)
	defer s.end(r)
	c := (*callbacks)(s)
	hidden := schemas.BlobRefOf([]byte("hidden\n"))
	nowhere := schemas.BlobRefOf([]byte("nowhere"))
	var refusals []string
	for _, ref := range []schemas.BlobRef{hidden, nowhere} {
		_, err := c.Request(ctx, schemas.MethodReadBlob, []byte(`{"blobs":["`+ref+`"]}`))
		if err == nil {
			t.Fatalf("%s was served", ref)
		}
		refusals = append(refusals, err.Error())
	}
	if refusals[0] != refusals[1] {
		t.Fatalf("the refusals tell whether a blob exists: %q", refusals)
	}
	res, err := c.Request(ctx, schemas.MethodListTree, []byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	if l := res.(schemas.ListTreeResult); len(l.Entries) != 1 || l.Entries[0].Path != "a.txt" {
		t.Fatalf("%+v", l)
	}
	if _, err := c.Request(ctx, schemas.MethodPutBlob, []byte(`{"blobs":[]}`)); err == nil {
		t.Fatal("putBlob without an edit grant")
	}
}

func TestNarrowNeverWidens(t *testing.T) {
	n := func(i int) *int { return &i }
	for _, tc := range []struct {
		ask, ceiling []string
		path         string
		want         bool
	}{
		{[]string{"**"}, []string{"**"}, "a/b", true},
		{[]string{"**"}, []string{"src/**"}, "a/b", false},
		{[]string{"**"}, []string{"src/**"}, "src/b", true},
		{[]string{"src/**"}, []string{"**"}, "src/b", true},
		{[]string{"**"}, []string{"**", "!secret/**"}, "secret/b", false},
		{[]string{"**", "!x"}, []string{"**"}, "x", false},
		{[]string{"src/**"}, []string{"lib/**"}, "src/a", false},
		{nil, []string{"**"}, "a", false},
		{[]string{"**"}, nil, "a", false},
	} {
		g, err := Narrow(&schemas.Permissions{Read: tc.ask}, schemas.Permissions{Read: tc.ceiling})
		if err != nil {
			t.Fatal(err)
		}
		if got := Readable(g.Read, tc.path); got != tc.want {
			t.Errorf("%v under %v: %s readable %v", tc.ask, tc.ceiling, tc.path, got)
		}
	}
	g, err := Narrow(&schemas.Permissions{ResourceLimits: &schemas.ResourceLimits{MemoryMB: n(9000), FD: n(5)}},
		schemas.Permissions{ResourceLimits: &schemas.ResourceLimits{MemoryMB: n(100), FD: n(50)}})
	if err != nil || *g.ResourceLimits.MemoryMB != 100 || *g.ResourceLimits.FD != 5 || *g.Write || *g.Network {
		t.Fatalf("%+v %v", g, err)
	}
}

func TestWornSessionIsRetired(t *testing.T) {
	ctx := context.Background()
	l := launch(t)
	l.Limits.SessionCount = 6
	s, f := Start(ctx, l, testBaseline)
	if f != nil {
		t.Fatal(f)
	}
	for i := range 6 {
		if res := s.Check(ctx, question(t)); res.Failure != nil {
			t.Fatal(res.Failure)
		}
		if s.Worn() != (i >= 3) {
			t.Fatalf("worn after %d callbacks: %v", i+1, s.Worn())
		}
	}
	if err := s.Retire(ctx); err != nil || s.Alive() {
		t.Fatal(err, s.Alive())
	}
}
