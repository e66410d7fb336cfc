package probe

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/aspis-dev/aspis/sandbox"
)

// Options say what is tried, and where.
type Options struct {
	Runtime sandbox.Runtime
	// Program is the file of cmd/aspis-probe.
	Program string
	// Dir is an empty directory for what is shown and what is guarded. It must
	// be reachable by everybody (o+x), as artifacts must.
	Dir string
	// Without leaves walls out, which is how the probe itself is tested.
	Without []sandbox.WallName
	// Protect is as in a Spec, besides the probe's own canaries.
	Protect []string
	// Only names attempts that are of interest; empty is all.
	Only []string
}

// Report is what came of it.
type Report struct {
	Results []Result `json:"results"`
	// Mode is what the evidence earns, lowered by every way that is open.
	Mode     sandbox.Mode     `json:"mode"`
	Evidence sandbox.Evidence `json:"evidence"`
}

// Count gives how many ended so.
func (r Report) Count(s State) (n int) {
	for _, res := range r.Results {
		if res.State == s {
			n++
		}
	}
	return n
}

// limits are small, so that reaching them is quick.
var limits = sandbox.Limits{
	MemoryBytes: 96 << 20, Pids: 48, OpenFiles: 256, CPUPercent: 100,
	TmpBytes: 16 << 20, FileBytes: 8 << 20, WallClock: 3 * time.Minute,
}

// shortClock is for the attempt that waits to be ended.
const shortClock = time.Second

const maxOutput = 1 << 20

// Run probes. An error means that it could not be done at all.
func Run(ctx context.Context, opt Options) (_ Report, err error) {
	nonce := "aspis-canary-" + strings.ToLower(rand.Text())
	g, err := newGuard(opt.Dir, nonce)
	if err != nil {
		return Report{}, fmt.Errorf("prepare the probe: %w", err)
	}
	defer func() { err = errors.Join(err, g.close()) }()
	if err := copyProgram(opt.Program, filepath.Join(opt.Dir, "artifact")); err != nil {
		return Report{}, fmt.Errorf("prepare the probe: %w", err)
	}
	facts, err := json.Marshal(g.facts)
	if err != nil {
		return Report{}, err
	}
	spec := sandbox.Spec{
		Name: programName, Path: "/provider/" + programName, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/provider",
		Artifact: filepath.Join(opt.Dir, "artifact"), System: true,
		Mounts:  []sandbox.Mount{{Source: filepath.Join(opt.Dir, "snapshot"), Target: view}},
		Protect: append(g.protect(), opt.Protect...), Limits: limits, Without: opt.Without,
	}
	report := Report{}
	wanted := func(name string) bool { return len(opt.Only) == 0 || slices.Contains(opt.Only, name) }
	add := func(r Result) {
		if wanted(r.Name) {
			report.Results = append(report.Results, r)
		}
	}
	spec.Args = []string{programName, "all", string(facts)}
	ev, heard, how, err := runOne(ctx, opt.Runtime, spec)
	if err != nil {
		return Report{}, err
	}
	report.Evidence = ev
	for _, a := range Attempts() {
		add(a.outcome(heard, how, false))
	}
	for _, a := range Exhaustions() {
		if !wanted(a.Name) {
			continue
		}
		spec := spec
		spec.Args = []string{programName, "one", string(facts), a.Name}
		if a.Wall == sandbox.WallClockLimit {
			spec.Limits.WallClock = shortClock
		}
		_, heard, how, err := runOne(ctx, opt.Runtime, spec)
		if err != nil {
			return Report{}, err
		}
		add(a.outcome(heard, how, true))
	}
	for _, r := range g.look() {
		add(r)
	}
	report.Mode = report.mode()
	return report, nil
}

// mode is what the evidence earns, without the walls that ways were found
// through.
func (r Report) mode() sandbox.Mode {
	m, _ := r.Evidence.Mode()
	for _, res := range r.Results {
		if res.State != Open {
			continue
		}
		needed := sandbox.ModeIsolated
		if row, ok := sandbox.Lookup(res.Wall); ok {
			needed = row.Needed
		}
		m = min(m, needed-1)
	}
	return max(m, sandbox.ModeGated)
}

// outcome judges what was heard of an attempt. ends tells that the container
// may be ended for it.
func (a Attempt) outcome(heard map[string]Result, how sandbox.ExitState, ends bool) Result {
	r, ok := heard[a.Name]
	r.Name, r.Wall = a.Name, a.Wall // as the host knows them
	switch {
	case ok && (r.State == Blocked || r.State == NotApplicable || r.State == Open):
	case ok:
		r.State, r.Seen = Open, fmt.Sprintf("it says %q of itself", r.State)
	case ends && (how.OOM || how.TimedOut || how.Signal > 0):
		r.State, r.Seen = Blocked, "the whole container was ended for it"
	default:
		r.State, r.Seen = Open, fmt.Sprintf("nothing was heard of it (exit code %d, signal %d)", how.Code, how.Signal)
	}
	return r
}

// runOne runs the program and gives what it said.
func runOne(ctx context.Context, rt sandbox.Runtime, spec sandbox.Spec) (ev sandbox.Evidence, heard map[string]Result, how sandbox.ExitState, err error) {
	p, err := rt.Start(ctx, spec)
	if err != nil {
		return ev, nil, how, fmt.Errorf("start the probe: %w", err)
	}
	defer func() {
		if cerr := p.Close(context.WithoutCancel(ctx)); cerr != nil {
			err = errors.Join(err, fmt.Errorf("end the probe: %w", cerr))
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = p.Kill() }) // what is left of it is for Close
	defer stop()
	if err := p.Release(ctx); err != nil {
		return ev, nil, how, fmt.Errorf("start the probe: %w", err)
	}
	go func() { _, _ = io.Copy(io.Discard, p.Stderr()) }() // ends with the process
	out, err := io.ReadAll(io.LimitReader(p.Stdout(), maxOutput))
	if err != nil {
		return ev, nil, how, fmt.Errorf("read from the probe: %w", err)
	}
	if len(out) == maxOutput {
		return ev, nil, how, errors.New("the probe says more than it can have to say")
	}
	if how, err = p.Wait(ctx); err != nil {
		return ev, nil, how, fmt.Errorf("wait for the probe: %w", err)
	}
	return p.Evidence(), parse(out), how, nil
}

// parse takes the lines that are results. Of two for one name the worse counts.
func parse(out []byte) map[string]Result {
	heard := map[string]Result{}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var r Result
		if json.Unmarshal(lines.Bytes(), &r, json.RejectUnknownMembers(true)) != nil {
			continue
		}
		if before, ok := heard[r.Name]; !ok || before.State != Open {
			heard[r.Name] = r
		}
	}
	return heard
}

func copyProgram(from, dir string) (err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(filepath.Join(dir, programName), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	_, err = io.Copy(dst, src)
	return err
}
