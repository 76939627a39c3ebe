package replay

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
)

// ErrTooMany means that the filter selects more events than the limit.
var ErrTooMany = errors.New("too many events for a dry run")

// DryRun decides the selected events, up to the newest one that is stored now, and writes nothing.
// It calls onProgress now and then with the counts so far, by outcome and as Processed. It does not
// freeze the log, so events that are being appended may be missing. If maxEvents is above 0, it
// returns ErrTooMany for more events.
func DryRun(ctx context.Context, pool *pgxpool.Pool, t *apply.DryRun, o *Params, maxEvents int64,
	onProgress func(map[string]int64)) (map[string]int64, error) {
	bound, err := events.NewestID(ctx, pool)
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
			if maxEvents > 0 && counts[Processed]+int64(n) > maxEvents {
				return nil, fmt.Errorf("%w: at most %d", ErrTooMany, maxEvents)
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
			onProgress(counts)
		}
	}
	return counts, nil
}
