package console

import (
	"context"
	"fmt"
	"strings"
	"unicode"

	"github.com/postern-gateway/postern/internal/operations"
)

// findPage leads to the only thing with an id, or lists all that have it.
func findPage(ctx context.Context, r *request) (*view, error) {
	q := strings.TrimSpace(r.URL.Query().Get("q"))
	v := &view{Title: "Find", Text: "Enter an id of Postern or of the provider, or the name of a source or schedule. " +
		"A number may follow the kind of thing: run 3."}
	if q == "" {
		return v, nil
	}
	found, err := operations.Find(ctx, r.c.Pages, operations.FindParams{Q: q})
	if err != nil {
		return nil, err
	}
	if len(found.Items) == 1 {
		return nil, &redirectError{foundPath(&found.Items[0])}
	}
	if bare := strings.TrimFunc(q, isQuotation); len(found.Items) == 0 && bare != q && bare != "" {
		return nil, &redirectError{query(path("find"), "q", bare)}
	}
	v.Title = fmt.Sprintf("Found: %d", len(found.Items))
	t := &table{Columns: []string{"Kind", "Id", "Source", "Description", "Time"}, Empty: "Nothing has the id " +
		visible(q) + ". A rejected delivery is not an event: search in the rejections of its source. If " +
		"retention dropped an event, search for Postern's own id.", Command: commandLine("find "+quote(q), nil),
		Curl: curlLine(r, "/api/v1/find", map[string]string{"q": q})}
	for i := range found.Items {
		f := &found.Items[i]
		t.Rows = append(t.Rows, []cell{text(f.Kind), codeLink(f.ID, foundPath(f)), text(f.Source), text(f.Title),
			r.at(f.At)})
	}
	v.Blocks = []block{{Table: t}}
	if found.Truncated {
		v.Notes = []note{{Tone: "info", Text: "There may be more than these."}}
	}
	return v, nil
}

// isQuotation reports whether a character surrounds an id that was copied from a log or a chat.
func isQuotation(c rune) bool {
	return strings.ContainsRune("\"'`,;", c) || unicode.IsSpace(c) || isHidden(c)
}

// foundPath is the page of a thing that was found.
func foundPath(f *operations.Found) string {
	if f.Kind == "object" {
		return objectPath(f.Source, f.Account, f.Type, f.ID)
	}
	return path(f.Kind+"s", f.ID)
}
