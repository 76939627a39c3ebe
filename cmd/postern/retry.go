package main

import (
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/replay"
)

// retrying are the flags of `postern retry`.
type retrying struct {
	yes, exact, noWait, preview bool
}

func newRetryCommand(c *cli) *cobra.Command {
	var r retrying
	cmd := &cobra.Command{
		Use:   "retry [EVENT]",
		Short: "Try failed and dead events again",
		Long: `Try events again that failed or are dead, after the cause was mended: one, by our id or the provider's key, or those that the flags choose. It
shows first how many those are and asks. Others are not touched.

These are the live outcomes, or with --run N the own outcomes of replay N. postern replay applies events whatever became of them.

A running processor does it, under the run that the outcomes are of (--run, live if none is given), and each gets all its attempts back. What fails
again is failed or dead again, with its reason. The counts of this run tell what became of them, and the status is 1 where some failed.`,
		Example: `  postern retry evt_1NG8Du2eZvKYlo2C
  postern retry --status dead --source stripe --failure 'lies more than an hour after' --reason 'the clock is right again'
  postern retry --run 7 --yes`,
		Args: wantArgs("[EVENT]"),
	}
	filterFlags(cmd, admin.RetryParams)
	cmd.Flags().BoolVarP(&r.yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&r.exact, "exact", false, "count all, however many there are")
	cmd.Flags().BoolVar(&r.preview, "preview", false, "show how many there are and end")
	cmd.Flags().BoolVar(&r.noWait, "no-wait", false, "do not watch: print the run's number and end")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		event := ""
		if len(args) > 0 {
			event = args[0]
		}
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			return r.run(cmd, c, pool, event, filterValues(cmd, admin.RetryParams))
		})
	}
	return cmd
}

func (r *retrying) run(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, event string, values url.Values) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	order, err := admin.PlanRetry(ctx, pool, event, values)
	if err != nil {
		return err
	}
	p, err := order.Preview(ctx, pool, r.exact)
	if err != nil {
		return err
	}
	switch {
	case c.output != "json":
		fmt.Fprintln(out, countedRetries(p))
	case r.preview:
		return printJSON(out, p)
	}
	if r.preview {
		return nil
	}
	if p.Exact && p.Events == 0 {
		run, err := admin.EarlierRetry(ctx, pool, order, values)
		return waitForEarlier(cmd, c, pool, run, err, r.noWait)
	}
	if ok, err := confirm(cmd, "Try them again?", r.yes); err != nil || !ok {
		return err
	}
	run, err := admin.AskRetry(ctx, pool, order, operator(), values, p.Events)
	return wait(cmd, c, pool, run, err, r.noWait)
}

func countedRetries(p replay.RetryPreview) string {
	if p.Exact && p.Events == 0 {
		return "No failed or dead events are chosen."
	}
	least := ""
	if !p.Exact {
		least = "at least "
	}
	return fmt.Sprintf("%s%s failed or dead, stored %s to %s", least, counted(int(p.Events), "event"), p.From, p.To)
}
