package replay

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
)

// ErrTooMany: the filter chooses more events than somebody wants to wait for.
var ErrTooMany = errors.New("more events than can be decided here")

// Try has a trial decide what an order chooses, up to the newest event that is stored now, and writes nothing. told is called now and then with the
// counts so far, by outcome and as Processed. The log is not frozen for it: what is being appended meanwhile may be left out. With most above 0 it
// ends with ErrTooMany at more events.
func Try(ctx context.Context, pool *pgxpool.Pool, t *processor.Trial, o *Order, most int64, told func(map[string]int64)) (map[string]int64, error) {
	bound, err := events.Newest(ctx, pool)
	if err != nil {
		return nil, err
	}
	counts := map[string]int64{Processed: 0}
	for cursor := int64(0); cursor < bound; {
		ids, end, err := events.Match(ctx, pool, &o.Filter, cursor, bound)
		if err != nil {
			return nil, err
		}
		for cursor = end; len(ids) > 0; {
			n := min(len(ids), DefaultChunk)
			if most > 0 && counts[Processed]+int64(n) > most {
				return nil, fmt.Errorf("%w: at most %d", ErrTooMany, most)
			}
			decided, err := t.Decide(ctx, ids[:n])
			if err != nil {
				return nil, err
			}
			for status, n := range decided {
				counts[string(status)] += n
				counts[Processed] += n
			}
			ids = ids[n:]
			told(counts)
		}
	}
	return counts, nil
}
