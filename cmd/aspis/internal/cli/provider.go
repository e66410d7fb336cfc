package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/aspis-dev/aspis/cmd/aspis/internal/render"
	"github.com/aspis-dev/aspis/host/artifact"
	"github.com/aspis-dev/aspis/host/health"
	"github.com/aspis-dev/aspis/policy"
	"github.com/aspis-dev/aspis/schemas"
)

func (a *app) providerCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "provider", Short: "Install, pin and look at providers"}
	cmd.AddCommand(
		&cobra.Command{Use: "list", Short: "List the providers of trusted configuration", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return a.providerList(cmd.Context(), "") }},
		&cobra.Command{Use: "show id", Short: "Show one provider, each axis of trust apart", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error { return a.providerList(cmd.Context(), args[0]) }},
		&cobra.Command{Use: "pin executable [artifact-dir]", Short: "Print the digest that pins an artifact", Args: cobra.RangeArgs(1, 2),
			RunE: func(cmd *cobra.Command, args []string) error { return a.providerPin(cmd.Context(), args) }},
		&cobra.Command{Use: "add asp-server.json", Short: "Install a provider from its manifest, and print the grant to paste", Args: cobra.ExactArgs(1),
			Long: `Read a manifest, compute the digest of what it names, and add the provider to the
trusted configuration (--config, or the user's). It is installed and nothing more:
the grant that would give it authority is printed, for a person to paste.`,
			RunE: func(cmd *cobra.Command, args []string) error { return a.providerAdd(cmd.Context(), args[0]) }},
		&cobra.Command{Use: "remove id", Short: "Remove a provider and its grants from trusted configuration", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error { return a.providerRemove(args[0]) }},
		&cobra.Command{Use: "test id", Short: "Start a provider in its sandbox and greet it", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error { return a.providerTest(cmd.Context(), args[0]) }},
		&cobra.Command{Use: "release id", Short: "Lift a provider's quarantine", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error { return a.providerRelease(cmd.Context(), args[0]) }},
	)
	return cmd
}

// configPath is the file that add and remove change.
func (a *app) configPath() (string, error) {
	if a.config != "" {
		return filepath.Abs(a.config)
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find the user's configuration: %w; use --config", err)
	}
	return filepath.Join(dir, "aspis/config.json"), nil
}

func (a *app) readConfig() (*policy.Config, string, error) {
	path, err := a.configPath()
	if err != nil {
		return nil, "", err
	}
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return &policy.Config{Version: policy.ConfigVersion}, path, nil
	}
	if err != nil {
		return nil, "", err
	}
	c, err := policy.ParseConfig(path, raw)
	return c, path, err
}

func writeConfig(path string, c *policy.Config) error {
	b, err := json.Marshal(c, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		return fmt.Errorf("encode the configuration: %w", err)
	}
	// What is written must be readable again before it replaces anything.
	if _, err := policy.ParseConfig(path, b); err != nil {
		return fmt.Errorf("the configuration would not be valid: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return renameio.WriteFile(path, append(b, '\n'), 0o644)
}

func (a *app) providerPin(ctx context.Context, args []string) error {
	exe, err := filepath.Abs(args[0])
	if err != nil {
		return err
	}
	dir := ""
	if len(args) > 1 {
		if dir, err = filepath.Abs(args[1]); err != nil {
			return err
		}
	}
	digest, err := artifact.Digest(ctx, exe, dir)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.out, digest)
	return err
}

func (a *app) providerAdd(ctx context.Context, manifest string) error {
	raw, err := os.ReadFile(manifest)
	if err != nil {
		return err
	}
	m, err := schemas.DecodeManifest(raw, schemas.Limits{})
	if err != nil {
		return fmt.Errorf("%s: %w", manifest, err)
	}
	c, path, err := a.readConfig()
	if err != nil {
		return err
	}
	if slices.ContainsFunc(c.Providers, func(p policy.Provider) bool { return p.ID == m.Server.ID }) {
		return fmt.Errorf("%s has a provider %q already; aspis provider remove it first", path, m.Server.ID)
	}
	digest, err := artifact.Digest(ctx, m.Entrypoint.Bin, "")
	if err != nil {
		return err
	}
	p := policy.Provider{ID: m.Server.ID, Version: m.Server.Version, Capabilities: m.Capabilities, Executable: m.Entrypoint.Bin, Args: m.Entrypoint.Args,
		Digest: digest, Permissions: &schemas.Permissions{Read: m.AccessExpectations.Filesystem.Read}}
	c.Providers = append(c.Providers, p)
	if err := writeConfig(path, c); err != nil {
		return err
	}
	grant, err := json.Marshal(policy.Grant{Requirement: "NAME-OF-A-REQUIREMENT", CallSites: []schemas.CallSite{schemas.Gate}, Provider: p.ID, Version: p.Version, Integrity: digest},
		json.Deterministic(true), jsontext.WithIndentPrefix("  "), jsontext.WithIndent("  "))
	if err != nil {
		return err
	}
	pin, err := json.Marshal(schemas.PinnedProvider{ID: p.ID, Version: p.Version, Identity: p.IdentityOrDefault(), Integrity: digest, Conformance: p.ConformanceOrDefault()},
		json.Deterministic(true), jsontext.WithIndentPrefix("  "), jsontext.WithIndent("  "))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.out, "%s is installed in %s. It has no authority yet.\n\nTo pin it in a requirement (authority.providers):\n  %s\n\nTo grant it that requirement (grants):\n  %s\n", render.Escape(p.ID), render.Escape(path), pin, grant)
	return err
}

func (a *app) providerRemove(id string) error {
	c, path, err := a.readConfig()
	if err != nil {
		return err
	}
	before := len(c.Providers)
	c.Providers = slices.DeleteFunc(c.Providers, func(p policy.Provider) bool { return p.ID == id })
	if len(c.Providers) == before {
		return fmt.Errorf("%s has no provider %q", path, id)
	}
	c.Grants = slices.DeleteFunc(c.Grants, func(g policy.Grant) bool { return g.Provider == id })
	return writeConfig(path, c)
}

// shownProvider shows the five axes of host-obligations §1 apart.
type shownProvider struct {
	ID          string                     `json:"id"`
	Version     string                     `json:"version"`
	Executable  string                     `json:"executable"`
	Families    []schemas.CapabilityFamily `json:"capabilities"`
	Identity    string                     `json:"identity"`
	Integrity   string                     `json:"integrity"`
	Matches     bool                       `json:"integrityMatches"`
	Detail      string                     `json:"integrityDetail,omitzero"`
	Conformance string                     `json:"conformance"`
	Isolation   string                     `json:"isolation"`
	Authority   []string                   `json:"authority"`
	Quarantine  *time.Time                 `json:"quarantinedUntil,omitzero"`
}

func (a *app) providerList(ctx context.Context, only string) error {
	if err := a.checkFormat(); err != nil {
		return err
	}
	e, b, err := a.effectiveHere(ctx)
	if err != nil {
		return err
	}
	book := health.Open(b.state, health.Rules{}, time.Now)
	list := []shownProvider{}
	for _, p := range e.Providers() {
		if only != "" && p.ID != only {
			continue
		}
		s := shownProvider{ID: p.ID, Version: p.Version, Executable: p.Executable, Families: p.Capabilities, Identity: p.IdentityOrDefault(),
			Integrity: p.Digest, Conformance: p.ConformanceOrDefault(), Isolation: "asks for a container; the mode is measured at each run", Authority: []string{}}
		if p.Runtime == "process" {
			s.Isolation = "asks for no walls: gated at most"
		}
		if got, err := artifact.Digest(ctx, p.Executable, p.ArtifactDir); err != nil {
			s.Detail = err.Error()
		} else if s.Matches = got == p.Digest; !s.Matches {
			s.Detail = "what is installed has the digest " + got
		}
		for _, site := range schemas.CallSites {
			required, optional := e.Requirements(site)
			for _, r := range slices.Concat(required, optional) {
				if e.Grant(r, site, p).Granted {
					s.Authority = append(s.Authority, r.ID+" at "+string(site))
				}
			}
		}
		rec, err := book.Get(p.ID + "@" + p.Digest)
		if err != nil {
			return err
		}
		if q, until := book.Quarantined(rec); q {
			s.Quarantine = &until
		}
		list = append(list, s)
	}
	if only != "" && len(list) == 0 {
		return fmt.Errorf("trusted configuration has no provider %q; aspis provider list shows what there is", only)
	}
	if a.format == "json" {
		return a.json(list)
	}
	for _, s := range list {
		fmt.Fprintf(a.out, "%s %s\n", render.Escape(s.ID), render.Escape(s.Version))
		match := "as pinned"
		if !s.Matches {
			match = "NOT as pinned: " + s.Detail
		}
		for _, row := range [][2]string{{"executable", s.Executable}, {"identity", s.Identity}, {"integrity", s.Integrity + ", " + match},
			{"conformance", s.Conformance}, {"isolation", s.Isolation}, {"authority", fmt.Sprint(s.Authority)}} {
			fmt.Fprintf(a.out, "  %-12s %s\n", row[0], render.Escape(row[1]))
		}
		if s.Quarantine != nil {
			fmt.Fprintf(a.out, "  %-12s until %s; aspis provider release %s lifts it\n", "quarantine", s.Quarantine.Format(time.RFC3339), render.Escape(s.ID))
		}
	}
	return nil
}

func (a *app) providerRelease(ctx context.Context, id string) error {
	e, b, err := a.effectiveHere(ctx)
	if err != nil {
		return err
	}
	for _, p := range e.Providers() {
		if p.ID == id {
			return health.Open(b.state, health.Rules{}, time.Now).Lift(ctx, p.ID+"@"+p.Digest)
		}
	}
	return fmt.Errorf("trusted configuration has no provider %q", id)
}

func (a *app) providerTest(ctx context.Context, id string) error {
	why, done, err := a.enter(ctx)
	if err != nil || done {
		return err
	}
	b, err := a.openRepo(ctx)
	if err != nil {
		return err
	}
	place, _, err := b.place(ctx)
	if err != nil {
		return err
	}
	base, err := b.repo.BaseTree(ctx)
	if err != nil {
		return err
	}
	if err := a.open(ctx, b, openOptions{whyNot: why, baseTree: base}); err != nil {
		return err
	}
	st, err := b.host.Status(ctx, place)
	if err := errors.Join(err, b.close(ctx)); err != nil {
		return err
	}
	for _, s := range st.Servers {
		if s.ID != id {
			continue
		}
		if s.State != "ready" {
			a.code = ExitDeny
		}
		_, err := fmt.Fprintf(a.out, "%s: %s, %s, %s\n", render.Escape(s.ID), s.State, s.AuthorityEvidence.Isolation, render.Escape(s.Detail))
		return err
	}
	return fmt.Errorf("trusted configuration has no provider %q", id)
}
