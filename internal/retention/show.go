package retention

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
)

// View is what a policy means for what is stored now.
type View struct {
	Policy Policy `json:"policy"`
	// At is the time that ages are counted back from.
	At events.Instant `json:"at"`
	// Partitions are those of the log, the oldest first.
	Partitions []Partition `json:"partitions"`
	// Forget is how many rows besides are past their ages: keys, outcomes, conflicts, rejections. Only a preview counts them.
	Forget map[string]int64 `json:"forget,omitempty"`
	// Warnings tell what the policy takes that may be needed still.
	Warnings []string `json:"warnings,omitempty"`
}

// Drops are the partitions that go, and those that are due and have to stay.
func (v *View) Drops() (goes, stay []Partition) {
	for _, p := range v.Partitions {
		switch {
		case p.Due && p.Kept == "":
			goes = append(goes, p)
		case p.Due:
			stay = append(stay, p)
		}
	}
	return goes, stay
}

const nowSQL = `SELECT clock_now()`

// Now is the order that a policy makes now. Errors: events.ErrInvalid.
func Now(ctx context.Context, pool *pgxpool.Pool, p Policy) (*Order, error) {
	o := &Order{Policy: p}
	if err := p.Check(); err != nil {
		return nil, err
	}
	if err := pool.QueryRow(ctx, nowSQL).Scan(&o.At); err != nil {
		return nil, fmt.Errorf("read the clock: %w", err)
	}
	o.At = o.At.UTC()
	return o, nil
}

// Explain makes the refusal of a second open run one that a person can act on. Errors: events.ErrInvalid.
func Explain(err error) error {
	if postgres.Code(err) == "23505" {
		return fmt.Errorf("%w: a run of retention is open already: see postern runs list --job retention; let it end, or cancel it", events.ErrInvalid)
	}
	return err
}

// Show says how the log stands against an order.
func Show(ctx context.Context, pool *pgxpool.Pool, o *Order) (*View, error) {
	v := &View{Policy: o.Policy, Warnings: o.Warnings()}
	v.At.Time = o.At
	var err error
	if v.Partitions, err = partitions(ctx, pool); err != nil {
		return nil, err
	}
	o.due(v.Partitions)
	for i := range v.Partitions {
		p := &v.Partitions[i]
		p.Goes = o.goes(p)
		if !p.Due || !p.attached {
			continue
		}
		if p.Kept, err = held(ctx, pool, p); err != nil {
			return nil, err
		}
		if err := pool.QueryRow(ctx, deadSQL, p.lo, p.hi).Scan(&p.Dead); err != nil {
			return nil, fmt.Errorf("count the dead events of %s: %w", p.Name, err)
		}
		if p.Kept != "" {
			p.Goes = "past its age; stays for now: " + p.Kept
		}
	}
	return v, nil
}

// goes says when a partition goes.
func (o *Order) goes(p *Partition) string {
	switch {
	case p.Due:
		return "with the next run"
	case p.pending:
		return "its detaching was interrupted: the next run finishes it, and leaves the table, since it did not begin it"
	case o.Bodies == 0:
		return "never"
	}
	return p.To.AddDate(0, 0, o.Bodies).Format(time.DateOnly)
}

const (
	countKeysSQL       = `SELECT count(*) FROM event_keys k WHERE k.id < $1 AND NOT EXISTS (SELECT FROM redacted r WHERE r.event = k.id)`
	countOutcomesSQL   = `SELECT count(*) FROM outcomes WHERE event_id < $1`
	countConflictsSQL  = `SELECT count(*) FROM event_conflicts WHERE received_at < $1 AND event < $2`
	countRejectionsSQL = `SELECT count(*) FROM rejections WHERE received_at < $1`
	oldestFromSQL      = `SELECT coalesce(min(id), 9223372036854775807) FROM events WHERE id >= $1`
)

// Preview is Show and counts what else would be forgotten, as if all partitions that are due had gone but those that have to stay.
func Preview(ctx context.Context, pool *pgxpool.Pool, o *Order) (*View, error) {
	v, err := Show(ctx, pool, o)
	if err != nil {
		return nil, err
	}
	from := int64(math.MinInt64)
	for i := range v.Partitions {
		if p := &v.Partitions[i]; p.attached && (!p.Due || p.Kept != "") {
			from = p.lo
			break
		}
		from = v.Partitions[i].hi
	}
	var oldest int64
	if err := pool.QueryRow(ctx, oldestFromSQL, from).Scan(&oldest); err != nil {
		return nil, fmt.Errorf("find the oldest event that stays: %w", err)
	}
	v.Forget = map[string]int64{}
	count := func(what string, days int, sql string, args func(before time.Time) []any) {
		before := o.before(days)
		if err != nil || before.IsZero() {
			return
		}
		var n int64
		if err = pool.QueryRow(ctx, sql, args(before)...).Scan(&n); err == nil && n > 0 {
			v.Forget[what] = n
		}
	}
	below := func(before time.Time) []any { return []any{min(oldest, events.FirstID(before))} }
	count(CountKeys, o.Keys, countKeysSQL, below)
	count(CountOutcomes, o.Outcomes, countOutcomesSQL, below)
	count(CountConflicts, o.Bodies, countConflictsSQL, func(before time.Time) []any { return []any{before, oldest} })
	count(CountRejections, o.Rejections, countRejectionsSQL, func(before time.Time) []any { return []any{before} })
	count(CountEffects, o.Effects, countEffectsSQL, func(before time.Time) []any { return []any{before} })
	count(CountEffectKeys, o.EffectKeys, countEffectKeysSQL, func(before time.Time) []any { return []any{before, oldest} })
	if err != nil {
		return nil, fmt.Errorf("count what would be forgotten: %w", err)
	}
	if o.Runs == 0 {
		return v, nil
	}
	gone, err := runs.CountOld(ctx, pool, o.before(o.Runs))
	if gone > 0 {
		v.Forget[CountRuns] = gone
	}
	return v, err
}
