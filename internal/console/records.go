package console

import (
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/versioning"
)

// recordPages are the pages of what the log and the mirror contain besides events.
func (c *Console) recordPages() map[string]page {
	return map[string]page{
		"objects":                           objectList.page(),
		"objects/{source}/{type}/{id}":      withParams(objectPage, "account", "cursor", "download"),
		"objects/{source}/{type}/{id}/diff": withParams(diffPage, "account", "from", "to"),
		"objects/{source}/{type}/{id}/at":   objectAtPage,
		"rejections":                        rejectionList.page(),
		"rejections/verify":                 verifyPage,
		"failures":                          failuresPage,
		"rejections/{id}":                   withParams(rejectionPage, "download"),
		"conflicts":                         conflictList.page(),
		"conflicts/{id}":                    withParams(conflictPage, "download"),
		"outcomes":                          outcomeList.page(),
		"refetches":                         refetchList.page(),
	}
}

var objectList = list[operations.ObjectParams, versioning.View]{
	title: "Objects", text: "The mirror has the newest state of each object of the providers. The list is in the " +
		"order of source, account, type and id.",
	more:    "Show more",
	command: "objects list", api: "/api/v1/objects",
	main:    []string{"source", "type", "id", "account", "since", "until"},
	aliases: []string{"object_type", "object_id"},
	presets: []preset{{"ambiguous", "?ambiguous=true"}, {"refetch pending", "?refetch_pending=true"},
		{"deleted", "?deleted=true"}, {"written by an older rule", "?outdated=true"}},
	columns: []string{"Object", "Source", "Account", "Flags", "Version", "Revision", "Decided by", "Updated"},
	row:     objectRow,
	read:    operations.Objects,
	empty:   "No object matches the filter. An object appears here when the first event about it is applied.",
}

func objectRow(r *request, o *versioning.View) []cell {
	return []cell{r.objectCell(o.Source, o.Account, o.ObjectType, o.ObjectID), link(o.Source, path("sources",
		o.Source)), shortCode(o.Account), joinBadges(objectFlags(o)), versionTime(o.Version, r.shortTime),
		number(o.Revision), r.eventCell(o.LastEventID), r.shortTime(o.UpdatedAt.Time)}
}

// joinBadges shows the first of several badges, and the others below it in small letters.
func joinBadges(all []cell) cell {
	if len(all) == 0 {
		return cell{}
	}
	var others []string
	for _, c := range all[1:] {
		others = append(others, c.Text)
	}
	all[0].Sub = strings.Join(others, ", ")
	return all[0]
}

// eventCell links to an event.
func (r *request) eventCell(n int64) cell {
	if n == 0 {
		return cell{}
	}
	return codeLink(id(n), eventPath(n))
}

// shortCode shows an id that may be long.
func shortCode(s string) cell {
	c := shorten(s, 40)
	c.Code = c.Text != ""
	return c
}

var outcomeList = list[operations.OutcomeParams, events.Outcome]{
	title: "Outcomes", text: "What processors decided about each event: an event has one outcome as it arrived, and " +
		"one for each run that applied it again.",
	command: "outcomes list", api: "/api/v1/outcomes",
	main: []string{"source", "status", "object_type", "object_id", "run", "since", "until"},
	presets: []preset{{"dead", "?status=dead"}, {"failed", "?status=failed"}, {"ambiguous", "?status=ambiguous"},
		{"stale", "?status=stale"}, {"ignored", "?status=ignored"}, {"live only", "?run=live"}},
	columns: []string{"At", "Event", "Source", "Object", "Outcome", "Reason", "Run"},
	row:     outcomeRow,
	read:    operations.Outcomes,
	empty: "No outcome matches the filter. An event has an outcome as soon as a processor has applied it. Events " +
		"that wait for one are in the list of events with the status pending.",
}

func outcomeRow(r *request, o *events.Outcome) []cell {
	at := r.shortTime(o.At.Time)
	if !o.Due.IsZero() {
		at.Sub = "next attempt " + r.shortTime(o.Due.Time).Text
	}
	status := badge(o.Status)
	if o.Attempts > 1 {
		status.Sub = describeCount(o.Attempts, "attempt")
	}
	run := runCell(o.Run)
	if o.Original != nil && o.Original.Status != o.Status {
		run.Sub = "live: " + label(o.Original.Status)
	}
	return []cell{at, r.eventCell(o.EventID), link(o.Source, path("sources", o.Source)),
		r.objectCell(o.Source, o.Account, o.ObjectType, o.ObjectID), status, wide(shorten(o.Reason, 160)), run}
}

// second shows a time to the second.
func (r *request) second(at events.Instant) cell { return r.shortTime(at.Truncate(time.Second)) }

// runCell links to a run. Events that were applied as they arrived have none.
func runCell(run int64) cell {
	if run == events.LiveRun {
		return text(events.LiveRunName)
	}
	return link(id(run), path("runs", id(run)))
}

var rejectionList = list[operations.RejectionParams, ingest.Rejection]{
	title: "Rejections", text: "Deliveries that a source did not accept. Nothing of them is in the log.",
	command: "rejections list", api: "/api/v1/rejections",
	main:    []string{"source", "rejection_reason", "since", "until"},
	presets: []preset{{"wrong signature", "?rejection_reason=wrong_signature"}, {"last hour", "?since=1h"}},
	columns: []string{"Received", "Source", "Reason", "Detail", "Sent from", "Bytes", "Rejection"},
	row:     rejectionRow,
	read:    operations.Rejections,
	extra:   rejectionGroups,
	empty: "No rejected delivery matches the filter. A delivery appears here if a source does not accept it, for " +
		"example because its signature is wrong.",
}

func rejectionRow(r *request, x *ingest.Rejection) []cell {
	received := r.shortTime(x.ReceivedAt.Time)
	received.Href = path("rejections", id(x.ID))
	size := number(x.Bytes)
	if x.Truncated {
		size.Sub = "truncated"
	}
	return []cell{received, link(x.Source, path("sources", x.Source)), reasonCell(x.Reason, x.Explanation),
		wide(shorten(x.Detail, 160)), shortCode(x.Remote), size, codeLink(id(x.ID), path("rejections", id(x.ID)))}
}

// reasonCell shows why a delivery was rejected. The explanation appears on pointing.
func reasonCell(reason, explanation string) cell {
	return cell{Text: visible(label(reason)), Title: visible(explanation), Badge: true, Tone: "bad"}
}

var conflictList = list[operations.ConflictParams, events.Conflict]{
	title: "Conflicts", text: "Deliveries with the id of an event that the log already has, and with different " +
		"content. The first one counts.",
	command: "conflicts list", api: "/api/v1/conflicts",
	main:    []string{"source", "type", "key", "since", "until"},
	presets: []preset{{"last 24 hours", "?since=24h"}},
	columns: []string{"Received", "Source", "Type", "Event key", "Stored event", "Account", "Bytes"},
	row:     conflictRow,
	read:    operations.Conflicts,
	empty: "No conflict matches the filter. A conflict appears here if a provider sends the same event id twice with " +
		"different content.",
}

func conflictRow(r *request, c *events.Conflict) []cell {
	received := r.shortTime(c.ReceivedAt.Time)
	received.Href = path("conflicts", id(c.ID))
	return []cell{received, link(c.Source, path("sources", c.Source)), shorten(c.EventType, 60), shortCode(c.EventID),
		r.eventCell(c.Event), shortCode(c.Account), number(c.Bytes)}
}

var refetchList = list[operations.PendingRefetchParams, refetch.Request]{
	title: "Refetches", text: "Objects that a processor will read again from the provider's API: those that the " +
		"mirror is not sure about, and those that operators requested.",
	command: "refetches list", api: "/api/v1/refetches",
	main:    []string{"source", "suspended"},
	presets: []preset{{"all", ""}, {"suspended", "?suspended=true"}},
	columns: []string{"Object", "Source", "Account", "Reason", "Requested", "Next attempt", "Attempts", "Last error"},
	row:     refetchRow,
	read:    operations.Refetches,
	empty:   "No object waits for a refetch. Request one here, or on the page of an object.",
	more:    "Show more",
	actions: refetchListActions,
}

func refetchRow(r *request, q *refetch.Request) []cell {
	requested := r.shortTime(q.RequestedAt.Time)
	if q.RequestedBy != "" {
		requested.Sub = "by " + visible(q.RequestedBy)
	}
	return []cell{r.objectCell(q.Source, q.Account, q.ObjectType, q.ObjectID),
		link(q.Source, path("sources", q.Source)), shortCode(q.Account), shorten(label(q.Reason), 120), requested,
		r.refetchDue(q), number(q.Attempts), shorten(q.Error, 200)}
}

// refetchDue says when the next attempt of a refetch is.
func (r *request) refetchDue(q *refetch.Request) cell {
	switch {
	case q.Suspended:
		return cell{Text: "suspended", Badge: true, Tone: "warning", Sub: "no further attempt"}
	case q.LeaseUntil.After(r.now):
		return cell{Text: "in progress", Badge: true, Tone: "info", Sub: "by " + visible(q.LeaseOwner)}
	}
	due := r.shortTime(q.Due.Time)
	if !q.Due.After(r.now) {
		due.Sub = "due"
	}
	return due
}

func refetchListActions(r *request, p *operations.PendingRefetchParams) []action {
	inputs := []input{{Name: "source", Label: "Source", Kind: "text", Value: p.Source, Required: true}, {Name: "type",
		Label: "Type of the object", Kind: "text", Required: true}, {Name: "object_id", Label: "Id of the object",
		Kind: "text", Required: true}, {Name: "account", Label: "Account (if several have the object)", Kind: "text"}}
	return []action{r.form(action{Label: "Request a refetch", Text: "A processor reads the object from the " +
		"provider's API.", Path: "/api/v1/refetches", Inputs: inputs, Reason: "optional"})}
}

// describeCount says how many things there are: 1 event, 2 events.
func describeCount(n int, thing string) string {
	stem, ok := strings.CutSuffix(thing, "y")
	if ok {
		stem += "ie"
	}
	return plural(n, thing, stem+"s")
}
