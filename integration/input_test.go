package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aspis-dev/aspis/integration/conformance"
	"github.com/aspis-dev/aspis/schemas"
)

// refused checks that a command failed in the way that is promised: the exit
// code, nothing on standard output, and one line that says why.
func refused(t *testing.T, o conformance.Outcome, code int, words ...string) {
	t.Helper()
	if o.Code != code || o.Stdout != "" {
		t.Errorf("exit code %d, want %d; stdout %q, stderr %q", o.Code, code, o.Stdout, o.Stderr)
	}
	if !strings.HasPrefix(o.Stderr, "aspis: ") || strings.Count(o.Stderr, "\n") != 1 {
		t.Errorf("not one line of error: %q", o.Stderr)
	}
	for _, w := range words {
		if !strings.Contains(o.Stderr, w) {
			t.Errorf("the error lacks %q: %s", w, o.Stderr)
		}
	}
}

func runIn(t *testing.T, w *conformance.World, args ...string) conformance.Outcome {
	t.Helper()
	o, err := w.Run(deadline(t, time.Minute), args...)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// recovers checks that nothing that was half done is in the way afterwards.
func recovers(t *testing.T, w *conformance.World) {
	t.Helper()
	if v := judge(t, w); v.Decision != schemas.Allow {
		t.Errorf("afterwards: %s\n%s", v.Decision, details(v))
	}
}

func TestNotARepository(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	if err := os.RemoveAll(filepath.Join(w.Repo, ".git")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check"}, {"check", "--format", "json"}, {"status"}, {"host", "serve"}} {
		refused(t, runIn(t, w, args...), 3, "not")
	}
}

func TestUnbornHead(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	ctx := deadline(t, time.Minute)
	if err := os.RemoveAll(filepath.Join(w.Repo, ".git")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Git(ctx, "init", "-q", "-b", "main"); err != nil {
		t.Fatal(err)
	}
	recovers(t, w) // everything is new
	refused(t, runIn(t, w, "check", "--base", "main"), 3, "main")
	h := serve(t, w)
	w.Files["src/new.go"] = "package main\n"
	if v, err := h.Evaluate(ctx, schemas.Gate, conformance.Change{"fresh": new(string)}, 0); err != nil || v.Decision != schemas.Allow {
		t.Errorf("%+v %v", v, err)
	}
}

func TestUnknownRevision(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	for _, args := range [][]string{{"--base", "no-such-rev"}, {"--range", "HEAD..no-such-rev"}, {"--tree", "no-such-rev"}, {"--base", "--upload-pack=x"}, {"--base", "-h"}} {
		refused(t, runIn(t, w, append([]string{"check"}, args...)...), 3, strings.TrimPrefix(args[1], "HEAD.."))
	}
	refused(t, runIn(t, w, "check", "--range", "HEAD"), 3, "A..B")
	refused(t, runIn(t, w, "check", "--call-site", "nowhere"), 3, "nowhere")
	refused(t, runIn(t, w, "check", "--format", "xml"), 3, "xml")
	refused(t, runIn(t, w, "check", "--no-such-flag"), 3, "no-such-flag")
	recovers(t, w)
}

func TestCorruptObject(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	ctx := deadline(t, time.Minute)
	oid, err := w.Git(ctx, "rev-parse", "HEAD:src/main.go")
	if err != nil {
		t.Fatal(err)
	}
	oid = strings.TrimSpace(oid)
	object := filepath.Join(w.Repo, ".git/objects", oid[:2], oid[2:])
	whole, err := os.ReadFile(object)
	if err != nil {
		t.Fatal(err)
	}
	damage := func(b []byte) {
		if err := errors.Join(os.Chmod(object, 0o644), os.WriteFile(object, b, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Write("src/main.go", "package main\n\nvar changed = 1\n"); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"garbage": []byte("garbage"), "empty": {}, "cut": whole[:len(whole)/2]} {
		damage(b)
		o := runIn(t, w, "check", "--format", "json")
		switch o.Code {
		case 2:
			v, err := conformance.ParseVerdict([]byte(o.Stdout))
			if err != nil || v.Decision != schemas.Indeterminate {
				t.Errorf("%s: %v %s", name, err, o.Stdout)
			}
		default:
			refused(t, o, 3, "git fsck")
		}
	}
	damage(whole)
	recovers(t, w)
}

func TestStateDirectoryUnusable(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	good := w.State
	file := filepath.Join(w.Dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, file + "/below", "/proc/aspis", "relative"} {
		w.State = dir
		refused(t, runIn(t, w, "check"), 3, "ASPIS_STATE_DIR")
	}
	w.State = good
	recovers(t, w)
}

func TestFullDisk(t *testing.T) {
	needRoot(t)
	l := lab(t)
	w := world(t, l, l.NewConfig())
	if err := os.MkdirAll(w.State, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := w.Write("src/new.go", "package main\n"); err != nil {
		t.Fatal(err)
	}
	mounted := func(size string) {
		if err := syscall.Mount("tmpfs", w.State, "tmpfs", 0, "size="+size+",mode=0755"); err != nil {
			t.Fatal(err)
		}
	}
	// The size of the provider, which is copied into the state, decides where it
	// gets too tight; each size fails at another place.
	for _, size := range []string{"4k", "16k", "64k", "256k", "1m", "2m", "3m", "4m"} {
		mounted(size)
		o := runIn(t, w, "check", "--format", "json")
		switch o.Code {
		case 0:
			if _, err := conformance.ParseVerdict([]byte(o.Stdout)); err != nil {
				t.Errorf("%s: %v", size, err)
			}
		case 2:
			v, err := conformance.ParseVerdict([]byte(o.Stdout))
			if err != nil || v.Decision != schemas.Indeterminate {
				t.Errorf("%s: %v %s", size, err, o.Stdout)
			}
		default:
			refused(t, o, 3)
			if !strings.Contains(o.Stderr, "no space") {
				t.Errorf("%s: the error does not say that the disk is full: %s", size, o.Stderr)
			}
		}
		// With room again it goes on from what is there.
		if err := syscall.Mount("tmpfs", w.State, "tmpfs", syscall.MS_REMOUNT, "size=256m"); err != nil {
			t.Error(err)
		}
		recovers(t, w)
		if err := syscall.Unmount(w.State, 0); err != nil {
			t.Errorf("%s: %v", size, err)
		}
	}
}

func TestMalformedConfiguration(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	whole, err := os.ReadFile(w.Config)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty":          "",
		"cut":            string(whole[:len(whole)/2]),
		"no object":      "[]",
		"unknown member": strings.Replace(string(whole), `"version"`, `"extra":1,"version"`, 1),
		"doubled":        strings.Replace(string(whole), `"version"`, `"version":"aspis-config/1","version"`, 1),
		"relative":       strings.Replace(string(whole), `"executable":"/`, `"executable":"`, 1),
		"short digest":   strings.Replace(string(whole), `"digest":"sha256:`, `"digest":"sha256:0`, 1),
		"another type":   strings.Replace(string(whole), `"providers":[`, `"providers":7,"x":[`, 1),
		"latin 1":        strings.Replace(string(whole), `"version":"`, "\"version\":\"\xe4", 1),
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(w.Config, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, args := range [][]string{{"check"}, {"host", "serve"}} {
				o := runIn(t, w, args...)
				refused(t, o, 3, "config.json")
				if !regexp.MustCompile(`config\.json:\d+:\d+: `).MatchString(o.Stderr) {
					t.Errorf("no line and column: %s", o.Stderr)
				}
			}
		})
	}
	if err := os.Remove(w.Config); err != nil {
		t.Fatal(err)
	}
	refused(t, runIn(t, w, "check"), 3, "config.json")
	if err := os.WriteFile(w.Config, whole, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(w.Config, 0o666); err != nil {
		t.Fatal(err)
	}
	refused(t, runIn(t, w, "check"), 3, "written by others")
	if err := os.Chmod(w.Config, 0o644); err != nil {
		t.Fatal(err)
	}
	recovers(t, w)
}

func TestPolicyThatLaunches(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	ctx := deadline(t, time.Minute)
	for _, text := range []string{`{"command":["sh","-c","touch owned"]}`, `{"aspVersion":"asp/1.0","requirements":[{"id":"x","launch":{"executable":"/bin/sh"}}]}`, "{\n  \"aspVersion\": \"asp/9\"\n}", "not JSON"} {
		if err := w.Write(".asp/asp.json", text); err != nil {
			t.Fatal(err)
		}
		if err := w.Commit(ctx, "Policy"); err != nil {
			t.Fatal(err)
		}
		if err := w.Write("src/new.go", "package main\n"); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"check"}, {"host", "serve"}} {
			refused(t, runIn(t, w, args...), 3, ".asp/asp.json", "baseline")
		}
	}
}

// moving starts a slow evaluation and changes the repository under it.
func TestRepositoryMoves(t *testing.T) {
	l := lab(t)
	for name, move := range map[string]func(context.Context, *conformance.World) error{
		"worktree": func(_ context.Context, w *conformance.World) error { return w.Write("src/main.go", "package moved\n") },
		"commit": func(ctx context.Context, w *conformance.World) error {
			return errors.Join(w.Write("src/other.go", "package main\n"), w.Commit(ctx, "Meanwhile"))
		},
	} {
		for _, seam := range []string{"serve", "check"} {
			t.Run(name+" "+seam, func(t *testing.T) {
				t.Parallel()
				w := world(t, l, l.NewConfig("slow"))
				ctx := deadline(t, time.Minute)
				type answer struct {
					v   *schemas.Verdict
					err error
				}
				done := make(chan answer, 1)
				go func() {
					var a answer
					if seam == "serve" {
						var h *conformance.Host
						if h, a.err = w.Serve(); a.err == nil {
							text := "package main\n"
							a.v, a.err = h.Evaluate(ctx, schemas.Gate, conformance.Change{"src/new.go": &text}, 0)
						}
					} else {
						a.v, _, a.err = w.Check(ctx, schemas.Gate, 0)
					}
					done <- a
				}()
				time.Sleep(1500 * time.Millisecond)
				if err := move(ctx, w); err != nil {
					t.Fatal(err)
				}
				a := <-done
				if a.err != nil {
					t.Fatal(a.err)
				}
				if a.v.Decision == schemas.Allow || !strings.Contains(details(a.v), string(schemas.ReasonStaleBaseline)) {
					t.Errorf("%s\n%s", a.v.Decision, details(a.v))
				}
			})
		}
	}
}

// TestOuterSeamBadInput sends what no harness should: each gets a typed error or
// nothing, and the host goes on.
func TestOuterSeamBadInput(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	h := serve(t, w)
	ctx := deadline(t, time.Minute)
	st, err := h.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	rev := st.Workspace.Baseline.Rev
	zero := "blob:sha256:" + strings.Repeat("0", 64)
	changeset := func(changes string) string {
		return fmt.Sprintf(`{"callSite":"gate","changeset":{"baseline":{"rev":%q},"changes":[%s]}}`, rev, changes)
	}
	for _, c := range []struct{ method, params string }{
		{"host/evaluateChangeset", `{}`}, {"host/evaluateChangeset", `null`}, {"host/evaluateChangeset", `[]`},
		{"host/evaluateChangeset", `{"callSite":"gate","changeset":{"baseline":{"rev":"x"},"changes":[]},"decision":"allow"}`},
		{"host/evaluateChangeset", `{"callSite":"production","changeset":{"baseline":{"rev":"x"},"changes":[]}}`},
		{"host/evaluateChangeset", changeset(`{"path":"../x","kind":"create","after":"` + zero + `"}`)},
		{"host/evaluateChangeset", changeset(`{"path":"a\\b","kind":"create","after":"` + zero + `"}`)},
		{"host/evaluateChangeset", changeset(`{"path":"a","kind":"create","after":"` + zero + `"}`)},
		{"host/evaluateChangeset", changeset(`{"path":"README.md","kind":"modify","before":"` + zero + `","after":"` + zero + `"}`)},
		{"host/evaluateChangeset", changeset(`{"path":"none","kind":"delete","before":"` + zero + `"}`)},
		{"host/evaluateChangeset", changeset(`{"path":"a","kind":"paint"}`)},
		{"host/queryInspect", `{"callSite":"gate","request":{}}`}, {"host/queryInspect", `{"callSite":"gate","request":{"verb":"symbols","query":"x"}}`},
		{"host/requestEditPlan", `{"callSite":"gate","operation":"rename","baseline":{"rev":"other"}}`},
		{"host/applyProposal", `{"callSite":"gate","proposalId":"x","intent":"provider"}`},
		{"aspis/putBlob", `{"blobs":[{"encoding":"base64","bytes":"?"}]}`}, {"host/noSuchMethod", `{}`}, {"initialize", `{}`}, {"workspace/readBlob", `{"blobs":[]}`},
	} {
		_, err := h.Call(ctx, c.method, json.RawMessage(c.params))
		var typed *schemas.Error
		if !errors.As(err, &typed) || typed.Data == nil || typed.Data.FailClass == "" {
			t.Errorf("%s %s: %v", c.method, c.params, err)
		}
	}
	v, err := h.EvaluateParams(ctx, schemas.EvaluateParams{CallSite: schemas.Gate, ChangeSet: schemas.ChangeSet{Baseline: schemas.Baseline{Rev: "git:tree:" + strings.Repeat("a", 40)}, Changes: []schemas.Change{}}})
	if err != nil || v.Decision == schemas.Allow || !strings.Contains(details(v), string(schemas.ReasonStaleBaseline)) {
		t.Errorf("a baseline that was never issued: %v %v", v, err)
	}
	for _, line := range []string{"", "garbage", "[]", "{}", `{"jsonrpc":"1.0","id":"x","method":"host/status"}`, `{"jsonrpc":"2.0","id":{},"method":"host/status"}`,
		"{\"jsonrpc\":\"2.0\",\"id\":\"u\",\"method\":\"\xff\"}", `{"jsonrpc":"2.0","id":"y","result":1}`, `{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":12345}}`,
		`{"jsonrpc":"2.0","id":"d","id":"e","method":"host/status"}`, strings.Repeat("[", 100_000), `[{"jsonrpc":"2.0","id":1,"method":"host/status"}]`} {
		if err := h.Send([]byte(line)); err != nil {
			t.Fatalf("the host ended at %.40q: %v; %s", line, err, h.Stderr())
		}
	}
	if _, err := h.Status(ctx); err != nil {
		t.Fatalf("the host does not go on: %v", err)
	}
	if err := h.Close(20 * time.Second); err != nil || h.ExitCode() != 0 {
		t.Errorf("%v, exit code %d", err, h.ExitCode())
	}
}

// TestServeEndsOnSignals ends a host that works: soon, and with nothing left.
func TestServeEndsOnSignals(t *testing.T) {
	l := lab(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		w := world(t, l, l.NewConfig("hang"))
		h := serve(t, w)
		ctx := deadline(t, time.Minute)
		text := "package main\n"
		go func() { _, _ = h.Evaluate(ctx, schemas.Gate, conformance.Change{"src/new.go": &text}, 0) }()
		time.Sleep(time.Second)
		started := time.Now()
		if err := syscall.Kill(h.Pid(), sig); err != nil {
			t.Fatal(err)
		}
		if err := h.Ended(10 * time.Second); err != nil {
			t.Errorf("%v: %v", sig, err)
		}
		t.Logf("%v: ended within %v", sig, time.Since(started))
		if left := sandboxes(w); len(left) > 0 {
			t.Errorf("%v: left are %v", sig, left)
		}
	}
}

// TestNothingHalfWritten looks for temporary files after a run.
func TestNothingHalfWritten(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	recovers(t, w)
	err := filepath.WalkDir(w.State, func(path string, _ fs.DirEntry, err error) error {
		if name := filepath.Base(path); err == nil && (strings.Contains(name, ".tmp") || strings.HasPrefix(name, ".")) && name != ".lock" {
			t.Errorf("left: %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
