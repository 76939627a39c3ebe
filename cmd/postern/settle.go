package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

func newObjectsSettleCommand(c *cli) *cobra.Command {
	var yes, noWait bool
	cmd := &cobra.Command{
		Use:   "settle SOURCE TYPE ID",
		Short: "Look at an object, and let what the API answers win over all that the mirror has of it",
		Long: `Look at an object, and let what the API answers win over all that the mirror has of it: a final tombstone too, and a version that lies in the future. Nothing that was
received before counts for the object any more, also in a replay or a rebuild, if it comes late or again; what is received from now on does, as ever. Who had it
settled, and why, is kept with the look in the log, and in the ledger of runs.

It is for what the mirror cannot find out by itself: an object that was deleted for good and is there again, or a delete that nobody meant. For a mere look there is
postern reconcile SOURCE --type TYPE --object ID. A running processor carries it out.`,
		Example: `  postern objects settle stripe customer cus_1 --reason 'deleted by mistake, and restored by the provider: ticket 12'
  postern objects settle stripe customer cus_1 --account acct_1 --reason 'ticket 13' --yes`,
		Args: wantArgs("SOURCE", "TYPE", "ID"),
	}
	params := []admin.Param{accountOf, {Name: "reason", Help: "why; must be given, and is kept"}, {Name: "once_key", Help: "a name of yours for this occasion: whoever asks with it again gets the same run"}}
	filterFlags(cmd, params)
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not watch: print the run and end")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		values := filterValues(cmd, params)
		if strings.TrimSpace(values.Get("reason")) == "" {
			return usagef("say why with --reason: it is kept with the look that wins")
		}
		values.Set("source", args[0])
		values.Set("type", args[1])
		values.Set("object_id", args[2])
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			if ok, err := confirm(cmd, fmt.Sprintf("Let the API's answer win over all that the mirror has of %s?", plain(object(args[1], args[2]))), yes); err != nil || !ok {
				return err
			}
			return runSettle(cmd, c, pool, values, noWait)
		})
	}
	return cmd
}

func runSettle(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, values url.Values, noWait bool) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	asked, err := admin.Settle(ctx, pool, values, operator())
	if err := wait(cmd, c, pool, asked, err, noWait); err != nil || noWait || c.output == "json" {
		return err
	}
	r, err := runs.Show(ctx, pool, asked.Run.Run)
	if err != nil || r.Status != runs.Done {
		return err
	}
	if r.Counts[reconcile.Absent] > 0 {
		return tellReconciled(ctx, out, pool, r.Run)
	}
	o, err := settledObject(ctx, pool, r)
	if err != nil {
		return err
	}
	fmt.Fprintln(out)
	return printObject(ctx, out, pool, o)
}

// settledObject is the object of a run that was to settle it.
func settledObject(ctx context.Context, pool *pgxpool.Pool, r *runs.Run) (*versioning.View, error) {
	var o reconcile.Order
	if err := json.Unmarshal(r.Asked, &o); err != nil {
		return nil, fmt.Errorf("read what run %d was asked for: %w", r.Run, err)
	}
	return admin.Object(ctx, pool, o.Words["source"], o.Type, o.ID, url.Values{"account": {o.Account}})
}
