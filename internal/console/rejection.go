package console

import (
	"context"

	"github.com/postern-gateway/postern/internal/ingest"
)

// rejectionPage shows one rejected delivery.
func rejectionPage(ctx context.Context, r *request) (*view, error) {
	n, err := r.pathNumber("rejection")
	if err != nil {
		return nil, err
	}
	x, err := ingest.ShowRejection(ctx, r.c.Pages, n)
	if err != nil {
		return nil, err
	}
	if r.URL.Query().Has("download") {
		return nil, &download{name: "rejection-" + id(x.ID), body: x.Body}
	}
	v := &view{Kind: "Rejection " + id(x.ID), Title: sentenceCase(visible(label(x.Reason))),
		Text: sentenceCase(visible(x.Explanation)) + ".",
		Notes: []note{{Tone: "warning", Text: "This delivery is not verified: anyone can have written it. Nothing of " +
			"it " +
			"is in the log."}}}
	fields := []field{{"Source", []cell{link(x.Source, path("sources", x.Source))}},
		{"Received", []cell{r.at(x.ReceivedAt)}}, {"Sent from", []cell{code(x.Remote)}},
		{"Detail", []cell{text(x.Detail)}}}
	size := text(groupDigits(x.Bytes))
	if x.Truncated {
		size.Sub = "only a part is stored, so it cannot be verified again"
	}
	v.Blocks = []block{{ID: "rejection", Fields: append(fields, field{"Bytes", []cell{size}})}}
	if headers := headerFields(x.Headers); len(headers) > 0 {
		v.Blocks = append(v.Blocks, block{ID: "headers", Heading: "Stored headers", Fields: headers})
	}
	v.Blocks = append(v.Blocks, block{ID: "body", Heading: "Body", Document: newDocument(x.Body,
		r.URL.Path+"?download")})
	return v, nil
}
