package retention

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/lifecycle"
)

// dailySQL inserts a run if there was none within a day. If several processes run it, the unique
// index on open runs lets one succeed.
const dailySQL = `
INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at, updated_at)
SELECT 'retention', $1::jsonb, 'postern', 'once a day', 'queued', '', '{}', clock_now(), clock_now()
WHERE NOT EXISTS (SELECT FROM runs r WHERE r.job = 'retention' AND r.actor = 'postern'
	AND r.created_at > clock_now() - interval '1 day')
ON CONFLICT DO NOTHING`

// RequestDaily requests retention once a day until ctx ends; any processor executes it. every is
// the interval of its checks. With a policy that keeps everything it does nothing.
func RequestDaily(ctx context.Context, pool *pgxpool.Pool, o Params, every time.Duration, log *slog.Logger) error {
	if o.Empty() {
		<-ctx.Done()
		return nil
	}
	return lifecycle.Repeat(ctx, every, nil, func(err error) {
		log.Warn("retention not requested; retrying later", "error", err)
	}, func(ctx context.Context) (bool, error) { return false, requestRun(ctx, pool, o) })
}

func requestRun(ctx context.Context, pool *pgxpool.Pool, o Params) error {
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, dailySQL, text); err != nil {
		return fmt.Errorf("request retention: %w", err)
	}
	return nil
}
