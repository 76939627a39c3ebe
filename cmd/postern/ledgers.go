package main

import (
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
)

func newOutcomesCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "outcomes", Short: "What became of events: the ledger of applying", RunE: group, Args: cobra.ArbitraryArgs}
	cmd.AddCommand(lister[events.Outcome]{
		what: "outcomes, those of the newest events first",
		example: `  postern outcomes list --status dead
  postern outcomes list --object-type order --object-id 820982911946154508
  postern outcomes list --event evt_1PosternDemo -o json`,
		params: admin.OutcomeParams,
		query:  admin.Outcomes,
		columns: []column[events.Outcome]{
			{"EVENT", func(o events.Outcome) string { return strconv.FormatInt(o.EventID, 10) }},
			{"RUN", func(o events.Outcome) string { return strconv.FormatInt(o.Run, 10) }},
			{"STATUS", func(o events.Outcome) string {
				if o.Original != nil {
					return o.Status + " (live: " + o.Original.Status + ")"
				}
				return o.Status
			}},
			{"SOURCE", func(o events.Outcome) string { return o.Source }},
			{"OBJECT", func(o events.Outcome) string { return object(o.ObjectType, o.ObjectID) }},
			{"AT", func(o events.Outcome) string { return o.At.String() }},
			{"REASON", func(o events.Outcome) string { return o.Reason }},
		},
		none: "No outcomes.",
	}.command(c))
	return cmd
}

func newRejectionsCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "rejections", Short: "What was refused at the door, and why", RunE: group, Args: cobra.ArbitraryArgs}
	cmd.AddCommand(lister[ingest.Rejected]{
		what: "refused deliveries, the newest first",
		example: `  postern rejections list
  postern rejections list --source stripe --reason wrong_signature --since 1d`,
		params: admin.RejectionParams,
		query:  admin.Rejections,
		columns: []column[ingest.Rejected]{
			{"ID", func(r ingest.Rejected) string { return strconv.FormatInt(r.ID, 10) }},
			{"RECEIVED", func(r ingest.Rejected) string { return r.ReceivedAt.String() }},
			{"SOURCE", func(r ingest.Rejected) string { return r.Source }},
			{"REASON", func(r ingest.Rejected) string { return r.Reason }},
			{"DETAIL", func(r ingest.Rejected) string { return r.Detail }},
			{"REMOTE", func(r ingest.Rejected) string { return r.Remote }},
			{"BYTES", func(r ingest.Rejected) string { return strconv.FormatInt(r.Bytes, 10) }},
		},
		none: "No rejections.",
	}.command(c), newRejectionsShowCommand(c), newRejectionsVerifyCommand(c), newRejectionsReleaseCommand(c))
	return cmd
}

func newRejectionsShowCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:     "show ID",
		Short:   "Show a refused delivery: the reason, its usual cause, and what was kept",
		Example: "  postern rejections show 17",
		Args:    wantArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := number(args[0])
			if err != nil {
				return err
			}
			return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
				r, err := ingest.ShowRejection(cmd.Context(), pool, id)
				switch {
				case err != nil:
					return err
				case c.output == "json":
					return printJSON(cmd.OutOrStdout(), r)
				}
				cut := ""
				if r.Cut {
					cut = ", cut: it cannot be verified again"
				}
				if err := facts(cmd.OutOrStdout(), "rejection", strconv.FormatInt(r.ID, 10), "source", r.Source, "received", r.ReceivedAt.String(),
					"reason", r.Reason, "that is", r.Explanation, "seen", r.Detail, "remote", r.Remote, "headers", string(r.Headers),
					"body", fmt.Sprintf("%d bytes%s", r.Bytes, cut)); err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "\nBody\n%s\n", pretty(r.Body))
				return err
			})
		},
	}
}

var conflictColumns = []column[events.Conflict]{
	{"ID", func(c events.Conflict) string { return strconv.FormatInt(c.ID, 10) }},
	{"RECEIVED", func(c events.Conflict) string { return c.ReceivedAt.String() }},
	{"SOURCE", func(c events.Conflict) string { return c.Source }},
	{"TYPE", func(c events.Conflict) string { return c.EventType }},
	{"EVENT", func(c events.Conflict) string { return strconv.FormatInt(c.Event, 10) }},
	{"EVENT ID", func(c events.Conflict) string { return c.EventID }},
	{"BYTES", func(c events.Conflict) string { return strconv.FormatInt(c.Bytes, 10) }},
}

func newConflictsCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "conflicts", Short: "Deliveries under a known key with other content", RunE: group, Args: cobra.ArbitraryArgs}
	cmd.AddCommand(lister[events.Conflict]{
		what:    "conflicts, the newest first",
		example: "  postern conflicts list --source stripe --since 1d",
		params:  admin.ConflictParams,
		query:   admin.Conflicts,
		columns: conflictColumns,
		none:    "No conflicts.",
	}.command(c), newConflictsShowCommand(c))
	return cmd
}

func newConflictsShowCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:     "show ID",
		Short:   "Show a conflict whole; compare its body with that of the event it names",
		Example: "  postern conflicts show 3",
		Args:    wantArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := number(args[0])
			if err != nil {
				return err
			}
			return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
				found, err := events.ShowConflict(cmd.Context(), pool, id)
				switch {
				case err != nil:
					return err
				case c.output == "json":
					return printJSON(cmd.OutOrStdout(), found)
				}
				if err := facts(cmd.OutOrStdout(), "conflict", strconv.FormatInt(found.ID, 10), "with event", strconv.FormatInt(found.Event, 10),
					"event id", found.EventID, "type", found.EventType, "source", found.Source, "account", found.Account,
					"received", found.ReceivedAt.String(), "verified", string(found.Verification), "headers", string(found.Headers)); err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "\nBody\n%s\n", pretty(found.Body))
				return err
			})
		},
	}
}

// number reads an id of a rejection or conflict.
func number(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, usagef("%q is no id: the list shows them", text)
	}
	return n, nil
}
