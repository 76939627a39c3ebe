package main

import (
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/replay"
)

// retryFlags are the flags of `postern retry`.
type retryFlags struct {
	yes, exact, noWait, preview bool
}

func newRetryCommand(c *cli) *cobra.Command {
	var r retryFlags
	cmd := &cobra.Command{
		Use:   "retry [EVENT]",
		Short: "Retry failed and dead events",
		Long: `Retry events that failed or are dead, after the cause is fixed: one, by Postern's id or
the provider's event id, or those that the flags select. The command shows how many are selected and
asks first. Other events are not changed.

It retries live outcomes, or with --run N the outcomes of replay N. postern replay applies events
whatever their outcome.

A running processor executes the run, and each event gets all its attempts again. An event that
fails again becomes failed or dead again, with its reason. The counts of the run show the outcomes,
and the exit status is 1 if some failed.`,
		Example: `  postern retry evt_1NG8Du2eZvKYlo2C
  postern retry --status dead --source stripe --failure 'lies more than an hour after' ` +
			`--reason 'the clock is right again'
  postern retry --run 7 --yes`,
		Args: wantArgs("[EVENT]"),
	}
	filterFlags(cmd, admin.RetryParams)
	cmd.Flags().BoolVarP(&r.yes, "yes", "y", false, "do not ask for confirmation")
	cmd.Flags().BoolVar(&r.exact, "exact", false, "count all, however many there are")
	cmd.Flags().BoolVar(&r.preview, "preview", false, "show how many are selected and exit")
	cmd.Flags().BoolVar(&r.noWait, "no-wait", false, "do not watch: print the run's number and exit")
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

func (r *retryFlags) run(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, event string, values url.Values) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	params, err := admin.ParseRetry(ctx, pool, event, values)
	if err != nil {
		return err
	}
	p, err := params.Preview(ctx, pool, r.exact)
	if err != nil {
		return err
	}
	switch {
	case c.output != "json":
		fmt.Fprintln(out, describeRetryPreview(p))
	case r.preview:
		return printJSON(out, p)
	}
	if r.preview {
		return nil
	}
	if p.Complete && p.Events == 0 {
		run, err := admin.ExistingRetry(ctx, pool, params, values)
		return waitForEarlier(cmd, c, pool, run, err, r.noWait)
	}
	if ok, err := confirmWithUser(cmd, "Retry them?", r.yes); err != nil || !ok {
		return err
	}
	run, err := admin.StartRetry(ctx, pool, params, operator(), values, p.Events)
	return showOrWatch(cmd, c, pool, run, err, r.noWait)
}

func describeRetryPreview(p replay.RetryPreview) string {
	if p.Complete && p.Events == 0 {
		return "No failed or dead events are selected."
	}
	atLeast := ""
	if !p.Complete {
		atLeast = "at least "
	}
	return fmt.Sprintf("%s%s failed or dead, stored %s to %s", atLeast, countOf(int(p.Events), "event"), p.From, p.To)
}
