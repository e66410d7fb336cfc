package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"

	"github.com/aspis-dev/aspis/cmd/aspis/internal/render"
	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/container"
	"github.com/aspis-dev/aspis/sandbox/kernel"
)

func (a *app) doctorCommand() *cobra.Command {
	var probe bool
	c := &cobra.Command{
		Use: "doctor", Short: "Show what this machine can do, and what to change where it cannot", Args: cobra.NoArgs,
		Long: `Try what sandboxes need on this machine, then build one, hold it before it runs
anything, and show every wall that the kernel confirms. Each wall that is missing
comes with what can be done about it.

With --probe a program of ours then tries to get out of such a sandbox, by every
way that is known to us; a way that is open lowers the mode.

Exit codes: 0 providers run isolated, 2 they run with less, 3 set-up error.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context(), probe) },
	}
	c.Flags().BoolVar(&probe, "probe", false, "try to get out of a sandbox, by more than a hundred ways")
	return c
}

// doctorReport is what doctor prints as JSON.
type doctorReport struct {
	Mode    sandbox.Mode     `json:"mode"`
	WhyNot  string           `json:"whyNot,omitzero"`
	Machine []kernel.Finding `json:"machine"`
	Walls   []sandbox.Wall   `json:"walls"`
	Probe   *probeReport     `json:"probe,omitzero"`
}

func (a *app) doctor(ctx context.Context, probe bool) error {
	if err := a.checkFormat(); err != nil {
		return err
	}
	state, err := stateDir()
	if err != nil {
		return err
	}
	// The machine is looked at as the caller, since a user namespace of ours
	// would hide what the caller may do; the walls are looked at inside of it.
	var report doctorReport
	note, inner := container.Inner()
	if inner {
		if err := json.Unmarshal(note, &report.Machine); err != nil {
			return fmt.Errorf("take over what was seen of the machine: %w", err)
		}
	} else {
		report.Machine = kernel.Probe(ctx, state)
		if note, err = json.Marshal(report.Machine); err != nil {
			return fmt.Errorf("hand over what was seen of the machine: %w", err)
		}
	}
	why, done, err := a.enterWith(ctx, note)
	if err != nil || done {
		return err
	}
	report.WhyNot = why
	if why == "" {
		ev, err := examine(ctx, state)
		if err != nil {
			report.WhyNot = err.Error()
		} else {
			report.Mode, _ = ev.Mode()
			report.Walls = ev.Walls
		}
		if err == nil && probe {
			if report.Probe, err = runProbe(ctx, state); err != nil {
				return fmt.Errorf("the probe could not be run: %w", err)
			}
			report.Mode = min(report.Mode, report.Probe.Mode)
		}
	}
	if report.Mode != sandbox.ModeIsolated {
		a.code = ExitIndeterminate
	}
	if a.format == "json" {
		return a.json(report)
	}
	return a.doctorText(report)
}

func (a *app) doctorText(r doctorReport) error {
	o := a.style()
	if o.Width == 0 {
		o.Width = 80 // what a report is pasted into
	}
	var facts []render.FactRow
	for _, f := range r.Machine {
		facts = append(facts, render.FactRow{Name: f.Name, OK: f.OK, Seen: f.Seen, Remedy: f.Fix})
	}
	if _, err := fmt.Fprintln(a.out, "this machine"); err != nil {
		return err
	}
	if err := render.Facts(a.out, facts, o); err != nil {
		return err
	}
	if r.WhyNot != "" {
		return render.Paragraphs(a.out, o,
			"no sandbox can be built: "+r.WhyNot,
			"a provider would run "+r.Mode.String()+", without walls, and only where trusted configuration names the runtime \"process\"; a gate that asks for more is indeterminate")
	}
	var rows []render.WallRow
	missing := 0
	for _, w := range r.Walls {
		rows = append(rows, render.WallRow{Name: string(w.Name), Standing: w.Standing, Seen: w.Seen, Fix: w.Fix, Needed: w.Needed.String()})
		if !w.Standing {
			missing++
		}
	}
	if _, err := fmt.Fprintln(a.out, "\nwalls of a sandbox built just now, as the kernel shows them"); err != nil {
		return err
	}
	if err := render.Walls(a.out, rows, o); err != nil {
		return err
	}
	if r.Probe != nil {
		if err := a.probeText(r.Probe, o); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(a.out, "\na provider would run %s: %d of %d walls stand\n", r.Mode, len(rows)-missing, len(rows))
	return err
}

// examine builds a sandbox, takes its evidence and removes it.
func examine(ctx context.Context, state string) (ev sandbox.Evidence, err error) {
	space, err := container.NewSpace("")
	if err != nil {
		return ev, err
	}
	defer func() { err = errors.Join(err, space.Close()) }()
	rt, err := container.New(container.Options{StateDir: filepath.Join(state, "run"), Space: space})
	if err != nil {
		return ev, err
	}
	return rt.Examine(ctx, sandbox.Limits{MemoryBytes: 64 << 20, Pids: 16, OpenFiles: 64, CPUPercent: 50,
		TmpBytes: 1 << 20, FileBytes: 1 << 20, WallClock: time.Minute}, []string{state})
}
