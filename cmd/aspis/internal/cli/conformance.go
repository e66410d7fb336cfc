package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/aspis-dev/aspis/integration/conformance"
)

// testProviderName is the program that plays providers for the host suite.
const testProviderName = "aspis-testprovider"

func (a *app) conformanceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "conformance", Short: "Test any host or provider against ASP's behaviour ids",
		Long: `Drive a real host or provider over its own seam and report each behaviour id as
passed or failed. The exit code is 0 when every id passed, 1 when one failed.`,
	}
	cmd.AddCommand(a.conformanceHostCommand(), a.conformanceProviderCommand())
	return cmd
}

func (a *app) conformanceHostCommand() *cobra.Command {
	var opt conformance.HostOptions
	var only []string
	cmd := &cobra.Command{
		Use: "host [-- ARG...]", Short: "Test a host",
		Long: `Run the host suite. The program that --bin names (this one by default) is started
again and again with

  --config {config} host serve --repo {repo}

where {config} is a file of trusted configuration in aspis's format and {repo} a
small git repository; give other arguments after -- for a host that wants others.
A host with a configuration format of its own needs a wrapper that translates
{config}: which providers are installed and how they are started, which
requirements each call-site has, and which grants are made.

Every provider is played by aspis-testprovider, which lies beside this program or
in its libexec directory; its arguments say how it behaves.`,
		Example: `  aspis conformance host
  aspis conformance host --only CORE-HOST-STATUS --format json
  aspis conformance host --bin ./other-host -- serve --repo {repo} --policy {config}`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			opt.Args = args
			return a.conformanceHost(cmd.Context(), opt, only)
		},
	}
	cmd.Flags().StringVar(&opt.Bin, "bin", "", "the host's `program`")
	cmd.Flags().StringVar(&opt.TestProvider, "test-provider", "", "the `program` that plays providers")
	cmd.Flags().StringSliceVar(&only, "only", nil, "run these `ids` only")
	return cmd
}

func (a *app) conformanceHost(ctx context.Context, opt conformance.HostOptions, only []string) error {
	if err := a.checkFormat(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if opt.Bin == "" {
		opt.Bin = self
	}
	if opt.TestProvider == "" {
		if opt.TestProvider, err = beside(self, testProviderName); err != nil {
			return err
		}
	}
	for _, id := range only {
		if _, ok := conformance.HostCase(id); !ok {
			return fmt.Errorf("--only names %q, which is no id of the host suite", id)
		}
	}
	report, err := conformance.RunHost(ctx, opt, only)
	if err != nil {
		return err
	}
	return a.conformanceReport(report)
}

func (a *app) conformanceProviderCommand() *cobra.Command {
	return &cobra.Command{
		Use: "provider -- PROGRAM [ARG...]", Short: "Test a check provider",
		Long: `Run the provider suite: PROGRAM is started as an ordinary child process, and this
program plays the host, with a small repository in memory.`,
		Example: "  aspis conformance provider -- ./my-provider --stdio",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("name the provider's program after --")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.checkFormat(); err != nil {
				return err
			}
			report, err := conformance.RunProvider(cmd.Context(), args)
			if err != nil {
				return err
			}
			return a.conformanceReport(report)
		},
	}
}

func (a *app) conformanceReport(r *conformance.Report) error {
	if !r.OK() {
		a.code = ExitDeny
	}
	if a.format == "json" {
		return a.json(r)
	}
	return r.Text(a.out)
}

// beside finds a program next to this one or in its libexec directory.
func beside(self, name string) (string, error) {
	self, err := filepath.EvalSymlinks(self)
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(self)
	for _, p := range []string{filepath.Join(dir, name), filepath.Join(dir, "../libexec/aspis", name)} {
		if _, err := os.Stat(p); err == nil {
			return filepath.Clean(p), nil
		}
	}
	return "", fmt.Errorf("%s is neither beside %s nor in libexec/aspis", name, self)
}
