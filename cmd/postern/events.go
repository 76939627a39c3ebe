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
	cmd := &cobra.Command{Use: "events", Short: "What arrived: the log", RunE: group, Args: cobra.ArbitraryArgs}
	cmd.AddCommand(eventLister.command(c), newEventsShowCommand(c), newEventsTailCommand(c))
	return cmd
}

var eventLister = lister[events.Item]{
	what: "events, the newest first",
	example: `  postern events list
  postern events list --source stripe --type 'invoice.*' --since 2h
  postern events list --object-type invoice --object-id in_1Postern0Jan0001
  postern events list --mentions cus_1Postern,ada@example.com --since 30d
  postern events list --status dead --limit 0 -o json`,
	params:  admin.EventListParams,
	query:   admin.Events,
	columns: eventColumns,
	none:    "No events.",
}

var eventColumns = []column[events.Item]{
	{"ID", func(e events.Item) string { return strconv.FormatInt(e.ID, 10) }},
	{"RECEIVED", func(e events.Item) string { return e.ReceivedAt.String() }},
	{"SOURCE", func(e events.Item) string { return e.Source }},
	{"ACCOUNT", func(e events.Item) string { return e.Account }},
	{"TYPE", func(e events.Item) string { return e.EventType }},
	{"OBJECT", func(e events.Item) string { return object(e.ObjectType, e.ObjectID) }},
	{"STATUS", eventStatus},
	{"EVENT ID", func(e events.Item) string { return e.EventID }},
}

// eventStatus is that of the outcome, and the mark of an event that tells nothing any more.
func eventStatus(e events.Item) string {
	if e.Redacted {
		return e.Status + ", redacted"
	}
	return e.Status
}

func object(kind, id string) string {
	if kind == "" {
		return ""
	}
	return kind + " " + id
}

func newEventsShowCommand(c *cli) *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show an event's whole life: receipt, conflicts, every outcome, body",
		Long:  "Show an event's whole life. ID is ours if numeric, else the provider's key (evt_...).",
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
	cmd.Flags().BoolVar(&raw, "raw", false, "print the exact bytes of the body and nothing else; a terminal shows control characters as escapes")
	cmd.Flags().String("source", "", "source to look the provider's key up in")
	return cmd
}

func showEvent(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, id string, values url.Values, raw bool) error {
	life, err := admin.Event(cmd.Context(), pool, id, values)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	switch {
	case raw && life.DroppedAt != nil:
		return fmt.Errorf("event %s: retention dropped it at %s, and with it the body", id, life.DroppedAt)
	case raw && life.RedactedAt != nil:
		return fmt.Errorf("event %s: its body was redacted at %s by run %d", id, life.RedactedAt, life.Redaction)
	case raw:
		_, err = out.Write(life.Body)
		return err
	case c.output == "json":
		return printJSON(out, life)
	}
	if life.DroppedAt != nil {
		return printDropped(out, life)
	}
	return printLife(out, life)
}

// redactedWords says when a person had the event cleared, "" where nobody had.
func redactedWords(life *events.Life) string {
	if life.RedactedAt == nil {
		return ""
	}
	return fmt.Sprintf("%s by run %d: body and headers are cleared", life.RedactedAt, life.Redaction)
}

// printDropped shows what is left of an event.
func printDropped(out io.Writer, life *events.Life) error {
	if err := facts(out, "event", life.EventID, "id", strconv.FormatInt(life.ID, 10), "source", life.Source, "account", life.Account,
		"object", object(life.ObjectType, life.ObjectID), "stored", life.StoredAt.String(), "dropped", life.DroppedAt.String()+" by retention, with headers and body",
		"redacted", redactedWords(life),
		"status", life.Status); err != nil {
		return err
	}
	return printOutcomes(out, life.Outcomes)
}

func printLife(out io.Writer, life *events.Life) error {
	if err := facts(out,
		"event", life.EventID+", "+life.EventType,
		"id", strconv.FormatInt(life.ID, 10),
		"source", life.Source,
		"account", life.Account,
		"object", object(life.ObjectType, life.ObjectID),
		"occurred", life.OccurredAt.String(),
		"received", life.ReceivedAt.String(),
		"stored", life.StoredAt.String(),
		"origin", life.Origin,
		"api version", life.APIVersion,
		"verified", string(life.Verification),
		"delivery", fmt.Sprintf("%d, event %d of it", life.DeliveryID, life.DeliveryIndex+1),
		"headers", string(life.Headers),
		"redacted", redactedWords(life),
		"status", life.Status); err != nil {
		return err
	}
	if err := printOutcomes(out, life.Outcomes); err != nil {
		return err
	}
	if len(life.Conflicts) > 0 {
		fmt.Fprintln(out, "\nConflicts: deliveries under this key with other content (postern conflicts show ID)")
		list := &sink[events.Conflict]{out: out, columns: conflictColumns}
		if err := list.add(life.Conflicts); err != nil {
			return err
		}
	}
	if life.RedactedAt != nil {
		return nil
	}
	_, err := fmt.Fprintf(out, "\nBody\n%s\n", pretty(life.Body))
	return err
}

func printOutcomes(out io.Writer, outcomes []events.Outcome) error {
	if len(outcomes) == 0 {
		_, err := fmt.Fprintln(out, "\nNo outcome yet: the processor has not come to it. If that lasts, see whether one runs.")
		return err
	}
	fmt.Fprintln(out, "\nOutcomes")
	for _, o := range outcomes {
		due, beside := o.Due.String(), ""
		if o.Run != events.LiveRun {
			due = "" // a run's failures are not tried again by themselves
		}
		if o.Original != nil {
			beside = "the live outcome, " + o.Original.Status
		}
		if err := facts(out, "  run "+strconv.FormatInt(o.Run, 10), o.Status, "  beside", beside, "  reason", o.Reason, "  object", object(o.ObjectType, o.ObjectID),
			"  version", versionWords(o.Version), "  decided by", versionWords(o.DecidedBy), "  attempts", strconv.Itoa(o.Attempts),
			"  tried again", due, "  at", o.At.String()); err != nil {
			return err
		}
	}
	return nil
}
