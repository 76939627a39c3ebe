package apply

import (
	"context"
	"iter"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/stream"
)

// Walk describes a walk through the log, in chunks of selected events.
type Walk struct {
	// Match returns the next selected events above after and up to the bound, ascending, and the
	// end of the range that it has read.
	Match func(ctx context.Context, pool *pgxpool.Pool, after, bound int64) (ids []int64, end int64, err error)
	// After and Bound are where the walk begins and ends.
	After, Bound int64
	// Chunk bounds the events of one chunk.
	Chunk int
	// IDsOnly says that the caller needs only the ids.
	IDsOnly bool
}

// Chunk is a part of a walk.
type Chunk struct {
	// From is the id above which a query selected this chunk. All chunks of one query have the same
	// From.
	From int64
	// IDs are the selected events, ascending. It is empty if there are none up to End.
	IDs []int64
	// End is the position of the walk after this chunk.
	End int64

	evs []stream.Event
}

// ReadAhead walks the log and reads the next chunk while the caller works on the current one. It
// ends with an error or at the bound.
func (a *Applier) ReadAhead(ctx context.Context, w Walk) iter.Seq2[*Chunk, error] {
	return func(yield func(*Chunk, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		chunks, ended := make(chan *Chunk), make(chan error, 1)
		go func() {
			ended <- a.readAhead(ctx, w, chunks)
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

func (a *Applier) readAhead(ctx context.Context, w Walk, to chan<- *Chunk) error {
	for from := w.After; from < w.Bound; {
		ids, end, err := w.Match(ctx, a.Pool, from, w.Bound)
		if err != nil {
			return err
		}
		for first := true; first || len(ids) > 0; first = false {
			c := &Chunk{From: from, IDs: ids[:min(len(ids), w.Chunk)], End: end}
			if ids = ids[len(c.IDs):]; len(ids) > 0 {
				c.End = c.IDs[len(c.IDs)-1]
			}
			if !w.IDsOnly {
				if c.evs, err = a.Events(ctx, c.IDs, maxInlineBody); err != nil {
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
