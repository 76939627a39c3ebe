package main

import (
	"context"
	"fmt"
	"net/url"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/reconcile"
)

func newHintsCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "hints", Short: "Objects whose refetch from the provider's API is pending", RunE: group, Args: cobra.ArbitraryArgs}
	cmd.AddCommand(lister[reconcile.HintView]{
		what:    "objects whose refetch is pending: why, when it is due, and why the last attempt failed",
		example: "  postern hints list --source stripe",
		params:  admin.HintParams,
		query:   admin.Hints,
		columns: []column[reconcile.HintView]{
			{"SOURCE", func(h reconcile.HintView) string { return h.Source }},
			{"ACCOUNT", func(h reconcile.HintView) string { return h.Account }},
			{"OBJECT", func(h reconcile.HintView) string { return object(h.ObjectType, h.ObjectID) }},
			{"REASON", func(h reconcile.HintView) string { return h.Reason }},
			{"WANTED BY", func(h reconcile.HintView) string { return h.WantedBy }},
			{"MADE", func(h reconcile.HintView) string { return h.MadeAt.String() }},
			{"DUE", due},
			{"ATTEMPTS", func(h reconcile.HintView) string { return strconv.Itoa(h.Attempts) }},
			{"TAKEN BY", func(h reconcile.HintView) string { return h.TakenBy }},
			{"ERROR", func(h reconcile.HintView) string { return h.Error }},
		},
		none: "No refetch is pending.",
	}.command(c), newHintsAddCommand(c), newHintsDropCommand(c))
	return cmd
}

func newHintsAddCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add SOURCE TYPE ID",
		Short: "Have an object looked at by a running processor, at its next pass",
		Long: `Have an object looked at by a running processor, within the budget of calls. However many ask for it, it is one look. Who wanted it, and why, is kept with the look
in the log. It waits for nothing: postern reconcile SOURCE --type TYPE --object ID does the same as a run, and waits for its outcome.`,
		Example: `  postern hints add stripe customer cus_1 --reason 'finance doubts it'
  postern hints add stripe customer cus_1 --account acct_1`,
		Args: wantArgs("SOURCE", "TYPE", "ID"),
	}
	params := []admin.Param{accountOf, {Name: "reason", Help: "why; kept with the look"}}
	filterFlags(cmd, params)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.hint(cmd, args, params, func(ctx context.Context, pool *pgxpool.Pool, values url.Values) (*reconcile.HintView, error) {
			return admin.Wish(ctx, pool, values, operator())
		}, "will be looked at.")
	}
	return cmd
}

func newHintsDropCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drop SOURCE TYPE ID",
		Short: "Take a hint back; where the mirror still is in doubt it comes again",
		Example: `  postern hints drop stripe customer cus_1
  postern hints drop stripe customer cus_1 --account acct_1`,
		Args: wantArgs("SOURCE", "TYPE", "ID"),
	}
	params := []admin.Param{accountOf, {Name: "reason", Help: "why; kept in the audit"}}
	filterFlags(cmd, params)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.hint(cmd, args, params, func(ctx context.Context, pool *pgxpool.Pool, values url.Values) (*reconcile.HintView, error) {
			return admin.ForgetHint(ctx, pool, values, operator())
		}, "is not looked at for this hint any more.")
	}
	return cmd
}

// accountOf is the account of an object that is named.
var accountOf = admin.Param{Name: "account", Help: "tenant inside the source; left out: the one that has the object in the mirror, else the one that the key is of"}

// hint does something with the hint of an object that args name, and says of the object what has become of it.
func (c *cli) hint(cmd *cobra.Command, args []string, params []admin.Param, do func(context.Context, *pgxpool.Pool, url.Values) (*reconcile.HintView, error), said string) error {
	values := filterValues(cmd, params)
	values.Set("source", args[0])
	values.Set("type", args[1])
	values.Set("object_id", args[2])
	return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
		h, err := do(cmd.Context(), pool, values)
		switch {
		case err != nil:
			return err
		case c.output == "json":
			return printJSON(cmd.OutOrStdout(), h)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s of source %s %s\n", plain(object(h.ObjectType, h.ObjectID)), h.Source, said)
		return err
	})
}
