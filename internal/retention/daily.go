package retention

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// dailySQL: however many processes ask, the index on open runs lets one in.
const dailySQL = `
INSERT INTO runs (job, asked, who, reason, status, detail, counts, made_at, updated_at)
SELECT 'retention', $1::jsonb, 'postern', 'once a day', 'waiting', '', '{}', clock_now(), clock_now()
WHERE NOT EXISTS (SELECT FROM runs r WHERE r.job = 'retention' AND r.who = 'postern' AND r.made_at > clock_now() - interval '1 day')
ON CONFLICT DO NOTHING`

// Daily asks for retention once a day, as long as ctx lasts; any processor carries it out. It looks so often whether a day has passed. Where the
// policy keeps everything there is nothing to do.
func Daily(ctx context.Context, pool *pgxpool.Pool, o Order, every time.Duration, log *slog.Logger) error {
	if o.Empty() {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := ask(ctx, pool, o); err != nil && ctx.Err() == nil {
			log.Warn("retention not asked for; tried again", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func ask(ctx context.Context, pool *pgxpool.Pool, o Order) error {
	asked, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, dailySQL, asked); err != nil {
		return fmt.Errorf("ask for retention: %w", err)
	}
	return nil
}
