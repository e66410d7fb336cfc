package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aspis-dev/aspis/integration/conformance"
	"github.com/aspis-dev/aspis/schemas"
)

// TestConcurrent64 asks one host for 64 evaluations at once, each of another
// change: every one is answered by its own verdict or by a typed error.
func TestConcurrent64(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	h := serve(t, w)
	ctx := deadline(t, 90*time.Second)
	const n = 64
	verdicts := make([]*schemas.Verdict, n)
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			text := fmt.Sprintf("package main\n\nvar v%d = 1\n", i)
			if i%4 == 0 {
				text = fmt.Sprintf("// TEST-ERROR %d\n", i)
			}
			verdicts[i], errs[i] = h.Evaluate(ctx, schemas.Gate, conformance.Change{fmt.Sprintf("src/new%d.go", i): &text}, 0)
		})
	}
	all.Wait()
	receipts := map[string]bool{}
	for i, v := range verdicts {
		if errs[i] != nil {
			t.Errorf("%d: %v", i, errs[i])
			continue
		}
		want := schemas.Allow
		if i%4 == 0 {
			want = schemas.Deny
		}
		if v.Decision != want {
			t.Errorf("%d: %s, want %s\n%s", i, v.Decision, want, details(v))
		}
		for _, f := range v.Findings {
			if f.Diagnostic.Code == "test/marker" && f.Diagnostic.Location.Path != fmt.Sprintf("src/new%d.go", i) {
				t.Errorf("%d: a finding of another evaluation: %s", i, f.Diagnostic.Location.Path)
			}
		}
		receipts[v.Receipt.ReceiptID] = true
	}
	if len(receipts) != n {
		t.Errorf("%d receipts for %d evaluations", len(receipts), n)
	}
	if err := h.Breaches(); err != nil {
		t.Error(err)
	}
}

// footprint is what a host holds.
type footprint struct {
	fds, threads, mounts, cgroups, sandboxes, children int
	rssKB                                              int
}

func measure(t *testing.T, w *conformance.World, pid int) (f footprint) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d", pid)
	count := func(name string) int {
		e, err := os.ReadDir(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return len(e)
	}
	f.fds, f.threads = count("fd"), count("task")
	tasks, _ := filepath.Glob(dir + "/task/*/mountinfo")
	seen := map[string]bool{}
	for _, p := range tasks {
		// Each mount namespace is counted once.
		ns, err := os.Readlink(filepath.Join(filepath.Dir(p), "ns/mnt"))
		b, readErr := os.ReadFile(p)
		if err != nil || readErr != nil || seen[ns] {
			continue
		}
		seen[ns] = true
		f.mounts += bytes.Count(b, []byte{'\n'})
	}
	kids, _ := filepath.Glob(dir + "/task/*/children")
	for _, p := range kids {
		b, _ := os.ReadFile(p)
		f.children += len(strings.Fields(string(b)))
	}
	f.sandboxes = len(sandboxes(w))
	for _, id := range sandboxes(w) {
		groups, _ := filepath.Glob("/sys/fs/cgroup/*/" + id)
		f.cgroups += len(groups)
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			f.rssKB, _ = strconv.Atoi(strings.Fields(v)[0])
		}
	}
	return f
}

// soakRuns is how many evaluations a soak has; ASPIS_SOAK asks for more.
func soakRuns(t *testing.T) int {
	t.Helper()
	s := os.Getenv("ASPIS_SOAK")
	if s == "" {
		return 200
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 100 {
		t.Fatalf("ASPIS_SOAK is %q; use a number from 100", s)
	}
	return n
}

// TestSoak makes many evaluations through one warm host; what the host holds
// must not grow with them.
func TestSoak(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig())
	h := serve(t, w)
	n := soakRuns(t)
	ctx := deadline(t, time.Minute+time.Duration(n)*100*time.Millisecond)
	var early footprint
	warmup := n / 2
	started := time.Now()
	for i := range n {
		text := fmt.Sprintf("package main\n\nvar v = %d\n", i)
		v, err := h.Evaluate(ctx, schemas.Gate, conformance.Change{"src/new.go": &text}, 0)
		if err != nil {
			t.Fatalf("evaluation %d: %v", i, err)
		}
		if v.Decision != schemas.Allow {
			t.Fatalf("evaluation %d: %s\n%s", i, v.Decision, details(v))
		}
		if i == warmup {
			early = measure(t, w, h.Pid())
		}
	}
	late := measure(t, w, h.Pid())
	t.Logf("%d evaluations, %.1f ms each; after %d: %+v; at the end: %+v", n, float64(time.Since(started).Milliseconds())/float64(n), warmup, early, late)
	if late.mounts != early.mounts || late.cgroups != early.cgroups || late.sandboxes != early.sandboxes || late.children != early.children {
		t.Errorf("mounts, control groups, sandboxes or children changed: %+v, then %+v", early, late)
	}
	// Descriptors and threads come and go by a few; memory is the collector's.
	if late.fds > early.fds+8 || late.threads > early.threads+6 {
		t.Errorf("descriptors or threads grew: %+v, then %+v", early, late)
	}
	if late.rssKB > early.rssKB*5/4+8<<10 {
		t.Errorf("memory grew: %+v, then %+v", early, late)
	}
}

// TestSoakCold starts a provider for each evaluation, over a mounted snapshot.
func TestSoakCold(t *testing.T) {
	l := lab(t)
	c := l.NewConfig()
	c.Providers[0].Workspace = "snapshot"
	w := world(t, l, c)
	h := serve(t, w)
	ctx := deadline(t, 90*time.Second)
	var early footprint
	for i := range 60 {
		text := fmt.Sprintf("package main\n\nvar v = %d\n", i%3)
		v, err := h.Evaluate(ctx, schemas.Gate, conformance.Change{"src/new.go": &text}, 0)
		if err != nil || v.Decision != schemas.Allow {
			t.Fatalf("evaluation %d: %v %+v", i, err, v)
		}
		if i == 20 {
			early = measure(t, w, h.Pid())
		}
	}
	late := measure(t, w, h.Pid())
	t.Logf("after 20: %+v; after 60: %+v", early, late)
	if late.mounts > early.mounts || late.cgroups > early.cgroups || late.sandboxes > early.sandboxes || late.children > early.children || late.fds > early.fds+8 || late.threads > early.threads+6 {
		t.Errorf("it grew: %+v, then %+v", early, late)
	}
}

// TestWaitingIsNoFailure has callers give up while they wait for one slow
// provider's turn: only what it was asked itself counts against it.
func TestWaitingIsNoFailure(t *testing.T) {
	l := lab(t)
	w := world(t, l, l.NewConfig("slow"))
	h := serve(t, w)
	ctx := deadline(t, time.Minute)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			text := fmt.Sprintf("package main\n\nvar v%d = 1\n", i)
			v, err := h.Evaluate(ctx, schemas.Gate, conformance.Change{"src/new.go": &text}, 1500)
			if err != nil || v.Decision == schemas.Allow {
				t.Errorf("%d: %v %+v", i, err, v)
			}
		})
	}
	all.Wait()
	st, err := h.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if st.Servers[0].State == "quarantined" {
		t.Errorf("the provider was asked once, and is quarantined: %+v", st.Servers[0])
	}
}
