package processor

import (
	"context"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/postgres"
)

// probeSQL writes, and asks for each right that applying needs, on no row.
const probeSQL = `
WITH objects_ AS (INSERT INTO objects SELECT * FROM objects WHERE false), outcomes_ AS (INSERT INTO outcomes SELECT * FROM outcomes WHERE false), outbox_ AS (INSERT INTO outbox OVERRIDING USER VALUE SELECT * FROM outbox WHERE false),
  hints_ AS (INSERT INTO hints SELECT * FROM hints WHERE false), moved AS (UPDATE objects SET revision = revision WHERE false), settled AS (UPDATE outcomes SET status = status WHERE false),
  wanted AS (UPDATE hints SET attempts = attempts WHERE false), closed AS (DELETE FROM hints WHERE false), effects_ AS (INSERT INTO effects OVERRIDING USER VALUE SELECT * FROM effects WHERE false), superseded AS (UPDATE effects SET reason = reason WHERE false),
  held AS (INSERT INTO effect_holds SELECT * FROM effect_holds WHERE false), kept_ AS (UPDATE effect_holds SET held_at = held_at WHERE false), released AS (DELETE FROM effect_holds WHERE false)
INSERT INTO checkpoints AS c (job, run, cursor, leased_by, leased_until, updated_at)
SELECT 'probe', 0, 0, $1, clock_now(), clock_now() WHERE NOT EXISTS (SELECT FROM events, redacted, sources, runs, sweeps, watermarks, effect_steps WHERE false)
ON CONFLICT (job, run) DO UPDATE SET leased_by = excluded.leased_by, updated_at = excluded.updated_at`

const (
	// probeTimeout is how long the database may take to say that it is back.
	probeTimeout = 2 * time.Second
	// longestSpell bounds the pause before pulling again after one failure has followed the other.
	longestSpell = 30 * time.Second
	// shortestTrial is how long it must go well at least after a refusal: longer than what was handed back for it takes to come again.
	shortestTrial = 5 * handBackDelay
)

// awaitDatabase returns when the database takes a write again (one that is read-only, full, or lacks a right still answers), at once where it
// was not found to be away, or when ctx ends. Each spell that follows another waits longer, until a batch was committed in between; behind a refusal, which other batches may not meet, only one that is committed after it went well for as long.
func (p *Processor) awaitDatabase(ctx context.Context, l *lanes) {
	if !l.away.Load() {
		return
	}
	waited := min(100*time.Millisecond<<min(l.spells.Add(1)-1, 10), longestSpell)
	wait := waited
	for p.pause(ctx, wait); ctx.Err() == nil; p.pause(ctx, wait) {
		probe, cancel := context.WithTimeout(ctx, probeTimeout)
		_, err := p.Pool.Exec(probe, probeSQL, p.ID)
		cancel()
		if err == nil {
			if p.refusal.Load() != nil {
				trial := time.Now().Add(max(waited, shortestTrial))
				l.trial.Store(&trial)
			}
			l.away.Store(false) // first: a refusal that comes now is of another spell
			p.taken()
			return
		}
		p.refused(err)
		wait = min(2*wait, probeTimeout)
	}
}

// refused keeps, and says once, that the database refuses what applying needs, whatever the event: it stays so until a person has mended it. Other errors are nothing to it.
func (p *Processor) refused(err error) {
	if postgres.IsRefused(err) && p.refusal.Swap(&err) == nil {
		p.Logger.Error("postgresql refuses what applying needs: nothing is applied, and no event loses an attempt; mend what is wrong, and it goes on by itself", "error", err)
	}
}

// committed ends the spells, unless a refusal is on trial still: what was refused may not have come again yet.
func (l *lanes) committed() {
	if until := l.trial.Load(); !l.away.Load() && (until == nil || time.Now().After(*until)) {
		l.spells.Store(0)
	}
}

// taken says once that the database refuses it no more.
func (p *Processor) taken() {
	if p.refusal.Load() != nil && p.refusal.Swap(nil) != nil {
		p.Logger.Info("postgresql takes again what applying needs")
	}
}

// Ready says what the database refuses of what applying needs; nil: nothing, as far as is known.
func (p *Processor) Ready(context.Context) error {
	if err := p.refusal.Load(); err != nil {
		return fmt.Errorf("postgresql refuses what applying needs: %w", *err)
	}
	return nil
}
