package processor

import (
	"context"
	"iter"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

// Walk is a way through the log, a chunk of chosen events at a time.
type Walk struct {
	// Match returns the next chosen events above after and none above the bound, ascending, and how far it has looked.
	Match func(ctx context.Context, pool *pgxpool.Pool, after, bound int64) (ids []int64, end int64, err error)
	// After and Bound are where the walk begins and ends.
	After, Bound int64
	// Chunk bounds the events of one chunk.
	Chunk int
	// Unread: the caller wants the ids alone.
	Unread bool
}

// Chunk is a part of a walk.
type Chunk struct {
	// From is an id above which the chunk and those before it back to From were looked for at one time.
	From int64
	// IDs are the events chosen, ascending; none where there are none up to End.
	IDs []int64
	// End is how far the walk has come with this chunk.
	End int64

	recs []events.Record
}

// Ahead walks the log and reads the next chunk while the caller works on one. It ends with an error or at the bound.
func (p *Processor) Ahead(ctx context.Context, w Walk) iter.Seq2[*Chunk, error] {
	return func(yield func(*Chunk, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		chunks, ended := make(chan *Chunk), make(chan error, 1)
		go func() {
			ended <- p.readAhead(ctx, w, chunks)
			close(chunks)
		}()
		defer func() {
			cancel()
			for range chunks { // until the reader has ended
			}
		}()
		for c := range chunks {
			if !yield(c, nil) {
				return
			}
		}
		if err := <-ended; err != nil {
			yield(nil, err)
		}
	}
}

func (p *Processor) readAhead(ctx context.Context, w Walk, to chan<- *Chunk) error {
	for from := w.After; from < w.Bound; {
		ids, end, err := w.Match(ctx, p.Pool, from, w.Bound)
		if err != nil {
			return err
		}
		for first := true; first || len(ids) > 0; first = false {
			c := &Chunk{From: from, IDs: ids[:min(len(ids), w.Chunk)], End: end}
			if ids = ids[len(c.IDs):]; len(ids) > 0 {
				c.End = c.IDs[len(c.IDs)-1]
			}
			if !w.Unread {
				if c.recs, err = p.records(ctx, c.IDs, smallBody); err != nil {
					return err
				}
			}
			select {
			case to <- c:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		from = end
	}
	return nil
}
