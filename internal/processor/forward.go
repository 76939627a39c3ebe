package processor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

// forwarder plans the effects that forward changes to the addresses of the configuration. It reads
// the rows of the outbox that are still to be forwarded, of every writer: an apply transaction, a
// redaction, a rebuild or an announcement. It plans them and marks the rows in one transaction.
// Rows with a source that is not configured here wait for a process that has it.
type forwarder struct {
	p *Processor
	// due tells run that a transaction has added changes.
	due chan struct{}
}

func newForwarder(p *Processor) *forwarder { return &forwarder{p: p, due: make(chan struct{}, 1)} }

// notify announces changes. It never blocks.
func (f *forwarder) notify() {
	select {
	case f.due <- struct{}{}:
	default:
	}
}

const (
	// forwardInterval is how often rows are searched that this process did not add.
	forwardInterval = time.Second
	// forwardRows bounds the rows of one transaction.
	forwardRows    = 16
	forwardTimeout = 30 * time.Second
)

const (
	// forwardLockSQL makes the processes plan one after the other. The revisions of an object are
	// then planned in order, so that a newer effect can supersede an older one.
	forwardLockSQL = `SELECT pg_advisory_xact_lock(1886352245, 0)`

	// These two are planned at each execution, as sentSQL is.
	forwardRowsSQL = `
SELECT batch, sources, accounts, types, ids FROM outbox WHERE forward_pending AND sources <@ $2::int[]
ORDER BY batch LIMIT $1`

	forwardPlannedSQL = lockedRows + `
UPDATE outbox o SET forward_pending = false FROM locked l WHERE o.batch = l.batch`
)

// run plans until ctx ends. A process without forwards leaves the rows to others.
func (f *forwarder) run(ctx context.Context) error {
	tick := time.NewTicker(forwardInterval)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.due:
		case <-tick.C:
		}
		for more := f.p.Rules().ForwardsAny(); more && ctx.Err() == nil; {
			var err error
			if more, err = f.plan(ctx); err != nil && !failing && ctx.Err() == nil {
				f.p.Logger.Warn("forwards of changes not planned; retrying", "error", err)
			}
			failing = err != nil
		}
	}
}

// plan plans the forwards of some rows. more reports that there may be further rows.
func (f *forwarder) plan(ctx context.Context) (more bool, err error) {
	var due []string
	err = postgres.InTx(ctx, f.p.Pool, "plan forwards", forwardTimeout, func(ctx context.Context, tx pgx.Tx) error {
		due = nil
		if _, err := tx.Exec(ctx, forwardLockSQL); err != nil {
			return fmt.Errorf("lock forwards: %w", err)
		}
		rows, err := readOutbox(ctx, tx, forwardRowsSQL, pgx.QueryExecModeExec, forwardRows,
			f.p.ConfiguredSources())
		if more = len(rows) == forwardRows; err != nil || len(rows) == 0 {
			return err
		}
		rules := f.p.Rules()
		objects, batches := f.objectsOf(rules, rows)
		for some := range slices.Chunk(objects, resendObjects) {
			all, err := f.revisions(ctx, tx, rules, some)
			if err != nil {
				return err
			}
			planned, err := effects.Plan(ctx, tx, 0, all)
			if err != nil {
				return err
			}
			due = append(due, planned.DueDestinations...)
		}
		if _, err := tx.Exec(ctx, forwardPlannedSQL, pgx.QueryExecModeExec, batches); err != nil {
			return fmt.Errorf("mark %d rows of the outbox as forwarded: %w", len(batches), err)
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	if len(due) > 0 && f.p.Planned != nil {
		f.p.Planned(due)
	}
	return more, nil
}

// announcedObject is an object to forward, and the newest row that names it.
type announcedObject struct {
	versioning.Key
	batch int64
}

// objectsOf returns the objects of rows that are forwarded, each once and in the order of their
// keys, and the rows.
func (f *forwarder) objectsOf(rules *effects.Rules, rows []outboxRow) (objects []announcedObject, batches []int64) {
	newest := map[versioning.Key]int64{}
	for _, r := range rows {
		batches = append(batches, r.id)
		for _, k := range r.keys {
			if source, _ := f.p.CachedSource(k.Source); rules.HasForwards(source, k.Type) {
				newest[k] = r.id
			}
		}
	}
	for key, batch := range newest {
		objects = append(objects, announcedObject{key, batch})
	}
	slices.SortFunc(objects, func(a, b announcedObject) int { return a.Compare(b.Key) })
	return objects, batches
}

// revisions locks objects, so that they do not change until their revisions are planned, and
// returns the effects that forward their current revisions. A redaction then clears the planned
// effects, or the effects are planned with what it left. An object that is no longer stored has
// nothing to forward.
func (f *forwarder) revisions(ctx context.Context, tx pgx.Tx, rules *effects.Rules, objects []announcedObject) (
	all []effects.PlannedEffect, err error) {
	keys, batches := make([]versioning.Key, len(objects)), make(map[versioning.Key]int64, len(objects))
	for i, o := range objects {
		keys[i], batches[o.Key] = o.Key, o.batch
	}
	if err := versioning.LockRows(ctx, tx, keys); err != nil {
		return nil, err
	}
	found, err := readCurrent(ctx, tx, keys)
	if err != nil {
		return nil, err
	}
	for _, c := range found {
		e := f.p.envelopeOf(c)
		message, err := e.encode()
		if err != nil {
			return nil, fmt.Errorf("encode change of %s %s: %w", c.key.Type, c.key.ID, err)
		}
		planned, err := rules.Forward(&effects.Revision{Source: e.Source, Number: c.key.Source, Account: c.key.Account,
			Type: c.key.Type, ID: c.key.ID, Revision: c.revision, Event: c.event, Deleted: c.deleted,
			Batch: batches[c.key], Message: message})
		if err != nil {
			return nil, err
		}
		all = append(all, planned...)
	}
	return all, nil
}
