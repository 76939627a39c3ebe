package runner

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
)

// setExpirySQL sets the expiry of effects that were planned before their rule had one.
const setExpirySQL = `
UPDATE effects e SET expires_at = e.planned_at + o.age * interval '1 microsecond'
FROM (
  SELECT w.effect, d.age FROM unnest($1::text[], $2::bigint[]) AS d(rule, age) CROSS JOIN LATERAL (
    SELECT effect FROM effects WHERE rule = d.rule AND state = 'awaiting_approval' AND expires_at IS NULL
    	ORDER BY planned_at
    	LIMIT 1000 FOR UPDATE SKIP LOCKED) w
) o WHERE e.effect = o.effect AND e.state = 'awaiting_approval'`

// expireSQL ends effects that were not approved in time. It skips an effect that an operator is
// rejecting.
const expireSQL = `
UPDATE effects e SET state = 'expired', reason = 'not approved until ' || to_char(e.expires_at AT TIME ZONE 'UTC',
	'YYYY-MM-DD"T"HH24:MI:SS"Z"'), updated_at = clock_now()
FROM (SELECT effect FROM effects WHERE state = 'awaiting_approval' AND expires_at IS NOT NULL
	AND expires_at <= clock_now()
	ORDER BY expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED) o
WHERE e.effect = o.effect AND e.state = 'awaiting_approval'`

// expire ends effects that were not approved in time. Approve already rejects them before that.
func (r *Runner) expire(ctx context.Context) error {
	r.mu.Lock()
	rules := r.rules
	r.mu.Unlock()
	var names []string
	var ages []int64
	for name, after := range rules.ApprovalExpirations() {
		names, ages = append(names, name), append(ages, after.Microseconds())
	}
	return postgres.InTx(ctx, r.Pool, "expire effects", r.Settings.TxTimeout,
		func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, setExpirySQL, names, ages); err != nil {
				return err
			}
			tag, err := tx.Exec(ctx, expireSQL)
			if n := tag.RowsAffected(); err == nil && n > 0 {
				r.Logger.Warn("effects expired because they were not approved in time (postern effects "+
					"list --state expired)", "effects", n)
			}
			return err
		})
}
