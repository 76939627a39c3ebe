package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// askEvery is how often the auditor looks whether somebody wants a pass now.
const askEvery = time.Second

const (
	wantedSQL = `SELECT id FROM auditor_passes WHERE id > 0 AND ended_at IS NULL ORDER BY id`

	wantSQL = `INSERT INTO auditor_passes (wanted_at, wanted_by, reason) VALUES (clock_now(), $1, $2) RETURNING id`

	// passSQL is of the auditor's own passes, row 0, and of those wanted. Who is not the auditor any more records nothing.
	passSQL = `
UPDATE auditor_passes a SET detail = $4::text,
  ended_at = CASE WHEN $4::text = '' THEN clock_now() ELSE a.ended_at END,
  published_at = CASE WHEN $2::bigint + $3::bigint > 0 THEN clock_now() ELSE a.published_at END,
  missing = CASE WHEN a.id > 0 THEN a.missing + $2::bigint WHEN $2::bigint + $3::bigint > 0 THEN $2::bigint ELSE a.missing END,
  due = CASE WHEN a.id > 0 THEN a.due + $3::bigint WHEN $2::bigint + $3::bigint > 0 THEN $3::bigint ELSE a.due END
WHERE (a.id = 0 OR a.id = ANY($1::bigint[]))
  AND EXISTS (SELECT FROM checkpoints c WHERE c.job = $5 AND c.run = 0 AND c.leased_by = $6)`

	renewSQL = `UPDATE checkpoints SET leased_until = clock_now() + $3::interval, updated_at = clock_now() WHERE job = $1 AND run = 0 AND leased_by = $2`

	healSQL = `SELECT id, wanted_at, wanted_by, reason, ended_at, published_at, missing, due, detail FROM auditor_passes WHERE id = $1 AND id > 0`
)

// Heal asks the auditor, in whichever process it is, for a pass now, which need not wait for an event's age: it publishes what has no outcome and does not wait in the stream. It returns the number to ask
// ShowHeal for. Asked for again meanwhile, it is the same pass. As postern_operator.
func Heal(ctx context.Context, db postgres.DB, who, reason string) (heal int64, err error) {
	if err := db.QueryRow(ctx, wantSQL, who, reason).Scan(&heal); err != nil {
		return 0, fmt.Errorf("ask for a pass of the auditor: %w", err)
	}
	return heal, nil
}

// HealView is a pass that somebody has asked for.
type HealView struct {
	Heal     int64          `json:"heal"`
	WantedAt events.Instant `json:"wanted_at"`
	WantedBy string         `json:"wanted_by"`
	Reason   string         `json:"reason"`
	// EndedAt is when the pass was at its end; nil: it is not yet, and Detail says why.
	EndedAt *events.Instant `json:"ended_at"`
	Published
	Detail string `json:"detail,omitzero"`
}

// Published is what the auditor has published again.
type Published struct {
	// PublishedAt is when it last published anything; nil: it has published nothing.
	PublishedAt *events.Instant `json:"published_at"`
	// Missing are events that had no outcome, Due failed ones whose next attempt was due.
	Missing int64 `json:"missing"`
	Due     int64 `json:"due"`
}

// ShowHeal says how far a pass is that somebody has asked for. Errors: events.ErrNotFound.
func ShowHeal(ctx context.Context, db postgres.DB, heal int64) (*HealView, error) {
	v := &HealView{}
	var ended, published *time.Time
	err := db.QueryRow(ctx, healSQL, heal).Scan(&v.Heal, &v.WantedAt.Time, &v.WantedBy, &v.Reason, &ended, &published, &v.Missing, &v.Due, &v.Detail)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("heal %d: %w", heal, events.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("show heal %d: %w", heal, err)
	}
	v.EndedAt, v.PublishedAt = instant(ended), instant(published)
	return v, nil
}

func instant(t *time.Time) *events.Instant {
	if t == nil {
		return nil
	}
	return &events.Instant{Time: *t}
}

// await is true when the next pass is due, or somebody wants one; false when ctx has ended.
func (a *auditor) await(ctx context.Context, tick, ask <-chan time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick:
			return true
		case <-ask:
			if wanted, err := a.wanted(ctx); err == nil && len(wanted) > 0 {
				return true
			}
		}
	}
}

// wanted are the passes that somebody has asked for.
func (a *auditor) wanted(ctx context.Context) ([]int64, error) {
	rows, err := a.p.Pool.Query(ctx, wantedSQL)
	if err != nil {
		return nil, fmt.Errorf("look for passes that are asked for: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("look for passes that are asked for: %w", err)
	}
	return ids, nil
}

// record keeps what a pass has come to. Where the process ends before, what it has published is not counted, and the pass is made again.
func (a *auditor) record(ctx context.Context, wanted []int64, held string, failed error) error {
	if failed != nil {
		held = failed.Error()
	}
	if _, err := a.p.Pool.Exec(ctx, passSQL, wanted, a.sent[causeMissing], a.sent[causeDue], held, auditorJob, a.p.ID); err != nil {
		return fmt.Errorf("keep what the auditor's pass has come to: %w", err)
	}
	return nil
}

// pace waits until so many events may be published, and keeps the lease meanwhile; held says that it is another's.
func (a *auditor) pace(ctx context.Context, n int) (held string, err error) {
	if wait := time.Until(a.clear); wait > 0 {
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(wait):
		}
	}
	now := time.Now()
	if a.clear.Before(now) {
		a.clear = now
	}
	a.clear = a.clear.Add(time.Duration(n) * time.Second / time.Duration(a.p.Settings.AuditRate))
	leased, err := a.p.Pool.Exec(ctx, renewSQL, auditorJob, a.p.ID, a.p.Settings.AuditLease)
	if err != nil {
		return "", fmt.Errorf("keep the auditor's lease: %w", err)
	}
	if leased.RowsAffected() == 0 {
		return anothers, nil
	}
	return "", nil
}
