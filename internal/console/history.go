package console

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/versioning"
)

// shownHistory is how many events of its history the page of an object shows.
const shownHistory = 25

// historyBlocks show the events of an object as a picture and as a table, with forms to compare two
// of them and to show the state at a time.
func historyBlocks(ctx context.Context, r *request, name operations.ObjectName) ([]block, error) {
	cursor := r.URL.Query().Get("cursor")
	found, err := operations.ObjectHistory(ctx, r.c.Pages, r.c.endpoints(), operations.HistoryParams{ObjectName: name,
		Page: operations.Page{Limit: new(shownHistory), Cursor: cursor}})
	if err != nil {
		return nil, err
	}
	self := objectPath(name.Source, *name.Account, name.Type, name.ID)
	b := block{ID: "history", Heading: "History", Orders: r.newOrders(found.Items),
		Table: &table{Command: historyCommand(name), MoreLabel: "Show older events",
			Columns: []string{"Event", "Occurred", "Applied", "Change", "Outcome", "Reason", "Decided by"},
			Empty:   "The log has no event of this object any more."}}
	if cursor != "" {
		newest := link("Show the newest ones", self+"#history")
		b.Notes = []note{{Tone: "info", Text: "These are older events.", Link: &newest}}
	}
	for i := range found.Items {
		b.Table.Rows = append(b.Table.Rows, historyRow(r, name, &found.Items[i]))
	}
	if found.Next != "" {
		b.Table.More = query(path("objects", name.Source, name.Type, name.ID), "account", *name.Account, "cursor",
			found.Next) + "#history"
	}
	if i := slices.IndexFunc(found.Items,
		func(h operations.HistoryItem) bool { return h.StateOmitted == "not_configured" }); i >= 0 {
		b.Notes = append(b.Notes, note{Tone: "warning", Text: sentence("States are not shown: " +
			found.Items[i].StateOmittedReason)})
	}
	all := []block{b}
	if len(found.Items) > 1 {
		all = append(all, compareBlock(r, name, found.Items))
	}
	if len(found.Items) > 0 {
		all = append(all, block{ID: "at", Heading: "State at a time", Folded: true, Text: "Shows the state that the " +
			"mirror or the provider had at a time, as the source reads the event now.",
			Filter: objectAtFilter(name, "", operations.ByApplication)})
	}
	return all, nil
}

// objectAtFilter is the form that leads to the state of an object at a time.
func objectAtFilter(name operations.ObjectName, at, order string) *filter {
	return &filter{Path: path("objects", name.Source, name.Type, name.ID, "at"), Hidden: []value{{"account",
		accountOf(name)}}, Label: "Show", Main: []input{{Name: "time", Label: "time", Kind: "text", Required: true,
		Suggestions: timeSuggestions, Help: "a time as the pages show it, or how long ago: 1h", Value: at},
		{Name: "order", Label: "state of", Kind: "select", Required: true, Value: order,
			Choices: []value{{"the mirror, as events arrived", operations.ByApplication},
				{"the provider, with late events", operations.ByOccurrence}}}}}
}

func historyCommand(name operations.ObjectName) string {
	return commandLine("objects history "+quote(name.Source)+" "+quote(name.Type)+" "+quote(name.ID),
		map[string]string{"account": *name.Account})
}

func historyRow(r *request, name operations.ObjectName, h *operations.HistoryItem) []cell {
	event := shorten(cmp.Or(h.EventType, "dropped event"), 60)
	event.Href, event.Title = eventPath(h.ID), id(h.ID)
	if h.Origin != "" && h.Origin != events.OriginWebhook {
		event.Sub = h.Origin
	}
	occurred := cell{}
	if !h.OccurredAt.IsZero() {
		occurred = r.shortTime(h.OccurredAt.Time)
		if late := h.ReceivedAt.Sub(h.OccurredAt.Time); late > lateFrom {
			occurred.Sub = durationText(late) + " late"
		}
		occurred.Href = atPath(name, h.OccurredAt.Time, operations.ByOccurrence)
		occurred.Title = "Show the state that the provider had at this time"
	}
	applied := r.shortTime(h.AppliedAt.Time)
	if h.Status == string(versioning.Applied) {
		applied.Href = atPath(name, h.AppliedAt.Time, "")
		applied.Title = "Show the state that the mirror had at this time"
	}
	if h.Revision != nil {
		applied.Sub = "revision " + groupDigits(*h.Revision)
	}
	status := badge(h.Status)
	switch {
	case h.Differs != "":
		status.Sub = "the current configuration gives another " + h.Differs
	case h.Outdated:
		status.Sub = "by an older rule"
	}
	decided := cell{}
	if h.DecidedByEvent != nil {
		decided = link("event", eventPath(*h.DecidedByEvent))
		decided.Title = id(*h.DecidedByEvent)
	}
	return []cell{event, occurred, applied, changeCell(name, h), status, wide(shorten(h.Reason, 120)), decided}
}

// atPath is the page of the state at a time; order is "" for the order of application.
func atPath(name operations.ObjectName, at time.Time, order string) string {
	return query(path("objects", name.Source, name.Type, name.ID, "at"), "account", accountOf(name), "time",
		at.UTC().Format(time.RFC3339Nano), "order", order)
}

// changeCell shows how many values an event changed, with a link to them.
func changeCell(name operations.ObjectName, h *operations.HistoryItem) cell {
	to := diffPath(name, "", id(h.ID))
	switch {
	case h.Change != nil:
		var parts []string
		for i, n := range []int{h.Change.Added, h.Change.Removed, h.Change.Changed} {
			if n > 0 {
				parts = append(parts, []string{"+", "−", "~"}[i]+groupDigits(int64(n)))
			}
		}
		c := link(cmp.Or(strings.Join(parts, "\u00a0"), "none"), to)
		c.Title = fmt.Sprintf("%d values added, %d removed, %d changed", h.Change.Added, h.Change.Removed,
			h.Change.Changed)
		return c
	case h.StateOmitted != "":
		return cell{Text: label(string(h.StateOmitted)), Title: visible(h.StateOmittedReason), Badge: true}
	case h.Status == string(versioning.Applied) && h.PreviousEvent == nil:
		return link("first state", to)
	}
	return cell{}
}

// diffPath is the page that compares two events of an object. Without from it is the event that was
// applied before, without to the present object.
func diffPath(name operations.ObjectName, from, to string) string {
	return query(path("objects", name.Source, name.Type, name.ID, "diff"), "account", accountOf(name), "from", from,
		"to", to)
}

func accountOf(name operations.ObjectName) string {
	if name.Account == nil {
		return ""
	}
	return *name.Account
}

// compareBlock is the form that compares two events of an object.
func compareBlock(r *request, name operations.ObjectName, items []operations.HistoryItem) block {
	var suggestions []value
	for i := range items {
		h := &items[i]
		if h.StateOmitted == "" {
			suggestions = append(suggestions, value{fmt.Sprintf("%s %s, %s", r.shortTime(h.AppliedAt.Time).Text,
				visible(h.EventType), label(h.Status)), id(h.ID)})
		}
	}
	return block{ID: "compare", Heading: "Compare two events", Text: "Choose an event of this page, or enter the id " +
		"of any event of the object. Leave the first empty to compare with the event before the second. Leave the " +
		"second empty to compare with the object as it is now.", Folded: true,
		Filter: &filter{Path: path("objects", name.Source, name.Type, name.ID, "diff"), Label: "Compare",
			Hidden: []value{{"account", *name.Account}}, Main: []input{
				{Name: "from", Label: "first event", Kind: "text", Suggestions: suggestions},
				{Name: "to", Label: "second event", Kind: "text", Suggestions: suggestions}}}}
}

// diffPage lists the values in which two states of an object differ.
func diffPage(ctx context.Context, r *request) (*view, error) {
	texts := r.texts
	name := r.objectName()
	d, err := operations.DiffHistory(ctx, r.c.Pages, r.c.endpoints(), operations.HistoryDiffParams{ObjectName: name,
		From: texts["from"], To: texts["to"]})
	if err != nil {
		return nil, err
	}
	v := &view{Kind: visible(name.Type + " " + name.ID + " of source " + name.Source), Title: "Differences of two " +
		"states", Text: "The states are as the source reads the events now.", Notes: append(diffNotes(d.From),
		diffNotes(d.To)...)}
	before, after := "Nothing before", "Present object"
	sides := block{ID: "states", Fields: []field{{"Object", []cell{r.objectCell(name.Source, texts["account"],
		name.Type, name.ID)}}, {"Before", []cell{text("no event was applied before")}}, {"After",
		[]cell{text("the present object")}}}}
	if d.From != nil {
		before, sides.Fields[1].Cells = "Before", historyEventCells(r, d.From)
	}
	if d.To != nil {
		after, sides.Fields[2].Cells = "After", historyEventCells(r, d.To)
	}
	if d.From != nil && d.To != nil {
		sides.Fields = append(sides.Fields, field{"See also", []cell{link("the other direction", diffPath(name,
			id(d.To.ID), id(d.From.ID)))}})
	}
	var all []place
	for _, c := range d.Changes {
		all = append(all, place{c.Path, c.Before, c.After})
	}
	b := block{ID: "differences", Heading: "What differs", Table: placeTable(before, after, all)}
	b.Table.Empty = "The two states are equal."
	if d.Truncated {
		b.Notes = []note{{Tone: "info", Text: "There are more differences. The page shows the first " +
			describeCount(len(d.Changes), "difference") + "."}}
	}
	v.Blocks = []block{sides, b}
	return v, nil
}

// diffNotes say what is special about an event whose state is compared.
func diffNotes(h *operations.HistoryEvent) (all []note) {
	if h != nil && h.Differs != "" {
		all = append(all, note{Tone: "warning", Text: fmt.Sprintf("The %s of event %d is read differently now than "+
			"when it was applied: the rule or the configuration of the source has changed since.", h.Differs, h.ID)})
	}
	return all
}

func historyEventCells(r *request, h *operations.HistoryEvent) []cell {
	occurred := ""
	if !h.OccurredAt.IsZero() {
		occurred = "occurred " + r.at(h.OccurredAt).Text + ", "
	}
	return []cell{r.eventCell(h.ID), text(h.EventType), badge(h.Status),
		text(occurred + "applied " + r.at(h.AppliedAt).Text)}
}

// objectAtPage shows the state that the mirror had of an object at a time.
func objectAtPage(ctx context.Context, r *request) (*view, error) {
	texts := r.texts
	p := operations.ObjectAtParams{ObjectName: r.objectName()}
	delete(texts, "account")
	r.filter = objectAtFilter(p.ObjectName, texts["time"], texts["order"])
	if err := operations.Parse(&p, texts, "source", "type", "id", "account"); err != nil {
		return nil, err
	}
	found, err := operations.ShowObjectAt(ctx, r.c.Pages, r.c.endpoints(), p)
	if err != nil {
		return nil, err
	}
	v := &view{Kind: visible(p.Type + " " + p.ID + " of source " + p.Source), Title: "State at " +
		r.at(found.Time).Text, Text: "The state in the last event that was applied until then. Postern reads the " +
		"stored event again with the current configuration.", Notes: diffNotes(&found.Event)}
	other, label := operations.ByOccurrence, "the state as the provider had it"
	if found.Order == operations.ByOccurrence {
		other, label = "", "the state as the mirror had it"
		v.Text = "The state as the provider had it, in the event with the newest version that occurred until then. " +
			"Postern reads the stored event again with the current configuration."
	}
	if found.Late {
		v.Notes = append(v.Notes, note{Tone: "info", Text: "This event arrived later. At that time the mirror had " +
			"another state, or none."})
	}
	if !found.Complete {
		v.Notes = append(v.Notes, note{Tone: "warning", Text: "More than 1,000 events of the object arrived after " +
			"that time. The first 1,000 were searched for late ones."})
	}
	if found.Ambiguous {
		v.Notes = append(v.Notes, note{Tone: "warning", Text: "An ambiguous event came between this event and " +
			"that time. The mirror may have shown its state instead."})
	}
	b := block{ID: "state", Heading: "State"}
	fields := []field{{"Object", []cell{r.objectCell(p.Source, r.URL.Query().Get("account"), p.Type, p.ID)}},
		{"Last event", historyEventCells(r, &found.Event)},
		{"Compare", []cell{link(label, atPath(p.ObjectName, found.Time.Time, other))}}}
	if found.Event.StateOmitted != "" {
		b.Text = sentence(found.Event.StateOmittedReason)
	} else {
		b.Document = newDocument(found.State, "")
		fields = append(fields, field{"See also", []cell{link("differences to the present object",
			diffPath(p.ObjectName, id(found.Event.ID), ""))}})
	}
	v.Blocks = []block{{Fields: fields}, b}
	return v, nil
}

// objectDrift show the differences between mirror and provider that scans have found for an object.
func objectDrift(ctx context.Context, r *request, name operations.ObjectName) ([]block, error) {
	found, err := operations.ObjectDifferences(ctx, r.c.Pages, operations.ObjectDifferenceParams{ObjectName: name,
		Page: operations.Page{Limit: new(shownHistory)}})
	if err != nil || len(found.Items) == 0 {
		return nil, err
	}
	t := &table{Columns: []string{"Run", "Found", "Difference", "Fields", "Result", "Reason", "Refetch"}}
	for i := range found.Items {
		d := &found.Items[i]
		var fields []string
		for _, f := range d.Fields {
			fields = append(fields, f.Path)
		}
		names := shorten(strings.Join(fields, ", "), 120)
		if d.More > 0 {
			names.Sub = "and " + describeCount(d.More, "other field")
		}
		refetched := cell{}
		if d.EventID != nil {
			refetched = r.eventCell(*d.EventID)
		}
		t.Rows = append(t.Rows, []cell{runCell(d.Run), r.shortTime(d.RunCreatedAt.Time), badge(d.Kind), names,
			badge(d.Result), shorten(d.Reason, 120), refetched})
	}
	return []block{{ID: "differences", Heading: "Differences that object scans found", Table: t}}, nil
}

// newOrders draws the order of occurrence of events above the order of their application. A line
// that crosses others belongs to an event that came late.
func (r *request) newOrders(items []operations.HistoryItem) *orders {
	var all []*operations.HistoryItem
	for i := range items {
		if !items[i].OccurredAt.IsZero() {
			all = append(all, &items[i])
		}
	}
	if len(all) < 2 {
		return nil
	}
	compareApplied := func(a, b *operations.HistoryItem) int {
		return cmp.Or(a.AppliedAt.Compare(b.AppliedAt.Time), cmp.Compare(a.ID, b.ID))
	}
	slices.SortFunc(all, compareApplied)
	occurred := slices.Clone(all)
	slices.SortStableFunc(occurred, func(a, b *operations.HistoryItem) int {
		return a.OccurredAt.Compare(b.OccurredAt.Time)
	})
	l := newOrders("Events in the order of occurrence, above, and in the order of application, below")
	for i, h := range all {
		l.add(slices.Index(occurred, h), i, len(all), orderPoint{Tone: toneOf[h.Status], Href: eventPath(h.ID),
			Title: fmt.Sprintf("%s, %s: occurred %s, applied %s", visible(h.EventType), label(h.Status),
				r.shortTime(h.OccurredAt.Time).Text, r.shortTime(h.AppliedAt.Time).Text)})
	}
	return l
}
