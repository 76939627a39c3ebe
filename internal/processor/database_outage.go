package processor

import (
	"context"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/postgres"
)

// probeSQL writes no row, but needs every privilege that applying needs.
const probeSQL = `
WITH objects_ AS (INSERT INTO objects SELECT * FROM objects WHERE false), outcomes_ AS (INSERT INTO outcomes SELECT *
	FROM outcomes WHERE false), outbox_ AS (INSERT INTO outbox OVERRIDING USER VALUE SELECT * FROM outbox WHERE false),
  requests_ AS (INSERT INTO refetch_requests SELECT * FROM refetch_requests WHERE false),
  moved AS (UPDATE objects SET revision = revision WHERE false),
  finished AS (UPDATE outcomes SET status = status WHERE false),
  changed_ AS (UPDATE refetch_requests SET attempts = attempts WHERE false),
  closed AS (DELETE FROM refetch_requests WHERE false),
  	effects_ AS (INSERT INTO effects OVERRIDING USER VALUE SELECT * FROM effects WHERE false),
  	superseded AS (UPDATE effects SET reason = reason WHERE false),
  held AS (INSERT INTO effect_baselines SELECT * FROM effect_baselines WHERE false), kept_ AS (UPDATE effect_baselines
  	SET recorded_at = recorded_at WHERE false), released AS (DELETE FROM effect_baselines WHERE false)
INSERT INTO checkpoints AS c (job, run, cursor, lease_owner, lease_until, updated_at)
SELECT 'probe', 0, 0, $1, clock_now(), clock_now() WHERE NOT EXISTS (SELECT FROM events, redacted_events, sources, runs,
	object_scans, watermarks, effect_steps WHERE false)
ON CONFLICT (job, run) DO UPDATE SET lease_owner = excluded.lease_owner, updated_at = excluded.updated_at`

const (
	// probeTimeout bounds one probe of the database.
	probeTimeout = 2 * time.Second
	// maxOutagePause bounds the pause before pulling again when outages follow each other.
	maxOutagePause = 30 * time.Second
	// minRecoveryTime is how long applying must succeed after a permission error before the outage
	// counts as ended. It is longer than the delay after which requeued messages arrive again.
	minRecoveryTime = 5 * requeueDelay
)

// awaitDatabase returns when the database accepts a write again, or when ctx ends. It returns at
// once if the database was not found to be down. A read-only or full database, or one that lacks a
// privilege, still responds to queries, so the probe writes. The wait grows with each outage, until
// a batch is committed between two of them. After a permission error only a batch that commits
// after the recovery time counts, because other batches may not need the missing privilege.
func (p *Processor) awaitDatabase(ctx context.Context, l *workers) {
	if !l.databaseDown.Load() {
		return
	}
	waited := min(100*time.Millisecond<<min(l.outages.Add(1)-1, 10), maxOutagePause)
	wait := waited
	for p.pause(ctx, wait); ctx.Err() == nil; p.pause(ctx, wait) {
		probe, cancel := context.WithTimeout(ctx, probeTimeout)
		_, err := p.Pool.Exec(probe, probeSQL, p.ID)
		cancel()
		if err == nil {
			if p.databaseError.Load() != nil {
				recoverUntil := time.Now().Add(max(waited, minRecoveryTime))
				l.recoverUntil.Store(&recoverUntil)
			}
			l.databaseDown.Store(false) // first: an error that is recorded now belongs to another outage
			p.clearDatabaseError()
			return
		}
		p.recordDatabaseError(err)
		wait = min(2*wait, probeTimeout)
	}
}

// recordDatabaseError records and logs once that the database rejects a statement that applying
// needs, whatever the event. An operator must correct this. Other errors are ignored.
func (p *Processor) recordDatabaseError(err error) {
	if postgres.NeedsOperator(err) && p.databaseError.Swap(&err) == nil {
		p.Logger.Error("postgresql rejects statements that applying needs: nothing is applied, and no event loses "+
			"an attempt; correct the cause, and processing continues automatically", "error", err)
	}
}

// endOutages resets the count of outages. During the recovery time after a permission error it does
// nothing, because the rejected statement may not have run again yet.
func (l *workers) endOutages() {
	if until := l.recoverUntil.Load(); !l.databaseDown.Load() && (until == nil || time.Now().After(*until)) {
		l.outages.Store(0)
	}
}

// clearDatabaseError logs once that the database accepts the statements again.
func (p *Processor) clearDatabaseError() {
	if p.databaseError.Load() != nil && p.databaseError.Swap(nil) != nil {
		p.Logger.Info("postgresql accepts again the statements that applying needs")
	}
}

// Ready returns the last permission or schema error of a statement that applying needs, or nil.
func (p *Processor) Ready(context.Context) error {
	if err := p.databaseError.Load(); err != nil {
		return fmt.Errorf("postgresql rejects statements that applying needs: %w", *err)
	}
	return nil
}
