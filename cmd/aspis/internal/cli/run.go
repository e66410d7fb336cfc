package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/aspis-dev/aspis/cmd/aspis/internal/render"
	"github.com/aspis-dev/aspis/host/session"
	"github.com/aspis-dev/aspis/overlay"
	"github.com/aspis-dev/aspis/sandbox"
)

type runFlags struct {
	name, session string
	env           []string
	shown         []string
	limits        []string
	allow         []string
	credentials   []string
	remove        bool
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use: "run [flags] -- <command> [argument...]", Short: "Run a command on the project, and keep what it writes back", Args: cobra.MinimumNArgs(1),
		Long: `Run any command on the whole project, ignored files included, in a container: the
project is at its own place and can be written, but what is written goes to a
session of its own. There is no network, no home directory and no secret but what
is passed; the machine's programs are there, read-only.

Afterwards look at what it did and apply it through the gate, or discard it:

  aspis session diff
  aspis session apply
  aspis session discard

Input and output are passed on as they are; a program that wants a terminal of its
own finds none. The exit code is the command's; 125 means that it was not started.`,
		Example: `  aspis run -- make test
  aspis run --name fix --ro ~/.cache/go-build -- ./agent.sh
  aspis run --session fix -- sh -c 'git log --oneline | head'`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.run(cmd.Context(), f, args) },
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringVar(&f.name, "name", "", "`name` of the new session")
	cmd.Flags().StringVar(&f.session, "session", "", "go on in the session of this `name`")
	cmd.Flags().StringSliceVar(&f.env, "env", nil, "pass the variable `NAME`, or set NAME=VALUE")
	cmd.Flags().StringSliceVar(&f.shown, "ro", nil, "show this `path` of the machine, read-only, at the same place")
	cmd.Flags().StringSliceVar(&f.allow, "allow", nil, "let it reach `host[:port]` (443), *.host, an address or a range, through a proxy")
	cmd.Flags().StringSliceVar(&f.credentials, "credential", nil, "add the key in the variable NAME to what goes to a host, as `HOST=NAME`; the command never sees it")
	cmd.Flags().StringSliceVar(&f.limits, "limit", nil, "bound what it may use: memory=2G, tmp=1G, pids=500, files=1024, cpu=150% or time=10m, as `name=value`")
	cmd.Flags().BoolVar(&f.remove, "rm", false, "discard the session when the command has ended")
	cmd.MarkFlagsMutuallyExclusive("name", "session")
	cmd.Flags().StringSliceVar(&a.without, "without-wall", nil, "leave a wall out of the container, to see the claim fall")
	if err := cmd.Flags().MarkHidden("without-wall"); err != nil {
		panic(err) // the flag is defined two lines above
	}
	return cmd
}

// notStarted is the exit code for a command that was not started, as env and
// docker have it.
const notStarted = 125

func (a *app) run(ctx context.Context, f runFlags, args []string) error {
	why, done, err := a.enter(ctx)
	if err != nil || done {
		return err
	}
	a.onError = notStarted
	b, err := a.openRepo(ctx)
	if err != nil {
		return err
	}
	err = a.runIn(ctx, b, f, args, why)
	return errors.Join(err, b.close(ctx))
}

func (a *app) runIn(ctx context.Context, b *bench, f runFlags, args []string, why string) error {
	b.prepare(why)
	book, err := b.book()
	if err != nil {
		return err
	}
	// What is wrong with the flags is found before a session is made.
	cmd, err := a.command(b, f, args)
	if err != nil {
		return err
	}
	made := b.sandboxes()
	if made.runtime == nil || made.space == nil {
		return fmt.Errorf("no container can be built here, so that nothing would confine the command: %s", made.whyNot)
	}
	s, err := b.sessionFor(ctx, book, f)
	if err != nil {
		return err
	}
	cmd.Env = append(cmd.Env, "ASPIS_SESSION="+s.Name)
	done, err := a.network(b, f, &cmd)
	if err != nil {
		return err
	}
	defer done()
	cmd.Begun = func(mode string, missing []session.Wall) { a.announce(s, mode, missing) }
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH)
	defer signal.Stop(signals)
	cmd.Signals = signals
	r := session.Runner{Book: book, Runtime: made.runtime, Space: made.space}
	if c, ok := made.runtime.(interface{ OwnIDs() (sandbox.IDs, bool) }); ok {
		if ids, ok := c.OwnIDs(); ok {
			r.Own = &ids
		}
	}
	// Ctrl-C is for the command to answer, not for us to cut short.
	run, err := r.Run(context.WithoutCancel(ctx), s, cmd)
	if err != nil && len(s.Runs) == 0 {
		return errors.Join(err, book.Remove(context.WithoutCancel(ctx), s)) // nothing was done in it
	}
	if err != nil {
		return err
	}
	a.code = run.Code
	a.tellAttempts(run)
	if f.remove {
		return book.Remove(context.WithoutCancel(ctx), s)
	}
	fmt.Fprintf(a.err, "aspis: what it wrote is in the session %s: aspis session diff %s\n", render.Escape(s.Name), render.Escape(s.Name))
	return nil
}

// book opens the sessions.
func (b *bench) book() (*session.Book, error) {
	if b.store == nil {
		var err error
		if b.store, err = overlay.Open(filepath.Join(b.state, "overlay")); err != nil {
			return nil, err
		}
	}
	return &session.Book{Dir: filepath.Join(b.state, "sessions"), Store: b.store}, nil
}

func (b *bench) sessionFor(ctx context.Context, book *session.Book, f runFlags) (*session.Session, error) {
	if f.session != "" {
		return book.Find(b.repo.Root(), f.session)
	}
	for _, r := range f.name {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r) {
			return nil, fmt.Errorf("--name %q: use letters, digits, dots, dashes and underscores", f.name)
		}
	}
	return book.New(ctx, b.repo, f.name)
}

// passed are variables that name no secret and that programs expect.
var passed = []string{"TERM", "COLORTERM", "LANG", "LANGUAGE", "TZ", "NO_COLOR"}

// command describes what runs, from flags and surroundings.
func (a *app) command(b *bench, f runFlags, args []string) (session.Command, error) {
	c := session.Command{Args: args, Stdin: a.in, Stdout: a.out, Stderr: a.err, Protect: b.protected(), Limits: session.DefaultLimits()}
	if err := setLimits(&c.Limits, f.limits); err != nil {
		return c, err
	}
	for _, w := range a.without {
		c.Without = append(c.Without, sandbox.WallName(w))
	}
	dir, err := filepath.Abs(a.repo)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return c, err
	}
	root, err := filepath.EvalSymlinks(b.repo.Root())
	if err != nil {
		return c, err
	}
	if rel, err := filepath.Rel(root, dir); err != nil || !filepath.IsLocal(rel) {
		dir = root
	}
	c.Dir = dir
	c.Env = append(c.Env, "PATH="+systemPath(os.Getenv("PATH")))
	// The project's files have other inodes here than git has noted of them.
	// Without this its first look would read every one of them again.
	c.Env = append(c.Env, "GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=core.checkStat", "GIT_CONFIG_VALUE_0=minimal",
		"GIT_CONFIG_KEY_1=core.trustctime", "GIT_CONFIG_VALUE_1=false")
	for _, name := range passed {
		if v, ok := os.LookupEnv(name); ok {
			c.Env = append(c.Env, name+"="+v)
		}
	}
	for _, e := range os.Environ() {
		if strings.HasPrefix(e, "LC_") {
			c.Env = append(c.Env, e)
		}
	}
	for _, e := range f.env {
		name, _, set := strings.Cut(e, "=")
		if name == "" {
			return c, fmt.Errorf("--env %q names no variable", e)
		}
		c.Env = slices.DeleteFunc(c.Env, func(have string) bool { return strings.HasPrefix(have, name+"=") })
		if !set {
			v, ok := os.LookupEnv(name)
			if !ok {
				return c, fmt.Errorf("--env %s: there is no such variable here", name)
			}
			e = name + "=" + v
		}
		c.Env = append(c.Env, e)
	}
	for _, p := range f.shown {
		abs, err := filepath.Abs(p)
		if err == nil {
			abs, err = filepath.EvalSymlinks(abs)
		}
		if err != nil {
			return c, fmt.Errorf("--ro %q: %w", p, err)
		}
		if abs == "/" {
			return c, errors.New("--ro /: name the directories that are needed")
		}
		c.Shown = append(c.Shown, abs)
	}
	return c, nil
}

// announce says how a command is confined, before it begins.
func (a *app) announce(s *session.Session, mode string, missing []session.Wall) {
	fmt.Fprintf(a.err, "aspis: session %s, %s; the project stays as it is\n", render.Escape(s.Name), mode)
	for _, w := range missing {
		fmt.Fprintf(a.err, "aspis: %s does not stand: %s\n", w.Name, render.Escape(w.Seen))
	}
}

// systemPath keeps the directories of a PATH that a session sees.
func systemPath(path string) string {
	var out []string
	for _, dir := range filepath.SplitList(path) {
		for _, seen := range []string{"/usr/", "/bin", "/sbin"} {
			if strings.HasPrefix(filepath.Clean(dir)+"/", seen) && !slices.Contains(out, dir) {
				out = append(out, dir)
			}
		}
	}
	if len(out) == 0 {
		return "/usr/local/bin:/usr/bin:/bin"
	}
	return strings.Join(out, ":")
}
