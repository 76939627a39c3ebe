package archive

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

// chunkBytes is about how much text is compressed, written and synced at once: what an export that is ended loses. A power of two.
const chunkBytes = 8 << 20

// Exporting is what an export needs.
type Exporting struct {
	// Pool is connected as a role that may read the log and freeze its bound (postern_operator), with two connections at least.
	Pool   *pgxpool.Pool
	Filter events.Filter
	// Compression is how chunks are compressed.
	Compression Compression
	// ChunkBytes is about how much text is written at once; 0: 8 MiB. For tests.
	ChunkBytes int
	// Progress is told of each chunk that is stored; it may be nil.
	Progress Progress
}

// Exported is what came of an export, or of what of it is done.
type Exported struct {
	// Events are in the file.
	Events int64 `json:"events"`
	// LeftOut events have no body any more: it was redacted, or lay in a partition that was dropped.
	LeftOut int64 `json:"left_out"`
	// Bytes are written, compressed.
	Bytes int64 `json:"bytes"`
	// Bound is the id up to which the log was read.
	Bound int64 `json:"bound,string"`
}

// Stream writes the chosen events to w, ascending by id, a line each. It ends at the bound that it freezes first, so it skips nothing that was committed
// before, whoever appends meanwhile.
func Stream(ctx context.Context, e Exporting, w io.Writer) (Exported, error) {
	bound, err := events.FreezeBound(ctx, e.Pool)
	if err != nil {
		return Exported{}, err
	}
	x, err := newExport(ctx, e, place{Exported: Exported{Bound: bound}})
	if err != nil {
		return Exported{}, err
	}
	x.store = func(packed []byte, _ int64) error {
		_, err := w.Write(packed)
		return err
	}
	err = x.run(ctx)
	return x.at.Exported, err
}

// place is how far an export is.
type place struct {
	Exported
	// Cursor is the id of the last event that is written or left out.
	Cursor int64 `json:"cursor,string"`
}

// export is one under way.
type export struct {
	Exporting
	known  events.Sources
	at     place // what is stored
	now    place // with the chunk that is not yet
	chunk  []byte
	packer *packer
	// store keeps a chunk for good; cursor is what at will say then.
	store func(packed []byte, cursor int64) error
}

func newExport(ctx context.Context, e Exporting, at place) (*export, error) {
	p, err := newPacker(e.Compression)
	if err != nil {
		return nil, err
	}
	known, err := events.RegisterSources(ctx, e.Pool, nil)
	e.ChunkBytes = cmp.Or(e.ChunkBytes, chunkBytes)
	return &export{Exporting: e, known: known, at: at, now: at, packer: p}, err
}

func (x *export) run(ctx context.Context) error {
	if x.packer.zstd != nil {
		defer x.packer.zstd.Close()
	}
	take := func(e *events.Whole) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return x.take(e)
	}
	var err error
	for end := x.now.Cursor; end < x.at.Bound && err == nil; {
		if end, err = events.Walk(ctx, x.Pool, &x.Filter, end, x.at.Bound, take); err == nil {
			err = ctx.Err()
		}
		if err == nil {
			x.now.Cursor = end
		}
	}
	if err == nil {
		err = x.flush()
	}
	return err
}

// take writes an event.
func (x *export) take(e *events.Whole) error {
	source, ok := x.known.Name[e.Source]
	switch {
	case !ok:
		return fmt.Errorf("event %d: no source has number %d", e.ID, e.Source)
	case e.Body == nil:
		x.now.LeftOut++
	default:
		x.chunk = appendLine(x.chunk, e, source, x.known.Provider[source])
		x.now.Events++
	}
	x.now.Cursor = e.ID
	if len(x.chunk) >= x.ChunkBytes {
		return x.flush()
	}
	return nil
}

// flush stores what is gathered.
func (x *export) flush() error {
	packed, err := x.packer.pack(x.chunk)
	if err != nil {
		return fmt.Errorf("compress a chunk: %w", err)
	}
	if len(x.chunk) == 0 {
		packed = nil
	}
	x.now.Bytes += int64(len(packed))
	if err := x.store(packed, x.now.Cursor); err != nil {
		return fmt.Errorf("write a chunk: %w", err)
	}
	x.at, x.chunk = x.now, x.chunk[:0]
	if x.Progress != nil {
		x.Progress(x.at.Events)
	}
	return nil
}
