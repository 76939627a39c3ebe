package console

import (
	"maps"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
)

// pages are the pages by their path below Prefix.
func (c *Console) pages() map[string]page {
	all := map[string]page{
		"{$}":         withParams(overviewPage),
		"events":      eventList.page(),
		"events/{id}": withParams(eventPage, "source", "download"),
		"find":        withParams(findPage, "q"),
	}
	maps.Copy(all, c.recordPages())
	maps.Copy(all, c.workPages())
	maps.Copy(all, c.sourcePages())
	return all
}

var eventList = list[operations.EventParams, events.Item]{
	title: "Events", text: "Everything that the log has stored, the newest first.",
	command: "events list", api: "/api/v1/events",
	main: []string{"source", "status", "type", "object_id", "since", "until"},
	presets: []preset{{"dead", "?status=dead"}, {"failed", "?status=failed"}, {"without outcome", "?status=pending"},
		{"stale", "?status=stale"}, {"ambiguous", "?status=ambiguous"}, {"from reconciliations", "?origin=reconcile"}},
	columns: []string{"Received", "Source", "Type", "Object", "Outcome", "Occurred", "Origin", "Event key"},
	follow:  func(e *events.Item) int64 { return e.ID },
	row:     eventRow,
	read:    operations.Events,
	actions: eventListActions,
	empty:   "No event matches the filter. An event appears here as soon as a source accepts a delivery.",
}

// eventListActions lead to the preview of a run for all events that the filter selects. A search in
// bodies cannot select the events of a run.
func eventListActions(_ *request, p *operations.EventParams) []action {
	texts := operations.Texts(p, "limit", "cursor")
	if p.Mentions != nil || p.Body != nil {
		return nil
	}
	all := []action{{Label: "Replay these events…", Text: "Shows how many events would be applied again. Nothing " +
		"starts yet.", Href: path("runs", "new", "replay") + "?" + encode(texts)}}
	if p.Status == "failed" || p.Status == "dead" {
		retry := action{Label: "Retry these events…", Text: "Shows how many failed and dead events would be applied " +
			"again. Nothing starts yet.", Href: path("runs", "new", "retry") + "?" + encode(texts)}
		all = append([]action{retry}, all...)
	}
	return all
}

func eventRow(r *request, e *events.Item) []cell {
	received := r.shortTime(e.ReceivedAt.Time)
	received.Href = eventPath(e.ID)
	occurred := r.shortTime(e.OccurredAt.Time)
	if late := e.ReceivedAt.Sub(e.OccurredAt.Time); !e.OccurredAt.IsZero() && late > lateFrom {
		occurred.Sub = durationText(late) + " before receipt"
	}
	origin := cell{}
	if e.Origin != events.OriginWebhook {
		origin = text(e.Origin)
	}
	key := shorten(e.EventID, 24)
	key.Code = true
	status := badge(e.Status)
	if e.Redacted {
		status.Sub = "redacted"
	}
	return []cell{received, link(e.Source, path("sources", e.Source)), text(e.EventType),
		r.objectCell(e.Source, e.Account, e.ObjectType, e.ObjectID), status, occurred, origin, key}
}

// objectCell links to an object. Its account is only in the address where it has one.
func (r *request) objectCell(source, account, objectType, objectID string) cell {
	if objectID == "" {
		return cell{}
	}
	c := shorten(objectID, 28)
	c.Code, c.Href, c.Sub = true, objectPath(source, account, objectType, objectID), objectType
	return c
}

func objectPath(source, account, objectType, objectID string) string {
	return query(path("objects", source, objectType, objectID), "account", account)
}

func eventPath(n int64) string { return path("events", id(n)) }
