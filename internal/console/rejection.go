package console

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/provider"
)

// verifyPath is the page that verifies rejected deliveries again.
var verifyPath = path("rejections", "verify")

// rejectionPage shows one rejected delivery, and how the current configuration verifies it.
func rejectionPage(ctx context.Context, r *request) (*view, error) {
	n, err := r.pathNumber("rejection")
	if err != nil {
		return nil, err
	}
	x, err := operations.Rejection(ctx, r.c.Pages, r.c.endpoints(), n)
	if err != nil {
		return nil, err
	}
	if r.URL.Query().Has("download") {
		return nil, &download{name: "rejection-" + id(x.ID), body: x.Body}
	}
	v := &view{Kind: "Rejection " + id(x.ID), Title: sentenceCase(visible(label(x.Reason))),
		Text: sentence(x.Explanation), Notes: []note{{Tone: "warning", Text: "This delivery was not verified: anyone " +
			"can have written it. Nothing of it is in the log."}}}
	fields := []field{{"Source", []cell{link(x.Source, path("sources", x.Source))}}, {"Received",
		[]cell{r.at(x.ReceivedAt)}}, {"Sent from", []cell{code(x.Remote)}}, {"Detail", []cell{text(x.Detail)}}}
	size := text(groupDigits(x.Bytes))
	if x.Truncated {
		size.Sub = "only a part is stored, so it cannot be verified again"
	}
	v.Blocks = []block{{Actions: []action{{Label: "Verify again", Href: query(verifyPath, "ids", id(x.ID)),
		Text: "Verifies the stored delivery with the current secrets. Nothing is written."}}},
		{ID: "rejection", Fields: append(fields, field{"Bytes", []cell{size}})}}
	if x.Verification != nil {
		v.Blocks = append(v.Blocks, explanationBlock(x.Verification))
	}
	if headers := headerFields(x.Headers); len(headers) > 0 {
		v.Blocks = append(v.Blocks, block{ID: "headers", Heading: "Stored headers", Fields: headers})
	}
	v.Blocks = append(v.Blocks, block{ID: "body", Heading: "Body", Document: newDocument(x.Body,
		r.URL.EscapedPath()+"?download")})
	return v, nil
}

// sentence makes a sentence of a text that begins with a small letter and has no full stop.
func sentence(s string) string {
	if s = sentenceCase(visible(s)); s == "" || strings.HasSuffix(s, ".") {
		return s
	}
	return s + "."
}

// explanationBlock shows step by step how the configured source verifies a delivery.
func explanationBlock(x *provider.Explanation) block {
	b := block{ID: "verification", Heading: "Verification with the current configuration",
		Text:  "The delivery is not valid with the current secrets either.",
		Table: &table{Columns: []string{"Step", "Result", "Detail"}, Empty: "The source checks nothing."}}
	if x.Verified {
		b.Text = "The delivery is valid now, as of the time of its receipt. Verify it again and reprocess it to " +
			"store its events."
	}
	for _, s := range x.Steps {
		result := cell{Text: "ok", Badge: true, Tone: "good"}
		if !s.OK {
			result = cell{Text: "failed", Badge: true, Tone: "bad"}
		}
		b.Table.Rows = append(b.Table.Rows, []cell{text(s.Name), result, text(s.Detail)})
	}
	return b
}

// verifyPage verifies selected rejections again, and offers to reprocess those that are valid now.
// Only a process with the secrets can do that, so the API of this process is asked.
func verifyPage(ctx context.Context, r *request) (*view, error) {
	texts := r.texts
	found, err := readAPI[operations.RejectionResults](ctx, r, http.MethodPost, "/api/v1/rejections/verify", texts)
	if err != nil {
		return nil, err
	}
	v := &view{Title: "Verify rejections again", Text: "The stored deliveries were verified with the present " +
		"secrets, as of the time of their receipt. Nothing was written."}
	switch {
	case len(found.Items) == 0:
	case found.Verified == 0:
		v.Notes = append(v.Notes, note{Tone: "warning", Text: "No delivery is valid now. " + remainingText(found)})
	default:
		v.Notes = append(v.Notes, note{Tone: "good", Text: strings.TrimSpace(fmt.Sprintf("Valid now: %s of %s, with "+
			"%s. %s",
			groupDigits(int64(found.Verified)), describeCount(len(found.Items), "delivery"),
			describeCount(found.Events, "event"), remainingText(found)))})
	}
	b := block{Table: &table{Columns: []string{"Received", "Source", "Now", "Result", "Events", "Rejection"},
		Empty: "No rejected delivery matches the filter. A delivery that was reprocessed is not in this list any " +
			"more."}}
	for i := range found.Items {
		b.Table.Rows = append(b.Table.Rows, verifiedRow(r, &found.Items[i].Reverification))
	}
	if found.Next != nil {
		next := maps.Clone(texts)
		next["cursor"] = *found.Next
		b.Table.More, b.Table.MoreLabel = verifyPath+"?"+encode(next), "Verify the next ones"
	}
	if found.Verified > 0 {
		b.Actions = []action{reprocessAction(r, found)}
	}
	reconcile := link("Reconcile the source", query(path("runs", "new", "reconcile"), "source", texts["source"]))
	v.Blocks = []block{b, {Notes: []note{{Tone: "info", Text: "A source keeps a limited number of rejected " +
		"deliveries, and cuts long bodies. A reconciliation adds events that are still missing.", Link: &reconcile}}}}
	return v, nil
}

// remainingText says why the other deliveries stay rejected.
func remainingText(found *operations.RejectionResults) string {
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(found.Remaining)) {
		parts = append(parts, groupDigits(int64(found.Remaining[reason]))+" "+label(reason))
	}
	if len(parts) == 0 {
		return ""
	}
	return visible("Still rejected: " + strings.Join(parts, ", ") + ".")
}

func verifiedRow(r *request, x *ingest.Reverification) []cell {
	received := r.shortTime(x.ReceivedAt.Time)
	received.Href = path("rejections", id(x.ID))
	now := cell{Text: "verified", Badge: true, Tone: "good"}
	if !x.Verified {
		now = reasonCell(x.ReasonNow, x.Result)
	}
	contained := cell{}
	if len(x.Events) > 0 {
		contained = shorten(x.Events[0].EventType, 60)
		contained.Sub = shorten(x.Events[0].EventID, 40).Text
		if more := len(x.Events) - 1; more > 0 {
			contained.Sub += fmt.Sprintf(" and %d more", more)
		}
	}
	return []cell{received, link(x.Source, path("sources", x.Source)), now, wide(shorten(x.Result, 200)), contained,
		codeLink(id(x.ID), path("rejections", id(x.ID)))}
}

// reprocessAction stores exactly the deliveries that the page shows as verified.
func reprocessAction(r *request, found *operations.RejectionResults) action {
	var ids []string
	then := query(path("audit"), "action", "rejections reprocess")
	for i := range found.Items {
		x := &found.Items[i]
		if !x.Verified {
			continue
		}
		ids = append(ids, strconv.FormatInt(x.ID, 10))
		if found.Verified == 1 && len(x.Events) == 1 {
			then = query(path("events"), "source", x.Source, "key", x.Events[0].EventID)
		}
	}
	return r.form(action{Label: "Reprocess " + describeCount(found.Verified, "delivery"), Text: fmt.Sprintf("Stores "+
		"%s as if the deliveries had been accepted at their receipt. Processors apply them. The deliveries are no "+
		"longer rejected then.", describeCount(found.Events, "event")), Path: "/api/v1/rejections/reprocess",
		Values: []value{{"ids", strings.Join(ids, ",")}}, Reason: "required", Then: then})
}

// rejectionGroups shows the rejections by source and reason, with the probable cause of each.
func rejectionGroups(ctx context.Context, r *request, p *operations.RejectionParams) ([]block, error) {
	if p.Cursor != "" {
		return nil, nil
	}
	found, err := operations.RejectionGroups(ctx, r.c.Pages, p.RejectionFilter)
	if err != nil || len(found.Items) == 0 {
		return nil, err
	}
	b := block{ID: "groups", Heading: "By source and reason", Table: &table{Columns: []string{"Source", "Reason",
		"Deliveries", "First", "Last", "Sent from", "Probable cause", ""}}}
	if !found.SearchedTo.IsZero() {
		b.Text = "The groups count only deliveries since " + r.at(found.SearchedTo).Text + "."
	}
	b.Table.Rows = rows(r, found.Items, rejectionGroupRow)
	b.Notes = fullRejections(r, found.Items)
	return []block{b}, nil
}

// fullRejections names the sources of which no further rejected delivery can be kept: they delete
// the oldest ones.
func fullRejections(r *request, groups []ingest.RejectionGroup) (all []note) {
	kept := map[string]int64{}
	for i := range groups {
		kept[groups[i].Source] += groups[i].Count
	}
	for _, source := range slices.Sorted(maps.Keys(kept)) {
		if r.c.RejectionsMaxCount > 0 && kept[source] >= r.c.RejectionsMaxCount {
			reconcile := link("Reconcile the source", query(path("runs", "new", "reconcile"), "source", source))
			all = append(all, note{Tone: "warning", Link: &reconcile, Text: fmt.Sprintf("The source %s has "+
				"reached its limit of %s rejected deliveries (rejections.max_count). Postern deletes the oldest ones. "+
				"A reconciliation adds the events that are missing.", visible(source),
				groupDigits(r.c.RejectionsMaxCount))})
		}
	}
	return all
}

func rejectionGroupRow(r *request, g *ingest.RejectionGroup) []cell {
	reason := reasonCell(g.Reason, g.Explanation)
	reason.Href = query(path("rejections"), "source", g.Source, "rejection_reason", g.Reason)
	count := number(g.Count)
	if g.Truncated > 0 {
		count.Sub = groupDigits(g.Truncated) + " truncated"
	}
	var senders []string
	for _, s := range g.Remotes {
		senders = append(senders, fmt.Sprintf("%s (%s)", s.Address, groupDigits(s.Count)))
	}
	from := shorten(strings.Join(senders, ", "), 120)
	if g.MoreRemotes > 0 {
		from.Sub = "and " + describeCount(g.MoreRemotes, "other sender")
	}
	verify := cell{Text: "verify again", Title: r.mayChange("/api/v1/rejections/verify")}
	if verify.Title == "" {
		verify = button(link(verify.Text, query(verifyPath, "source", g.Source, "rejection_reason", g.Reason)))
	}
	cause := wide(text(sentence(cmp.Or(g.Diagnosis, g.Explanation))))
	return []cell{link(g.Source, path("sources", g.Source)), reason, count, r.second(g.FirstAt), r.second(g.LastAt),
		from, cause, verify}
}
