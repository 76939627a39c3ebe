package processor

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// lockSQL takes the locks of the batch's objects in order. Row locks cannot lock rows that do not exist yet.
const lockSQL = `SELECT count(pg_advisory_xact_lock(l)) FROM unnest($1::bigint[]) AS l`

// Apply decides a batch of events under a run and commits objects, outcomes and the change row together. When it returns nil
// every event of the batch has its outcome (a failed one too) and may be acknowledged. An error is trouble of our own: nothing may
// be acknowledged, and applying again is safe. An event that cannot be written fails alone: the batch is split until it stands apart.
func (p *Processor) Apply(ctx context.Context, run int64, batch []stream.Event) error {
	if err := p.fetchBodies(ctx, batch); err != nil {
		return err
	}
	if err := p.learnSources(ctx, batch); err != nil {
		return err
	}
	items := make([]*item, 0, len(batch))
	seen := make(map[int64]bool, len(batch))
	for i := range batch {
		if !seen[batch[i].ID] { // a copy that arrives while the first is still in hand
			seen[batch[i].ID] = true
			items = append(items, p.read(&batch[i]))
		}
	}
	return p.applySplit(ctx, run, items)
}

// outOfMemory is also what a batch gets that takes more locks than the server has room for; a smaller one may pass.
const outOfMemory = "53200"

// learnSources looks for the sources that this process does not know yet.
func (p *Processor) learnSources(ctx context.Context, batch []stream.Event) error {
	for i := range batch {
		if p.sources.number(batch[i].Source) == 0 {
			return unavailable(p.sources.refresh(ctx, p.Pool))
		}
	}
	return nil
}

func (p *Processor) applySplit(ctx context.Context, run int64, items []*item) error {
	err := p.commit(ctx, run, items)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil || postgres.IsUnavailable(err) && (postgres.Code(err) != outOfMemory || len(items) == 1):
		return fmt.Errorf("apply %d events: %w: %w", len(items), events.ErrUnavailable, err)
	case len(items) == 1:
		it := *items[0]
		it.outcome = &outcome{status: versioning.Failed, reason: err.Error()}
		p.Logger.Warn("event failed", "event", it.ev.ID, "source", it.ev.Source, "error", err)
		return p.commit(ctx, run, []*item{&it})
	}
	for _, half := range [][]*item{items[:len(items)/2], items[len(items)/2:]} {
		if err := p.applySplit(ctx, run, half); err != nil {
			return err
		}
	}
	return nil
}

// commit is one transaction: locks, reads, decisions, writes.
func (p *Processor) commit(ctx context.Context, run int64, items []*item) error {
	began := time.Now()
	var work []*item
	var announce []*versioning.Object
	var batchID int64
	err := postgres.InTx(ctx, p.Pool, "apply", p.Settings.ApplyTimeout, func(ctx context.Context, tx pgx.Tx) error {
		work = copies(items)
		if err := lock(ctx, tx, work); err != nil {
			return err
		}
		if err := p.settle(ctx, tx, run, work); err != nil {
			return err
		}
		objs, err := loadObjects(ctx, tx, work)
		if err != nil {
			return err
		}
		dirty := fold(work, objs)
		announce = slices.DeleteFunc(slices.Clone(dirty), func(o *versioning.Object) bool { return !o.Grew() })
		if len(dirty) > 0 {
			if err := versioning.Save(ctx, tx, dirty); err != nil {
				return err
			}
		}
		if err := p.record(ctx, tx, run, work); err != nil {
			return err
		}
		batchID, err = keepChanges(ctx, tx, announce)
		return err
	})
	if err != nil {
		return err
	}
	p.observe(work, time.Since(began))
	if len(announce) > 0 {
		p.changes.offer(batchID, announce)
	}
	return nil
}

// copies lets a transaction that is tried again start from the items as they were read.
func copies(items []*item) []*item {
	out := make([]*item, len(items))
	for i, it := range items {
		c := *it
		out[i] = &c
	}
	return out
}

func lock(ctx context.Context, tx pgx.Tx, items []*item) error {
	keys := make([]int64, len(items))
	for i, it := range items {
		keys[i] = it.lock
	}
	slices.Sort(keys)
	if _, err := tx.Exec(ctx, lockSQL, slices.Compact(keys)); err != nil {
		return fmt.Errorf("lock %d objects: %w", len(keys), err)
	}
	return nil
}

func loadObjects(ctx context.Context, tx pgx.Tx, items []*item) (map[versioning.Key]*versioning.Object, error) {
	var wanted []versioning.Wanted
	place := map[versioning.Key]int{}
	for _, it := range items {
		if !it.open() {
			continue
		}
		i, ok := place[it.key]
		if !ok {
			i = len(wanted)
			place[it.key] = i
			wanted = append(wanted, versioning.Wanted{Key: it.key, Lo: math.MaxInt64, Hi: math.MinInt64})
		}
		at := it.input.Version.At
		wanted[i].Lo, wanted[i].Hi = min(wanted[i].Lo, at), max(wanted[i].Hi, at)
	}
	objs := make(map[versioning.Key]*versioning.Object, len(wanted))
	if len(wanted) == 0 {
		return objs, nil
	}
	slices.SortFunc(wanted, func(a, b versioning.Wanted) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Account, b.Account), cmp.Compare(a.Type, b.Type), cmp.Compare(a.ID, b.ID))
	})
	loaded, err := versioning.Load(ctx, tx, wanted)
	for _, o := range loaded {
		objs[o.Key] = o
	}
	return objs, err
}

// fetchBodies reads from the log what was too large to travel. What is no longer there stays marked and fails.
func (p *Processor) fetchBodies(ctx context.Context, batch []stream.Event) error {
	var ids []int64
	at := map[int64][]int{}
	for i := range batch {
		if batch[i].BodyInLog {
			ids = append(ids, batch[i].ID)
			at[batch[i].ID] = append(at[batch[i].ID], i)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	recs, err := events.Read(ctx, p.Pool, ids, events.AnyBody)
	if err != nil {
		return fmt.Errorf("%w: %w", events.ErrUnavailable, err)
	}
	for i := range recs {
		for _, j := range at[recs[i].ID] {
			retry := batch[j].Retry
			batch[j] = p.sourceEvent(&recs[i])
			batch[j].Retry = retry
		}
	}
	return nil
}

func (p *Processor) observe(items []*item, took time.Duration) {
	p.metrics.batches.Observe(float64(len(items)))
	p.metrics.apply.Observe(took.Seconds())
	counts := map[versioning.Status]int{}
	for _, it := range items {
		if !it.settled {
			counts[it.outcome.status]++
			p.metrics.outcomes.WithLabelValues(string(it.outcome.status)).Inc()
		}
	}
	args := []any{"events", len(items), "duration_ms", float64(took.Microseconds()) / 1000}
	for status, n := range counts {
		args = append(args, string(status), n)
	}
	p.Logger.Info("applied batch", args...)
}
