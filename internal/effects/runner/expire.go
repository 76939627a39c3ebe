package runner

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
)

// datedSQL says until when effects can be approved that were planned before their rules said so.
const datedSQL = `
UPDATE effects e SET expires_at = e.planned_at + o.age * interval '1 microsecond'
FROM (
  SELECT w.effect, d.age FROM unnest($1::text[], $2::bigint[]) AS d(rule, age) CROSS JOIN LATERAL (
    SELECT effect FROM effects WHERE rule = d.rule AND state = 'waiting' AND expires_at IS NULL ORDER BY planned_at LIMIT 1000 FOR UPDATE SKIP LOCKED) w
) o WHERE e.effect = o.effect AND e.state = 'waiting'`

// expireSQL ends effects that nobody has approved in time. One that a person is rejecting is passed over.
const expireSQL = `
UPDATE effects e SET state = 'expired', reason = 'nobody approved it until ' || to_char(e.expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), updated_at = clock_now()
FROM (SELECT effect FROM effects WHERE state = 'waiting' AND expires_at IS NOT NULL AND expires_at <= clock_now() ORDER BY expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED) o
WHERE e.effect = o.effect AND e.state = 'waiting'`

// expire ends effects that nobody has approved in time. Until then nobody can approve them either.
func (r *Runner) expire(ctx context.Context) error {
	r.mu.Lock()
	rules := r.rules
	r.mu.Unlock()
	var names []string
	var ages []int64
	for name, after := range rules.Expiring() {
		names, ages = append(names, name), append(ages, after.Microseconds())
	}
	return postgres.InTx(ctx, r.Pool, "expire effects", r.Settings.Within, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, datedSQL, names, ages); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, expireSQL)
		if n := tag.RowsAffected(); err == nil && n > 0 {
			r.Logger.Warn("effects expired that nobody approved in time (postern effects list --state expired)", "effects", n)
		}
		return err
	})
}
