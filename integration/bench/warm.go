package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/schemas"
)

// Budgets of a warm evaluation besides the provider, in ms.
const (
	warmMedianBudget = 3
	warmP95Budget    = 10
)

// warm is what a harness sees of a host that stays.
type warm struct {
	Name    string `json:"name"`
	Asked   int    `json:"asked"`
	Kept    int    `json:"kept"` // answered by a provider that ran already
	Whole   spread `json:"wholeMs"`
	Besides spread `json:"besidesProviderMs"`
}

// warmKinds are the two ways in which a provider may see the candidate. One that
// has it mounted is started anew each time, as its view is of one candidate.
var warmKinds = []struct{ name, workspace string }{
	{"as shipped", ""},
	{"reading by callbacks only", "callbacks"},
}

// silent answers nothing: a host asks its harness for nothing.
type silent struct{}

func (silent) Request(_ context.Context, method string, _ jsontext.Value) (any, error) {
	return nil, fmt.Errorf("the bench does not serve %s", method)
}
func (silent) Notification(context.Context, string, jsontext.Value) error { return nil }

// measureWarm asks one `aspis host serve` for the same change again and again.
// The repository must stand where the change begins.
func measureWarm(ctx context.Context, opt options, aspis string, repo *small, change schemas.ChangeSet, name, workspace string) (_ *warm, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	r := round{aspis: aspis, repo: repo.dir, state: filepath.Join(opt.dir, "warm-"+workspace)}
	args := []string{"host", "serve"}
	if workspace != "" {
		config, err := r.configure(ctx, workspace)
		if err != nil {
			return nil, err
		}
		args = append(args, "--config", config)
	}
	p, err := talk(ctx, r.command(ctx, args...), silent{})
	if err != nil {
		return nil, err
	}
	stopped := false
	defer func() {
		if !stopped {
			err = errors.Join(err, p.stop())
		}
	}()
	put := schemas.PutBlobParams{}
	for _, b := range repo.after {
		put.Blobs = append(put.Blobs, schemas.NewBlob{Encoding: "utf-8", Bytes: string(b)})
	}
	if _, err := p.conn.Call(ctx, "aspis/putBlob", put); err != nil {
		return nil, fmt.Errorf("hand over the blobs: %w", err)
	}
	raw, err := p.conn.Call(ctx, schemas.MethodHostStatus, nil)
	if err != nil {
		return nil, fmt.Errorf("ask for the baseline: %w", err)
	}
	var status schemas.HostStatus
	if err := json.Unmarshal(raw, &status); err != nil {
		return nil, fmt.Errorf("read the status: %w", err)
	}
	change.Baseline = status.Workspace.Baseline
	res := &warm{Name: name}
	var whole []time.Duration
	var receipts []string
	n := max(10*opt.checks, 2)
	for i := range n {
		began := time.Now()
		raw, err := p.conn.Call(ctx, schemas.MethodHostEvaluateChangeset, schemas.EvaluateParams{CallSite: schemas.Gate, ChangeSet: change})
		took := time.Since(began)
		if err != nil {
			return nil, fmt.Errorf("evaluate: %w", err)
		}
		var v schemas.Verdict
		if err := json.Unmarshal(raw, &v); err != nil {
			return nil, fmt.Errorf("read the verdict: %w", err)
		}
		if v.Decision != schemas.Allow {
			return nil, fmt.Errorf("the verdict is %s and not allow: %+v", v.Decision, v.Coverage.Degraded)
		}
		if i > 0 { // the first starts the provider
			whole, receipts = append(whole, took), append(receipts, v.Receipt.ReceiptID)
		}
	}
	stopped = true
	if err := p.stop(); err != nil {
		return nil, fmt.Errorf("end the host: %w", err)
	}
	besides := make([]time.Duration, 0, len(whole))
	for i, id := range receipts {
		worked, kept, err := r.worked(ctx, id)
		if err != nil {
			return nil, err
		}
		if res.Asked++; kept {
			res.Kept++
		}
		besides = append(besides, whole[i]-worked)
	}
	res.Whole, res.Besides = spreadOf(whole), spreadOf(besides)
	return res, nil
}

// configure writes the built-in policy with another way to see the candidate.
func (r round) configure(ctx context.Context, workspace string) (string, error) {
	out, err := r.run(ctx, "policy", "init")
	if err != nil {
		return "", err
	}
	var config map[string]any
	if err := json.Unmarshal(out, &config); err != nil {
		return "", fmt.Errorf("read the built-in policy: %w", err)
	}
	providers, _ := config["providers"].([]any)
	for _, p := range providers {
		if p, ok := p.(map[string]any); ok {
			p["workspace"] = workspace
		}
	}
	text, err := json.Marshal(config)
	if err != nil {
		return "", fmt.Errorf("encode a policy: %w", err)
	}
	file := r.state + ".json"
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return "", fmt.Errorf("write a policy: %w", err)
	}
	return file, nil
}

func printWarm(w io.Writer, all []*warm) {
	fmt.Fprintf(w, "\nthe same change again in a host that stays (aspis host serve), ms\n")
	fmt.Fprintf(w, "  %-28s %18s %18s\n", "", "whole", "besides provider")
	fmt.Fprintf(w, "  %-28s %9s %8s %9s %8s\n", "", "median", "p95", "median", "p95")
	for _, r := range all {
		fmt.Fprintf(w, "  %-28s %9.1f %8.1f %9.1f %8.1f  %d of %d by a provider that ran already\n",
			r.Name, r.Whole.Median, r.Whole.P95, r.Besides.Median, r.Besides.P95, r.Kept, r.Asked)
	}
	fmt.Fprintf(w, "  the provider's share is all between asking it and its answer, with the blobs served to it meanwhile\n")
	fmt.Fprintf(w, "  budget besides the provider, where it ran already: median %d, p95 %d\n", warmMedianBudget, warmP95Budget)
}
