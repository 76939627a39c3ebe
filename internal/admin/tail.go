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
	return FollowEvents(c.Response(), batches, writeBatch, func() error { return h.recheck(c) })
}

const eventStreamType = "text/event-stream"

// FollowEvents writes batches as Server-Sent Events, until they end, the client disconnects, or
// recheck, which is called every five seconds, returns an error. encode returns the messages of a
// batch. An error of FollowEvents itself means that nothing is written yet.
func FollowEvents[T any](w http.ResponseWriter, batches <-chan T, encode func(T) (string, error),
	recheck func() error) error {
	s := &eventStream{w: w, control: http.NewResponseController(w)}
	if err := s.control.SetReadDeadline(time.Time{}); err != nil { // else the server ends the request at it
		return err
	}
	w.Header().Set("Content-Type", eventStreamType)
	w.Header().Set("Cache-Control", "no-store")
	s.write("retry: 2000\n: following\n\n")
	heartbeat, check := time.NewTicker(heartbeatInterval), time.NewTicker(recheckInterval)
	defer heartbeat.Stop()
	defer check.Stop()
	for s.err == nil {
		select {
		case batch, ok := <-batches:
			if !ok {
				return nil
			}
			var text string
			if text, s.err = encode(batch); s.err == nil {
				s.write(text)
			}
		case <-heartbeat.C:
			s.write(": heartbeat\n\n")
		case <-check.C:
			s.err = recheck()
		}
	}
	return nil // the response is written already
}

// eventStream writes Server-Sent Events. After an error it writes nothing.
type eventStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	err     error
}

// write writes a part of the stream, each within a time limit of its own.
func (s *eventStream) write(text string) {
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

// moreEvents is the message with which a batch ends that has more events than are shown.
type moreEvents struct {
	Count int `json:"count"`
}

// writeBatch returns the messages of a batch. Each has its event's id.
func writeBatch(batch operations.TailBatch) (string, error) {
	var b strings.Builder
	message := func(kind string, id int64, data any) error {
		text, err := json.Marshal(data) // without line breaks
		fmt.Fprintf(&b, "%sid: %d\ndata: %s\n\n", kind, id, text)
		return err
	}
	for i := range batch.Items {
		if err := message("", batch.Items[i].ID, batch.Items[i]); err != nil {
			return "", err
		}
	}
	if batch.More > 0 {
		if err := message("event: more\n", batch.Last, moreEvents{batch.More}); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}
