package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/aspis-dev/aspis/cmd/aspis/internal/render"
	"github.com/aspis-dev/aspis/host"
)

func (a *app) undoCommand() *cobra.Command {
	return &cobra.Command{
		Use: "undo", Short: "Take the last apply back", Args: cobra.NoArgs,
		Long: `Put back the files that the last apply to this worktree changed, all or none. If
something has changed them since, nothing is done and the files are named. An undo
can be undone. What an apply replaced is kept until the next one, two weeks at most.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.undo(cmd.Context()) },
	}
}

func (a *app) undo(ctx context.Context) error {
	if err := a.checkFormat(); err != nil {
		return err
	}
	why, done, err := a.enter(ctx)
	if err != nil || done {
		return err
	}
	return a.withService(ctx, why, func(_ *bench, s *host.Service) error {
		u, err := s.Undo(ctx)
		if err != nil {
			return err
		}
		if a.format == "json" {
			return a.json(u)
		}
		for _, p := range u.Changed {
			if _, err := fmt.Fprintf(a.out, "  put back  %s\n", render.Escape(p)); err != nil {
				return err
			}
		}
		_, err = fmt.Fprintf(a.out, "\ntaken back · %s · receipt %s\n", u.Guarantee, u.Receipt.ReceiptID[:8])
		return err
	})
}
