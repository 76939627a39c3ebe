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

// View is the result of a policy for the data that is stored now.
type View struct {
	Policy Policy `json:"policy"`
	// At is the time from which ages are counted back.
	At events.Instant `json:"at"`
	// Partitions are the partitions of the log, oldest first.
	Partitions []Partition `json:"partitions"`
	// Expired is the number of other rows that are past their ages, by kind: keys, outcomes,
	// conflicts, rejections and others. Only a preview counts them.
	Expired map[string]int64 `json:"forget,omitempty"`
	// Warnings lists data that the policy deletes although it may still be needed.
	Warnings []string `json:"warnings,omitempty"`
}

// PlannedDrops returns the partitions that are dropped next, and those that are due but must stay.
func (v *View) PlannedDrops() (drops, stay []Partition) {
	for _, p := range v.Partitions {
		switch {
		case p.Due && p.KeptReason == "":
			drops = append(drops, p)
		case p.Due:
			stay = append(stay, p)
		}
	}
	return drops, stay
}

const nowSQL = `SELECT clock_now()`

// NewParams returns the parameters of a run with this policy at the current time. Errors:
// events.ErrInvalid.
func NewParams(ctx context.Context, pool *pgxpool.Pool, p Policy) (*Params, error) {
	o := &Params{Policy: p}
	if err := p.Check(); err != nil {
		return nil, err
	}
	if err := pool.QueryRow(ctx, nowSQL).Scan(&o.At); err != nil {
		return nil, fmt.Errorf("read the clock: %w", err)
	}
	o.At = o.At.UTC()
	return o, nil
}

// ExplainConflict replaces the database's error about a second open run with one that tells the
// operator what to do. Errors: events.ErrInvalid.
func ExplainConflict(err error) error {
	if postgres.Code(err) == "23505" {
		return fmt.Errorf("%w: a run of retention is open already: see postern runs list --job retention; let it "+
			"end, or cancel it", events.ErrInvalid)
	}
	return err
}

// Show returns the partitions of the log with their state under the parameters.
func Show(ctx context.Context, pool *pgxpool.Pool, o *Params) (*View, error) {
	v := &View{Policy: o.Policy, Warnings: o.Warnings()}
	v.At.Time = o.At
	var err error
	if v.Partitions, err = partitions(ctx, pool); err != nil {
		return nil, err
	}
	o.markDue(v.Partitions)
	for i := range v.Partitions {
		p := &v.Partitions[i]
		p.DropNote = o.describeDrop(p)
		if !p.Due || !p.attached {
			continue
		}
		if p.KeptReason, err = keptReason(ctx, pool, p); err != nil {
			return nil, err
		}
		if err := pool.QueryRow(ctx, deadSQL, p.lo, p.hi).Scan(&p.Dead); err != nil {
			return nil, fmt.Errorf("count the dead events of %s: %w", p.Name, err)
		}
		if p.KeptReason != "" {
			p.DropNote = "past its age; stays for now: " + p.KeptReason
		}
	}
	return v, nil
}

// describeDrop describes when a partition is dropped.
func (o *Params) describeDrop(p *Partition) string {
	switch {
	case p.Due:
		return "with the next run"
	case p.recreated:
		return "never: retention has dropped this day before, and leaves the table that has its name now"
	case p.pending:
		return "its detaching was interrupted: the next run finishes it, and keeps the table, because retention " +
			"did not begin it"
	case o.Bodies == 0:
		return "never"
	}
	return p.To.AddDate(0, 0, o.Bodies).Format(time.DateOnly)
}

const oldestFromSQL = `SELECT coalesce(min(id), 9223372036854775807) FROM events WHERE id >= $1`

// Preview is Show, and also counts the other rows that would expire. It assumes that all due
// partitions are dropped, except those that must stay.
func Preview(ctx context.Context, pool *pgxpool.Pool, o *Params) (*View, error) {
	v, err := Show(ctx, pool, o)
	if err != nil {
		return nil, err
	}
	from := int64(math.MinInt64)
	for i := range v.Partitions {
		if p := &v.Partitions[i]; p.attached && (!p.Due || p.KeptReason != "") {
			from = p.lo
			break
		}
		from = v.Partitions[i].hi
	}
	var oldest int64
	if err := pool.QueryRow(ctx, oldestFromSQL, from).Scan(&oldest); err != nil {
		return nil, fmt.Errorf("find the oldest event that stays: %w", err)
	}
	v.Expired = map[string]int64{}
	for _, e := range o.expiries(oldest) {
		n, err := e.count(ctx, pool)
		if err != nil {
			return nil, fmt.Errorf("count %s that would expire: %w", e.kind, err)
		}
		if n > 0 {
			v.Expired[e.kind] = n
		}
	}
	if o.Runs == 0 {
		return v, nil
	}
	n, err := runs.CountExpired(ctx, pool, o.cutoff(o.Runs))
	if n > 0 {
		v.Expired[CountRuns] = n
	}
	return v, err
}
