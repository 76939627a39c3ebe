package admin

import (
	"context"
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
)

// Announce makes the running processors publish the mirror's objects to the feed of changes again:
// all, or those of one source and type; "" means any. It returns the number of objects. Errors:
// events.ErrNotFound for an unknown source, events.ErrInvalid.
func Announce(ctx context.Context, pool *pgxpool.Pool, source, objectType string, by Requester) (objects int,
	err error) {
	if err := checkStorable("type", objectType); err != nil {
		return 0, err
	}
	var number int32
	if source != "" {
		known, err := sources(ctx, pool)
		if err != nil {
			return 0, err
		}
		var ok bool
		if number, ok = known.Number[source]; !ok {
			return 0, fmt.Errorf("source %s: %w: the known sources are %s", source, events.ErrNotFound,
				sourceNames(known))
		}
	}
	if err := RecordAction(ctx, pool, by, "objects announce",
		url.Values{"source": {source}, "type": {objectType}}.Encode()); err != nil {
		return 0, err
	}
	return processor.Announce(ctx, pool, number, objectType)
}
