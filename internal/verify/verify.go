// Package verify compares what is stored with what must hold of it, in one view of the database, and changes nothing: every key has its event, every event its
// outcome, every object is what its events make, and no effect was lost or planned twice.
package verify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
)

// Options say what to verify.
type Options struct {
	// Pool is connected as postern_operator, or as any role that reads all tables, and has Connections free.
	Pool *pgxpool.Pool
	// Known are the sources that the log has events of.
	Known events.Sources
	// Sources are those that are configured, by name. The events and objects of others are not compared with what they should be, which the report notes.
	Sources map[string]processor.Source
	// Sample is about how many objects, and bodies, are compared, chosen at random; 0: all.
	Sample int64
	// Spools are folders of gateways' spools on this machine, which are looked at too.
	Spools []string
	// Signatures: deliveries are verified again as of their receipt.
	Signatures bool
	// Most is how many offenders of a kind are named; all are counted.
	Most int
	// Wait is how long events and changes may wait before that is a violation; 0: for ever.
	Wait time.Duration
	// Progress is told now and then how many of a kind of things were looked at, and about how many there are; nil: nobody is. Several goroutines call it.
	Progress func(what string, done, all int64)
}

// Connections is how many connections Verify uses at once: three read the log, one of which finds what the others check.
const (
	Connections = logReaders + checkers
	logReaders  = 3
	checkers    = 2
)

// DefaultMost and DefaultWait are what a command says where nobody else does. The auditor waits for a minute and then makes a pass every 10 s.
const (
	DefaultMost = 20
	DefaultWait = 15 * time.Minute
)

// work is one verification under way.
type work struct {
	Options
	view   snapshot
	tally  *tally
	refold *processor.Refold
	// spools is what there is of them.
	spools []Spool
	// waits is what is under way.
	waits []Wait
	// all is about how many of a kind of things there are.
	all map[string]int64
	// seed chooses a sample.
	seed int64
	// redacting: a redaction is under way, which clears objects before it joins others' events into them again.
	redacting bool
}

// Verify looks at everything in one view. What is under way in that view is no violation. An error says that it could not be looked at, not that something is wrong.
func Verify(ctx context.Context, o Options) (*Report, error) {
	refold, err := processor.NewRefold(o.Sources, o.Known)
	if err != nil {
		return nil, err
	}
	w := &work{Options: o, tally: newTally(o.Most), refold: refold, waits: []Wait{}, seed: rand.Int64()}
	// What leaves a spool is in the log already: so the log is looked at after it.
	if err := w.lookAtSpools(ctx); err != nil {
		return nil, err
	}
	defer w.view.close(ctx)
	if err := w.view.open(ctx, o.Pool, Connections); err != nil {
		return nil, err
	}
	if err := w.estimate(ctx); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{w.logAndBodies, w.changes, w.effects, w.missing, w.mirror, w.told} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	w.spooled()
	r := w.tally.report(w.view.at, w.waits)
	r.Spools = w.spools
	return r, nil
}

// logAndBodies compares the log with keys and outcomes, and has the bodies checked meanwhile.
func (w *work) logAndBodies(ctx context.Context) error {
	return spread(ctx, w, w.bodies, func(ctx context.Context, give func([]int64) error) error {
		ids, of := make([]int64, 0, bodyRows), uint64(w.share("events"))
		err := w.log(ctx, func(_ context.Context, id int64) error {
			if of > 1 && uint64(id^w.seed)*0x9e3779b97f4a7c15>>32%of != 0 {
				return nil
			}
			if ids = append(ids, id); len(ids) < bodyRows {
				return nil
			}
			full := ids
			ids = make([]int64, 0, bodyRows)
			return give(full)
		})
		if err != nil {
			return err
		}
		return give(ids)
	})
}

// mirror compares the objects with what their events make.
func (w *work) mirror(ctx context.Context) error {
	if err := w.view.txs[0].QueryRow(ctx, redactingSQL).Scan(&w.redacting); err != nil {
		return fmt.Errorf("look for redactions: %w", err)
	}
	return spread(ctx, w, w.objects, w.eachObjects)
}

// spread has parts of some work done by as many goroutines as there are connections for them.
func spread[T any](ctx context.Context, w *work, do func(context.Context, pgx.Tx, T) error, each func(context.Context, func(T) error) error) error {
	g, ctx := errgroup.WithContext(ctx)
	parts := make(chan T)
	for _, tx := range w.view.txs[logReaders:] {
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

// A few pages tell how much there is, whether a table was analysed or not: of a small one all.
const (
	estimatePages = 2000

	pagesSQL = `
SELECT coalesce(sum(pg_relation_size(i.inhrelid)), 0)::bigint / current_setting('block_size')::bigint, pg_relation_size('objects') / current_setting('block_size')::bigint
FROM pg_inherits i WHERE i.inhparent = 'events'::regclass`

	someEventsSQL  = `SELECT count(*) FROM events TABLESAMPLE SYSTEM ($1)`
	someObjectsSQL = `SELECT count(*) FROM objects TABLESAMPLE SYSTEM ($1)`
)

// estimate counts about how much there is.
func (w *work) estimate(ctx context.Context) error {
	var pages [2]int64
	tx := w.view.txs[0]
	if err := tx.QueryRow(ctx, pagesSQL).Scan(&pages[0], &pages[1]); err != nil {
		return fmt.Errorf("estimate how much there is: %w", err)
	}
	w.all = map[string]int64{}
	for i, of := range []struct{ what, sql string }{{"events", someEventsSQL}, {"objects", someObjectsSQL}} {
		share, n := min(1, estimatePages/float64(max(pages[i], 1))), int64(0)
		if err := tx.QueryRow(ctx, of.sql, 100*share).Scan(&n); err != nil {
			return fmt.Errorf("estimate how much there is of %s: %w", of.what, err)
		}
		w.all[of.what] = int64(float64(n) / share)
	}
	w.all["bodies"] = w.all["events"] / w.share("events")
	return nil
}

const changesSQL = `SELECT count(*), coalesce(min(made_at), clock_now()) FROM outbox WHERE sent_at IS NULL`

// changes looks for changes that nobody has sent.
func (w *work) changes(ctx context.Context) error {
	var unsent waiting
	if err := w.view.txs[0].QueryRow(ctx, changesSQL).Scan(&unsent.count, &unsent.since); err != nil {
		return fmt.Errorf("look for unsent changes: %w", err)
	}
	w.wait("batches of changes that are not sent yet", unsent, "start a processor that reaches NATS")
	return nil
}

// wait reports what waits. Where something mends it, it is a violation if it waits too long.
func (w *work) wait(what string, waits waiting, mend string) {
	if waits.count == 0 {
		return
	}
	age := w.view.at.Sub(waits.since)
	w.waits = append(w.waits, Wait{What: what, Count: waits.count, Since: events.Instant{Time: waits.since}, Seconds: max(0, age.Seconds())})
	if mend != "" && w.Wait > 0 && age > w.Wait {
		w.tally.add(WaitsTooLong, Item{Mend: mend, Detail: fmt.Sprintf("%s: %d, the oldest for %s; %s is allowed", what, waits.count, age.Round(time.Second), w.Wait)})
	}
}

// source is a source's name, or its number where it has none.
func (w *work) source(number int32) string {
	if name, ok := w.Known.Name[number]; ok {
		return name
	}
	return fmt.Sprint("number ", number)
}

// tell tells of progress.
func (w *work) tell(what string, done int64) {
	if w.Progress != nil {
		w.Progress(what, done, max(w.all[what], done))
	}
}

// Statements are all SQL statements of this package, for the test that prepares each.
func Statements() []string {
	return []string{snapshotSQL, storedSQL, keptSQL, liveSQL, auditedSQL, hereSQL, goneSQL, pagesSQL, someEventsSQL, someObjectsSQL, changesSQL, bodiesSQL, bodySQL, objectsSQL, metSQL, missingSQL, redactingSQL, retiredToSQL,
		countEffectsSQL, effectsSQL, twiceSQL, otherwiseSQL, waitingEffectsSQL, windowWaitsSQL, doubtsSQL, strayedSQL}
}
