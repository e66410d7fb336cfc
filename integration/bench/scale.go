package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/aspis-dev/aspis/schemas"
)

// scaled is a host that stays, on trees of different sizes, with a provider that
// reads by callbacks and does next to nothing by itself.
type scaled struct {
	Trees   []scaledTree `json:"trees"`
	LeftOut string       `json:"leftOut,omitzero"`
}

type scaledTree struct {
	Files       int     `json:"files"`
	FirstStatus float64 `json:"firstStatusMs"`    // after the start: the worktree is looked at
	First       float64 `json:"firstEvaluateMs"`  // the baseline is written, the provider started
	Interactive spread  `json:"interactiveMs"`    // besides the provider
	Gate        spread  `json:"gateMs"`           // besides the provider
	Status      spread  `json:"statusMs"`         // after that
	BlobRate    float64 `json:"putBlobMBPerSec"`  // bytes handed to the host
	ServeRate   float64 `json:"readBlobMBPerSec"` // bytes that a provider took by callbacks and did not look at, over its whole check
}

const (
	providerName  = "bench-provider"
	providerAlias = "testprovider" // what it says it is
	// payload is how much is handed over and read back to measure rates, in bytes.
	payload     = 32 << 20
	payloadPart = 4 << 20
)

// measureScale serves trees of the given sizes, one after the other.
func measureScale(ctx context.Context, opt options, sizes []int) (*scaled, error) {
	res := &scaled{}
	provider := filepath.Join(opt.bin, providerName)
	if _, err := os.Stat(provider); err != nil {
		res.LeftOut = provider + " is not built; make bench does it"
		return res, nil
	}
	config, err := trustProvider(provider, opt.dir)
	if err != nil {
		return nil, err
	}
	for _, n := range sizes {
		t, err := scaleOne(ctx, opt, config, n)
		if err != nil {
			return nil, fmt.Errorf("a tree of %d files: %w", n, err)
		}
		res.Trees = append(res.Trees, *t)
	}
	return res, nil
}

// trustProvider writes a trusted configuration that requires the provider
// everywhere.
func trustProvider(program, dir string) (string, error) {
	b, err := os.ReadFile(program)
	if err != nil {
		return "", fmt.Errorf("read the provider: %w", err)
	}
	sum := sha256.Sum256(b)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	type list []any
	type object map[string]any
	gate := object{"requiredRequirements": list{"bench"}, "optionalRequirements": list{}}
	text, err := json.Marshal(object{
		"version": "aspis-config/1",
		"providers": list{object{"id": providerAlias, "version": "1.0.0", "identity": "bench", "conformance": "bench", "capabilities": list{"check"},
			"executable": program, "args": list{"drain"}, "digest": digest, "permissions": object{"read": list{"**"}}, "workspace": "callbacks"}},
		"requirements": list{object{"id": "bench", "capabilities": list{"check"}, "assurance": list{"isolated", "mediated-write"},
			"authority": object{"providers": list{object{"id": providerAlias, "version": "1.0.0", "identity": "bench", "integrity": digest, "conformance": "bench"}}}}},
		"gates": object{"interactive": gate, "gate": gate, "sweep": gate},
		"grants": list{object{"requirement": "bench", "callSites": list{"interactive", "gate", "sweep"}, "provider": providerAlias,
			"version": "1.0.0", "integrity": digest}},
		"budgets": object{"interactiveMs": 60000, "gateMs": 60000, "sweepMs": 60000},
	})
	if err != nil {
		return "", fmt.Errorf("encode the configuration: %w", err)
	}
	path := filepath.Join(dir, "scale.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return "", fmt.Errorf("write the configuration: %w", err)
	}
	return path, nil
}

func scaleOne(ctx context.Context, opt options, config string, files int) (_ *scaledTree, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	repo := &small{dir: filepath.Join(opt.dir, fmt.Sprintf("tree-%d", files))}
	if err := importTree(ctx, repo, files); err != nil {
		return nil, err
	}
	r := round{aspis: filepath.Join(opt.bin, "aspis"), repo: repo.dir, state: filepath.Join(opt.dir, fmt.Sprintf("scale-%d", files))}
	p, err := talk(ctx, r.command(ctx, "--config", config, "host", "serve"), silent{})
	if err != nil {
		return nil, err
	}
	stopped := false
	defer func() {
		if !stopped {
			err = errors.Join(err, p.stop())
		}
	}()
	t := &scaledTree{Files: files}
	c := &client{p: p}
	began := time.Now()
	baseline, err := c.baseline(ctx)
	if err != nil {
		return nil, err
	}
	t.FirstStatus = ms(time.Since(began))
	change := schemas.ChangeSet{Baseline: baseline}
	put := schemas.PutBlobParams{}
	for i := range changed {
		after := fmt.Sprintf("%schanged by %s\n", line(i), rand.Text())
		put.Blobs = append(put.Blobs, schemas.NewBlob{Encoding: "utf-8", Bytes: after})
		change.Changes = append(change.Changes, schemas.Change{Path: name(i), Kind: schemas.ChangeModify,
			Before: schemas.BlobRefOf([]byte(line(i))), After: schemas.BlobRefOf([]byte(after))})
	}
	if _, err := p.conn.Call(ctx, "aspis/putBlob", put); err != nil {
		return nil, fmt.Errorf("hand over the blobs: %w", err)
	}
	began = time.Now()
	if _, err := c.evaluate(ctx, schemas.Gate, change); err != nil {
		return nil, err
	}
	t.First = ms(time.Since(began))
	n := max(10*opt.checks, 2)
	measured := map[schemas.CallSite][]timed{}
	var status []time.Duration
	for range n {
		for _, site := range []schemas.CallSite{schemas.Interactive, schemas.Gate} {
			began := time.Now()
			id, err := c.evaluate(ctx, site, change)
			if err != nil {
				return nil, err
			}
			measured[site] = append(measured[site], timed{id, time.Since(began)})
		}
		began := time.Now()
		if _, err := c.baseline(ctx); err != nil {
			return nil, err
		}
		status = append(status, time.Since(began))
	}
	if err := c.rates(ctx, r, baseline, t); err != nil {
		return nil, err
	}
	stopped = true
	if err := p.stop(); err != nil {
		return nil, fmt.Errorf("end the host: %w", err)
	}
	t.Status = spreadOf(status)
	if t.Interactive, err = r.besides(ctx, measured[schemas.Interactive]); err != nil {
		return nil, err
	}
	t.Gate, err = r.besides(ctx, measured[schemas.Gate])
	return t, err
}

// timed is one evaluation.
type timed struct {
	receipt string
	took    time.Duration
}

// besides takes the provider's work off.
func (r round) besides(ctx context.Context, all []timed) (spread, error) {
	var out []time.Duration
	for _, m := range all {
		worked, _, err := r.worked(ctx, m.receipt)
		if err != nil {
			return spread{}, err
		}
		out = append(out, m.took-worked)
	}
	return spreadOf(out), nil
}

// client asks a host as a harness does.
type client struct{ p *peer }

func (c *client) baseline(ctx context.Context) (schemas.Baseline, error) {
	raw, err := c.p.conn.Call(ctx, schemas.MethodHostCapabilities, nil)
	if err != nil {
		return schemas.Baseline{}, fmt.Errorf("ask for the baseline: %w", err)
	}
	var a schemas.HostCapabilities
	if err := json.Unmarshal(raw, &a); err != nil {
		return schemas.Baseline{}, fmt.Errorf("read the capabilities: %w", err)
	}
	return a.Receipt.Baseline, nil
}

// evaluate gives the receipt of a verdict that must be allow.
func (c *client) evaluate(ctx context.Context, site schemas.CallSite, change schemas.ChangeSet) (string, error) {
	raw, err := c.p.conn.Call(ctx, schemas.MethodHostEvaluateChangeset, schemas.EvaluateParams{CallSite: site, ChangeSet: change})
	if err != nil {
		return "", fmt.Errorf("evaluate: %w", err)
	}
	var v schemas.Verdict
	if err := json.Unmarshal(raw, &v); err != nil {
		return "", fmt.Errorf("read the verdict: %w", err)
	}
	if v.Decision != schemas.Allow {
		return "", fmt.Errorf("the verdict is %s and not allow: %+v", v.Decision, v.Coverage.Degraded)
	}
	return v.Receipt.ReceiptID, nil
}

// rates measures bytes on their way in, and on to the provider.
func (c *client) rates(ctx context.Context, r round, baseline schemas.Baseline, t *scaledTree) error {
	change := schemas.ChangeSet{Baseline: baseline}
	var parts []string
	for range payload / payloadPart {
		b := make([]byte, payloadPart/2)
		_, _ = rand.Read(b) // never fails on Linux
		parts = append(parts, hex.EncodeToString(b))
	}
	began := time.Now()
	for i, text := range parts {
		if _, err := c.p.conn.Call(ctx, "aspis/putBlob", schemas.PutBlobParams{Blobs: []schemas.NewBlob{{Encoding: "utf-8", Bytes: text}}}); err != nil {
			return fmt.Errorf("hand over a blob: %w", err)
		}
		change.Changes = append(change.Changes, schemas.Change{Path: fmt.Sprintf("big/%d", i), Kind: schemas.ChangeCreate, After: schemas.BlobRefOf([]byte(text))})
	}
	t.BlobRate = payload / 1e6 / time.Since(began).Seconds()
	id, err := c.evaluate(ctx, schemas.Interactive, change)
	if err != nil {
		return err
	}
	worked, _, err := r.worked(ctx, id)
	if err != nil {
		return err
	}
	t.ServeRate = payload / 1e6 / worked.Seconds()
	return nil
}

func name(i int) string { return fmt.Sprintf("d%03d/d%d/f%d.txt", i%500, i%7, i) }

func line(i int) string { return fmt.Sprintf("file %d\n", i) }

// importTree makes a repository of many small files, by git fast-import.
func importTree(ctx context.Context, r *small, files int) error {
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return fmt.Errorf("make a repository: %w", err)
	}
	if err := r.git(ctx, "init", "-q", "-b", "main", "."); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "git", "fast-import", "--quiet")
	cmd.Dir = r.dir
	in, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("git fast-import: %w", err)
	}
	w := bufio.NewWriter(in)
	fmt.Fprint(w, "commit refs/heads/main\ncommitter bench <bench@example.org> 1700000000 +0000\ndata 4\nbase\n")
	for i := range files {
		text := line(i)
		fmt.Fprintf(w, "M 100644 inline %s\ndata %d\n%s\n", name(i), len(text), text)
	}
	if err := errors.Join(w.Flush(), in.Close(), cmd.Wait()); err != nil {
		return fmt.Errorf("git fast-import: %w", err)
	}
	return r.git(ctx, "checkout", "-q", "-f", "main")
}

func (s *scaled) print(w io.Writer) {
	fmt.Fprintf(w, "\na host that stays, a change of %d files, a provider that reads by callbacks; ms besides the provider\n", changed)
	if s.LeftOut != "" {
		fmt.Fprintf(w, "  left out: %s\n", s.LeftOut)
		return
	}
	fmt.Fprintf(w, "  %8s %17s %17s %9s %9s %9s %9s %9s\n", "files", "interactive", "gate", "ask base", "first", "first", "blobs in", "blobs out")
	fmt.Fprintf(w, "  %8s %8s %8s %8s %8s %9s %9s %9s %9s %9s\n", "", "median", "p95", "median", "p95", "median", "look", "verdict", "MB/s", "MB/s")
	for _, t := range s.Trees {
		fmt.Fprintf(w, "  %8d %8.1f %8.1f %8.1f %8.1f %9.1f %9.0f %9.0f %9.0f %9.0f\n", t.Files, t.Interactive.Median, t.Interactive.P95,
			t.Gate.Median, t.Gate.P95, t.Status.Median, t.FirstStatus, t.First, t.BlobRate, t.ServeRate)
	}
	fmt.Fprintf(w, "  budget: interactive at most %d (median) and %d (p95) whatever the size; a gate looks at the worktree if it has not for 10 s\n", warmMedianBudget, warmP95Budget)
}
