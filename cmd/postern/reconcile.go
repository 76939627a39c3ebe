package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
)

// reconcileFlags are the parameters but the source, which is the argument, and what is a flag of its own.
var reconcileFlags = slices.DeleteFunc(slices.Clone(admin.ReconcileParams), func(p admin.Param) bool {
	return slices.Contains([]string{"source", "all_accounts", "dry_run", "objects", "full"}, p.Name)
})

func newReconcileCommand(c *cli) *cobra.Command {
	var noWait bool
	var dry, every, objects, full bool
	cmd := &cobra.Command{
		Use:   "reconcile SOURCE",
		Short: "Hold the log against the provider's API, and append what it lacks",
		Long: `Hold the log against the provider's API (sources.NAME.api in the configuration): append what the provider says it has sent and the log lacks, or,
with --type and --object, what the API answers for that object now. What is appended goes the way of all events.

With --objects, or --type alone, all objects that the API lists (of that type) are compared with the mirror, and what differs is fetched and appended. Where the API tells what
changed, only that is listed, unless --full asks for everything. Only where everything is listed it can show what is not there any more: that is asked for by its name, one by one, and
deleted here where the API says that it is missing. More than 20 such objects that are more than 1 % of the living ones want an approval (postern runs approve). What was found is in
postern drift report RUN.

A running processor carries it out, within the budget of calls that all processes share; it goes on where it was if that process ends. Without --since it
begins a little before what is proven (postern drift show), or as far back as the provider knows. The run is done when everything that it appended has
its outcome. Ctrl-C here only ends the watching; postern runs pause, resume and cancel steer the run. The exit status is 1 where the run failed.

It is of one account of the source: the one that the key is of, or --account. With --all-accounts a processor enters a run for each that is known, but for those that the source's
reconcile.own and reconcile.except leave out, and those whose run of before is still open; the command watches them one after the other, and the exit status is 1 where any failed.

With --dry-run it only counts: nothing is appended, and nothing is proven.`,
		Example: `  postern reconcile stripe
  postern reconcile stripe --since 6h --dry-run
  postern reconcile stripe --objects --dry-run
  postern reconcile stripe --type customer --full
  postern reconcile stripe --all-accounts --since 6h
  postern reconcile stripe --account acct_1 --type customer --object cus_1 --reason 'finance doubts it'`,
		Args: wantArgs("SOURCE"),
	}
	filterFlags(cmd, reconcileFlags)
	cmd.Flags().BoolVar(&every, "all-accounts", false, "a run for each account that the configuration or the mirror knows (Stripe Connect)")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only count; append nothing")
	cmd.Flags().BoolVar(&objects, "objects", false, "compare all objects that the API lists with the mirror")
	cmd.Flags().BoolVar(&full, "full", false, "list all objects, also where the API could tell of those that changed")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not watch: print the run and end")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		values := filterValues(cmd, reconcileFlags)
		values.Set("source", args[0])
		for name, set := range map[string]bool{"all_accounts": every, "dry_run": dry, "objects": objects, "full": full} {
			if set {
				values.Set(name, "true")
			}
		}
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			return runReconcile(cmd, c, pool, values, noWait)
		})
	}
	return cmd
}

func runReconcile(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, values url.Values, noWait bool) error {
	asked, err := admin.Reconcile(cmd.Context(), pool, values, operator())
	if err := wait(cmd, c, pool, asked, err, noWait); err != nil || noWait {
		return err
	}
	entered, err := reconcile.Entered(cmd.Context(), pool, asked.Run.Run)
	switch {
	case err != nil:
		return err
	case len(entered) > 0:
		return watchEntered(cmd, c, pool, entered)
	case c.output == "json":
		return nil
	}
	return tellReconciled(cmd.Context(), cmd.OutOrStdout(), pool, asked.Run.Run)
}

// watchEntered watches the runs of all accounts, also where one fails.
func watchEntered(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, entered []int64) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	var bad []error
	for _, run := range entered {
		if c.output != "json" {
			fmt.Fprintln(out)
		}
		err := watchRun(ctx, out, c, pool, run)
		if err == nil && c.output != "json" {
			err = tellReconciled(ctx, out, pool, run)
		}
		bad = append(bad, err)
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(bad...)
}

// tellReconciled says in words what a reconciliation that is done has come to.
func tellReconciled(ctx context.Context, out io.Writer, pool *pgxpool.Pool, run int64) error {
	r, err := runs.Show(ctx, pool, run)
	if err != nil || r.Status != runs.Done {
		return err
	}
	var o reconcile.Order
	if err := json.Unmarshal(r.Asked, &o); err != nil {
		return fmt.Errorf("read what run %d was asked for: %w", run, err)
	}
	if _, each := r.Counts[reconcile.Accounts]; each {
		return nil // it has entered none, since all are still open: its counts say so
	}
	if r.Counts[reconcile.Disconnected] > 0 {
		_, err := fmt.Fprintf(out, "\nThe account is disconnected: the key may not act for it any more. It was passed over, and nothing is proven of it by this run: postern drift show --source %s\n", plain(o.Words["source"]))
		return err
	}
	if o.What == reconcile.Objects {
		return printReport(ctx, out, pool, run)
	}
	since, until, err := reconcile.Watermark(ctx, pool, o.Source, o.Account, o.What)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\n%s\n", plain(reconciled(&o, r.Counts, since, until)))
	if n := r.Counts[reconcile.SkewSeconds]; n > 0 && err == nil {
		_, err = fmt.Fprintf(out, "%s\n", skewed(n))
	}
	return err
}

// reconciled is what a reconciliation has come to; since and until bound what is proven, zero where nothing is.
func reconciled(o *reconcile.Order, counts map[string]int64, since, until time.Time) string {
	if o.What == reconcile.Object {
		switch {
		case counts[reconcile.Absent] > 0:
			return "The mirror has never had such an object, and the API has none either: is the name right? Nothing was appended."
		case o.DryRun:
			return "The API has answered, and nothing was appended: it was a dry run."
		case counts[reconcile.Missing] > 0:
			return "The log lacked what the API answers now, and has it since."
		}
		return "The log had what the API answers now."
	}
	said := fmt.Sprintf("The provider told of %s: the log had %d and lacked %d", counted(int(counts[reconcile.Seen]), "event"), counts[reconcile.Present], counts[reconcile.Missing])
	if n := counts[reconcile.Undelivered]; n > 0 {
		said += fmt.Sprintf(", and the provider itself says of %d that they were not delivered", n)
	}
	if n := counts[reconcile.Conflicting]; n > 0 {
		said += fmt.Sprintf(", and had %d with other content (postern conflicts list)", n)
	}
	if n := counts[reconcile.Refused]; n > 0 {
		said += fmt.Sprintf(". %d more of accounts that the source does not take were left out", n)
	}
	switch {
	case o.DryRun:
		return said + ". It was a dry run: nothing was appended, and nothing is proven by it."
	case until.IsZero():
		return said + "."
	}
	return said + ". The log is proven complete from " + events.Instant{Time: since}.String() + " until " + events.Instant{Time: until}.String() + "."
}

// reconcileCounts says what a reconciliation has counted.
func reconcileCounts(counts map[string]int64) string {
	if n, each := counts[reconcile.Accounts]; each {
		said := "runs entered for " + counted(int(n), "account")
		if busy := counts[reconcile.Busy]; busy > 0 {
			said += fmt.Sprintf(", and none for %d whose run of before is still open", busy)
		}
		return said
	}
	parts := []string{fmt.Sprintf("%d processed", counts[reconcile.Seen])}
	for _, what := range []string{reconcile.Present, reconcile.Equal, reconcile.Missing, reconcile.Behind, reconcile.Ahead, reconcile.Different, reconcile.Hidden, reconcile.Ghosts, reconcile.Mended,
		reconcile.Left, reconcile.Unlisted, reconcile.Rare, reconcile.Passed, reconcile.Undelivered, reconcile.Conflicting, reconcile.Refused, reconcile.Absent} {
		if n := counts[what]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, strings.ReplaceAll(what, "_", " ")))
		}
	}
	if counts[reconcile.Disconnected] > 0 {
		parts = append(parts, "the account is disconnected")
	}
	if n := counts[reconcile.SkewSeconds]; n > 0 {
		parts = append(parts, fmt.Sprintf("clocks %d s apart", n))
	}
	return strings.Join(parts, ", ")
}

// readUpTo says how far a run has read: the log, or the provider's time.
func readUpTo(r *runs.Run) (name, place string) {
	switch {
	case r.Bound == 0 || r.Cursor == 1: // which is no place: it only has begun
		return "", ""
	case r.Job != reconcile.Job:
		return "log read up to", fmt.Sprintf("%d of %d", r.Cursor, r.Bound)
	case r.Cursor == 0:
		return "", ""
	}
	return "provider's time read up to", micros(r.Cursor) + " of " + micros(r.Bound)
}

func micros(at int64) string { return events.Instant{Time: time.UnixMicro(at)}.String() }

// due is when the next attempt is.
func due(h reconcile.HintView) string {
	if h.Parked {
		return "parked"
	}
	return h.Due.String()
}
