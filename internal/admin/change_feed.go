package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/changes"
	"github.com/postern-gateway/postern/internal/operations"
)

// changes returns a page of changes, or streams them to a client that accepts Server-Sent Events.
// Each message has a cursor, with which a client continues (Last-Event-ID).
func (h *handler) changes(c echo.Context) error {
	var p operations.ChangeParams
	if err := decode(c, &p); err != nil {
		return err
	}
	if acceptsStream(c.Request()) {
		if last := c.Request().Header.Get("Last-Event-ID"); last != "" {
			p.After, p.FeedCursor = last, ""
		}
		pages, err := operations.FollowChanges(c.Request().Context(), h.Changes, h.endpoints, p)
		if err != nil {
			return err
		}
		return FollowEvents(c.Response(), pages, writeChanges, func() error { return h.recheck(c) })
	}
	// The request may take longer than the time limits of the server.
	control := http.NewResponseController(c.Response())
	_ = control.SetReadDeadline(time.Time{})
	_ = control.SetWriteDeadline(time.Time{})
	ctx, cancel := context.WithCancelCause(c.Request().Context())
	defer cancel(nil)
	ended := make(chan struct{})
	defer close(ended)
	if p.Wait != "" {
		go func() {
			check := time.NewTicker(recheckInterval)
			defer check.Stop()
			for {
				select {
				case <-check.C:
					if err := h.recheck(c); err != nil {
						cancel(err)
						return
					}
				case <-ended:
					return
				}
			}
		}()
	}
	page, err := operations.Changes(ctx, h.Changes, h.endpoints, p)
	if cause := context.Cause(ctx); cause != nil && ctx.Err() != nil {
		return cause
	}
	if err != nil {
		return err
	}
	body, err := encodeJSON(page)
	if err != nil {
		return err
	}
	_ = control.SetWriteDeadline(time.Now().Add(queryTimeout))
	return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, body)
}

// recheck returns an error if the token of a caller is no longer valid.
func (h *handler) recheck(c echo.Context) error {
	_, err := h.caller(c.Request())
	if err != nil {
		h.DeniedRequests.Add(err)
	}
	return err
}

func acceptsStream(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		if kind, _, err := mime.ParseMediaType(part); err == nil && kind == eventStreamType {
			return true
		}
	}
	return false
}

// writeChanges returns the messages of a page. The last id also moves past changes that were not
// selected: a message without data only sets the cursor of the client.
func writeChanges(page changes.Page) (string, error) {
	var b strings.Builder
	for i := range page.Items {
		text, err := json.Marshal(&page.Items[i]) // without line breaks
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "id: %s\ndata: %s\n\n", page.CursorOf(i), text)
	}
	if len(page.Items) == 0 {
		fmt.Fprintf(&b, "id: %s\n\n", page.Next)
	}
	return b.String(), nil
}
