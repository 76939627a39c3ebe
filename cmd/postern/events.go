package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
)

func newEventsCommand(c *cli) *cobra.Command {
	return group("events", "List, show and follow stored events", eventList.newCommand(c), newEventsShowCommand(c),
		newEventsTailCommand(c))
}

var eventList = listCommand[events.Item, operations.EventParams]{
	subject: "events, the newest first",
	example: `  postern events list
  postern events list --source stripe --type 'invoice.*' --since 2h
  postern events list --object-type invoice --object-id in_1Postern0Jan0001
  postern events list --mentions cus_1Postern,ada@example.com --since 30d
  postern events list --body data.object.customer=cus_1Postern --since 7d
  postern events list --status dead --limit 0 -o json`,
	query:     operations.Events,
	columns:   eventColumns,
	emptyText: "No events.",
}

var eventColumns = []column[events.Item]{
	{"ID", func(e events.Item) any { return e.ID }},
	{"RECEIVED", func(e events.Item) any { return e.ReceivedAt }},
	{"SOURCE", func(e events.Item) any { return e.Source }},
	{"ACCOUNT", func(e events.Item) any { return e.Account }},
	{"TYPE", func(e events.Item) any { return e.EventType }},
	{"OBJECT", func(e events.Item) any { return describeObject(e.ObjectType, e.ObjectID) }},
	{"STATUS", func(e events.Item) any {
		if e.Redacted {
			return e.Status + ", redacted"
		}
		return e.Status
	}},
	{"EVENT ID", func(e events.Item) any { return e.EventID }},
}

func describeObject(kind, id string) string {
	if kind == "" {
		return ""
	}
	return kind + " " + id
}

func newEventsShowCommand(c *cli) *cobra.Command {
	return command{
		use:   "show ID",
		short: "Show all that is stored of an event: receipt, conflicts, outcomes, body",
		long:  "Show all that is stored of an event. A numeric ID is Postern's, any other the provider's (evt_...).",
		example: `  postern events show 1877458018467840001
  postern events show evt_1PosternDemo
  postern events show evt_1PosternDemo --raw > body.json    # the exact bytes that were signed`,
		params: []operations.Param{{Name: "source", Help: "source of the event, if ID is the provider's"}},
		flags:  []flag{rawFlag},
		run: func(x *call) error {
			event, err := operations.Event(x.ctx, x.pool,
				operations.EventName{ID: x.args[0], Source: x.values["source"]})
			if err == nil && x.has(rawFlag.name) {
				return printRaw(x, event)
			}
			return show(x, event, err, printEvent)
		},
	}.build(c)
}

func printRaw(x *call, event *events.EventDetail) error {
	switch {
	case event.DroppedAt != nil:
		return fmt.Errorf("event %s: retention dropped it at %s together with its body", x.args[0], event.DroppedAt)
	case event.RedactedAt != nil:
		return fmt.Errorf("event %s: its body was redacted at %s by run %d", x.args[0], event.RedactedAt,
			event.Redaction)
	}
	_, err := x.out.Write(event.Body)
	return err
}

// describeRedaction says when and by which run the event was redacted; "" if it was not.
func describeRedaction(event *events.EventDetail) string {
	if event.RedactedAt == nil {
		return ""
	}
	return fmt.Sprintf("%s by run %d: body and headers are cleared", event.RedactedAt, event.Redaction)
}

func printEvent(x *call, event *events.EventDetail) error {
	object := describeObject(event.ObjectType, event.ObjectID)
	if event.DroppedAt != nil { // some of its fields remain
		if err := printFields(x.out, "event", event.EventID, "id", event.ID, "source", event.Source, "account",
			event.Account, "object", object, "stored", event.StoredAt, "dropped",
			event.DroppedAt.String()+" by retention, with headers and body", "redacted", describeRedaction(event),
			"status", event.Status); err != nil {
			return err
		}
		return printOutcomes(x, event.Outcomes)
	}
	if err := printFields(x.out, "event", event.EventID+", "+event.EventType, "id", event.ID, "source", event.Source,
		"account", event.Account, "object", object, "occurred", event.OccurredAt, "received", event.ReceivedAt,
		"stored", event.StoredAt, "origin", event.Origin, "api version", event.APIVersion, "verified",
		string(event.Verification), "delivery", fmt.Sprintf("%d, event %d in it", event.DeliveryID,
			event.DeliveryIndex+1), "headers", string(event.Headers), "redacted", describeRedaction(event), "status",
		event.Status); err != nil {
		return err
	}
	if err := printOutcomes(x, event.Outcomes); err != nil {
		return err
	}
	if len(event.Conflicts) > 0 {
		fmt.Fprintln(x.out,
			"\nConflicts: deliveries with the same event id and different content (postern conflicts show ID)")
		if err := printTable(x.out, event.Conflicts, conflictList.columns); err != nil {
			return err
		}
	}
	if event.RedactedAt != nil {
		return nil
	}
	return printBody(x, event.Body)
}

func printBody(x *call, body []byte) error {
	_, err := fmt.Fprintf(x.out, "\nBody\n%s\n", indentJSON(body))
	return err
}

func printOutcomes(x *call, outcomes []events.Outcome) error {
	if len(outcomes) == 0 {
		_, err := fmt.Fprintln(x.out,
			"\nNo outcome yet: no processor has processed it. If that lasts, check whether a processor runs.")
		return err
	}
	fmt.Fprintln(x.out, "\nOutcomes")
	for _, o := range outcomes {
		due, original, by := o.Due.String(), "", describeVersion(o.DecidedBy)
		if o.DecidedByEvent != 0 {
			by += fmt.Sprintf(", event %d", o.DecidedByEvent)
		}
		if o.Run != events.LiveRun {
			due = "" // failures in a run are not retried automatically
		}
		if o.Original != nil {
			original = "the live outcome, " + o.Original.Status
		}
		if err := printFields(x.out, "  run", events.RunName(o.Run), "  status", o.Status, "  instead of", original,
			"  reason", o.Reason, "  object", describeObject(o.ObjectType, o.ObjectID),
			"  version", describeVersion(o.Version), "  decided by", by,
			"  attempts", o.Attempts, "  next attempt", due, "  at", o.At); err != nil {
			return err
		}
	}
	return nil
}

func newOutcomesCommand(c *cli) *cobra.Command {
	return group("outcomes", "List processing results of events", listCommand[events.Outcome, operations.OutcomeParams]{
		subject: "outcomes, those of the newest events first",
		example: `  postern outcomes list --status dead
  postern outcomes list --object-type order --object-id 820982911946154508
  postern outcomes list --event evt_1PosternDemo -o json`,
		query: operations.Outcomes,
		columns: []column[events.Outcome]{
			{"EVENT", func(o events.Outcome) any { return o.EventID }},
			{"RUN", func(o events.Outcome) any { return events.RunName(o.Run) }},
			{"STATUS", func(o events.Outcome) any {
				if o.Original != nil {
					return o.Status + " (live: " + o.Original.Status + ")"
				}
				return o.Status
			}},
			{"SOURCE", func(o events.Outcome) any { return o.Source }},
			{"OBJECT", func(o events.Outcome) any { return describeObject(o.ObjectType, o.ObjectID) }},
			{"AT", func(o events.Outcome) any { return o.At }},
			{"REASON", func(o events.Outcome) any { return o.Reason }},
		},
		emptyText: "No outcomes.",
	}.newCommand(c), newOutcomesFailuresCommand(c))
}

func newOutcomesFailuresCommand(c *cli) *cobra.Command {
	return command{
		use: "failures", short: "Group the newest failed and dead events by reason",
		long: `Group the newest failed and dead events by reason. In a reason, … stands for a part that
differs between the events, such as an id.`,
		example: `  postern outcomes failures --since 1d
  postern outcomes failures --status dead -o json`,
		params: operations.Params(operations.FailureParams{}),
		run: func(x *call) error {
			p, err := parse[operations.FailureParams](x)
			if err != nil {
				return err
			}
			found, err := operations.FailuresByReason(x.ctx, x.pool, p)
			return show(x, found, err, printFailures)
		},
	}.build(c)
}

func printFailures(x *call, found *operations.FailureGroups) error {
	out := &listPrinter[operations.FailureGroup]{out: x.out, emptyText: "No event has failed or is dead.",
		columns: []column[operations.FailureGroup]{
			{"EVENTS", func(g operations.FailureGroup) any { return g.Count }},
			{"STATUS", func(g operations.FailureGroup) any { return g.Status }},
			{"LAST", func(g operations.FailureGroup) any { return g.LastAt }},
			{"NEXT ATTEMPT", func(g operations.FailureGroup) any { return g.NextDue }},
			{"SOURCES", func(g operations.FailureGroup) any { return strings.Join(g.Sources, ", ") }},
			{"EXAMPLE", func(g operations.FailureGroup) any { return g.ExampleEvent }},
			{"REASON", func(g operations.FailureGroup) any { return g.Pattern }},
		}}
	if err := out.add(found.Items); err != nil {
		return err
	}
	if found.Truncated {
		fmt.Fprintf(x.errs, "postern: only the newest %s were read\n", countOf(found.Examined, "failure"))
	}
	return out.end()
}

func newConflictsCommand(c *cli) *cobra.Command {
	return group("conflicts", "List deliveries with the event id of a stored event and different content",
		conflictList.newCommand(c), newConflictsShowCommand(c))
}

var conflictList = listCommand[events.Conflict, operations.ConflictParams]{
	subject: "conflicts, the newest first",
	example: "  postern conflicts list --source stripe --since 1d",
	query:   operations.Conflicts,
	columns: []column[events.Conflict]{
		{"ID", func(c events.Conflict) any { return c.ID }},
		{"RECEIVED", func(c events.Conflict) any { return c.ReceivedAt }},
		{"SOURCE", func(c events.Conflict) any { return c.Source }},
		{"TYPE", func(c events.Conflict) any { return c.EventType }},
		{"EVENT", func(c events.Conflict) any { return c.Event }},
		{"EVENT ID", func(c events.Conflict) any { return c.EventID }},
		{"BYTES", func(c events.Conflict) any { return c.Bytes }},
	},
	emptyText: "No conflicts.",
}

func newConflictsShowCommand(c *cli) *cobra.Command {
	return command{
		use: "show ID", short: "Show a conflict with its body, to compare it with the stored event",
		example: "  postern conflicts show 3", ids: "postern conflicts list",
		run: func(x *call) error {
			found, err := events.ShowConflict(x.ctx, x.pool, x.ids[0])
			return show(x, found, err, printConflict)
		},
	}.build(c)
}

func printConflict(x *call, found *events.ConflictDetail) error {
	if err := printFields(x.out, "conflict", found.ID, "with event", found.Event, "event id", found.EventID, "type",
		found.EventType, "source", found.Source, "account", found.Account, "received", found.ReceivedAt, "verified",
		string(found.Verification), "headers", string(found.Headers)); err != nil {
		return err
	}
	return printBody(x, found.Body)
}
