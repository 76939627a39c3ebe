package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

func newObjectsCommand(c *cli) *cobra.Command {
	return group("objects", "List, inspect and announce mirrored objects", objectList.newCommand(c),
		newObjectsShowCommand(c), newObjectsHistoryCommand(c), newObjectsAnnounceCommand(c),
		newObjectsOverwriteCommand(c))
}

var objectList = listCommand[versioning.View, operations.ObjectParams]{
	subject: "objects, by source, account, type and id",
	example: `  postern objects list --source stripe --type subscription
  postern objects list --ambiguous
  postern objects list --type order --since 1h -o json`,
	query: operations.Objects,
	columns: []column[versioning.View]{
		{"SOURCE", func(o versioning.View) any { return o.Source }},
		{"ACCOUNT", func(o versioning.View) any { return o.Account }},
		{"TYPE", func(o versioning.View) any { return o.ObjectType }},
		{"ID", func(o versioning.View) any { return o.ObjectID }},
		{"REVISION", func(o versioning.View) any { return o.Revision }},
		{"FLAGS", describeFlags},
		{"UPDATED", func(o versioning.View) any { return o.UpdatedAt }},
		{"LAST EVENT", func(o versioning.View) any { return o.LastEventID }},
	},
	emptyText: "No objects.",
	notes:     stagedRebuilds,
}

// describeFlags lists the states that a reader must know before trusting the object.
func describeFlags(o versioning.View) any {
	var names []string
	for _, f := range []struct {
		set  bool
		name string
	}{{o.Deleted, "deleted"}, {o.Ambiguous, "ambiguous"}, {!o.RefetchAfter.IsZero(), "refetch pending"},
		{o.Sanitized, "sanitized"},
		{o.Redacted, "redacted"}} {
		if f.set {
			names = append(names, f.name)
		}
	}
	return strings.Join(names, ", ")
}

func newObjectsShowCommand(c *cli) *cobra.Command {
	return command{
		use: "show SOURCE TYPE ID", short: "Show an object: its state, version, flags and last event",
		example: `  postern objects show stripe subscription sub_1Postern0Team0001
  postern objects show shop order 820982911946154508 --account demo.myshopify.com
  postern objects show stripe invoice in_1Postern0Jan0001 -o json | jq .state.status`,
		params: []operations.Param{{Name: "account", Help: "tenant, if several have the object"}},
		run: func(x *call) error {
			p, err := parse[operations.ObjectName](x)
			if err != nil {
				return err
			}
			p.Source, p.Type, p.ID = x.args[0], x.args[1], x.args[2]
			view, err := operations.Object(x.ctx, x.pool, p)
			return show(x, view, err, printObject)
		},
	}.build(c)
}

func printObject(x *call, o *versioning.View) error {
	last, outcome, err := describeLastEvent(x.ctx, x.pool, o.LastEventID)
	if err != nil {
		return err
	}
	err = printFields(x.out, "object", describeObject(o.ObjectType, o.ObjectID), "source", o.Source, "account",
		o.Account,
		"version", o.Version.String()+versionKind(o.Version), "revision", fmt.Sprintf("%d, changed %s", o.Revision,
			o.UpdatedAt), "deleted", yesOrNo(o.Deleted, "yes: deleted at the provider; the last known state is below"),
		"ambiguous", yesOrNo(o.Ambiguous, "yes: different contents of exactly the same version; a fixed rule chose "+
			"the one below"), "refetch pending", yesOrNo(!o.RefetchAfter.IsZero(), "yes: from "+o.RefetchAfter.String()+
			" on, in the provider's time; the state may be incomplete until then; see postern refetches list"),
		"overwritten", yesOrNo(!o.OverwrittenAt.IsZero(), "everything received before "+o.OverwrittenAt.String()+
			" is ignored: an operator overwrote the object from the provider"), "sanitized", yesOrNo(o.Sanitized,
			"yes: PostgreSQL's JSON cannot hold the body unchanged; postern events show --raw prints the original"),
		"redacted", yesOrNo(o.Redacted, "yes: the state was cleared for good; a newer event or refetch sets it again"),
		"last event", last, "outcome", outcome)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(x.out, "\nState\n%s\n", indentJSON(o.State))
	return err
}

func newObjectsHistoryCommand(c *cli) *cobra.Command {
	return command{
		use: "history SOURCE TYPE ID", short: "List the events of an object with their outcomes, the newest first",
		long: `List the events of an object with their outcomes, the newest first. With the configuration of
the source, CHANGE counts the values that an event added (+), removed (-) and changed (~), and the
JSON output contains the states.`,
		example: `  postern objects history stripe subscription sub_1Postern0Team0001
  postern objects history stripe invoice in_1Postern0Jan0001 --limit 1 -o json | jq '.[0].state'`,
		params:    []operations.Param{{Name: "account", Help: "tenant, if several have the object"}},
		moreFlags: limitFlag, check: checkLimit,
		run: func(x *call) error {
			p, err := parse[operations.HistoryParams](x)
			if err != nil {
				return err
			}
			p.Source, p.Type, p.ID = x.args[0], x.args[1], x.args[2]
			endpoints, err := x.endpoints(config.LoadSources)
			if err != nil && !errors.Is(err, errNoSources) { // without them the list has no states
				return err
			}
			return listCommand[operations.HistoryItem, operations.HistoryParams]{columns: historyColumns,
				emptyText: "The log has no event of this object any more.",
				query: func(ctx context.Context, pool *pgxpool.Pool,
					p operations.HistoryParams) (events.Page[operations.HistoryItem], error) {
					return operations.ObjectHistory(ctx, pool, endpoints, p)
				}}.print(x, p)
		},
	}.build(c)
}

var historyColumns = []column[operations.HistoryItem]{
	{"ID", func(h operations.HistoryItem) any { return h.ID }},
	{"RECEIVED", func(h operations.HistoryItem) any { return h.ReceivedAt }},
	{"OCCURRED", func(h operations.HistoryItem) any { return h.OccurredAt }},
	{"TYPE", func(h operations.HistoryItem) any { return h.EventType }},
	{"ORIGIN", func(h operations.HistoryItem) any { return h.Origin }},
	{"STATUS", func(h operations.HistoryItem) any { return h.Status }},
	{"CHANGE", func(h operations.HistoryItem) any {
		if h.Change == nil {
			return ""
		}
		return fmt.Sprintf("+%d -%d ~%d", h.Change.Added, h.Change.Removed, h.Change.Changed)
	}},
	{"EVENT ID", func(h operations.HistoryItem) any { return h.EventID }},
	{"REASON", func(h operations.HistoryItem) any { return h.Reason }},
}

// versionKind says what the version is. A value that is not a plausible time in microseconds is the
// object's own version number.
func versionKind(v versioning.Version) string {
	const oldest, newest = 1e14, 4e15 // the years 1973 and 2096
	switch {
	case v == versioning.NoVersion:
		return ""
	case v.At < oldest || v.At > newest:
		return " (the object's own number)"
	}
	return " (the provider's time)"
}

func yesOrNo(set bool, text string) string {
	if set {
		return text
	}
	return "no"
}

// describeLastEvent describes the event of the object's version and its outcome.
func describeLastEvent(ctx context.Context, pool *pgxpool.Pool, id int64) (event, outcome string, err error) {
	detail, err := events.Show(ctx, pool, strconv.FormatInt(id, 10), 0)
	if errors.Is(err, events.ErrNotFound) {
		return fmt.Sprintf("%d, no longer in the log", id), "", nil
	}
	if err != nil {
		return "", "", err
	}
	for i, o := range detail.Outcomes { // the live one comes first, but a replay may have made the object
		if i == 0 || o.Status == "applied" {
			outcome = o.Status + ": " + o.Reason
		}
	}
	event = fmt.Sprintf("%d, %s, %s, received %s", detail.ID, detail.EventID, detail.EventType, detail.ReceivedAt)
	return event, outcome, nil
}

// describeVersion formats a stored version.
func describeVersion(b json.RawMessage) string {
	var v *versioning.Version
	if len(b) == 0 || json.Unmarshal(b, &v) != nil || v == nil {
		return ""
	}
	return v.String()
}

func newObjectsAnnounceCommand(c *cli) *cobra.Command {
	return command{
		use: "announce", short: "Publish objects of the mirror to the feed of changes again",
		long: `Publish every object of the mirror to postern.changes again, with its current revision.
Use it for a new consumer, or after the stream has lost changes that are too old to be published
again. Consumers that keep the highest revision of each object are not affected. The running
processors publish within about a second. The command asks first.`,
		example: `  postern objects announce
  postern objects announce --source stripe --type subscription --yes`,
		flags: []flag{reasonFlag, yesFlag, {"source", "only objects of this `source`", true},
			{"type", "only objects of this `type`", true},
			{"object-type", "the same as --type, with the name used for events and outcomes", true}},
		run: func(x *call) error {
			source, objectType := x.text("source"), cmp.Or(x.text("object-type"), x.text("type"))
			if ok, err := x.confirm(announceQuestion(source, objectType)); err != nil || !ok {
				return err
			}
			n, err := operations.Announce(x.ctx, x.pool, operations.AnnounceParams{Source: source, Type: objectType,
				Reason: x.reason()}, operator())
			if err != nil {
				return err
			}
			return x.printf(n, "%s will be announced.", countOf(n.Objects, "object"))
		},
	}.build(c)
}

// announceQuestion names the objects that the command publishes again.
func announceQuestion(source, objectType string) string {
	chosen := "every object of the mirror"
	if source != "" || objectType != "" {
		chosen = "every object"
	}
	if objectType != "" {
		chosen += " of type " + escapeControl(objectType)
	}
	if source != "" {
		chosen += " of source " + escapeControl(source)
	}
	return "Publish " + chosen + " to the feed of changes again?"
}

// accountParam is the account of the object that the arguments name.
var accountParam = operations.Param{Name: "account", Help: "tenant inside the source (default: the account with this " +
	"object in the mirror, else the account of the API key)"}

// objectValues returns the values of the flags and the object that the arguments name.
func (x *call) objectValues() map[string]string {
	for i, name := range []string{"source", "type", "object_id"} {
		x.values[name] = x.args[i]
	}
	return x.values
}

func newObjectsOverwriteCommand(c *cli) *cobra.Command {
	return command{
		use: "overwrite SOURCE TYPE ID", short: "Overwrite an object with its current state at the provider",
		long: `Refetch an object from the provider's API and let the response overwrite everything
that the mirror has, even a final tombstone or a version in the future. Everything received before
is ignored for the object from now on, also in a replay or a rebuild, and also if it arrives late or
again. Later events apply as usual. The log keeps the actor and the reason with the refetch, and so
does the ledger of runs.

Use it for what the mirror cannot detect: an object that was deleted for good and exists again, or a
delete by mistake. For a normal refetch use postern reconcile SOURCE --type TYPE --object ID. A
running processor executes the run.`,
		example: `  postern objects overwrite stripe customer cus_1 --reason ` +
			`'deleted by mistake, and restored by the provider: ticket 12'
  postern objects overwrite stripe customer cus_1 --account acct_1 --reason 'ticket 13' --yes`,
		params: []operations.Param{accountParam, {Name: "reason", Help: "the reason; required, kept with the object"},
			{Name: "idempotency_key", Help: "a name of your choice; a second request with it gets the same run"}},
		flags: []flag{yesFlag, noWaitFlag},
		check: func(x *call) error {
			return x.requireReason(": it is kept with the refetch that overwrites the object")
		},
		run: overwriteObject,
	}.build(c)
}

func overwriteObject(x *call) error {
	if ok, err := x.confirm(fmt.Sprintf("Overwrite all local history of %s with the provider's current state?",
		escapeControl(describeObject(x.args[1], x.args[2])))); err != nil || !ok {
		return err
	}
	var p operations.OverwriteParams
	if err := operations.Parse(&p, x.objectValues()); err != nil {
		return err
	}
	created, err := operations.OverwriteObject(x.ctx, x.pool, p, operator())
	if err := x.showOrWatch(created, err); err != nil || x.has("no-wait") || x.json() {
		return err
	}
	r, err := runs.Show(x.ctx, x.pool, created.Run.ID)
	if err != nil || r.Status != runs.Done {
		return err
	}
	if r.Counts[reconcile.Absent] > 0 {
		return printReconciled(x, r.ID)
	}
	var o reconcile.Params
	if err := json.Unmarshal(r.Params, &o); err != nil {
		return fmt.Errorf("read the parameters of run %d: %w", r.ID, err)
	}
	object, err := operations.Object(x.ctx, x.pool, operations.ObjectName{Source: o.Input["source"], Type: o.Type,
		ID: o.ID, Account: &o.Account})
	if err != nil {
		return err
	}
	fmt.Fprintln(x.out)
	return printObject(x, object)
}

func newRefetchesCommand(c *cli) *cobra.Command {
	return group("refetches", "List, add and cancel refetches of objects from the provider's API",
		listCommand[refetch.Request, operations.PendingRefetchParams]{
			subject: "objects whose refetch is pending: why, when it is due, and why the last attempt failed",
			example: "  postern refetches list --source stripe",
			query:   operations.Refetches,
			columns: []column[refetch.Request]{
				{"SOURCE", func(h refetch.Request) any { return h.Source }},
				{"ACCOUNT", func(h refetch.Request) any { return h.Account }},
				{"OBJECT", func(h refetch.Request) any { return describeObject(h.ObjectType, h.ObjectID) }},
				{"REASON", func(h refetch.Request) any { return h.Reason }},
				{"REQUESTED BY", func(h refetch.Request) any { return h.RequestedBy }},
				{"CREATED", func(h refetch.Request) any { return h.RequestedAt }},
				{"DUE", func(h refetch.Request) any {
					if h.Suspended {
						return "suspended"
					}
					return h.Due
				}},
				{"ATTEMPTS", func(h refetch.Request) any { return h.Attempts }},
				{"LEASED BY", func(h refetch.Request) any { return h.LeaseOwner }},
				{"ERROR", func(h refetch.Request) any { return h.Error }},
			},
			emptyText: "No refetch is pending.",
		}.newCommand(c),
		newRefetchCommand(c, command{
			use: "add SOURCE TYPE ID", short: "Request the refetch of an object by a running processor",
			long: `Request that a running processor refetches an object from the provider's API, within
the rate budget. Several requests for one object cause one refetch. The log keeps the actor and the
reason with it. The command does not wait: postern reconcile SOURCE --type TYPE --object ID does the
same as a run and waits for its result.`,
			example: `  postern refetches add stripe customer cus_1 --reason 'finance reports a wrong address'
  postern refetches add stripe customer cus_1 --account acct_1`,
			params: []operations.Param{accountParam, {Name: "reason", Help: "the reason; kept with the refetch"}},
		}, operations.AddRefetch, "will be refetched."),
		newRefetchCommand(c, command{
			use:   "cancel SOURCE TYPE ID",
			short: "Cancel the refetch of an object; it is requested again if the mirror is still ambiguous",
			example: `  postern refetches cancel stripe customer cus_1
  postern refetches cancel stripe customer cus_1 --account acct_1`,
			params: []operations.Param{accountParam, {Name: "reason", Help: reasonFlag.help}},
		}, operations.CancelRefetch, "is not refetched for this request."))
}

// newRefetchCommand completes a command that changes the refetch of an object and prints it.
func newRefetchCommand(c *cli, s command, change func(context.Context, *pgxpool.Pool,
	operations.RefetchParams, operations.Requester) (*refetch.Request, error), result string) *cobra.Command {
	s.run = func(x *call) error {
		var p operations.RefetchParams
		if err := operations.Parse(&p, x.objectValues()); err != nil {
			return err
		}
		h, err := change(x.ctx, x.pool, p, operator())
		if err != nil {
			return err
		}
		return x.printf(h, "%s of source %s %s", describeObject(h.ObjectType, h.ObjectID), h.Source, result)
	}
	return s.build(c)
}
