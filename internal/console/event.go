package console

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/versioning"
)

// lateFrom is the delay from which an event counts as late.
const lateFrom = 5 * time.Minute

// eventPage shows the whole life of one event.
func eventPage(ctx context.Context, r *request) (*view, error) {
	e, err := operations.Event(ctx, r.c.Pages, operations.EventName{ID: r.PathValue("id"),
		Source: r.URL.Query().Get("source")})
	if err != nil {
		return nil, err
	}
	if r.URL.Query().Has("download") {
		return nil, &download{name: "event-" + id(e.ID), body: e.Body}
	}
	related, err := operations.Effects(ctx, r.c.Pages, operations.EffectParams{Event: id(e.ID)})
	if err != nil {
		return nil, err
	}
	v := &view{Kind: "Event " + id(e.ID), Title: cmp.Or(visible(e.EventType), "Event"), Text: eventSentence(r, e)}
	if live := liveOutcome(e); live != nil {
		v.Lead = []cell{badge(live.Status)}
	} else if e.DroppedAt == nil {
		v.Lead = []cell{badge("pending")}
		v.Refresh = 2
	}
	v.Notes = eventNotes(r, e)
	if e.Status == "pending" {
		health := link("Health", path("health"))
		v.Notes = append(v.Notes, note{Tone: "info", Link: &health, Text: "The event waits for a processor. See " +
			"whether the processors run, and how many events wait:"})
	}
	v.Blocks = append(v.Blocks, block{Timeline: r.newTimeline("Times of this event", eventMoments(r, e,
		related.Items))}, block{Actions: eventActions(r, e)}, receiptBlock(r, e))
	hasContent := e.DroppedAt == nil && e.RedactedAt == nil
	if e.DroppedAt == nil {
		v.Blocks = append(v.Blocks, verificationBlock(r, e))
	}
	if hasContent && e.Origin == events.OriginWebhook { // the provider's API signs nothing
		x := operations.ExplainVerification(r.c.endpoints(), e.Source, e.Headers, e.Body, e.ReceivedAt.Time)
		if x != nil {
			v.Blocks = append(v.Blocks, signedBytesBlock(x))
		}
	}
	v.Blocks = append(v.Blocks, outcomeBlock(r, e))
	if len(related.Items) > 0 {
		v.Blocks = append(v.Blocks, effectBlock(r, related.Items))
	}
	if len(e.Delivery) > 0 {
		v.Blocks = append(v.Blocks, deliveryBlock(e.Delivery))
	}
	if len(e.Conflicts) > 0 {
		v.Blocks = append(v.Blocks, conflictBlock(r, e.Conflicts))
	}
	if fields := headerFields(e.Headers); len(fields) > 0 {
		v.Blocks = append(v.Blocks, block{ID: "headers", Heading: "Stored headers", Fields: fields, Folded: true})
	}
	if hasContent {
		v.Blocks = append(v.Blocks, block{ID: "body", Heading: "Body",
			Document: newDocument(e.Body, eventPath(e.ID)+"?download")})
	}
	return v, nil
}

// eventSentence tells the life of an event in one or two sentences.
func eventSentence(r *request, e *events.EventDetail) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Received %s", r.at(e.ReceivedAt).Text)
	switch e.Origin {
	case events.OriginWebhook:
		fmt.Fprintf(&b, " from %s", e.Source)
	default:
		fmt.Fprintf(&b, " for %s by %s", e.Source, e.Origin)
	}
	if v := verificationOf(e.Verification); v.Secret != "" {
		fmt.Fprintf(&b, ", verified with the secret %q", v.Secret)
	}
	if late := e.ReceivedAt.Sub(e.OccurredAt.Time); !e.OccurredAt.IsZero() && late > lateFrom {
		fmt.Fprintf(&b, ", %s after it occurred", durationText(late))
	}
	b.WriteString(".")
	if o := liveOutcome(e); o != nil {
		fmt.Fprintf(&b, " The outcome is %s", strings.ReplaceAll(o.Status, "_", " "))
		if o.Reason != "" {
			fmt.Fprintf(&b, ": %s", o.Reason)
		}
		b.WriteString(".")
	} else if e.DroppedAt == nil {
		b.WriteString(" It has no outcome yet.")
	}
	return visible(b.String())
}

// eventNotes say what is missing, and why.
func eventNotes(r *request, e *events.EventDetail) (all []note) {
	if e.DroppedAt != nil {
		all = append(all, note{Tone: "info", Text: "Retention dropped the day of this event at " +
			r.at(*e.DroppedAt).Text + ". Its id, source and outcomes remain."})
	}
	if o := liveOutcome(e); o != nil && o.DecidedByEvent != 0 {
		winner := codeLink(id(o.DecidedByEvent), eventPath(o.DecidedByEvent))
		all = append(all, note{Tone: "info", Text: "The stored version came with event", Link: &winner})
	}
	if e.RedactedAt != nil {
		run := link("run "+id(e.Redaction), path("runs", id(e.Redaction)))
		all = append(all, note{Tone: "info", Text: "Body and headers were redacted at " + r.at(*e.RedactedAt).Text +
			" by", Link: &run})
	}
	return all
}

// eventMoments are the times of an event, in order.
func eventMoments(r *request, e *events.EventDetail, related []effects.Effect) []moment {
	stored := e.StoredAt.Time
	if stored.Equal(e.ReceivedAt.Truncate(time.Millisecond)) { // its milliseconds are all that is stored
		stored = e.ReceivedAt.Time
	}
	all := []moment{{at: e.OccurredAt.Time, label: "occurred"},
		{at: verificationOf(e.Verification).SignedAt, label: "signed"},
		{at: e.ReceivedAt.Time, label: "received", tone: "info", href: "#receipt"},
		{at: stored, label: "stored", tone: "info", href: "#receipt"}}
	for i := range e.Outcomes {
		o := &e.Outcomes[i]
		label := strings.ReplaceAll(o.Status, "_", " ")
		if o.Run != events.LiveRun {
			label += " in run " + id(o.Run)
		}
		all = append(all, moment{at: o.At.Time, label: label, tone: toneOf[o.Status], href: "#outcomes"})
	}
	for i := range related {
		f := &related[i]
		all = append(all, moment{at: f.PlannedAt.Time, label: "effect " + f.Rule + " planned",
			href: path("effects", id(f.ID))})
	}
	return sortMoments(all)
}

// sortMoments returns the moments that have a time, in order.
func sortMoments(all []moment) []moment {
	all = slices.DeleteFunc(all, func(m moment) bool { return m.at.IsZero() })
	slices.SortStableFunc(all, func(a, b moment) int { return a.at.Compare(b.at) })
	return all
}

// verification is how a delivery was verified.
type verification struct {
	Scheme   string    `json:"scheme"`
	Secret   string    `json:"secret"`
	SignedAt time.Time `json:"signed_at"`
}

func verificationOf(raw json.RawMessage) (v verification) {
	_ = json.Unmarshal(raw, &v) // an event from a reconciliation has none
	return v
}

func eventActions(r *request, e *events.EventDetail) []action {
	if e.DroppedAt != nil {
		return nil
	}
	var all []action
	if o := liveOutcome(e); o != nil && (o.Status == "failed" || o.Status == "dead") {
		all = append(all, r.form(action{Label: "Retry", Text: "A processor applies the event again now.",
			Path: "/api/v1/retries", Values: []value{{"event", id(e.ID)}}, Reason: "optional", Then: Prefix +
				"runs/{run}"}))
	}
	all = append(all, action{Label: "Replay…", Text: "Shows what applying the stored event again would change. " +
		"Nothing starts yet.", Href: query(path("runs", "new", "replay"), "ids", id(e.ID))})
	if e.ObjectID != "" {
		all = append(all, r.form(action{Label: "Request a refetch", Text: "A processor reads the object from the " +
			"provider's API.", Path: "/api/v1/refetches", Values: objectValues(e.Source, e.Account, e.ObjectType,
			e.ObjectID), Reason: "optional", Then: objectPath(e.Source, e.Account, e.ObjectType, e.ObjectID)}))
	}
	return all
}

func objectValues(source, account, objectType, objectID string) []value {
	return []value{{"source", source}, {"account", account}, {"type", objectType}, {"object_id", objectID}}
}

func receiptBlock(r *request, e *events.EventDetail) block {
	fields := []field{{"Source", []cell{link(e.Source, path("sources", e.Source))}},
		{"Event key", []cell{code(e.EventID)}}, {"Postern's id", []cell{code(id(e.ID))}}}
	if e.ObjectID != "" {
		object := []cell{r.objectCell(e.Source, e.Account, e.ObjectType, e.ObjectID), link("all its events",
			query(path("events"), "source", e.Source, "object_type", e.ObjectType, "object_id", e.ObjectID))}
		if o := liveOutcome(e); o != nil && o.Status == string(versioning.Applied) {
			name := operations.ObjectName{Source: e.Source, Account: &e.Account, Type: e.ObjectType, ID: e.ObjectID}
			object = append(object, link("what this event changed", diffPath(name, "", id(e.ID))))
		}
		fields = append(fields, field{"Object", object})
	}
	previous, next := r.eventCell(e.PreviousEvent), r.eventCell(e.NextEvent)
	previous.Key, next.Key = "[", "]"
	fields = append(fields, field{"Event before", []cell{previous}}, field{"Event after", []cell{next}},
		field{"Account", []cell{code(e.Account)}}, field{"Occurred", []cell{r.at(e.OccurredAt)}},
		field{"Received", []cell{r.at(e.ReceivedAt)}}, field{"Stored", []cell{r.at(e.StoredAt)}},
		field{"Origin", []cell{text(e.Origin)}}, field{"API version", []cell{code(e.APIVersion)}},
		field{"See also", []cell{auditLink(id(e.ID))}})
	if e.DeliveryID != e.ID && e.DeliveryID != 0 {
		fields = append(fields, field{"Delivery", []cell{codeLink(id(e.DeliveryID), eventPath(e.DeliveryID)),
			text(fmt.Sprintf("event %d of its batch", e.DeliveryIndex+1))}})
	}
	return block{ID: "receipt", Heading: "Receipt", Fields: fields}
}

func verificationBlock(r *request, e *events.EventDetail) block {
	b := block{ID: "verification", Heading: "Verification"}
	var members map[string]any
	if json.Unmarshal(e.Verification, &members) != nil || len(members) == 0 {
		b.Text = "No signature was verified: the event comes from the provider's API or from an import."
		return b
	}
	for _, n := range newDocument(e.Verification, "").Root.Children {
		c := code(n.Text)
		if at, err := time.Parse(time.RFC3339Nano, n.Text); err == nil {
			c = r.time(at)
		}
		b.Fields = append(b.Fields, field{sentenceCase(label(n.Name)), []cell{c}})
	}
	return b
}

// signedBytesBlock shows step by step which bytes were signed, for an event that was verified at
// its receipt.
func signedBytesBlock(x *provider.Explanation) block {
	b := explanationBlock(x)
	b.ID, b.Heading, b.Text, b.Folded = "signed", "Signed bytes, verified again with the current configuration", "",
		true
	if !x.Verified {
		b.Text = "The event was verified at its receipt. The secret or the configuration has changed since."
	}
	return b
}

func outcomeBlock(r *request, e *events.EventDetail) block {
	t := &table{Columns: []string{"Run", "Outcome", "Reason", "Version of the event", "Version that decided", "At",
		"Attempts"}, Empty: "There is no outcome yet. A processor applies the event when it reads it from the stream."}
	for i := range e.Outcomes {
		o := &e.Outcomes[i]
		at := r.at(o.At)
		if !o.Due.IsZero() {
			at.Sub = "next attempt " + r.shortTime(o.Due.Time).Text
		}
		t.Rows = append(t.Rows, []cell{runCell(o.Run), badge(o.Status), text(o.Reason), versionCell(o.Version),
			decidedByCell(o), at, number(o.Attempts)})
	}
	return block{ID: "outcomes", Heading: "Outcomes", Table: t}
}

// versionCell shows a version in words.
func versionCell(raw json.RawMessage) cell {
	var v versioning.Version
	if len(raw) == 0 || string(raw) == "null" || json.Unmarshal(raw, &v) != nil {
		return cell{}
	}
	return text(v.String())
}

// decidedByCell shows the version that an outcome was decided by, with the event that made it.
func decidedByCell(o *events.Outcome) cell {
	c := versionCell(o.DecidedBy)
	if o.DecidedByEvent != 0 {
		c.Href, c.Title = eventPath(o.DecidedByEvent), "Event "+id(o.DecidedByEvent)
	}
	return c
}

func effectBlock(r *request, all []effects.Effect) block {
	return block{ID: "effects", Heading: "Effects", Table: effectList.embed(r, all, "")}
}

func deliveryBlock(all []events.DeliveryMember) block {
	t := &table{Columns: []string{"Position", "Event", "Type", "Event key"}}
	for i := range all {
		m := &all[i]
		t.Rows = append(t.Rows, []cell{number(m.DeliveryIndex + 1), codeLink(id(m.ID), eventPath(m.ID)),
			text(m.EventType), code(m.EventID)})
	}
	return block{ID: "delivery", Heading: "Other events of the same delivery", Table: t}
}

func conflictBlock(r *request, all []events.Conflict) block {
	return block{ID: "conflicts", Heading: "Conflicts", Text: "Later deliveries had the same event key and different " +
		"content. The stored event does not change.", Table: conflictList.embed(r, all, "")}
}

func liveOutcome(e *events.EventDetail) *events.Outcome {
	i := slices.IndexFunc(e.Outcomes, func(o events.Outcome) bool { return o.Run == events.LiveRun })
	if i < 0 {
		return nil
	}
	return &e.Outcomes[i]
}

// download is the result of a page that is a file with bytes from anyone.
type download struct {
	name string
	body []byte
}

func (d *download) Error() string { return "a download" }
