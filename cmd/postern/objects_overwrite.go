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

func newObjectsOverwriteCommand(c *cli) *cobra.Command {
	var yes, noWait bool
	cmd := &cobra.Command{
		Use:   "overwrite SOURCE TYPE ID",
		Short: "Overwrite an object with its current state at the provider",
		Long: `Refetch an object from the provider's API and let the response overwrite everything
that the mirror has, even a final tombstone or a version in the future. Everything received before
is ignored for the object from now on, also in a replay or a rebuild, and also if it arrives late or
again. Later events apply as usual. The log keeps the actor and the reason with the refetch, and so
does the ledger of runs.

Use it for what the mirror cannot detect: an object that was deleted for good and exists again, or a
delete by mistake. For a normal refetch use postern reconcile SOURCE --type TYPE --object ID. A
running processor executes the run.`,
		Example: `  postern objects overwrite stripe customer cus_1 --reason ` +
			`'deleted by mistake, and restored by the provider: ticket 12'
  postern objects overwrite stripe customer cus_1 --account acct_1 --reason 'ticket 13' --yes`,
		Args: wantArgs("SOURCE", "TYPE", "ID"),
	}
	params := []admin.Param{accountParam, {Name: "reason", Help: "the reason; required, kept with the object"},
		{Name: "idempotency_key", Help: "a name of your choice; a second request with it gets the same run"}}
	filterFlags(cmd, params)
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not watch: print the run and exit")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		values := filterValues(cmd, params)
		if strings.TrimSpace(values.Get("reason")) == "" {
			return usagef("give a reason with --reason: it is kept with the refetch that overwrites the object")
		}
		values.Set("source", args[0])
		values.Set("type", args[1])
		values.Set("object_id", args[2])
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			if ok, err := confirmWithUser(cmd, fmt.Sprintf("Overwrite all local history of %s with the provider's "+
				"current state?", escapeControl(describeObject(args[1], args[2]))), yes); err != nil || !ok {
				return err
			}
			return runOverwrite(cmd, c, pool, values, noWait)
		})
	}
	return cmd
}

func runOverwrite(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, values url.Values, noWait bool) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	created, err := admin.OverwriteObject(ctx, pool, values, operator())
	if err := showOrWatch(cmd, c, pool, created, err, noWait); err != nil || noWait || c.output == "json" {
		return err
	}
	r, err := runs.Show(ctx, pool, created.Run.ID)
	if err != nil || r.Status != runs.Done {
		return err
	}
	if r.Counts[reconcile.Absent] > 0 {
		return printReconciled(ctx, out, pool, r.ID)
	}
	o, err := overwrittenObject(ctx, pool, r)
	if err != nil {
		return err
	}
	fmt.Fprintln(out)
	return printObject(ctx, out, pool, o)
}

// overwrittenObject returns the object of an overwrite run.
func overwrittenObject(ctx context.Context, pool *pgxpool.Pool, r *runs.Run) (*versioning.View, error) {
	var o reconcile.Params
	if err := json.Unmarshal(r.Params, &o); err != nil {
		return nil, fmt.Errorf("read the parameters of run %d: %w", r.ID, err)
	}
	return admin.Object(ctx, pool, o.Input["source"], o.Type, o.ID, url.Values{"account": {o.Account}})
}
