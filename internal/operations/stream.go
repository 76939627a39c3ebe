package operations

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/adminauth"
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

// Republish requests a pass of the republisher now.
func Republish(ctx context.Context, pool *pgxpool.Pool, p ReasonParams, by Requester) (*processor.RepublishView,
	error) {
	reason := strings.TrimSpace(p.Reason)
	return change(ctx, pool, by, "stream republish", reason,
		func(ctx context.Context, tx pgx.Tx, e *adminauth.AuditEntry) (*processor.RepublishView, error) {
			pass, err := processor.RequestRepublish(ctx, tx, by.String(), reason)
			if err != nil {
				return nil, err
			}
			e.Target = "pass " + strconv.FormatInt(pass, 10)
			return processor.ShowRepublish(ctx, tx, pass)
		})
}

// AnnounceParams select objects of the mirror to announce: all, or those of one source and type.
type AnnounceParams struct {
	Source string `json:"source,omitzero"`
	Type   string `json:"type,omitzero"`
	Reason string `json:"reason,omitzero"`
}

// announceTimeout is enough for some ten million objects. A request over HTTP ends before; repeated
// with its idempotency key, it returns the stored result.
const announceTimeout = 5 * time.Minute

// Announced says what will be published again.
type Announced struct {
	// Objects is the number of objects that the running processors publish again.
	Objects int `json:"objects"`
}

// Announce makes the running processors publish objects of the mirror to the feed of changes again:
// all that are selected, or none after an error. Errors: events.ErrNotFound for an unknown source,
// events.ErrInvalid.
func Announce(ctx context.Context, pool *pgxpool.Pool, p AnnounceParams, by Requester) (*Announced, error) {
	if err := CheckStorable("type", p.Type); err != nil {
		return nil, err
	}
	var source int32
	if p.Source != "" {
		var err error
		if source, err = existingSource(ctx, pool, p.Source); err != nil {
			return nil, err
		}
	}
	return changeWithin(ctx, announceTimeout, pool, by, "objects announce", strings.TrimSpace(p.Reason),
		func(ctx context.Context, tx pgx.Tx, e *adminauth.AuditEntry) (*Announced, error) {
			n, err := processor.Announce(ctx, tx, source, p.Type)
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, invalid("the mirror has too many of these objects to announce them in %s: select a source "+
					"and a type", announceTimeout)
			}
			if err != nil {
				return nil, err
			}
			e.Target = encode(map[string]string{"source": p.Source, "type": p.Type})
			return &Announced{Objects: n}, nil
		})
}
