package events

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
)

// DeliveryMember is another event of the delivery that brought an event.
type DeliveryMember struct {
	ID        int64  `json:"id,string"`
	EventID   string `json:"event_id"`
	EventType string `json:"event_type"`
	// DeliveryIndex is the position in the delivery, from 0.
	DeliveryIndex int `json:"delivery_index"`
}

// maxDeliveryMembers limits the events of a delivery that are shown with one of them.
const maxDeliveryMembers = 100

// deliveryMembersSQL finds events of the same delivery. One statement stores a delivery, so their
// ids have the same millisecond. $2 and $3 bound the ids of that millisecond.
const deliveryMembersSQL = `
SELECT e.id, e.event_id, e.event_type, e.delivery_index FROM (SELECT id, event_id, event_type, delivery_index,
	delivery_id FROM events WHERE id >= $2 AND id < $3 ORDER BY id LIMIT 10000) e
WHERE e.delivery_id = $4 AND e.id <> $1 ORDER BY e.delivery_index LIMIT $5`

// decidedBySQL finds, for the outcomes of an event that a stored version decided, the event that
// made that version: the newest event of the object with it. Of several an applied one counts most.
// An unchanged one makes a version too, when only the version was new, and so does an ambiguous
// one. For each outcome it reads at most 1,000 outcomes of the object, back from the decision.
const decidedBySQL = `
SELECT c.run, (
  SELECT w.event_id FROM (
    SELECT w.* FROM outcomes w WHERE w.object = c.object AND w.object <> 0
      AND w.event_id < ((extract(epoch FROM c.at) * 1000)::bigint + 1000) << 20 ORDER BY w.event_id DESC LIMIT 1000
  ) w
  WHERE w.event_id <> c.event_id AND w.version = c.decided_by AND w.status IN ('applied', 'unchanged', 'ambiguous')
    AND (w.source, w.account, w.object_type, w.object_id) = (c.source, c.account, c.object_type, c.object_id)
  ORDER BY array_position(ARRAY['applied', 'unchanged', 'ambiguous'], w.status), w.event_id DESC LIMIT 1
)
FROM outcomes c WHERE c.event_id = $1 AND c.object <> 0 AND c.status <> 'applied' AND c.decided_by IS NOT NULL
ORDER BY c.run LIMIT 10`

// neighborsSQL finds the event of the object before and after an event, in the order of the log.
const neighborsSQL = `
SELECT coalesce((SELECT max(p.event_id) FROM outcomes p WHERE p.object = c.object AND p.object <> 0
    AND p.event_id < c.event_id), 0),
  coalesce((SELECT min(n.event_id) FROM outcomes n WHERE n.object = c.object AND n.object <> 0
    AND n.event_id > c.event_id), 0)
FROM outcomes c WHERE c.event_id = $1 AND c.object <> 0 ORDER BY c.run LIMIT 1`

// loadDecidedBy sets DecidedByEvent of the outcomes, and the neighbors of the event.
func (d *EventDetail) loadDecidedBy(ctx context.Context, pool *pgxpool.Pool) error {
	by := map[int64]int64{} // run → event
	var run int64
	var event *int64
	err := postgres.ForEach(ctx, pool, decidedBySQL, []any{d.ID}, []any{&run, &event}, func() error {
		if event != nil {
			by[run] = *event
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("find the events that decided event %d: %w", d.ID, err)
	}
	for i := range d.Outcomes {
		d.Outcomes[i].DecidedByEvent = by[d.Outcomes[i].Run]
	}
	err = pool.QueryRow(ctx, neighborsSQL, d.ID).Scan(&d.PreviousEvent, &d.NextEvent)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("find the events before and after event %d: %w", d.ID, err)
	}
	return nil
}

// loadDelivery reads the other events of the event's delivery.
func (d *EventDetail) loadDelivery(ctx context.Context, pool *pgxpool.Pool) (err error) {
	at := Time(d.ID)
	d.Delivery, err = postgres.Collect(ctx, pool, pgx.RowToStructByPos[DeliveryMember], deliveryMembersSQL, d.ID,
		FirstID(at), FirstID(at)+1<<20, d.DeliveryID, maxDeliveryMembers)
	if err != nil {
		return fmt.Errorf("list the delivery of event %d: %w", d.ID, err)
	}
	return nil
}
