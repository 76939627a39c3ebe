package operations

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/postern-gateway/postern/internal/activity"
	"github.com/postern-gateway/postern/internal/events"
)

const (
	anyText   = "; * stands for any text"
	sinceHelp = "from this time on: " + timeHelp
	untilHelp = "before this time: " + timeHelp
	eventHelp = "Postern's id of the event, or the provider's key"
	runReason = "reason; stored with the run"

	failurePatternHelp = "a reason with … for each variable part, as the groups of failures have it"
)

// help describes the parameters in a few words, by name. Where a struct means something else by a
// name, the struct's name is before it.
var help = map[string]string{
	"account": "tenant inside the source (Stripe account, Shopify shop); an empty value selects only those without " +
		"one",
	"ambiguous": "true: only ambiguous objects; false: only others",
	"cursor":    "next_cursor of the previous page",
	"deleted":   "true: only deleted objects; false: only others",
	"event":     eventHelp,
	"force":     "true: also if it reported recently or its content is unknown",
	"id":        "Postern's id",
	"ids":       "Postern's ids of events, separated by commas",
	"job":       oneOf("job"),
	"key":       "the provider's id of the event",
	"limit":     fmt.Sprintf("items per page, 1 to %d (default %d)", events.MaxLimit, events.DefaultLimit),
	"name":      "name",
	"object_id": "id of the object",
	"outdated":  "true: only objects that an older version rule wrote; false: only others",
	"rate": "maximum number of events per second, so that live traffic keeps its latency (default: no " +
		"limit)",
	"reason":          "reason; stored in the audit",
	"refetch_pending": "true: only objects whose refetch is pending; false: only others",
	"rule":            "name of the rule",
	"run":             "number of the run",
	"since":           sinceHelp,
	"source":          "name of the source",
	"status":          oneOf("outcome_status"),
	"type":            "type of the object",
	"object_type":     "the same as type, named as in the other lists",
	"until":           untilHelp,
	"idempotency_key": "your idempotency key (for example the planned time or the build number): a second request " +
		"with the same key gets the same run",

	"ActivityParams.by_source": fmt.Sprintf("true: points for each source, at most %d minutes or hours; false: the "+
		"sum of the sources, at most %d", activity.MaxPointsBySource, activity.MaxPoints),
	"ActivityParams.since":         "from this time on (default: an hour before until): " + timeHelp,
	"ActivityParams.step":          "minute or hour (default: minute, unless the time range is too long or too old)",
	"ActivityParams.until":         "before this time (default: now): " + timeHelp,
	"AuditParams.action":           "action, or its first words: runs pause, runs, token",
	"AuditParams.target":           "text in the target, such as an id",
	"AuditParams.actor":            "token, account@machine, loopback, or PostgreSQL login",
	"BacktestParams.rule":          "name of a rule in the current configuration",
	"RuleName.rule":                "name of the rule",
	"BacktestParams.since":         "only changes by events stored from this time on: " + timeHelp,
	"CompensateParams.partial":     "true: undo what can be undone and keep the rest",
	"ConflictParams.type":          "event type" + anyText,
	"DifferenceParams.kind":        oneOf("difference_kind"),
	"DifferenceParams.result":      oneOf("difference_result"),
	"EffectParams.event":           "Postern's id of the event that made the change, or the provider's key",
	"EffectParams.key":             "the effect's key",
	"EffectParams.since":           "planned " + sinceHelp,
	"EffectParams.state":           oneOf("effect_state"),
	"EffectParams.unknown_outcome": "true: only effects that have not ended and have a step with unknown outcome",
	"EffectParams.until":           "planned " + untilHelp,
	"EffectsParams.ids":            fmt.Sprintf("ids of effects, separated by commas, at most %d", MaxChangedEffects),
	"EventName.id":                 eventHelp,
	"EventParams.body": "a path in the body and the value there, in upper or lower case: data.object.customer=cus_1, " +
		"orders[*].email=ada@example.org",
	"EventParams.mentions": "an id or e-mail address that the body or headers contain as a whole word, in upper or " +
		"lower case; separate several by commas",
	"EventSelection.object_id": "id of the object; if the object type is given too: the events that were " +
		"applied to it",
	"EventSelection.object_type":    "type of the object: invoice",
	"EventSelection.occurred_since": "from this time of the provider on",
	"EventSelection.occurred_until": "before this time of the provider",
	"EventSelection.origin":         "origin of the event: " + oneOf("origin"),
	"EventSelection.type":           "event type" + anyText + ": invoice.* (not the type of the object)",
	"FailureParams.object_type":     "type of the object",
	"FailureParams.status":          "failed or dead (default: both)",
	"FailureParams.type":            "event type" + anyText,
	"FindParams.q": "the exact id or name of an event, object, run, rejection, effect, schedule or source; a kind " +
		"may be before a number: run 3",
	"EventFilter.status": "status of the live outcome: " + oneOf("event_status"),
	"HistoryDiffParams.from": "the event with the older state: Postern's id or the provider's key (default: the " +
		"event that was applied before the newer state)",
	"HistoryDiffParams.to": "the event with the newer state: Postern's id or the provider's key (default: the " +
		"object as it is in the mirror now)",
	"ObjectAtParams.order": "application: as the mirror had it then (the default); occurrence: as the provider had " +
		"it, with late events",
	"ObjectAtParams.time": timeHelp,
	"NewTokenParams.expires": "time of expiry: an RFC 3339 time, a date, or how long from now (12h, 90d); if absent, " +
		"the token never expires",
	"ObjectName.id":           "the provider's id of the object",
	"ObjectName.account":      "tenant inside the source; if absent, the account that has the object",
	"SourceName.name":         "name of the source",
	"SourceTypeParams.silent": "true: only types that have been missing for unusually long; false: only others",
	"RunChange.id":            "number of the run",
	"ChangeParams.after": "cursor of the last change that you have: next_cursor, or the id of a message (default: " +
		"the beginning, which is every object once); " + latestChange + ": only what changes from now on",
	"ChangeParams.feed_cursor": "name of a feed cursor: begin after the last change that its reader has reported",
	"ChangeParams.id":          "id of the object",
	"ChangeParams.states":      "false: without the objects themselves (default: true)",
	"ChangeParams.wait": "how long to wait if there is nothing to return, up to 60s (default: not at all); a stream " +
		"always waits",
	"CompareParams.id": "number of the run",
	"NewTokenParams.name": "name of the token, which the audit records: lower case, digits, - _ and .; a name is " +
		"never used again",
	"NewTokenParams.role": "reader (may read), approver (may also decide about effects and about runs that " +
		"await approval), operator (may make every change), or operator,approver",
	"ObjectKey.account": "tenant inside the source (Stripe account, Shopify shop); if absent, the account that has " +
		"the object in the mirror, else the account of the API key",
	"ObjectParams.id":               "the provider's id of the object",
	"ObjectParams.object_id":        "the same as id, named as in the other lists",
	"OutcomeParams.failure_pattern": failurePatternHelp,
	"OutcomeParams.object_type":     "type of the object",
	"RedactParams.object_type":      "type of the object",
	"OutcomeParams.run": "number of the run, or " + events.LiveRunName +
		": events that are applied as they arrive",
	"RebuildParams.source": "name of the source whose objects are rebuilt",
	"RebuildParams.swap":   "true: swap as soon as all objects are staged",
	"RebuildParams.type":   "only objects of this type",
	"ReconcileParams.account": "tenant inside the source (Stripe account, Shopify shop); if empty or absent, the " +
		"account of the API key",
	"ReconcileParams.all_accounts": "true: a run for each account that the configuration or the mirror contains, " +
		"started by the processor that executes this run",
	"ReconcileParams.dry_run": "true: only count; append nothing",
	"ReconcileParams.full": "true: list all objects, even if the API can list recent changes only, and find those " +
		"that the provider no longer has",
	"ReconcileParams.object_id": "id of the object; requires its type",
	"ReconcileParams.objects": "true: all objects that the API lists, of one type or of every type; false: the " +
		"events " +
		"that the provider sent",
	"ReconcileParams.since": "events, or changes of objects, from this time of the provider on (default: from the " +
		"time until which the log is complete, or as far back as the provider lists them): " + timeHelp,
	"ReconcileParams.type": "type of the object; without an object id, all objects of the type",
	"ReconcileParams.until": "events, or changes of objects, before this time of the provider (default: now): " +
		timeHelp,
	"RedactParams.answers": "Postern's id of the deletion request that this redaction answers",
	"RedactParams.event":   eventHelp + "; all events of its delivery are redacted too",
	"RedactParams.from_event": "Postern's id of a sender's deletion request (Shopify's customers/redact, " +
		"shop/redact, customers/data_request)",
	"RedactParams.include": "with mentions: types of objects, separated by commas, that are redacted although they " +
		"name another person too",
	"RedactParams.mentions": "ids and e-mail addresses of a person, separated by commas: everything that mentions " +
		"one " +
		"of them is redacted, in all sources unless one is named; - reads them from standard input, so that no shell " +
		"history contains them",
	"RedactParams.object": "the provider's id of the object; all events about it are redacted too",
	"RedactParams.path":   "path of the value in bodies: $.customer.email, $.orders[*].email",
	"RedactParams.value": "the value at the path, in upper or lower case; - reads it from standard input, so that no " +
		"shell history contains it",
	"RejectionFilter.rejection_reason": oneOf("rejection_reason"),
	"RejectionSelection.cursor":        "next_cursor of the previous request",
	"RejectionSelection.ids": fmt.Sprintf("ids of rejections, separated by commas, at most %d; without ids the filter "+
		"selects", maxRejections),
	"RejectionSelection.rejection_reason": oneOf("rejection_reason"),
	"ReprocessParams.reason":              "reason; required, stored in the audit and with each event",
	"RemoveSpoolParams.reason":            "reason; required, and stored in the audit",
	"ReplayParams.mode": "effects of the changes that the replay makes: state (the default: none, now or later), " +
		"missing (only those without a ledger entry), force (the same as missing, and in addition the effects of " +
		"the events happen again; an operator must approve the run). Events that are already applied make no change; " +
		"only " +
		"force repeats their effects",
	"ReplayParams.publish":   "true: publish the events to postern.replays.RUN.> instead of applying them",
	"ResolveParams.captured": `the values of its response to capture, as a JSON object: {"id": "in_1"}`,
	"ResolveParams.done":     "true: the step was executed; false: it was not",
	"ResolveParams.step":     "name of the step",
	"Policy.bodies":          "days to keep events",
	"Policy.effect_keys":     "days to keep finished effects, so that they do not happen again",
	"Policy.effects":         "days to keep the input and responses of finished effects",
	"RetentionPolicyParams.export": "the folder to which each day is exported before it is dropped; if absent, " +
		"retention.export, if it is set",
	"Policy.keys":                 "days to keep keys",
	"Policy.outcomes":             "days to keep outcomes",
	"Policy.rejections":           "days to keep rejected deliveries",
	"Policy.runs":                 "days to keep finished runs",
	"RetryParams.event":           eventHelp,
	"RetryParams.failure":         "a text in the reason of the failure",
	"RetryParams.failure_pattern": failurePatternHelp,
	"RetryParams.run":             "number of the run of the outcomes (default: " + events.LiveRunName + ")",
	"RetryParams.status":          "failed or dead (default: both)",
	"TailParams.after": "id of the last event that you got: continue after it; the header Last-Event-ID " +
		"means the same",
	"PendingRefetchParams.suspended": "true: only objects without a further attempt",
	"RunParams.schedule":             "name of the schedule that started the run",
	"RunParams.status":               oneOf("run_status"),
	"RunRequest.reason":              runReason,
	"FeedCursorParams.after": "next_cursor of the last page that you have processed; " + latestChange + ": the " +
		"newest change; absent: as stored, and for a new cursor the beginning",
	"FeedCursorParams.rewind": "true: also if the stored cursor is further",
	"FeedCursorParams.stalls_after": "how long the cursor may stand still with unread changes before operators are " +
		"alerted (15m); empty: for ever; absent: as stored",
}

// helpOf returns the help for a parameter of a struct.
func helpOf(params, name string) string { return cmp.Or(help[params+"."+name], help[name]) }

func oneOf(choice string) string { return strings.Join(choices[choice], ", ") }
