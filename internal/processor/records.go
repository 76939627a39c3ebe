package processor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// maxInlineBody is the largest body, in bytes, that is read together with many others. A larger one
// is read with its batch.
const maxInlineBody = 16 << 10

// ApplyStored reads events of the log and applies them as ApplyChunk does.
func (p *Processor) ApplyStored(ctx context.Context, to Target, ids []int64, single bool) (map[versioning.Status]int64,
	error) {
	c, err := p.ReadChunk(ctx, ids)
	if err != nil {
		return nil, err
	}
	return p.ApplyChunk(ctx, to, c, single)
}

// ReadChunk reads events of the log. Errors: events.ErrUnavailable.
func (p *Processor) ReadChunk(ctx context.Context, ids []int64) (*Chunk, error) {
	recs, err := p.records(ctx, ids, maxInlineBody)
	return &Chunk{IDs: ids, recs: recs}, err
}

// ApplyChunk applies events of the log to a target, with as many workers as Run has for the stream.
// It returns the counts of their outcomes in this run. single tries each event by itself,
// one after the other, and commits its attempt first: an event that ends the process again and
// again stays failed, and the others are applied. Events that are no longer in the log are skipped.
// An error is an infrastructure failure, and applying again is safe.
func (p *Processor) ApplyChunk(ctx context.Context, to Target, c *Chunk, single bool) (map[versioning.Status]int64,
	error) {
	if single {
		if err := p.applyEachSingle(ctx, to, c.recs); err != nil {
			return nil, err
		}
		return p.countStatuses(ctx, to.Run, c.IDs)
	}
	g, work := errgroup.WithContext(ctx)
	for _, share := range p.spreadByObject(c.recs) {
		g.Go(func() error { return p.applyBatches(work, to, share) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return p.countStatuses(ctx, to.Run, c.IDs)
}

// records reads events of the log by their ids, in id order.
func (p *Processor) records(ctx context.Context, ids []int64, maxBody int) ([]events.Record, error) {
	recs, err := events.Read(ctx, p.Pool, ids, maxBody)
	if err != nil {
		return nil, unavailable(err)
	}
	slices.SortFunc(recs, func(a, b events.Record) int { return cmp.Compare(a.ID, b.ID) })
	return recs, p.nameSources(ctx, recs)
}

// nameSources reads the sources again if this process does not know one of the records.
func (p *Processor) nameSources(ctx context.Context, recs []events.Record) error {
	for i := range recs {
		if p.sources.name(recs[i].Source) == "" {
			return unavailable(p.sources.refresh(ctx, p.Pool))
		}
	}
	return nil
}

// spreadByObject distributes events over workers by object, so that two workers never wait for one
// object.
func (p *Processor) spreadByObject(recs []events.Record) [][]stream.Event {
	shares, seed := make([][]stream.Event, p.Settings.Workers), maphash.MakeSeed()
	for i := range recs {
		e := p.sourceEvent(&recs[i])
		n := workerFor(seed, &e, len(shares))
		shares[n] = append(shares[n], e)
	}
	return shares
}

// applyEachSingle applies events one after the other, each with a reserved attempt. Only an event
// that ends the process keeps its reservation.
func (p *Processor) applyEachSingle(ctx context.Context, to Target, recs []events.Record) error {
	for i := range recs {
		if err := p.applySingle(ctx, to, p.sourceEvent(&recs[i])); err != nil {
			return err
		}
	}
	return nil
}

// applyBatches applies a worker's events in batches of similar size, because a small batch costs
// almost as much as a large one.
func (p *Processor) applyBatches(ctx context.Context, to Target, evs []stream.Event) error {
	for maxEvents := evenBatchSize(len(evs), p.Settings.Batch); len(evs) > 0; {
		n := batchSize(evs, maxEvents)
		if err := p.apply(ctx, to, evs[:n]); err != nil {
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
	for bytes := 0; n < len(evs) && n < maxEvents && bytes < maxBatchBytes; n++ {
		bytes += bodyBytes(&evs[n])
	}
	return n
}

// maxPublishBatch is how many events are read with their bodies to be published: each body may have
// stream.MaxBody bytes.
const maxPublishBatch = 100

// PublishStored publishes events of the log to postern.replays under a run and returns their
// number. It skips events that are no longer in the log or were redacted. It returns after the
// stream has acknowledged all of them. An error is an infrastructure failure. Publishing again is
// safe, and some events are then delivered twice.
func (p *Processor) PublishStored(ctx context.Context, run int64, ids []int64) (n int64, err error) {
	if p.Conn == nil {
		return 0, unavailable(errors.New("publish events: this process has no connection to a stream"))
	}
	for len(ids) > 0 {
		some := ids[:min(len(ids), maxPublishBatch)]
		ids = ids[len(some):]
		recs, err := p.records(ctx, some, stream.MaxBody)
		if err != nil {
			return n, err
		}
		evs := make([]stream.Event, 0, len(recs))
		for i := range recs {
			if !recs[i].Redacted {
				evs = append(evs, p.sourceEvent(&recs[i]))
			}
		}
		if err := p.publishStored(ctx, run, evs); err != nil {
			return n, unavailable(err)
		}
		n += int64(len(evs))
	}
	return n, nil
}

// publishStored creates the stream if it is missing.
func (p *Processor) publishStored(ctx context.Context, run int64, evs []stream.Event) error {
	err := p.Conn.PublishReplays(ctx, run, evs)
	if !stream.IsNotFound(err) {
		return err
	}
	if err := p.Conn.EnsureReplays(ctx, p.Limits); err != nil {
		return err
	}
	return p.Conn.PublishReplays(ctx, run, evs)
}

const statusesSQL = `SELECT status, count(*) FROM outcomes WHERE run = $1 AND event_id = ANY($2::bigint[])
	GROUP BY status`

func (p *Processor) countStatuses(ctx context.Context, run int64, ids []int64) (map[versioning.Status]int64, error) {
	counts := map[versioning.Status]int64{}
	rows, err := p.Pool.Query(ctx, statusesSQL, run, ids)
	if err != nil {
		return nil, unavailable(fmt.Errorf("count outcomes of run %d: %w", run, err))
	}
	var status versioning.Status
	var n int64
	if _, err := pgx.ForEachRow(rows, []any{&status, &n}, func() error { counts[status] = n; return nil }); err != nil {
		return nil, unavailable(fmt.Errorf("count outcomes of run %d: %w", run, err))
	}
	return counts, nil
}
