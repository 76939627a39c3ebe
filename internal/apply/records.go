package apply

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// maxInlineBody is the largest body, in bytes, that is read together with many others. A larger one
// is read with its batch.
const maxInlineBody = 16 << 10

// Counts are the results of applying stored events.
type Counts struct {
	// Outcomes are the numbers of events by the status of their outcome in the run.
	Outcomes map[versioning.Status]int64
	// AlreadyFinal is how many of them had a final outcome before.
	AlreadyFinal int64
}

// ApplyStored reads events of the log and applies them as ApplyChunk does.
func (a *Applier) ApplyStored(ctx context.Context, to Target, ids []int64, single bool) (Counts, error) {
	c, err := a.ReadChunk(ctx, ids)
	if err != nil {
		return Counts{}, err
	}
	return a.ApplyChunk(ctx, to, c, single)
}

// ReadChunk reads events of the log. Errors: events.ErrUnavailable.
func (a *Applier) ReadChunk(ctx context.Context, ids []int64) (*Chunk, error) {
	evs, err := a.Events(ctx, ids, maxInlineBody)
	return &Chunk{IDs: ids, evs: evs}, err
}

// ApplyChunk applies events of the log to a target, with as many workers as the processor has for
// the stream. single tries each event by itself, one after the other, and commits its attempt
// first: an event that ends the process again and again stays failed, and the others are applied.
// Events that are no longer in the log are skipped. An error is an infrastructure failure, and
// applying again is safe.
func (a *Applier) ApplyChunk(ctx context.Context, to Target, c *Chunk, single bool) (counts Counts, err error) {
	to.alreadyFinal = &atomic.Int64{}
	if single {
		err = a.applyEachSingle(ctx, to, c.evs)
	} else {
		g, work := errgroup.WithContext(ctx)
		for _, share := range a.spreadByObject(c.evs) {
			g.Go(func() error { return a.applyBatches(work, to, share) })
		}
		err = g.Wait()
	}
	if err != nil {
		return counts, err
	}
	counts.AlreadyFinal = to.alreadyFinal.Load()
	counts.Outcomes, err = a.countStatuses(ctx, to.Run, c.IDs)
	return counts, err
}

// Events reads events of the log by their ids, in id order. A body of more than maxBody bytes stays
// in the log. Errors: events.ErrUnavailable.
func (a *Applier) Events(ctx context.Context, ids []int64, maxBody int) ([]stream.Event, error) {
	recs, err := events.Read(ctx, a.Pool, ids, maxBody)
	if err != nil {
		return nil, unavailable(err)
	}
	slices.SortFunc(recs, func(a, b events.Record) int { return cmp.Compare(a.ID, b.ID) })
	evs := make([]stream.Event, len(recs))
	for i := range recs {
		if a.sources.name(recs[i].Source) == "" { // a source that is new since the last read
			if err := a.sources.refresh(ctx, a.Pool); err != nil {
				return nil, unavailable(err)
			}
		}
		evs[i] = a.sourceEvent(&recs[i])
	}
	return evs, nil
}

// sourceEvent converts a record of the log to a stream event.
func (a *Applier) sourceEvent(r *events.Record) stream.Event {
	return stream.Event{StoredEvent: r.StoredEvent, Source: a.sources.name(r.Source), ObjectType: r.ObjectType,
		ObjectID: r.ObjectID, OccurredAt: r.OccurredAt, BodyInLog: r.BodyOmitted, Redacted: r.Redacted}
}

// fetchBodies reads from the log the bodies that are too large for a message. An event that is no
// longer in the log keeps its mark and becomes dead.
func (a *Applier) fetchBodies(ctx context.Context, db events.Reader, batch []stream.Event) error {
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
	recs, err := events.Read(ctx, db, ids, events.UnlimitedBody)
	if err != nil {
		return fmt.Errorf("%w: %w", events.ErrUnavailable, err)
	}
	for i := range recs {
		for _, j := range at[recs[i].ID] {
			retry, trace := batch[j].Retry, batch[j].Trace
			batch[j] = a.sourceEvent(&recs[i])
			batch[j].Retry, batch[j].Trace = retry, trace
		}
	}
	return nil
}

// spreadByObject distributes events over workers by object, so that two workers never wait for one
// object.
func (a *Applier) spreadByObject(evs []stream.Event) [][]stream.Event {
	shares, seed := make([][]stream.Event, a.Settings.Workers), maphash.MakeSeed()
	for i := range evs {
		n := WorkerFor(seed, &evs[i], len(shares))
		shares[n] = append(shares[n], evs[i])
	}
	return shares
}

// WorkerFor returns one of n workers, always the same for an object.
func WorkerFor(seed maphash.Seed, e *stream.Event, n int) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, part := range [...]string{e.Source, e.Account, e.ObjectType, e.ObjectID} {
		_, _ = h.WriteString(part) // never fails
		_ = h.WriteByte(0)
	}
	return h.Sum64() % uint64(n)
}

// applyEachSingle applies events one after the other, each with a reserved attempt. Only an event
// that ends the process keeps its reservation.
func (a *Applier) applyEachSingle(ctx context.Context, to Target, evs []stream.Event) error {
	for _, ev := range evs {
		if err := a.applySingle(ctx, to, ev); err != nil {
			return err
		}
	}
	return nil
}

// applyBatches applies a worker's events in batches of similar size, because a small batch costs
// almost as much as a large one.
func (a *Applier) applyBatches(ctx context.Context, to Target, evs []stream.Event) error {
	for maxEvents := evenBatchSize(len(evs), a.Settings.Batch); len(evs) > 0; {
		n := batchSize(evs, maxEvents)
		if err := a.apply(ctx, to, evs[:n]); err != nil {
			return err
		}
		evs = evs[n:]
	}
	return nil
}

// evenBatchSize returns the size of equal parts of n events. Only the last part is smaller, and no
// part is more than half larger than size.
func evenBatchSize(n, size int) int {
	parts := max(1, (n+size/2)/size)
	return (n + parts - 1) / parts
}

// batchSize returns how many of the events go into one transaction, at most maxEvents.
func batchSize(evs []stream.Event, maxEvents int) (n int) {
	for bytes := 0; n < len(evs) && n < maxEvents && bytes < MaxBatchBytes; n++ {
		bytes += BodyBytes(&evs[n])
	}
	return n
}

// MaxBatchBytes bounds the bodies of one batch, by BodyBytes.
const MaxBatchBytes = 32 << 20

// bodyInLogBytes is the assumed size of a body that is still in the log.
const bodyInLogBytes = 4 << 20

// BodyBytes returns the size of an event's body, an assumed one if the body is still in the log.
func BodyBytes(e *stream.Event) int {
	if e.BodyInLog {
		return bodyInLogBytes
	}
	return len(e.Body)
}

const statusesSQL = `SELECT status, count(*) FROM outcomes WHERE run = $1 AND event_id = ANY($2::bigint[])
	GROUP BY status`

func (a *Applier) countStatuses(ctx context.Context, run int64, ids []int64) (map[versioning.Status]int64, error) {
	counts := map[versioning.Status]int64{}
	var status versioning.Status
	var n int64
	if err := postgres.ForEach(ctx, a.Pool, statusesSQL, []any{run, ids}, []any{&status, &n},
		func() error { counts[status] = n; return nil }); err != nil {
		return nil, unavailable(fmt.Errorf("count outcomes of run %d: %w", run, err))
	}
	return counts, nil
}
