package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/aspis-dev/aspis/host/outer"
)

func (a *app) hostCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "host", Short: "Serve a harness"}
	serve := &cobra.Command{
		Use: "serve", Short: "Speak ASP's outer seam on standard input and output", Args: cobra.NoArgs,
		Long: `Serve host/status, host/capabilities, host/evaluateChangeset, host/queryInspect,
host/requestEditPlan, host/applyProposal and host/authority/status as JSON-RPC, one
object a line, on standard input and output, until the input ends.

A harness hands over the bytes of a changeset's after-blobs beforehand: with
` + "`aspis blob put`" + `, or on the same connection with the method aspis/putBlob, an
extension outside ASP 1.0 whose params and result are those of workspace/putBlob.`,
		Example: `  printf '%s\n' '{"jsonrpc":"2.0","id":1,"method":"host/status"}' | aspis host serve`,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.serve(cmd.Context()) },
	}
	cmd.AddCommand(serve)
	serve.Flags().StringSliceVar(&a.without, "without-wall", nil, "leave a wall out of the containers, to see the claim fall")
	if err := serve.Flags().MarkHidden("without-wall"); err != nil {
		panic(err) // the flag is defined two lines above
	}
	return cmd
}

func (a *app) serve(ctx context.Context) error {
	why, done, err := a.enter(ctx)
	if err != nil || done {
		return err
	}
	b, err := a.openRepo(ctx)
	if err != nil {
		return err
	}
	base, err := b.repo.BaseTree(ctx)
	if err != nil {
		return err
	}
	if err := a.open(ctx, b, openOptions{whyNot: why, baseTree: base, warm: true}); err != nil {
		return err
	}
	s := b.service(base)
	// Nothing ends a blocked read of a pipe, not even closing it; so standard
	// input is read by a goroutine that a signal leaves behind.
	in, feed := io.Pipe()
	go func() {
		_, err := io.Copy(feed, a.in)
		feed.CloseWithError(err)
	}()
	stop := context.AfterFunc(ctx, func() { in.Close() })
	defer stop()
	err = outer.Serve(ctx, s, in, a.out)
	return errors.Join(err, s.Close(), b.close(ctx))
}

func (a *app) blobCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "blob", Short: "Hand bytes over to the host"}
	cmd.AddCommand(&cobra.Command{
		Use: "put [file...]", Short: "Store files (or standard input) and print their blob refs",
		Long: `Store the bytes that a changeset's after-blobs name, so that host/evaluateChangeset
can find them. One ref is printed for each file, in order.`,
		Example: `  aspis blob put main.go
  git show HEAD:main.go | aspis blob put`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.putBlobs(cmd.Context(), args) },
	})
	return cmd
}

// maxBlob bounds one file that is handed over, in bytes.
const maxBlob = 4 << 30

func (a *app) putBlobs(ctx context.Context, files []string) error {
	store, err := a.blobStore()
	if err != nil {
		return err
	}
	if len(files) == 0 {
		files = []string{"-"}
	}
	var out strings.Builder
	for _, name := range files {
		in := a.in
		if name != "-" {
			f, err := os.Open(name)
			if err != nil {
				return err
			}
			defer f.Close()
			in = f
		}
		ref, err := store.PutBlob(ctx, in, maxBlob)
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		fmt.Fprintln(&out, ref)
	}
	_, err = fmt.Fprint(a.out, out.String())
	return err
}
