package main

import (
	"fmt"
	"io"
	"net/url"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/events"
)

func newEventsCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "events", Short: "List, show and follow stored events", RunE: showHelpOrError,
		Args: cobra.ArbitraryArgs}
	cmd.AddCommand(eventList.newCommand(c), newEventsShowCommand(c), newEventsTailCommand(c))
	return cmd
}

var eventList = listCommand[events.Item]{
	subject: "events, the newest first",
	example: `  postern events list
  postern events list --source stripe --type 'invoice.*' --since 2h
  postern events list --object-type invoice --object-id in_1Postern0Jan0001
  postern events list --mentions cus_1Postern,ada@example.com --since 30d
  postern events list --status dead --limit 0 -o json`,
	params:    admin.EventListParams,
	query:     admin.Events,
	columns:   eventColumns,
	emptyText: "No events.",
}

var eventColumns = []column[events.Item]{
	{"ID", func(e events.Item) string { return strconv.FormatInt(e.ID, 10) }},
	{"RECEIVED", func(e events.Item) string { return e.ReceivedAt.String() }},
	{"SOURCE", func(e events.Item) string { return e.Source }},
	{"ACCOUNT", func(e events.Item) string { return e.Account }},
	{"TYPE", func(e events.Item) string { return e.EventType }},
	{"OBJECT", func(e events.Item) string { return describeObject(e.ObjectType, e.ObjectID) }},
	{"STATUS", eventStatus},
	{"EVENT ID", func(e events.Item) string { return e.EventID }},
}

// eventStatus returns the status of the live outcome, with a mark for redacted events.
func eventStatus(e events.Item) string {
	if e.Redacted {
		return e.Status + ", redacted"
	}
	return e.Status
}

func describeObject(kind, id string) string {
	if kind == "" {
		return ""
	}
	return kind + " " + id
}

func newEventsShowCommand(c *cli) *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show all that is stored of an event: receipt, conflicts, outcomes, body",
		Long:  "Show all that is stored of an event. A numeric ID is Postern's, any other the provider's (evt_...).",
		Example: `  postern events show 1877458018467840001
  postern events show evt_1PosternDemo
  postern events show evt_1PosternDemo --raw > body.json    # the exact bytes that were signed`,
		Args: wantArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			values := filterValues(cmd, []admin.Param{{Name: "source"}})
			return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
				return showEvent(cmd, c, pool, args[0], values, raw)
			})
		},
	}
	cmd.Flags().BoolVar(&raw, "raw", false, "print the exact bytes of the body and nothing else; a terminal shows "+
		"control characters as escape sequences")
	cmd.Flags().String("source", "", "source of the event, if ID is the provider's")
	return cmd
}

func showEvent(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, id string, values url.Values, raw bool) error {
	event, err := admin.Event(cmd.Context(), pool, id, values)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	switch {
	case raw && event.DroppedAt != nil:
		return fmt.Errorf("event %s: retention dropped it at %s together with its body", id, event.DroppedAt)
	case raw && event.RedactedAt != nil:
		return fmt.Errorf("event %s: its body was redacted at %s by run %d", id, event.RedactedAt, event.Redaction)
	case raw:
		_, err = out.Write(event.Body)
		return err
	case c.output == "json":
		return printJSON(out, event)
	}
	if event.DroppedAt != nil {
		return printDropped(out, event)
	}
	return printStoredEvent(out, event)
}

// describeRedaction says when and by which run the event was redacted; "" if it was not.
func describeRedaction(event *events.EventDetail) string {
	if event.RedactedAt == nil {
		return ""
	}
	return fmt.Sprintf("%s by run %d: body and headers are cleared", event.RedactedAt, event.Redaction)
}

// printDropped prints what remains of a dropped event.
func printDropped(out io.Writer, event *events.EventDetail) error {
	if err := printFields(out, "event", event.EventID, "id", strconv.FormatInt(event.ID, 10), "source", event.Source,
		"account", event.Account, "object", describeObject(event.ObjectType, event.ObjectID),
		"stored", event.StoredAt.String(), "dropped", event.DroppedAt.String()+" by retention, with headers and body",
		"redacted", describeRedaction(event), "status", event.Status); err != nil {
		return err
	}
	return printOutcomes(out, event.Outcomes)
}

func printStoredEvent(out io.Writer, event *events.EventDetail) error {
	if err := printFields(out, "event", event.EventID+", "+event.EventType, "id", strconv.FormatInt(event.ID, 10),
		"source", event.Source, "account", event.Account, "object", describeObject(event.ObjectType, event.ObjectID),
		"occurred", event.OccurredAt.String(), "received", event.ReceivedAt.String(), "stored", event.StoredAt.String(),
		"origin", event.Origin, "api version", event.APIVersion, "verified", string(event.Verification), "delivery",
		fmt.Sprintf("%d, event %d in it", event.DeliveryID, event.DeliveryIndex+1), "headers", string(event.Headers),
		"redacted", describeRedaction(event), "status", event.Status); err != nil {
		return err
	}
	if err := printOutcomes(out, event.Outcomes); err != nil {
		return err
	}
	if len(event.Conflicts) > 0 {
		fmt.Fprintln(out,
			"\nConflicts: deliveries with the same event id and different content (postern conflicts show ID)")
		list := &listPrinter[events.Conflict]{out: out, columns: conflictColumns}
		if err := list.add(event.Conflicts); err != nil {
			return err
		}
	}
	if event.RedactedAt != nil {
		return nil
	}
	_, err := fmt.Fprintf(out, "\nBody\n%s\n", indentJSON(event.Body))
	return err
}

func printOutcomes(out io.Writer, outcomes []events.Outcome) error {
	if len(outcomes) == 0 {
		_, err := fmt.Fprintln(out,
			"\nNo outcome yet: no processor has processed it. If that lasts, check whether a processor runs.")
		return err
	}
	fmt.Fprintln(out, "\nOutcomes")
	for _, o := range outcomes {
		due, original := o.Due.String(), ""
		if o.Run != events.LiveRun {
			due = "" // failures in a run are not retried automatically
		}
		if o.Original != nil {
			original = "the live outcome, " + o.Original.Status
		}
		if err := printFields(out, "  run", events.RunName(o.Run), "  status", o.Status, "  instead of", original,
			"  reason", o.Reason, "  object", describeObject(o.ObjectType, o.ObjectID),
			"  version", describeVersion(o.Version), "  decided by", describeVersion(o.DecidedBy),
			"  attempts", strconv.Itoa(o.Attempts), "  next attempt", due, "  at", o.At.String()); err != nil {
			return err
		}
	}
	return nil
}
