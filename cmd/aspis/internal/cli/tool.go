package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/aspis-dev/aspis/cmd/aspis/internal/render"
	"github.com/aspis-dev/aspis/cmd/internal/toolinstall"
	"github.com/aspis-dev/aspis/cmd/internal/toolspec"
	"github.com/aspis-dev/aspis/host/health"
	"github.com/aspis-dev/aspis/policy"
	"github.com/aspis-dev/aspis/sandbox/container"
	"github.com/aspis-dev/aspis/schemas"
)

// runnerName is the provider that runs tools; it lies where the shipped one does.
const runnerName = "aspis-tool"

// toolFlags say which tool is meant.
type toolFlags struct{ program, files, id string }

func (f *toolFlags) on(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.program, "program", "", "the tool's `file`, instead of what PATH gives")
	cmd.Flags().StringVar(&f.files, "files", "", "`directory` that holds the tool and all that it loads, such as one that npm installed it into")
}

func (a *app) toolCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "tool", Short: "Use linters, scanners and type checkers as providers",
		Long: `Use an ordinary tool as a provider: aspis-tool runs it inside of its container, on
read-only views before and after the change, and reports what the change brings in.`}
	cmd.AddCommand(&cobra.Command{Use: "ls", Short: "List the tools that are known, and which are installed here", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.toolList(cmd.Context()) }})
	var f toolFlags
	var change checkFlags
	try := &cobra.Command{Use: "try name", Short: "Run a tool on a change and show what it would say, gating nothing", Args: cobra.ExactArgs(1),
		Long: `Run a tool on a change through the host, as it would run at a gate, and show what it
would say. Nothing is installed, nothing is gated, and no receipt is added to the log.
The name is one that aspis tool ls shows, or a file with a description of the same form.`,
		Example: `  aspis tool try shellcheck                  on what lies uncommitted
  aspis tool try ./our-linter.json --base origin/main`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.toolTry(cmd.Context(), args[0], f, change) }}
	f.on(try)
	change.on(try)
	add := &cobra.Command{Use: "add name", Short: "Install a tool as a provider, and print the grant to paste", Args: cobra.ExactArgs(1),
		Long: `Make a provider of a tool that is installed here and add it to the trusted
configuration (--config, or the user's). It is installed and nothing more: the grant
that would give it authority is printed, for a person to paste.`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.toolAdd(cmd.Context(), args[0], f) }}
	f.on(add)
	add.Flags().StringVar(&f.id, "id", "", "the provider's id, instead of the tool's name")
	cmd.AddCommand(try, add)
	return cmd
}

// preset finds a description: one that comes with aspis, or a file of the
// caller's.
func preset(name string) (toolspec.Preset, error) {
	if !strings.ContainsRune(name, '/') && !strings.HasSuffix(name, ".json") {
		return toolspec.Find(name)
	}
	raw, err := os.ReadFile(name)
	if err != nil {
		return toolspec.Preset{}, err
	}
	p := toolspec.Preset{Name: strings.TrimSuffix(filepath.Base(name), ".json")}
	if err := json.Unmarshal(raw, &p, json.RejectUnknownMembers(true)); err != nil {
		return p, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// shownTool is a row of tool ls.
type shownTool struct {
	Name      string   `json:"name"`
	About     string   `json:"about"`
	URL       string   `json:"url"`
	Installed bool     `json:"installed"`
	Path      string   `json:"path,omitzero"`
	Version   string   `json:"version,omitzero"`
	Needs     []string `json:"needs"`
	RunsCode  bool     `json:"runsCode"`
}

func (a *app) toolList(ctx context.Context) error {
	if err := a.checkFormat(); err != nil {
		return err
	}
	all, err := toolspec.Presets()
	if err != nil {
		return err
	}
	list := make([]shownTool, len(all))
	var asked sync.WaitGroup
	turn := make(chan struct{}, 4) // tools that are asked for their version at once
	for i, p := range all {
		asked.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			list[i] = shownTool{Name: p.Name, About: p.About, URL: p.URL, Needs: append([]string{}, p.Needs...), RunsCode: p.RunsCode}
			if f, err := toolinstall.Find(ctx, p, ""); err == nil {
				list[i].Installed, list[i].Path, list[i].Version = true, f.Path, f.Version
			}
		})
	}
	asked.Wait()
	if a.format == "json" {
		return a.json(list)
	}
	for _, t := range list {
		where := "not installed"
		if t.Installed {
			where = t.Version
			if where == "" {
				where = "installed"
			}
		}
		fmt.Fprintf(a.out, "%-16s %-16s %s\n", render.Escape(t.Name), render.Escape(where), render.Escape(t.About))
	}
	_, err = fmt.Fprintln(a.out, "\naspis tool try NAME shows what one would say of the current change.")
	return err
}

// runner finds aspis-tool beside this program or in its libexec directory.
func runner() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return "", err
	}
	dir := filepath.Dir(self)
	for _, p := range []string{filepath.Join(dir, runnerName), filepath.Join(dir, "../libexec/aspis", runnerName)} {
		if _, err := os.Stat(p); err == nil {
			return filepath.Clean(p), nil
		}
	}
	return "", fmt.Errorf("%s is neither beside %s nor in libexec/aspis; install it there", runnerName, self)
}

// makeTool makes the provider's entry; dir is where its own directory would be.
func makeTool(ctx context.Context, name string, f toolFlags, dir string) (policy.Provider, toolspec.Preset, error) {
	p, err := preset(name)
	if err != nil {
		return policy.Provider{}, p, err
	}
	program := f.program
	if program == "" && f.files != "" {
		for _, at := range []string{p.Program, "bin/" + p.Program, "node_modules/.bin/" + p.Program} {
			if _, err := os.Stat(filepath.Join(f.files, at)); err == nil {
				program = filepath.Join(f.files, at)
				break
			}
		}
	}
	if strings.ContainsRune(program, '/') {
		if program, err = filepath.Abs(program); err != nil {
			return policy.Provider{}, p, err
		}
	}
	found, err := toolinstall.Find(ctx, p, program)
	if err != nil {
		return policy.Provider{}, p, err
	}
	exe, err := runner()
	if err != nil {
		return policy.Provider{}, p, err
	}
	made, err := toolinstall.Make(ctx, toolinstall.Order{Preset: p, Found: found, ID: f.id, Files: f.files, Runner: exe, Dir: dir})
	return made, p, err
}

func (a *app) toolAdd(ctx context.Context, name string, f toolFlags) error {
	c, path, err := a.readConfig()
	if err != nil {
		return err
	}
	data := os.Getenv("XDG_DATA_HOME")
	if !filepath.IsAbs(data) {
		home, err := os.UserHomeDir()
		if err != nil {
			return fmt.Errorf("find a place for the tool: %w; set XDG_DATA_HOME", err)
		}
		data = filepath.Join(home, ".local/share")
	}
	id := f.id
	if id == "" {
		id = strings.TrimSuffix(filepath.Base(name), ".json")
	}
	if slices.ContainsFunc(c.Providers, func(p policy.Provider) bool { return p.ID == id }) {
		return fmt.Errorf("%s has a provider %q already; aspis provider remove it first", path, id)
	}
	// A name of its own each time: what is installed is never changed in place.
	dir := filepath.Join(data, "aspis/tools", fmt.Sprintf("%s-%d", filepath.Base(id), time.Now().UnixNano()))
	p, pre, err := makeTool(ctx, name, f, dir)
	if err != nil {
		return err
	}
	c.Providers = append(c.Providers, p)
	if err := writeConfig(path, c); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	o := []json.Options{json.Deterministic(true), jsontext.WithIndentPrefix("  "), jsontext.WithIndent("  ")}
	grant, err := json.Marshal(policy.Grant{Requirement: "NAME-OF-A-REQUIREMENT", CallSites: []schemas.CallSite{schemas.Gate}, Provider: p.ID, Version: p.Version, Integrity: p.Digest}, o...)
	if err != nil {
		return err
	}
	pin, err := json.Marshal(schemas.PinnedProvider{ID: p.ID, Version: p.Version, Identity: p.IdentityOrDefault(), Integrity: p.Digest, Conformance: p.ConformanceOrDefault()}, o...)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.out, "%s %s is installed in %s. It has no authority yet.\n", render.Escape(p.ID), render.Escape(p.Version), render.Escape(path))
	for _, n := range cautions(pre) {
		fmt.Fprintf(a.out, "note: %s\n", render.Escape(n))
	}
	_, err = fmt.Fprintf(a.out, "\nTo pin it in a requirement (authority.providers):\n  %s\n\nTo grant it that requirement (grants):\n  %s\n", pin, grant)
	return err
}

// cautions are what somebody should know before relying on a tool.
func cautions(p toolspec.Preset) []string {
	out := append([]string{}, p.Needs...)
	if p.RunsCode {
		out = append(out, "it executes code of the workspace, which can make it say what it likes; the walls around it hold all the same")
	}
	return out
}

// tryRequirement is what a tool is tried for.
const tryRequirement = "try"

// toolTry judges a change with one tool and nothing else. State is kept apart, so
// that no receipt of a try stands among those of gates.
func (a *app) toolTry(ctx context.Context, name string, f toolFlags, change checkFlags) error {
	if err := a.checkFormat(); err != nil {
		return err
	}
	if _, inner := container.Inner(); !inner {
		state, err := stateDir()
		if err != nil {
			return err
		}
		// Inherited by this command where it runs itself in a user namespace.
		if err := os.Setenv("ASPIS_STATE_DIR", filepath.Join(state, "try")); err != nil {
			return err
		}
	}
	why, done, err := a.enter(ctx)
	if err != nil || done {
		return err
	}
	state, err := stateDir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(state, 0o711); err != nil {
		return stateError(state, err)
	}
	dir, err := os.MkdirTemp(state, "tool-")
	if err != nil {
		return stateError(state, err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	p, pre, err := makeTool(ctx, name, f, filepath.Join(dir, "provider"))
	if err != nil {
		return err
	}
	a.config, a.alone = filepath.Join(dir, "config.json"), true
	if err := writeConfig(a.config, tryConfig(p)); err != nil {
		return err
	}
	if a.format == "text" {
		for _, n := range cautions(pre) {
			fmt.Fprintf(a.out, "note: %s\n", render.Escape(n))
		}
		fmt.Fprintf(a.out, "A try of %s %s. Nothing is gated; with authority at a gate it would say:\n\n", render.Escape(p.ID), render.Escape(p.Version))
	}
	// Somebody who tries again wants to see it, however often it has failed.
	if err := health.Open(state, health.Rules{}, time.Now).Lift(ctx, p.ID+"@"+p.Digest); err != nil {
		return err
	}
	change.callSite = string(schemas.Gate)
	if err := a.judge(ctx, why, change); err != nil {
		return err
	}
	if a.code == ExitDeny {
		a.code = ExitAllow // it was tried, and that went well
	}
	return nil
}

func tryConfig(p policy.Provider) *policy.Config {
	required := schemas.PolicyGate{RequiredRequirements: []string{tryRequirement}, OptionalRequirements: []string{}}
	return &policy.Config{
		Version: policy.ConfigVersion, Providers: []policy.Provider{p},
		Requirements: []schemas.Requirement{{
			ID: tryRequirement, Capabilities: p.Capabilities, Assurance: []schemas.AssuranceMode{schemas.MediatedWrite, schemas.Isolated},
			Authority: schemas.RequirementAuthority{Providers: []schemas.PinnedProvider{{
				ID: p.ID, Version: p.Version, Identity: p.IdentityOrDefault(), Integrity: p.Digest, Conformance: p.ConformanceOrDefault()}}},
		}},
		Gates:  &schemas.PolicyGates{Interactive: required, Gate: required, Sweep: required},
		Grants: []policy.Grant{{Requirement: tryRequirement, CallSites: schemas.CallSites[:], Provider: p.ID, Version: p.Version, Integrity: p.Digest}},
	}
}
