package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/spf13/cobra"

	"github.com/aspis-dev/aspis/cmd/aspis/internal/render"
	"github.com/aspis-dev/aspis/host"
	"github.com/aspis-dev/aspis/host/session"
	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/policy"
	"github.com/aspis-dev/aspis/schemas"
)

func (a *app) sessionCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "session", Short: "Look at what a session did, apply or discard it"}
	cmd.AddCommand(&cobra.Command{
		Use: "ls", Short: "List the sessions of this project", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withBook(cmd.Context(), func(b *bench, book *session.Book) error { return a.listSessions(b, book) })
		},
	}, &cobra.Command{
		Use: "show [name]", Short: "Show a session: its commands, how they were confined, what they used", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withSession(cmd.Context(), args, func(_ *bench, _ *session.Book, s *session.Session) error { return a.json(s) })
		},
	})
	var format string
	diff := &cobra.Command{
		Use: "diff [name]", Short: "Show what a session changed", Args: cobra.MaximumNArgs(1),
		Long: `Show what a session changed in the project, as git would. Files that git ignores
are left out, and so is the git directory; both stay in the session.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withSession(cmd.Context(), args, func(b *bench, book *session.Book, s *session.Session) error {
				return a.sessionDiff(cmd.Context(), b, book, s, format)
			})
		},
	}
	diff.Flags().StringVar(&format, "as", "patch", "patch, stat or name-only")
	var f applyFlags
	var only []string
	apply := &cobra.Command{
		Use: "apply [name]", Short: "Check what a session changed and publish it, all or nothing", Args: cobra.MaximumNArgs(1),
		Long: `Make an edit of what a session changed, and publish it as aspis apply does. What you
did to the same files meanwhile is merged where that is clean, and else a conflict.`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.sessionApply(cmd.Context(), args, f, only) },
	}
	apply.Flags().StringSliceVar(&only, "only", nil, "only the paths that match `glob`")
	apply.Flags().StringVar(&f.to, "to", "worktree", "publish to the `worktree`, or as a commit to ref:NAME")
	apply.Flags().BoolVar(&f.dryRun, "dry-run", false, "check the edit, and publish nothing")
	apply.Flags().StringSliceVar(&f.protected, "allow-protected", nil, "let protected files that match `glob` be written")
	apply.Flags().StringVar(&f.callSite, "call-site", "gate", "gate, interactive or sweep: whose requirements hold")
	apply.Flags().StringVarP(&f.message, "message", "m", "", "the commit's `text`, with --to ref:NAME")
	var yes bool
	discard := &cobra.Command{
		Use: "discard [name]", Short: "Remove a session and all that was done in it", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withSession(cmd.Context(), args, func(b *bench, book *session.Book, s *session.Session) error {
				return a.discard(cmd.Context(), b, book, s, yes)
			})
		},
	}
	discard.Flags().BoolVarP(&yes, "yes", "y", false, "also when it holds changes that were never applied")
	cmd.AddCommand(diff, apply, discard)
	return cmd
}

// withBook opens the sessions of the repository.
func (a *app) withBook(ctx context.Context, do func(*bench, *session.Book) error) error {
	if err := a.checkFormat(); err != nil {
		return err
	}
	_, done, err := a.enter(ctx)
	if err != nil || done {
		return err
	}
	b, err := a.openRepo(ctx)
	if err != nil {
		return err
	}
	book, err := b.book()
	if err == nil {
		err = do(b, book)
	}
	return errors.Join(err, b.close(ctx))
}

func (a *app) withSession(ctx context.Context, args []string, do func(*bench, *session.Book, *session.Session) error) error {
	return a.withBook(ctx, func(b *bench, book *session.Book) error {
		s, err := book.Find(b.repo.Root(), nameOf(args))
		if err != nil {
			return err
		}
		return do(b, book, s)
	})
}

func nameOf(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func (a *app) listSessions(b *bench, book *session.Book) error {
	all, err := book.List(b.repo.Root())
	if err != nil {
		return err
	}
	if a.format == "json" {
		return a.json(all)
	}
	for _, s := range all {
		last := "no command yet"
		if n := len(s.Runs); n > 0 {
			r := s.Runs[n-1]
			last = fmt.Sprintf("%s, exit %d: %s", r.Mode, r.Code, strings.Join(r.Command, " "))
			if r.Ended.IsZero() {
				last = fmt.Sprintf("%s, did not end: %s", r.Mode, strings.Join(r.Command, " "))
			}
		}
		if len(s.Applied) > 0 {
			last += "; applied"
		}
		if _, err := fmt.Fprintf(a.out, "%-20s %s  %s\n", render.Escape(s.Name), s.Created.Local().Format("2006-01-02 15:04"), render.Escape(last)); err != nil {
			return err
		}
	}
	return nil
}

// sessionChanges finds what a session did, and says what is not part of it.
func (a *app) sessionChanges(ctx context.Context, b *bench, book *session.Book, s *session.Session, only []string) (*session.Changes, error) {
	for _, g := range only {
		if !doublestar.ValidatePattern(g) {
			return nil, fmt.Errorf("--only %q is no glob", g)
		}
	}
	var keep func(string) bool
	if len(only) > 0 {
		keep = func(path string) bool {
			for _, g := range only {
				if doublestar.MatchUnvalidated(g, path) || strings.HasPrefix(path, strings.TrimSuffix(g, "/")+"/") {
					return true
				}
			}
			return false
		}
	}
	c, err := book.Changes(ctx, b.repo, s, keep)
	if err != nil {
		return nil, err
	}
	for _, r := range c.Refused {
		fmt.Fprintf(a.err, "aspis: left out: %s\n", render.Escape(r))
	}
	if c.Ignored > 0 {
		fmt.Fprintf(a.err, "aspis: %d changed paths are ignored by git and stay in the session\n", c.Ignored)
	}
	if c.InGit > 0 {
		fmt.Fprintln(a.err, "aspis: the git directory was changed; that stays in the session")
	}
	for _, d := range c.Drift {
		fmt.Fprintf(a.err, "aspis: %s changed in the project while the session used it\n", render.Escape(d))
	}
	return c, nil
}

func (a *app) sessionDiff(ctx context.Context, b *bench, book *session.Book, s *session.Session, as string) error {
	format := gitrepo.DiffFormat(as)
	if format != gitrepo.DiffPatch && format != gitrepo.DiffStat && format != gitrepo.DiffNameOnly {
		return fmt.Errorf("--as is %q; use patch, stat or name-only", as)
	}
	c, err := a.sessionChanges(ctx, b, book, s, nil)
	if err != nil {
		return err
	}
	text, err := b.repo.Diff(ctx, c.Base, c.Tree, format)
	if err != nil {
		return err
	}
	if format == gitrepo.DiffNameOnly {
		for name := range strings.SplitSeq(strings.TrimSuffix(string(text), "\x00"), "\x00") {
			if name == "" {
				continue
			}
			if _, err := fmt.Fprintln(a.out, render.Escape(name)); err != nil {
				return err
			}
		}
		return nil
	}
	if a.style().Width > 0 { // a terminal: what a session wrote must not steer it
		return a.escapedLines(text)
	}
	_, err = a.out.Write(text)
	return err
}

// escapedLines shows text that anybody may have written.
func (a *app) escapedLines(text []byte) error {
	for line := range strings.Lines(string(text)) {
		body := strings.TrimSuffix(line, "\n")
		if _, err := fmt.Fprintln(a.out, strings.ReplaceAll(render.Escape(strings.ReplaceAll(body, "\t", "        ")), "\x00", "")); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) discard(ctx context.Context, b *bench, book *session.Book, s *session.Session, yes bool) error {
	if !yes && len(s.Applied) == 0 {
		c, err := a.sessionChanges(ctx, b, book, s, nil)
		if err != nil {
			return fmt.Errorf("what is in the session cannot be read (%w); discard it all the same with --yes", err)
		}
		if c.Base != c.Tree {
			return fmt.Errorf("the session %q holds changes that were never applied; look at them with aspis session diff, or discard them with --yes", s.Name)
		}
	}
	return book.Remove(ctx, s)
}

func (a *app) sessionApply(ctx context.Context, args []string, f applyFlags, only []string) error {
	if err := a.checkFormat(); err != nil {
		return err
	}
	site, err := callSiteOf(f.callSite)
	if err != nil {
		return err
	}
	person, err := f.person()
	if err != nil {
		return err
	}
	person.OnDrift = policy.DriftMerge
	why, done, err := a.enter(ctx)
	if err != nil || done {
		return err
	}
	return a.withService(ctx, why, func(b *bench, svc *host.Service) error {
		book, err := b.book()
		if err != nil {
			return err
		}
		s, err := book.Find(b.repo.Root(), nameOf(args))
		if err != nil {
			return err
		}
		c, err := a.sessionChanges(ctx, b, book, s, only)
		if err != nil {
			return err
		}
		capture, err := b.repo.Compare(ctx, c.Base, c.Tree)
		if err != nil {
			return err
		}
		if len(capture.Entries) == 0 {
			return errors.New("the session changed nothing that could be applied")
		}
		capture.Baseline = s.Baseline
		svc.Remember(s.Baseline, c.Base)
		person.Make = func(ctx context.Context, _ host.Place, _ gitrepo.OID) (*schemas.EditPlan, map[string]uint32, error) {
			return host.HandIn(ctx, b.repo, b.store, capture, "aspis-session", a.version)
		}
		res, err := a.publish(ctx, svc, host.Apply{Params: schemas.ApplyParams{CallSite: site, Intent: "user"}, Person: person})
		if err != nil || !res.Applied {
			return err
		}
		s.Applied = append(s.Applied, res.Receipt.ReceiptID)
		return book.Save(s)
	})
}
