package console

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
)

// pathNumber reads the number in the path of a page.
func (r *request) pathNumber(kind string) (int64, error) {
	n, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil || n < 1 {
		return 0, admin.NewProblem("not-found", "There is no "+kind+" "+visible(r.PathValue("id"))+
			". The number of a "+kind+" has only digits.")
	}
	return n, nil
}

// conflictPage shows a delivery with the id of a stored event and different content, and what
// differs.
func conflictPage(ctx context.Context, r *request) (*view, error) {
	n, err := r.pathNumber("conflict")
	if err != nil {
		return nil, err
	}
	c, err := events.ShowConflict(ctx, r.c.Pages, n)
	if err != nil {
		return nil, err
	}
	if r.URL.Query().Has("download") {
		return nil, &download{name: "conflict-" + id(c.ID), body: c.Body}
	}
	e, err := operations.Event(ctx, r.c.Pages, operations.EventName{ID: id(c.Event)})
	if err != nil {
		return nil, err
	}
	v := &view{Kind: "Conflict " + id(c.ID), Title: visible(c.EventID), Text: fmt.Sprintf("A delivery of %s had the "+
		"id of a stored event and different content. The first delivery counts; this one changed nothing.",
		r.at(c.ReceivedAt).Text)}
	v.Blocks = []block{{ID: "conflict", Fields: conflictFields(r, c, e)}, differenceBlock(e, c)}
	if fields := headerFields(c.Headers); len(fields) > 0 {
		v.Blocks = append(v.Blocks, block{ID: "headers", Heading: "Headers of the later delivery", Fields: fields,
			Folded: true})
	}
	stored := block{ID: "stored", Heading: "Body of the stored event", Folded: true}
	if missing := missingBody(e); missing != "" {
		stored.Text = missing
	} else {
		stored.Document = newDocument(e.Body, eventPath(e.ID)+"?download")
	}
	v.Blocks = append(v.Blocks, stored, block{ID: "later", Heading: "Body of the later delivery", Folded: true,
		Document: newDocument(c.Body, r.URL.EscapedPath()+"?download")})
	return v, nil
}

func conflictFields(r *request, c *events.ConflictDetail, e *events.EventDetail) []field {
	fields := []field{{"Source", []cell{link(c.Source, path("sources", c.Source))}}, {"Event key",
		[]cell{code(c.EventID)}}, {"Stored event", []cell{r.eventCell(c.Event)}}, {"Type", []cell{text(c.EventType)}},
		{"Account", []cell{code(c.Account)}}, {"First received", []cell{r.at(e.ReceivedAt)}},
		{"Later received", []cell{r.at(c.ReceivedAt)}}, {"Bytes", []cell{text(groupDigits(c.Bytes))}}}
	if e.APIVersion != "" {
		fields = append(fields, field{"API version", []cell{code(e.APIVersion), text("of the stored event")}})
	}
	if v := verificationOf(c.Verification).Secret; v != "" {
		fields = append(fields, field{"Verified with", []cell{text("the secret"), code(v)}})
	}
	return fields
}

// missingBody says why the body of an event cannot be shown; "" if it can.
func missingBody(e *events.EventDetail) string {
	switch {
	case e.DroppedAt != nil:
		return "Retention dropped the stored event, so its body cannot be compared any more."
	case e.RedactedAt != nil:
		return "The stored event was redacted, so its body cannot be compared any more."
	}
	return ""
}

// differenceBlock lists the places in which a later delivery differs from the stored event.
func differenceBlock(e *events.EventDetail, c *events.ConflictDetail) block {
	b := block{ID: "differences", Heading: "What differs"}
	if b.Text = missingBody(e); b.Text != "" {
		return b
	}
	before, errBefore := canonical.Parse(e.Body)
	after, errAfter := canonical.Parse(c.Body)
	if errBefore != nil || errAfter != nil {
		b.Text = "One of the two bodies is not JSON, so their values cannot be compared one by one. Both are below."
		return b
	}
	all, more := listPlaces("body", before, after)
	switch {
	case len(all) == 0:
		b.Text = "The values of the two bodies are equal. Only their form differs, for example the order of members, " +
			"or something outside the body."
		return b
	case slices.ContainsFunc(all, func(p place) bool { return p.path == "body.api_version" }):
		b.Text = "The sender used another version of its API for the later delivery. Such deliveries usually " +
			"describe the same change in another format."
	default:
		b.Text = "The content itself changed. The provider does not promise which delivery is right; a refetch of " +
			"the object shows its present state."
	}
	b.Table = placeTable("Stored event", "Later delivery", all)
	if more {
		b.Notes = []note{{Tone: "info", Text: fmt.Sprintf("The page shows the first %d differences.", maxPlaces)}}
	}
	return b
}

// Limits of a list of differences.
const (
	maxPlaces     = 500
	maxPlaceRunes = 400
)

// place is a place in a document with its two values, in JSON; nil: there is none.
type place struct {
	path          string
	before, after []byte
}

// listPlaces returns the places in which two values differ, and whether there are more.
func listPlaces(root string, before, after *canonical.Value) (all []place, more bool) {
	canonical.VisitDifferences(root, before, after, func(path string, before, after *canonical.Value) bool {
		if more = len(all) == maxPlaces; more {
			return false
		}
		all = append(all, place{path, before.Raw(), after.Raw()})
		return true
	})
	return all, more
}

// placeTable shows differences.
func placeTable(before, after string, all []place) *table {
	t := &table{Columns: []string{"Path", before, after}, Empty: "Nothing differs."}
	for _, p := range all {
		name := shorten(p.path, maxPlaceRunes)
		name.Code = true
		t.Rows = append(t.Rows, []cell{name, placeCell(p.before, "absent"), placeCell(p.after, "absent")})
	}
	return t
}

// placeCell shows a value in JSON, or a word if there is none. A long value is cut.
func placeCell(raw []byte, none string) cell {
	if len(raw) == 0 {
		return cell{Text: none, Badge: true}
	}
	shown := raw
	if len(shown) > maxPlaceRunes*utf8.UTFMax {
		shown = shown[:maxPlaceRunes*utf8.UTFMax]
	}
	c := shorten(string(shown), maxPlaceRunes)
	if c.Title = ""; len(shown) < len(raw) || c.Text != visible(string(raw)) {
		c.Sub = groupDigits(int64(len(raw))) + " bytes"
	}
	c.Code = true
	return c
}
