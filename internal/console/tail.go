package console

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
)

const (
	// heartbeatInterval is the time between two heartbeats of the stream.
	heartbeatInterval = 15 * time.Second
	// recheckInterval is how often the session of the watching operator is checked again.
	recheckInterval = 5 * time.Second
	streamTimeout   = 10 * time.Second
	// maxTailAge is how far back a stream begins after a browser was away.
	maxTailAge = time.Hour
)

// offerLive adds a link to a list with which it follows new events, or connects it to the stream.
func (r *request) offerLive(t *table, texts map[string]string, live bool, newest int64) {
	params := maps.Clone(texts)
	for _, name := range []string{"cursor", "limit", "until", "mentions"} {
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
	s := &rowStream{w: w, control: http.NewResponseController(w)}
	if err := s.control.SetReadDeadline(time.Time{}); err != nil { // else the server ends the request at it
		c.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	s.write("retry: 2000\n: following\n\n")
	heartbeat, recheck := time.NewTicker(heartbeatInterval), time.NewTicker(recheckInterval)
	defer heartbeat.Stop()
	defer recheck.Stop()
	for s.err == nil {
		select {
		case batch, ok := <-batches:
			if !ok {
				return
			}
			s.write(c.rows(r, batch))
		case <-heartbeat.C:
			s.write(": heartbeat\n\n")
		case <-recheck.C:
			_, s.err = c.operatorOf(hr, false)
		}
	}
}

func readTailParams(r *request, p *operations.TailParams) error {
	texts, err := queryTexts(r.URL)
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

// rowStream writes Server-Sent Events. After an error it writes nothing.
type rowStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	err     error
}

// write writes a part of the stream, each within a time limit of its own.
func (s *rowStream) write(text string) {
	if s.err == nil {
		s.err = s.control.SetWriteDeadline(time.Now().Add(streamTimeout))
	}
	if s.err == nil {
		_, s.err = s.w.Write([]byte(text))
	}
	if s.err == nil {
		s.err = s.control.Flush()
	}
}
