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
	cmd := &cobra.Command{Use: "outcomes", Short: "List processing results of events", RunE: showHelpOrError,
		Args: cobra.ArbitraryArgs}
	cmd.AddCommand(listCommand[events.Outcome]{
		subject: "outcomes, those of the newest events first",
		example: `  postern outcomes list --status dead
  postern outcomes list --object-type order --object-id 820982911946154508
  postern outcomes list --event evt_1PosternDemo -o json`,
		params: admin.OutcomeParams,
		query:  admin.Outcomes,
		columns: []column[events.Outcome]{
			{"EVENT", func(o events.Outcome) string { return strconv.FormatInt(o.EventID, 10) }},
			{"RUN", func(o events.Outcome) string { return events.RunName(o.Run) }},
			{"STATUS", func(o events.Outcome) string {
				if o.Original != nil {
					return o.Status + " (live: " + o.Original.Status + ")"
				}
				return o.Status
			}},
			{"SOURCE", func(o events.Outcome) string { return o.Source }},
			{"OBJECT", func(o events.Outcome) string { return describeObject(o.ObjectType, o.ObjectID) }},
			{"AT", func(o events.Outcome) string { return o.At.String() }},
			{"REASON", func(o events.Outcome) string { return o.Reason }},
		},
		emptyText: "No outcomes.",
	}.newCommand(c))
	return cmd
}

func newRejectionsCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "rejections", Short: "List rejected deliveries with the reason for each",
		RunE: showHelpOrError,
		Args: cobra.ArbitraryArgs}
	cmd.AddCommand(listCommand[ingest.Rejection]{
		subject: "rejected deliveries, the newest first",
		example: `  postern rejections list
  postern rejections list --source stripe --reason wrong_signature --since 1d`,
		params: admin.RejectionParams,
		query:  admin.Rejections,
		columns: []column[ingest.Rejection]{
			{"ID", func(r ingest.Rejection) string { return strconv.FormatInt(r.ID, 10) }},
			{"RECEIVED", func(r ingest.Rejection) string { return r.ReceivedAt.String() }},
			{"SOURCE", func(r ingest.Rejection) string { return r.Source }},
			{"REASON", func(r ingest.Rejection) string { return r.Reason }},
			{"DETAIL", func(r ingest.Rejection) string { return r.Detail }},
			{"REMOTE", func(r ingest.Rejection) string { return r.Remote }},
			{"BYTES", func(r ingest.Rejection) string { return strconv.FormatInt(r.Bytes, 10) }},
		},
		emptyText: "No rejections.",
	}.newCommand(c), newRejectionsShowCommand(c), newRejectionsVerifyCommand(c), newRejectionsReprocessCommand(c))
	return cmd
}

func newRejectionsShowCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:     "show ID",
		Short:   "Show a rejected delivery: the reason, its usual cause, headers and body",
		Example: "  postern rejections show 17",
		Args:    wantArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseID(args[0], "postern rejections list")
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
				if r.Truncated {
					cut = ", truncated: it cannot be verified again"
				}
				if err := printFields(cmd.OutOrStdout(), "rejection", strconv.FormatInt(r.ID, 10), "source", r.Source,
					"received", r.ReceivedAt.String(), "reason", r.Reason, "meaning", r.Explanation,
					"observed", r.Detail, "remote", r.Remote, "headers", string(r.Headers),
					"body", fmt.Sprintf("%d bytes%s", r.Bytes, cut)); err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "\nBody\n%s\n", indentJSON(r.Body))
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
	cmd := &cobra.Command{Use: "conflicts", Short: "List deliveries with the event " +
		"id of a stored event and different content", RunE: showHelpOrError,
		Args: cobra.ArbitraryArgs}
	cmd.AddCommand(listCommand[events.Conflict]{
		subject:   "conflicts, the newest first",
		example:   "  postern conflicts list --source stripe --since 1d",
		params:    admin.ConflictParams,
		query:     admin.Conflicts,
		columns:   conflictColumns,
		emptyText: "No conflicts.",
	}.newCommand(c), newConflictsShowCommand(c))
	return cmd
}

func newConflictsShowCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:     "show ID",
		Short:   "Show a conflict with its body, to compare it with the stored event",
		Example: "  postern conflicts show 3",
		Args:    wantArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseID(args[0], "postern conflicts list")
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
				if err := printFields(cmd.OutOrStdout(), "conflict", strconv.FormatInt(found.ID, 10), "with event",
					strconv.FormatInt(found.Event, 10), "event id", found.EventID, "type", found.EventType, "source",
					found.Source, "account", found.Account, "received", found.ReceivedAt.String(), "verified",
					string(found.Verification), "headers", string(found.Headers)); err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "\nBody\n%s\n", indentJSON(found.Body))
				return err
			})
		},
	}
}

// parseID reads a numeric id. The error names list, the command that shows the ids.
func parseID(text, list string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, usagef("%q is not an id: %s shows them", text, list)
	}
	return n, nil
}
