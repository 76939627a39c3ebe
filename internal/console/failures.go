package console

import (
	"context"
	"strings"

	"github.com/postern-gateway/postern/internal/operations"
)

// failuresPage groups the events that could not be applied by the reason of their failure.
func failuresPage(ctx context.Context, r *request) (*view, error) {
	texts := r.texts
	var p operations.FailureParams
	filter, err := r.filterOf(ctx, p, []string{"status", "source", "type", "object_type", "since"}, nil,
		[]preset{{"dead", "?status=dead"}, {"failed", "?status=failed"}, {"last 24 hours", "?since=24h"}})
	if err == nil {
		err = operations.Parse(&p, texts)
	}
	if err != nil {
		return nil, err
	}
	found, err := operations.FailuresByReason(ctx, r.c.Pages, p)
	if err != nil {
		return nil, err
	}
	t := &table{Command: commandLine("outcomes failures", texts), Curl: curlLine(r, "/api/v1/failures", texts),
		Columns: []string{"Reason", "Status", "Events", "Sources", "Types", "First", "Last", "Example", ""},
		Empty: "No event has failed or is dead. An event appears here if a " +
			"processor cannot apply it. A failed one is tried again automatically; a dead one is not."}
	b := block{Table: t, Filter: filter}
	for i := range found.Items {
		t.Rows = append(t.Rows, failureRow(r, &found.Items[i], texts))
	}
	if found.Truncated {
		b.Notes = []note{{Tone: "info", Text: "The page has the newest " + describeCount(found.Examined, "failure") +
			". There are more; narrow the selection to see them."}}
	}
	return &view{Title: "Failures", Text: "Events that could not be applied, by reason. In a reason, … stands for a " +
		"part that differs between the events. A failed event is tried again automatically, a dead one is not.",
		Blocks: []block{b}}, nil
}

func failureRow(r *request, g *operations.FailureGroup, texts map[string]string) []cell {
	reason := wide(shorten(g.Pattern, 200))
	if g.Example != g.Pattern {
		reason.Title = shorten(g.Example, 1000).Text
	}
	types := shorten(strings.Join(g.EventTypes, ", "), 80)
	types.Sub = shorten(strings.Join(g.ObjectTypes, ", "), 80).Text
	count := number(g.Count)
	if texts["type"] == "" { // outcomes have no event type
		count.Href = query(path("outcomes"), "status", g.Status, "failure_pattern", g.Pattern, "run", "live", "source",
			texts["source"], "object_type", texts["object_type"], "since", texts["since"])
	}
	status := badge(g.Status)
	if !g.NextDue.IsZero() {
		status.Sub = "next attempt " + r.second(g.NextDue).Text
	}
	retry := button(link("retry these", query(path("runs", "new", "retry"), "status", g.Status, "failure_pattern",
		g.Pattern, "source", texts["source"], "type", texts["type"], "object_type", texts["object_type"], "since",
		texts["since"])))
	example := link("event", eventPath(g.ExampleEvent))
	example.Title = id(g.ExampleEvent)
	return []cell{reason, status, count, shorten(strings.Join(g.Sources, ", "), 80), types,
		r.second(g.FirstAt), r.second(g.LastAt), example, retry}
}
