package admin

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
)

// StreamView is the distance between the log and the streams.
type StreamView struct {
	*processor.PendingWork
	// NotInStream estimates how many events without an outcome are in no stream. Log and streams
	// are read at different moments. The republisher publishes these events again, unless a gateway
	// is publishing them at this moment.
	NotInStream int64 `json:"not_in_stream"`
	// Streams are Postern's streams; none while NATS does not respond.
	Streams []stream.Status `json:"streams"`
	// Failure is the reason why NATS does not respond; "": it responds.
	Failure string `json:"failure,omitzero"`
}

// streamTimeout limits the requests to NATS.
const streamTimeout = 5 * time.Second

// Stream returns how many events wait to be published and to be applied. While NATS does not
// respond, it returns the numbers of the log. conn is nil where the address of NATS is not
// configured.
func Stream(ctx context.Context, pool *pgxpool.Pool, conn *stream.Conn) (*StreamView, error) {
	v := &StreamView{Streams: []stream.Status{}, Failure: "nats.url is not configured here"}
	if conn != nil {
		v.Failure = ""
		natsCtx, cancel := context.WithTimeoutCause(ctx, streamTimeout,
			fmt.Errorf("no response within %s", streamTimeout))
		defer cancel()
		all, err := conn.Status(natsCtx)
		if err != nil {
			v.Failure = err.Error()
		} else {
			v.Streams = all
		}
	}
	var err error
	if v.PendingWork, err = processor.ReadPendingWork(ctx, pool); err != nil {
		return nil, err
	}
	if v.Failure == "" {
		v.NotInStream = max(0, v.Unapplied.Count-pendingInStream(v.Streams))
	}
	return v, nil
}

// pendingInStream returns the number of messages that processors have not acknowledged.
func pendingInStream(all []stream.Status) (n int64) {
	for i := range all {
		for _, c := range all[i].Consumers {
			if all[i].Name == stream.EventsStream && c.Name == stream.ProcessorConsumer {
				n += int64(c.Pending) + int64(c.Unacknowledged)
			}
		}
	}
	return n
}

// RepublishParams are the parameters of Republish.
var RepublishParams = []Param{{"reason", "reason; stored with the pass"}}

// Republish requests a pass of the republisher now. Errors: events.ErrInvalid.
func Republish(ctx context.Context, pool *pgxpool.Pool, values url.Values, by Requester) (*processor.RepublishView,
	error) {
	q := newQuery(ctx, pool, values, RepublishParams)
	if q.err != nil {
		return nil, q.err
	}
	by.Reason = strings.TrimSpace(q.text("reason"))
	return change(ctx, pool, by, "stream republish",
		func(ctx context.Context, tx pgx.Tx, e *adminauth.AuditEntry) (*processor.RepublishView, error) {
			pass, err := processor.RequestRepublish(ctx, tx, by.String(), by.Reason)
			if err != nil {
				return nil, err
			}
			e.Target = "pass " + strconv.FormatInt(pass, 10)
			return processor.ShowRepublish(ctx, tx, pass)
		})
}

// streamRoutes serves the streams: POST /stream/republish-passes takes {"reason": "..."}.
func (h *handler) streamRoutes(api *echo.Group) {
	api.GET("/stream", h.serveJSON(func(ctx context.Context, _ echo.Context, _ url.Values) (any, error) {
		return Stream(ctx, h.Pool, h.Stream)
	}))
	api.POST("/stream/republish-passes", h.serveJSON(func(ctx context.Context, c echo.Context, _ url.Values) (any,
		error) {
		values, err := parseBody(c.Request().Body)
		if err != nil {
			return nil, err
		}
		return Republish(ctx, h.Pool, values, requesterOf(c))
	}), requireJSON, h.withIdempotencyKey)
	api.GET("/stream/republish-passes/:pass", h.serveJSON(func(ctx context.Context, c echo.Context, _ url.Values) (any,
		error) {
		pass, err := strconv.ParseInt(c.Param("pass"), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("pass %q: %w", param(c, "pass"), events.ErrNotFound)
		}
		return processor.ShowRepublish(ctx, h.Pool, pass)
	}))
}
