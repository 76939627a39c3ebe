package admin

import (
	"context"
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
)

// Announce has the running processors send the mirror's objects to the feed of changes again: all, or those of one source
// and type; "" for either means any. It returns how many those are. Errors: events.ErrNotFound for an unknown source,
// events.ErrInvalid.
func Announce(ctx context.Context, pool *pgxpool.Pool, source, objectType string, by By) (objects int, err error) {
	if err := storable("type", objectType); err != nil {
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
			return 0, fmt.Errorf("source %s: %w: known are %s", source, events.ErrNotFound, sourceNames(known))
		}
	}
	if err := Note(ctx, pool, by, "objects announce", url.Values{"source": {source}, "type": {objectType}}.Encode()); err != nil {
		return 0, err
	}
	return processor.Announce(ctx, pool, number, objectType)
}
