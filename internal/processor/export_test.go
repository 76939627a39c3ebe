package processor

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/stream"
)

// RepublishPass returns a function that makes one pass of a processor's republisher.
func RepublishPass(p *Processor) func(context.Context) error {
	return (&republisher{p: p}).passWithTimeout
}

// MarkSent returns the function with which a processor marks batches of changes as sent.
func MarkSent(p *Processor) func(context.Context, map[int64]uint64) error {
	return newSender(p).markSent
}

// PlanForwards plans the forwards of some rows of the outbox once. It reports whether there may be
// further rows.
func PlanForwards(ctx context.Context, p *Processor) (more bool, err error) {
	return p.forwards.plan(ctx)
}

// UnappliedSQL counts the events without an outcome.
const UnappliedSQL = unappliedSQL

// ReadBacklog updates the gauges of pending work.
func ReadBacklog(ctx context.Context, p *Processor) { p.readBacklog(ctx) }

// MaintainOnce does once the work that Maintain does every minute.
func MaintainOnce(ctx context.Context, p *Processor, maintenancePool *pgxpool.Pool) error {
	return p.maintain(ctx, maintenancePool)
}

// Probe runs the probe of the database.
func (p *Processor) Probe(ctx context.Context) error {
	_, err := p.Pool.Exec(ctx, probeSQL, p.ID)
	return err
}

// IdleWorkers are the workers of a processor that pulls nothing.
type IdleWorkers struct {
	p       *Processor
	workers workers
}

// NewIdleWorkers returns workers without messages.
func (p *Processor) NewIdleWorkers() *IdleWorkers { return &IdleWorkers{p: p} }

// Failed reports a batch that the database rejected, Committed one that it accepted.
func (l *IdleWorkers) Failed(err error) { l.p.finishMessages(&l.workers, nil, err) }
func (l *IdleWorkers) Committed()       { l.workers.endOutages() }

// EndRecovery ends the recovery time after a permission error.
func (l *IdleWorkers) EndRecovery() { l.workers.recoverUntil.Store(&time.Time{}) }

// Outages is the number of consecutive outages of the database.
func (l *IdleWorkers) Outages() int64 { return l.workers.outages.Load() }

// Await waits until the database accepts a write again, and returns the time that it waited.
func (l *IdleWorkers) Await(ctx context.Context) time.Duration {
	began := time.Now()
	l.p.awaitDatabase(ctx, &l.workers)
	return time.Since(began)
}

// Envelopes returns the body of a change as it is sent, and as encoding/json alone would write it.
func Envelopes(state json.RawMessage, omitted bool, id string) (got, want []byte, err error) {
	e := envelope{Schema: 1, EventID: "1", Source: "sim", ObjectType: "thing", ObjectID: id, Revision: 2, State: state,
		StateOmitted: omitted}
	if got, err = e.encode(); err != nil {
		return nil, nil, err
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err = enc.Encode(e)
	return got, bytes.TrimRight(b.Bytes(), "\n"), err
}

// DeliverAfterEnd ends workers that have one message, and then delivers more. It returns the number
// of messages that the channel accepted and of those that were processed.
func DeliverAfterEnd(ctx context.Context, more int) (delivered, processed int) {
	l := newWorkers(1, more)
	deliver := func() {
		if l.deliver(ctx, stream.Message{}) {
			delivered++
		}
	}
	deliver()
	close(l.ended)
	for _, ok := l.next(l.chans[0]); ok; _, ok = l.next(l.chans[0]) {
		processed++
	}
	for range more {
		deliver()
	}
	return delivered, processed
}
