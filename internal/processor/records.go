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

// smallBody is how large a body may be, in bytes, to be read with many others; a larger one is read with its batch.
const smallBody = 16 << 10

// ApplyStored reads events of the log and applies them as ApplyChunk does.
func (p *Processor) ApplyStored(ctx context.Context, to Target, ids []int64, alone bool) (map[versioning.Status]int64, error) {
	c, err := p.ReadChunk(ctx, ids)
	if err != nil {
		return nil, err
	}
	return p.ApplyChunk(ctx, to, c, alone)
}

// ReadChunk reads events of the log. Errors: events.ErrUnavailable.
func (p *Processor) ReadChunk(ctx context.Context, ids []int64) (*Chunk, error) {
	recs, err := p.records(ctx, ids, smallBody)
	return &Chunk{IDs: ids, recs: recs}, err
}

// ApplyChunk applies events of the log to a target, as Apply does those of the stream, on as many lanes, and returns how many of them have
// which outcome in this run now. alone tries each by itself, one after the other, its attempt committed before: if one of them ends the process
// again and again it stays failed, and all go past it. What is no longer in the log is left out. An error is trouble of our own, and
// applying again is safe.
func (p *Processor) ApplyChunk(ctx context.Context, to Target, c *Chunk, alone bool) (map[versioning.Status]int64, error) {
	if alone {
		if err := p.applyEachAlone(ctx, to, c.recs); err != nil {
			return nil, err
		}
		return p.statuses(ctx, to.Run, c.IDs)
	}
	g, work := errgroup.WithContext(ctx)
	for _, lane := range p.spread(c.recs) {
		g.Go(func() error { return p.applyLane(work, to, lane) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return p.statuses(ctx, to.Run, c.IDs)
}

// records reads events of the log by their ids, in the order of these.
func (p *Processor) records(ctx context.Context, ids []int64, maxBody int) ([]events.Record, error) {
	recs, err := events.Read(ctx, p.Pool, ids, maxBody)
	if err != nil {
		return nil, unavailable(err)
	}
	slices.SortFunc(recs, func(a, b events.Record) int { return cmp.Compare(a.ID, b.ID) })
	return recs, p.nameSources(ctx, recs)
}

// nameSources looks for the names of sources that this process does not know yet.
func (p *Processor) nameSources(ctx context.Context, recs []events.Record) error {
	for i := range recs {
		if p.sources.name(recs[i].Source) == "" {
			return unavailable(p.sources.refresh(ctx, p.Pool))
		}
	}
	return nil
}

// spread puts events on lanes by object, so that two lanes never wait for one object.
func (p *Processor) spread(recs []events.Record) [][]stream.Event {
	lanes, seed := make([][]stream.Event, p.Settings.Lanes), maphash.MakeSeed()
	for i := range recs {
		e := p.sourceEvent(&recs[i])
		n := laneOf(seed, &e, len(lanes))
		lanes[n] = append(lanes[n], e)
	}
	return lanes
}

// applyEachAlone never has two attempts reserved at once: only what ends the process is left with one.
func (p *Processor) applyEachAlone(ctx context.Context, to Target, recs []events.Record) error {
	for i := range recs {
		if err := p.applyAlone(ctx, to, p.sourceEvent(&recs[i])); err != nil {
			return err
		}
	}
	return nil
}

// applyLane applies a lane's events in batches of about the same size: a small one behind a large one costs almost as much.
func (p *Processor) applyLane(ctx context.Context, to Target, evs []stream.Event) error {
	for most := evenly(len(evs), p.Settings.Batch); len(evs) > 0; {
		n := atOnce(evs, most)
		if err := p.apply(ctx, to, evs[:n]); err != nil {
			return err
		}
		evs = evs[n:]
	}
	return nil
}

// evenly is the size of the parts of n things, all the same but for the last and each at most half as large again as the size that is wanted.
func evenly(n, size int) int {
	parts := max(1, (n+size/2)/size)
	return (n + parts - 1) / parts
}

// atOnce is how many of some events go into one transaction of so many at most.
func atOnce(evs []stream.Event, most int) (n int) {
	for bytes := 0; n < len(evs) && n < most && bytes < laneBytes; n++ {
		bytes += weigh(&evs[n])
	}
	return n
}

// publishedAtOnce is how many events are read whole to be published: each may have a body of stream.MaxBody.
const publishedAtOnce = 100

// PublishStored publishes events of the log to postern.replays under a run, and returns how many those are: what is no longer in the log, or was redacted, is left out.
// It returns only when the stream has acknowledged all of them. An error is trouble of our own; publishing again is safe, and some then come twice.
func (p *Processor) PublishStored(ctx context.Context, run int64, ids []int64) (n int64, err error) {
	if p.Conn == nil {
		return 0, unavailable(errors.New("publish events: this process has no connection to a stream"))
	}
	for len(ids) > 0 {
		some := ids[:min(len(ids), publishedAtOnce)]
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

// publishStored makes the stream where it is missing.
func (p *Processor) publishStored(ctx context.Context, run int64, evs []stream.Event) error {
	err := p.Conn.PublishReplays(ctx, run, evs)
	if !stream.Gone(err) {
		return err
	}
	if err := p.Conn.EnsureReplays(ctx, p.Limits); err != nil {
		return err
	}
	return p.Conn.PublishReplays(ctx, run, evs)
}

const statusesSQL = `SELECT status, count(*) FROM outcomes WHERE run = $1 AND event_id = ANY($2::bigint[]) GROUP BY status`

func (p *Processor) statuses(ctx context.Context, run int64, ids []int64) (map[versioning.Status]int64, error) {
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
