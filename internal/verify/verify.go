// Package verify checks the integrity of the stored data in one snapshot of the database. Every key
// has its event, every event its outcome, every object is the result of its events, and no effect
// is lost or planned twice. The command `postern verify` calls it, and it never writes.
package verify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// Options select what to verify.
type Options struct {
	// Pool is connected as postern_operator, or as another role that reads all tables. It needs
	// Connections free connections.
	Pool *pgxpool.Pool
	// Known are the registered sources of the log.
	Known events.Sources
	// Sources are the configured sources by name. Events and objects of other sources are not
	// checked completely, and the report says so.
	Sources map[string]apply.Source
	// Sample is the approximate number of objects and of bodies to check, chosen at random; 0
	// checks all.
	Sample int64
	// Spools are folders of spools on this machine to check.
	Spools []string
	// Signatures requests that the signatures of deliveries are verified again, as of their
	// receipt.
	Signatures bool
	// MaxItems is how many violations of a kind are listed; all are counted.
	MaxItems int
	// MaxWait is how long events and changes may wait before that is a violation; 0 means no limit.
	MaxWait time.Duration
	// Progress is called at intervals with the number of checked items of a kind and an estimate of
	// their total; it may be nil. Several goroutines call it.
	Progress func(what string, done, total int64)
}

// Connections is how many connections Verify uses at once. Three read the log; the others check
// bodies and objects.
const (
	Connections = logReaders + checkers
	logReaders  = 3
	checkers    = 2
)

// DefaultMaxItems and DefaultMaxWait are the defaults of the command. The republisher waits for a
// minute and then makes a pass every 10 s.
const (
	DefaultMaxItems = 20
	DefaultMaxWait  = 15 * time.Minute
)

// verification is a running verification.
type verification struct {
	Options
	snapshot snapshot
	results  *collector
	reducer  *apply.Reducer
	// spools are the checked spools.
	spools []Spool
	// waiting is unfinished work.
	waiting []Wait
	// estimates are the approximate numbers of items by kind.
	estimates map[string]int64
	// seed selects the sample.
	seed int64
	// redacting is true if a redaction is running. It clears objects before it applies the
	// remaining events again.
	redacting bool
	// swapping are the objects of rebuilds that have replaced only a part of them. Its
	// outcomes count for all of them.
	swapping []swappedObjects
}

// Verify checks everything in one snapshot. Unfinished work in the snapshot is not a violation. An
// error means that the check failed, not that a violation was found.
func Verify(ctx context.Context, o Options) (*Report, error) {
	reducer, err := apply.NewReducer(o.Sources, o.Known)
	if err != nil {
		return nil, err
	}
	w := &verification{Options: o, results: newCollector(o.MaxItems), reducer: reducer, waiting: []Wait{},
		seed: rand.Int64()}
	// A delivery that leaves a spool is in the log already. Therefore the spools are checked before
	// the log.
	if err := w.checkSpools(ctx); err != nil {
		return nil, err
	}
	defer w.snapshot.close(ctx)
	if err := w.snapshot.open(ctx, o.Pool, Connections); err != nil {
		return nil, err
	}
	if err := w.estimate(ctx); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{w.checkLogAndBodies, w.reportUnsentChanges, w.checkEffects,
		w.readRuns, w.reportMissingObjects, w.checkMirror,
		w.reportSpools} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	w.reportWaitingInSpools()
	r := w.results.newReport(w.snapshot.at, w.waiting)
	r.Spools = w.spools
	return r, nil
}

// checkLogAndBodies compares the log with keys and outcomes, and checks bodies at the same time.
func (w *verification) checkLogAndBodies(ctx context.Context) error {
	return runParallel(ctx, w, w.checkBodies, func(ctx context.Context, send func([]int64) error) error {
		ids, factor := make([]int64, 0, bodyRows), uint64(w.sampleFactor("events"))
		err := w.checkLog(ctx, func(_ context.Context, id int64) error {
			if factor > 1 && uint64(id^w.seed)*0x9e3779b97f4a7c15>>32%factor != 0 {
				return nil
			}
			if ids = append(ids, id); len(ids) < bodyRows {
				return nil
			}
			full := ids
			ids = make([]int64, 0, bodyRows)
			return send(full)
		})
		if err != nil {
			return err
		}
		return send(ids)
	})
}

// readRuns finds runs that have changed a part of the mirror.
func (w *verification) readRuns(ctx context.Context) (err error) {
	if err := w.snapshot.txs[0].QueryRow(ctx, redactingSQL).Scan(&w.redacting); err != nil {
		return fmt.Errorf("read running redactions: %w", err)
	}
	w.swapping, err = postgres.Collect(ctx, w.snapshot.txs[0], pgx.RowToStructByPos[swappedObjects], swappingSQL)
	return err
}

// checkMirror compares the objects with the result of their events.
func (w *verification) checkMirror(ctx context.Context) error {
	return runParallel(ctx, w, w.checkObjects, w.readObjectKeys)
}

// runParallel distributes the parts of some work to one goroutine per free connection.
func runParallel[T any](ctx context.Context, w *verification, do func(context.Context, pgx.Tx, T) error,
	each func(context.Context, func(T) error) error) error {
	g, ctx := errgroup.WithContext(ctx)
	parts := make(chan T)
	for _, tx := range w.snapshot.txs[logReaders:] {
		g.Go(func() error {
			for part := range parts {
				if err := do(ctx, tx, part); err != nil {
					return err
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(parts)
		return each(ctx, func(part T) error {
			select {
			case parts <- part:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	})
	return g.Wait()
}

// A few pages are sufficient for an estimate, whether the table was analysed or not. Small tables
// are counted completely.
const (
	estimatePages = 2000

	pagesSQL = `
SELECT coalesce(sum(pg_relation_size(i.inhrelid)), 0)::bigint / current_setting('block_size')::bigint,
	pg_relation_size('objects') / current_setting('block_size')::bigint
FROM pg_inherits i WHERE i.inhparent = 'events'::regclass`

	sampleEventsSQL  = `SELECT count(*) FROM events TABLESAMPLE SYSTEM ($1)`
	sampleObjectsSQL = `SELECT count(*) FROM objects TABLESAMPLE SYSTEM ($1)`
)

// estimate estimates the numbers of items.
func (w *verification) estimate(ctx context.Context) error {
	var pages [2]int64
	tx := w.snapshot.txs[0]
	if err := tx.QueryRow(ctx, pagesSQL).Scan(&pages[0], &pages[1]); err != nil {
		return fmt.Errorf("estimate the number of pages: %w", err)
	}
	w.estimates = map[string]int64{}
	for i, kind := range []struct{ what, sql string }{{"events", sampleEventsSQL},
		{"objects", sampleObjectsSQL}} {
		fraction, n := min(1, estimatePages/float64(max(pages[i], 1))), int64(0)
		if err := tx.QueryRow(ctx, kind.sql, 100*fraction).Scan(&n); err != nil {
			return fmt.Errorf("estimate the number of %s: %w", kind.what, err)
		}
		w.estimates[kind.what] = int64(float64(n) / fraction)
	}
	w.estimates["bodies"] = w.estimates["events"] / w.sampleFactor("events")
	return nil
}

const changesSQL = `SELECT count(*), coalesce(min(created_at), clock_now()) FROM outbox WHERE sent_at IS NULL`

// reportUnsentChanges reports changes that are not published yet.
func (w *verification) reportUnsentChanges(ctx context.Context) error {
	var unsent waitCount
	if err := w.snapshot.txs[0].QueryRow(ctx, changesSQL).Scan(&unsent.count, &unsent.since); err != nil {
		return fmt.Errorf("read unsent changes: %w", err)
	}
	w.reportWaiting("batches of changes that are not published yet", unsent, "start a processor that reaches NATS")
	return nil
}

// reportWaiting reports unfinished work. If it has a repair, it is a violation when it waits too
// long.
func (w *verification) reportWaiting(what string, count waitCount, repair string) {
	if count.count == 0 {
		return
	}
	age := w.snapshot.at.Sub(count.since)
	w.waiting = append(w.waiting, Wait{Work: what, Count: count.count, Since: events.Instant{Time: count.since},
		Seconds: max(0, age.Seconds())})
	if repair != "" && w.MaxWait > 0 && age > w.MaxWait {
		w.results.add(WaitsTooLong,
			Item{Repair: repair, Detail: fmt.Sprintf("%s: %d, the oldest for %s; the limit is %s", what,
				count.count, age.Round(time.Second), w.MaxWait)})
	}
}

// sourceName returns the name of a source, or its number if it has none.
func (w *verification) sourceName(number int32) string {
	if name, ok := w.Known.Name[number]; ok {
		return name
	}
	return fmt.Sprint("number ", number)
}

// progress reports the progress.
func (w *verification) progress(what string, done int64) {
	if w.Progress != nil {
		w.Progress(what, done, max(w.estimates[what], done))
	}
}
