package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
)

const (
	heartbeatInterval = 15 * time.Second
	// recheckInterval is how often the token of a watcher is checked again.
	recheckInterval = 5 * time.Second
	streamTimeout   = 10 * time.Second
	// maxTailAge is how far back a watcher may continue.
	maxTailAge = 24 * time.Hour
)

// tail streams new events until the client or the process ends, or the token is revoked. Each
// message has the event's id, with which a client continues (Last-Event-ID).
func (h *handler) tail(c echo.Context) error {
	var p operations.TailParams
	if err := decode(c, &p); err != nil {
		return err
	}
	if last := c.Request().Header.Get("Last-Event-ID"); last != "" {
		id, ok := events.ParseID(last)
		if !ok {
			return fmt.Errorf("%w: Last-Event-ID %q is not an event id of Postern", events.ErrInvalid, last)
		}
		p.After = id
	}
	if p.After != 0 && time.Since(events.Time(p.After)) > maxTailAge {
		return fmt.Errorf("%w: event %d is older than %s: read GET /api/v1/events, and follow without after",
			events.ErrInvalid, p.After, maxTailAge)
	}
	if h.Follower == nil {
		return operations.ErrFollowerClosed
	}
	batches, err := h.Follower.Subscribe(c.Request().Context(), p)
	if err != nil {
		return err
	}
	s := &eventStream{c: c, control: http.NewResponseController(c.Response())}
	if err := s.control.SetReadDeadline(time.Time{}); err != nil { // else the server ends the request at it
		return err
	}
	c.Response().Header().Set(echo.HeaderContentType, eventStreamType)
	c.Response().Header().Set(echo.HeaderCacheControl, "no-store")
	s.write("retry: 2000\n: following\n\n")
	heartbeat, recheck := time.NewTicker(heartbeatInterval), time.NewTicker(recheckInterval)
	defer heartbeat.Stop()
	defer recheck.Stop()
	for s.err == nil {
		select {
		case batch, ok := <-batches:
			if !ok {
				return nil
			}
			s.writeBatch(batch)
		case <-heartbeat.C:
			s.write(": heartbeat\n\n")
		case <-recheck.C:
			if _, s.err = h.caller(c.Request()); s.err != nil {
				h.DeniedRequests.add(s.err)
			}
		}
	}
	return nil // the response is written already, and the client has gone or its token
}

const eventStreamType = "text/event-stream"

// eventStream writes Server-Sent Events. After an error it writes nothing.
type eventStream struct {
	c       echo.Context
	control *http.ResponseController
	err     error
}

// write writes a part of the stream, each within a time limit of its own.
func (s *eventStream) write(text string) {
	if s.err == nil {
		s.err = s.control.SetWriteDeadline(time.Now().Add(streamTimeout))
	}
	if s.err == nil {
		_, s.err = s.c.Response().Write([]byte(text))
	}
	if s.err == nil {
		s.err = s.control.Flush()
	}
}

// moreEvents is the message with which a batch ends that has more events than are shown.
type moreEvents struct {
	Count int `json:"count"`
}

func (s *eventStream) writeBatch(batch operations.TailBatch) {
	var b strings.Builder
	for i := range batch.Items {
		s.message(&b, "", batch.Items[i].ID, batch.Items[i])
	}
	if batch.More > 0 {
		s.message(&b, "event: more\n", batch.Last, moreEvents{batch.More})
	}
	s.write(b.String())
}

func (s *eventStream) message(b *strings.Builder, kind string, id int64, data any) {
	text, err := json.Marshal(data) // without line breaks
	if err != nil {
		s.err = err
		return
	}
	fmt.Fprintf(b, "%sid: %d\ndata: %s\n\n", kind, id, text)
}
