package console

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
)

// maxTailAge is how far back a stream begins after a browser was away.
const maxTailAge = time.Hour

// offerLive adds a link to a list with which it follows new events, or connects it to the stream.
func (r *request) offerLive(t *table, texts map[string]string, live bool, newest int64) {
	params := maps.Clone(texts)
	for _, name := range []string{"cursor", "limit", "until", "mentions", "body"} {
		delete(params, name)
	}
	if live {
		t.LiveLink = link("Stop following", r.URL.Path+"?"+encode(params))
		delete(params, "since") // the page has these events
		if newest != 0 {
			params["after"] = id(newest)
		}
		t.Live, t.Nonce = Prefix+"events/tail?"+encode(params), r.nonce
	} else {
		params[liveMark] = "1"
		t.LiveLink = link("Follow new events", r.URL.Path+"?"+encode(params))
	}
	t.LiveLink.Key = "l"
}

// tail streams new events as rows of the list, until the browser or the process ends, or the
// session does. Each message has the event's id, with which a browser continues.
func (c *Console) tail(w http.ResponseWriter, hr *http.Request) {
	r, err := c.newRequest(w, hr)
	var p operations.TailParams
	if err == nil {
		err = readTailParams(r, &p)
	}
	var batches <-chan operations.TailBatch
	if err == nil && c.Follower == nil {
		err = operations.ErrFollowerClosed
	}
	if err == nil {
		batches, err = c.Follower.Subscribe(hr.Context(), p)
	}
	if err != nil {
		c.fail(w, r, err)
		return
	}
	if err := admin.FollowEvents(w, batches, func(batch operations.TailBatch) (string, error) {
		return c.rows(r, batch), nil
	}, func() error {
		_, err := c.operatorOf(hr, false)
		return err
	}); err != nil {
		c.fail(w, r, err)
	}
}

func readTailParams(r *request, p *operations.TailParams) error {
	texts, err := r.queryTexts()
	if err != nil {
		return err
	}
	if err := operations.Parse(p, texts); err != nil {
		return err
	}
	if last, ok := events.ParseID(r.Header.Get("Last-Event-ID")); ok {
		p.After = last
	}
	if p.After != 0 && time.Since(events.Time(p.After)) > maxTailAge {
		p.After = 0 // the page shows the events before
	}
	return nil
}

// rows renders new events, each as a message with one row.
func (c *Console) rows(r *request, batch operations.TailBatch) string {
	r.now = c.Now()
	var b bytes.Buffer
	for i := range batch.Items {
		e := &batch.Items[i]
		var row bytes.Buffer
		if err := c.templates.ExecuteTemplate(&row, "row", eventRow(r, e)); err != nil {
			c.Logger.Error("row of an event not rendered", "event", e.ID, "error", err)
			continue
		}
		line := bytes.ReplaceAll(row.Bytes(), []byte("\n"), []byte(" "))
		fmt.Fprintf(&b, "id: %d\ndata: %s\n\n", e.ID, bytes.ReplaceAll(line, []byte("\r"), []byte(" ")))
	}
	if batch.More > 0 {
		fmt.Fprintf(&b, "id: %d\ndata: <tr><td colspan=\"8\">+%d more events</td></tr>\n\n", batch.Last, batch.More)
	}
	return b.String()
}
