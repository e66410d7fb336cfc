package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/aspis-dev/aspis/cmd/aspis/internal/render"
	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/container"
	"github.com/aspis-dev/aspis/sandbox/probe"
)

// probeReport is the probe's part of what doctor prints.
type probeReport struct {
	Mode          sandbox.Mode   `json:"mode"`
	Blocked       int            `json:"blocked"`
	Open          int            `json:"open"`
	NotApplicable int            `json:"notApplicable"`
	Results       []probe.Result `json:"results"`
}

// probeName is the program that tries to get out.
const probeName = "aspis-probe"

// probeProgram finds it beside this program or in its libexec directory.
func probeProgram() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return "", err
	}
	dir := filepath.Dir(self)
	for _, p := range []string{filepath.Join(dir, probeName), filepath.Join(dir, "../libexec/aspis", probeName)} {
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s is neither beside %q nor in libexec/aspis; install it there", probeName, self)
}

// runProbe probes as this user would run a provider.
func runProbe(ctx context.Context, state string) (_ *probeReport, err error) {
	program, err := probeProgram()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(state, "probe-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o711); err != nil { // what is shown in it is for everybody
		return nil, err
	}
	space, err := container.NewSpace("")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, space.Close()) }()
	rt, err := container.New(container.Options{StateDir: filepath.Join(state, "run"), Space: space})
	if err != nil {
		return nil, err
	}
	r, err := probe.Run(ctx, probe.Options{Runtime: rt, Program: program, Dir: dir})
	if err != nil {
		return nil, err
	}
	return &probeReport{Mode: r.Mode, Results: r.Results, Blocked: r.Count(probe.Blocked), Open: r.Count(probe.Open),
		NotApplicable: r.Count(probe.NotApplicable)}, nil
}

func (a *app) probeText(r *probeReport, o render.Options) error {
	if _, err := fmt.Fprintln(a.out, "\nways out of such a sandbox, tried just now by "+probeName); err != nil {
		return err
	}
	var rows []render.ProbeRow
	for _, res := range r.Results {
		rows = append(rows, render.ProbeRow{Name: res.Name, Seen: res.Seen, Wall: string(res.Wall), State: string(res.State),
			Open: res.State == probe.Open})
	}
	if err := render.Probe(a.out, rows, o); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.out, "\n%d blocked, %d open, %d do not apply here\n", r.Blocked, r.Open, r.NotApplicable)
	return err
}
