package processor

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/stream"
)

// AuditPass returns the auditor of a processor as a function that makes one pass.
func AuditPass(p *Processor) func(context.Context) error {
	return (&auditor{p: p}).bounded
}

// Mark returns how a processor records batches of changes as sent.
func Mark(p *Processor) func(context.Context, map[int64]uint64) error {
	return newSender(p).mark
}

// ReadBacklog reads what is left to do into the metrics.
func ReadBacklog(ctx context.Context, p *Processor) { p.readBacklog(ctx) }

// Maintained does once what Maintain does every minute.
func Maintained(ctx context.Context, p *Processor, keeper *pgxpool.Pool) error {
	return p.maintain(ctx, keeper)
}

// Probe asks the database whether it takes what is applied.
func (p *Processor) Probe(ctx context.Context) error {
	_, err := p.Pool.Exec(ctx, probeSQL, p.ID)
	return err
}

// Lanes are those of a processor that pulls nothing.
type Lanes struct {
	p *Processor
	l lanes
}

// Idle are lanes without messages.
func (p *Processor) Idle() *Lanes { return &Lanes{p: p} }

// Failed is a batch that the database did not take, and Committed one that it did.
func (l *Lanes) Failed(err error) { l.p.finish(&l.l, nil, err) }
func (l *Lanes) Committed()       { l.l.committed() }

// Trial ends the time that must go well after a refusal.
func (l *Lanes) Trial() { l.l.trial.Store(&time.Time{}) }

// Spells is how many times the database was away, one after the other.
func (l *Lanes) Spells() int64 { return l.l.spells.Load() }

// Await waits until the database takes a write again, and says how long.
func (l *Lanes) Await(ctx context.Context) time.Duration {
	began := time.Now()
	l.p.awaitDatabase(ctx, &l.l)
	return time.Since(began)
}

// Envelopes are the body of a change as it goes out and as encoding/json alone would write it.
func Envelopes(state json.RawMessage, omitted bool, id string) (got, want []byte, err error) {
	e := envelope{Schema: 1, EventID: "1", Source: "sim", ObjectType: "thing", ObjectID: id, Revision: 2, State: state, StateOmitted: omitted}
	if got, err = e.encode(); err != nil {
		return nil, nil, err
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err = enc.Encode(e)
	return got, bytes.TrimRight(b.Bytes(), "\n"), err
}

// HandLate ends lanes that hold a message, and then hands them so many more of a pulling that was given up. It says how many messages the lanes took over and how many were given to the work.
func HandLate(ctx context.Context, more int) (taken, worked int) {
	l := newLanes(1, more)
	hand := func() {
		if l.take(ctx, stream.Message{}) {
			taken++
		}
	}
	hand()
	close(l.ended)
	for _, ok := l.next(l.chans[0]); ok; _, ok = l.next(l.chans[0]) {
		worked++
	}
	for range more {
		hand()
	}
	return taken, worked
}
