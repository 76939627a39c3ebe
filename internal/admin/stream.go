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

	"github.com/postern-gateway/postern/internal/audit"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
)

// StreamView is how far the streams are behind the log.
type StreamView struct {
	*processor.Due
	// NotInStream is about how many events without an outcome are in no stream, by two looks at different moments: the auditor publishes them again, unless a gateway does just now.
	NotInStream int64 `json:"not_in_stream"`
	// Streams are those of Postern; none where NATS does not answer.
	Streams []stream.Status `json:"streams"`
	// Trouble is why NATS does not answer; "": it does.
	Trouble string `json:"trouble,omitzero"`
}

// streamWithin bounds the questions to NATS.
const streamWithin = 5 * time.Second

// Stream says how much is left to publish and to apply. Where NATS does not answer, it says what the log knows. conn is nil where it is not known how to reach NATS.
func Stream(ctx context.Context, pool *pgxpool.Pool, conn *stream.Conn) (*StreamView, error) {
	v := &StreamView{Streams: []stream.Status{}, Trouble: "nats.url is not known here"}
	if conn != nil {
		v.Trouble = ""
		ask, cancel := context.WithTimeoutCause(ctx, streamWithin, fmt.Errorf("no answer within %s", streamWithin))
		defer cancel()
		all, err := conn.Status(ask)
		if err != nil {
			v.Trouble = err.Error()
		} else {
			v.Streams = all
		}
	}
	var err error
	if v.Due, err = processor.ReadDue(ctx, pool); err != nil {
		return nil, err
	}
	if v.Trouble == "" {
		v.NotInStream = max(0, v.Unapplied.Count-waitInStream(v.Streams))
	}
	return v, nil
}

// waitInStream is how many messages the processors have not acknowledged.
func waitInStream(all []stream.Status) (n int64) {
	for i := range all {
		for _, c := range all[i].Consumers {
			if all[i].Name == stream.EventsStream && c.Name == stream.ProcessorConsumer {
				n += int64(c.Pending) + int64(c.Unacknowledged)
			}
		}
	}
	return n
}

// HealParams are those of a pass of the auditor.
var HealParams = []Param{{"reason", "why; kept with the pass"}}

// Heal has the auditor make a pass now. Errors: events.ErrInvalid.
func Heal(ctx context.Context, pool *pgxpool.Pool, values url.Values, by By) (*processor.HealView, error) {
	q := newQuery(ctx, pool, values, HealParams)
	if q.err != nil {
		return nil, q.err
	}
	by.Reason = strings.TrimSpace(q.text("reason"))
	return change(ctx, pool, by, "stream heal", func(ctx context.Context, tx pgx.Tx, e *audit.Entry) (*processor.HealView, error) {
		heal, err := processor.Heal(ctx, tx, by.String(), by.Reason)
		if err != nil {
			return nil, err
		}
		e.Target = "pass " + strconv.FormatInt(heal, 10)
		return processor.ShowHeal(ctx, tx, heal)
	})
}

// streamRoutes serve the streams: POST /stream/heals takes {"reason": "..."}.
func (h *handler) streamRoutes(api *echo.Group) {
	api.GET("/stream", h.show(func(ctx context.Context, _ echo.Context, _ url.Values) (any, error) {
		return Stream(ctx, h.Pool, h.Stream)
	}))
	api.POST("/stream/heals", h.show(func(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
		values, err := asked(c.Request().Body)
		if err != nil {
			return nil, err
		}
		return Heal(ctx, h.Pool, values, by(c))
	}), fromOurselves, h.once)
	api.GET("/stream/heals/:heal", h.show(func(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
		heal, err := strconv.ParseInt(c.Param("heal"), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("heal %q: %w", param(c, "heal"), events.ErrNotFound)
		}
		return processor.ShowHeal(ctx, h.Pool, heal)
	}))
}
