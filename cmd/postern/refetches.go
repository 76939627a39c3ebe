package main

import (
	"context"
	"fmt"
	"net/url"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/refetch"
)

func newRefetchesCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "refetches", Short: "List, add and cancel refetches of objects from the provider's API",
		RunE: showHelpOrError,
		Args: cobra.ArbitraryArgs}
	cmd.AddCommand(listCommand[refetch.Request]{
		subject: "objects whose refetch is pending: why, when it is due, and why the last attempt failed",
		example: "  postern refetches list --source stripe",
		params:  admin.RefetchParams,
		query:   admin.Refetches,
		columns: []column[refetch.Request]{
			{"SOURCE", func(h refetch.Request) string { return h.Source }},
			{"ACCOUNT", func(h refetch.Request) string { return h.Account }},
			{"OBJECT", func(h refetch.Request) string { return describeObject(h.ObjectType, h.ObjectID) }},
			{"REASON", func(h refetch.Request) string { return h.Reason }},
			{"REQUESTED BY", func(h refetch.Request) string { return h.RequestedBy }},
			{"CREATED", func(h refetch.Request) string { return h.RequestedAt.String() }},
			{"DUE", describeDue},
			{"ATTEMPTS", func(h refetch.Request) string { return strconv.Itoa(h.Attempts) }},
			{"LEASED BY", func(h refetch.Request) string { return h.LeaseOwner }},
			{"ERROR", func(h refetch.Request) string { return h.Error }},
		},
		emptyText: "No refetch is pending.",
	}.newCommand(c), newRefetchesAddCommand(c), newRefetchesCancelCommand(c))
	return cmd
}

func newRefetchesAddCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add SOURCE TYPE ID",
		Short: "Request the refetch of an object by a running processor",
		Long: `Request that a running processor refetches an object from the provider's API, within
the rate budget. Several requests for one object cause one refetch. The log keeps the actor and the
reason with it. The command does not wait: postern reconcile SOURCE --type TYPE --object ID does the
same as a run and waits for its result.`,
		Example: `  postern refetches add stripe customer cus_1 --reason 'finance reports a wrong address'
  postern refetches add stripe customer cus_1 --account acct_1`,
		Args: wantArgs("SOURCE", "TYPE", "ID"),
	}
	params := []admin.Param{accountParam, {Name: "reason", Help: "the reason; kept with the refetch"}}
	filterFlags(cmd, params)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.changeRefetch(cmd, args, params, func(ctx context.Context, pool *pgxpool.Pool,
			values url.Values) (*refetch.Request, error) {
			return admin.AddRefetch(ctx, pool, values, operator())
		}, "will be refetched.")
	}
	return cmd
}

func newRefetchesCancelCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cancel SOURCE TYPE ID",
		Short: "Cancel the refetch of an object; it is requested again if the mirror is still ambiguous",
		Example: `  postern refetches cancel stripe customer cus_1
  postern refetches cancel stripe customer cus_1 --account acct_1`,
		Args: wantArgs("SOURCE", "TYPE", "ID"),
	}
	params := []admin.Param{accountParam, {Name: "reason", Help: "the reason; kept in the audit trail"}}
	filterFlags(cmd, params)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.changeRefetch(cmd, args, params, func(ctx context.Context, pool *pgxpool.Pool,
			values url.Values) (*refetch.Request, error) {
			return admin.CancelRefetch(ctx, pool, values, operator())
		}, "is not refetched for this request.")
	}
	return cmd
}

// accountParam is the account of the object that the arguments name.
var accountParam = admin.Param{Name: "account", Help: "tenant inside the source (default: the account with this " +
	"object in the mirror, else the account of the API key)"}

// changeRefetch changes the refetch of the object that args name and prints the result.
func (c *cli) changeRefetch(cmd *cobra.Command, args []string, params []admin.Param, change func(context.Context,
	*pgxpool.Pool, url.Values) (*refetch.Request, error), result string) error {
	values := filterValues(cmd, params)
	values.Set("source", args[0])
	values.Set("type", args[1])
	values.Set("object_id", args[2])
	return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
		h, err := change(cmd.Context(), pool, values)
		switch {
		case err != nil:
			return err
		case c.output == "json":
			return printJSON(cmd.OutOrStdout(), h)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s of source %s %s\n", escapeControl(describeObject(h.ObjectType,
			h.ObjectID)), h.Source, result)
		return err
	})
}
