package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/aspis-dev/aspis/cmd/aspis/internal/render"
	"github.com/aspis-dev/aspis/overlay"
)

func (a *app) storeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "store", Short: "Look after what aspis keeps on disk",
		Long: `Snapshots of trees, frozen states of projects, work areas and blobs lie in the
state directory. All but work areas can be made again, so that removing them costs
time and nothing else.`,
	}
	list := &cobra.Command{
		Use: "ls", Short: "Show what is kept, what was used longest ago first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.listStore(cmd.Context()) },
	}
	var limit string
	var unused time.Duration
	gc := &cobra.Command{
		Use: "gc", Short: "Remove what nobody uses", Args: cobra.NoArgs,
		Long: `Remove what nobody uses: with --max-size what was used longest ago until the rest
fits, with --unused what was not used for so long, without either all of it. What
another process uses stays, and so do work areas and what they lie over.`,
		Example: `  aspis store gc --max-size 10G
  aspis store gc --unused 168h`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("max-size") {
				return a.shrinkStore(cmd.Context(), limit)
			}
			return a.collectStore(cmd.Context(), unused)
		},
	}
	gc.Flags().StringVar(&limit, "max-size", "", "remove until the rest takes at most so many `bytes` (K, M, G and T mean powers of 1024)")
	gc.Flags().DurationVar(&unused, "unused", 0, "remove only what was not used for this `time`")
	gc.MarkFlagsMutuallyExclusive("max-size", "unused")
	verify := &cobra.Command{
		Use: "verify", Short: "Read everything that is kept and compare it with what was written", Args: cobra.NoArgs,
		Long: `Read everything that is kept and compare it with what was written.

Exit codes: 0 all is well, 1 something is not, 3 it could not be looked at.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.verifyStore(cmd.Context()) },
	}
	cmd.AddCommand(list, gc, verify)
	return cmd
}

// openStore is for commands without a repository.
func (a *app) openStore() (*overlay.Store, error) {
	if err := a.checkFormat(); err != nil {
		return nil, err
	}
	return a.blobStore()
}

// storeItem is one line of `aspis store ls --format json`.
type storeItem struct {
	Kind     string    `json:"kind"`
	ID       string    `json:"id"`
	Of       string    `json:"of,omitzero"`
	Bytes    int64     `json:"bytes"`
	Files    int       `json:"files"`
	LastUsed time.Time `json:"lastUsed"`
	InUse    bool      `json:"inUse"`
}

func (a *app) listStore(ctx context.Context) error {
	store, err := a.openStore()
	if err != nil {
		return err
	}
	items, err := store.List(ctx)
	if err != nil {
		return err
	}
	var total int64
	rows := make([]storeItem, 0, len(items))
	for _, it := range items {
		rows = append(rows, storeItem{Kind: it.Kind, ID: it.ID, Of: it.Of, Bytes: it.Bytes, Files: it.Files, LastUsed: it.LastUsed.UTC(), InUse: it.InUse})
		total += it.Bytes
	}
	if a.format == "json" {
		return a.json(rows)
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		use := ""
		if r.InUse {
			use = "in use"
		}
		name := r.ID
		if r.Of != "" {
			name += " of " + r.Of
		}
		fmt.Fprintf(w, "%s\t%s\t%d files\t%s\t%s\t%s\n", r.LastUsed.Format(time.DateTime), size(r.Bytes), r.Files, r.Kind, use, render.Escape(name))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.out, "%s in all\n", size(total))
	return err
}

func (a *app) collectStore(ctx context.Context, unused time.Duration) error {
	store, err := a.openStore()
	if err != nil {
		return err
	}
	n, err := store.Collect(ctx, time.Now().Add(-unused))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.out, "removed %d\n", n)
	return err
}

func (a *app) shrinkStore(ctx context.Context, limit string) error {
	bytes, err := parseSize(limit)
	if err != nil {
		return err
	}
	store, err := a.openStore()
	if err != nil {
		return err
	}
	n, freed, err := store.Shrink(ctx, bytes)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.out, "removed %d, which took %s\n", n, size(freed))
	return err
}

func (a *app) verifyStore(ctx context.Context) error {
	store, err := a.openStore()
	if err != nil {
		return err
	}
	r, err := store.Verify(ctx)
	if err != nil {
		return err
	}
	if len(r.Problems) > 0 {
		a.code = ExitDeny
	}
	if a.format == "json" {
		return a.json(struct {
			Snapshots int      `json:"snapshots"`
			Frozen    int      `json:"frozen"`
			WorkAreas int      `json:"workAreas"`
			Files     int      `json:"files"`
			Blobs     int      `json:"blobs"`
			Problems  []string `json:"problems"`
		}{r.Snapshots, r.Frozen, r.WorkAreas, r.Files, r.Blobs, append([]string{}, r.Problems...)})
	}
	for _, p := range r.Problems {
		fmt.Fprintln(a.out, render.Escape(p))
	}
	_, err = fmt.Fprintf(a.out, "%d snapshots, %d frozen states, %d work areas, %d files and %d blobs looked at, %d problems\n",
		r.Snapshots, r.Frozen, r.WorkAreas, r.Files, r.Blobs, len(r.Problems))
	return err
}

const units = "KMGT"

// parseSize reads a number of bytes such as 512M.
func parseSize(text string) (int64, error) {
	number, shift := text, 0
	if i := strings.IndexByte(units, strings.ToUpper(" " + text)[len(text)]); i >= 0 {
		number, shift = text[:len(text)-1], 10*(i+1)
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > (1<<62)>>shift {
		return 0, fmt.Errorf("%q is no size; say for example 512M or 10G", text)
	}
	return n << shift, nil
}

// size writes a number of bytes for people.
func size(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	at, f := -1, float64(n)
	for f >= 1024 && at < len(units)-1 {
		f /= 1024
		at++
	}
	return fmt.Sprintf("%.1f %ciB", f, units[at])
}
