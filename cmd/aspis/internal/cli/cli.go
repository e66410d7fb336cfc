// Package cli is the command line of aspis: flags to calls of the host, answers
// to text. What is decided is decided elsewhere.
package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/aspis-dev/aspis/cmd/aspis/internal/render"
	"github.com/aspis-dev/aspis/schemas"
)

// Exit codes. They are part of the interface.
const (
	ExitAllow         = 0
	ExitDeny          = 1
	ExitIndeterminate = 2
	ExitUsage         = 3
)

// app is what the commands share.
type app struct {
	version string
	out     io.Writer
	err     io.Writer
	in      io.Reader
	repo    string
	config  string
	format  string
	without []string
	alone   bool // the configuration is all there is of a policy
	code    int
	onError int // exit code of a command that fails
}

// Main runs one command and returns its exit code.
func Main(version string, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	a := &app{version: version, out: os.Stdout, err: os.Stderr, in: os.Stdin, onError: ExitUsage}
	root := a.root()
	root.SetArgs(args)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(a.err, "aspis: %s\n", render.Escape(err.Error()))
		if ctx.Err() != nil {
			return ExitIndeterminate
		}
		return a.onError
	}
	return a.code
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "aspis",
		Short: "Judge a change with checkers that cannot touch your machine",
		Long: `aspis takes a change from a git repository, runs checkers on a read-only snapshot
of it inside containers, reads back from the kernel what really confines them,
and decides: allow, deny or indeterminate.

Exit codes: 0 allow, 1 deny, 2 indeterminate, 3 usage or set-up error.`,
		Example: `  aspis check --base origin/main     judge what this branch adds
  aspis check --staged               judge what would be committed
  git diff | aspis apply -           check an edit and publish it, all or nothing
  aspis doctor                       see what this machine can do
  aspis receipt show                 look at the last receipt`,
		SilenceErrors: true, SilenceUsage: true, Version: a.version,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetVersionTemplate("aspis {{.Version}}\n")
	f := root.PersistentFlags()
	f.StringVar(&a.repo, "repo", ".", "a directory of the repository")
	f.StringVar(&a.config, "config", "", "trusted configuration `file`, instead of the system's and the user's")
	f.StringVar(&a.format, "format", "text", "text or json")
	root.AddCommand(a.checkCommand(), a.applyCommand(), a.fixCommand(), a.undoCommand(), a.runCommand(), a.sessionCommand(), a.statusCommand(), a.doctorCommand(), a.receiptCommand(), a.versionCommand(), a.hostCommand(), a.policyCommand(), a.providerCommand(), a.blobCommand(), a.conformanceCommand())
	root.AddCommand(a.storeCommand())
	root.AddCommand(a.toolCommand())
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
	})
	return root
}

// checkFormat refuses a format that does not exist.
func (a *app) checkFormat() error {
	if a.format != "text" && a.format != "json" {
		return fmt.Errorf("--format is %q; use text or json", a.format)
	}
	return nil
}

// json writes a value exactly as it goes over the wire, indented.
func (a *app) json(v any) error {
	b, err := schemas.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	val := jsontext.Value(b)
	if err := val.Indent(jsontext.WithIndent("  ")); err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	_, err = fmt.Fprintf(a.out, "%s\n", val)
	return err
}

// style looks at where the text goes.
func (a *app) style() render.Options {
	o := render.Options{}
	if f, ok := a.out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		o.Palette = render.Colours(os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb")
		if w, _, err := term.GetSize(int(f.Fd())); err == nil {
			o.Width = w
		}
	}
	return o
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := a.checkFormat(); err != nil {
				return err
			}
			if a.format == "json" {
				return a.json(map[string]string{"name": "aspis", "version": a.version, "protocol": schemas.ProtocolVersion, "outerProtocol": schemas.OuterProtocol})
			}
			_, err := fmt.Fprintf(a.out, "aspis %s (%s, %s)\n", a.version, schemas.ProtocolVersion, schemas.OuterProtocol)
			return err
		},
	}
}
