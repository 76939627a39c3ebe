package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

// ErrIncomplete: partitions of the log were dropped during the export, so the file does not contain
// all events.
var ErrIncomplete = errors.New("the export is incomplete")

// partitionCheckInterval is how often an export that stores nothing checks whether the partitions
// to read still exist.
const partitionCheckInterval = time.Second

// chunkBytes is about how much text is compressed, written and synced at once. An interrupted
// export loses that much. It is a power of two.
const chunkBytes = 8 << 20

// ExportParams are the parameters of an export.
type ExportParams struct {
	// Pool is connected as a role that may read the log and freeze its bound (postern_operator),
	// with at least two connections.
	Pool   *pgxpool.Pool
	Filter events.Filter
	// Compression is how chunks are compressed.
	Compression Compression
	// ChunkBytes is about how much text is written at once; 0: 8 MiB. Tests set it.
	ChunkBytes int
	// Progress is called for each stored chunk; it may be nil.
	Progress Progress
}

// ExportResult is the result of an export, or of its finished part.
type ExportResult struct {
	// Events are in the file.
	Events int64 `json:"events"`
	// Skipped events have no body any more: it was redacted, or was in a dropped partition.
	Skipped int64 `json:"excluded"`
	// Bytes are the written bytes, compressed.
	Bytes int64 `json:"bytes"`
	// Bound is the id up to which the log was read.
	Bound int64 `json:"bound,string"`
}

// ExportToWriter writes the selected events to w, in the order of their ids, one per line. It
// freezes a bound first and ends there. It skips no event that was committed before, even if others
// append meanwhile. It returns ErrIncomplete if retention drops events that it has not read.
func ExportToWriter(ctx context.Context, e ExportParams, w io.Writer) (ExportResult, error) {
	at, err := startPosition(ctx, &e)
	if err != nil {
		return ExportResult{}, err
	}
	x, err := newExport(ctx, e, at)
	if err != nil {
		return ExportResult{}, err
	}
	x.storeChunk = func(packed []byte, _ exportPosition) error {
		_, err := w.Write(packed)
		return err
	}
	err = x.run(ctx)
	return x.stored.ExportResult, err
}

// exportPosition is the progress of an export.
type exportPosition struct {
	ExportResult
	// Cursor is the id of the last event that is written or skipped.
	Cursor int64 `json:"cursor,string"`
	// Days are the partitions of the log that are still to be read.
	Days []events.Partition `json:"days"`
}

// startPosition freezes a bound and returns the position of a new export up to it.
func startPosition(ctx context.Context, e *ExportParams) (at exportPosition, err error) {
	if at.Bound, err = events.FreezeBound(ctx, e.Pool); err != nil {
		return at, err
	}
	at.Days, err = events.ListPartitions(ctx, e.Pool, &e.Filter, 0, at.Bound)
	return at, err
}

// export is an export in progress. It reads the next chunk while one is compressed, written and
// synced.
type export struct {
	ExportParams
	sources events.Sources
	// progress is the position after the chunk that is being filled. stored is the position after
	// the stored chunks; it belongs to the writer while that runs.
	progress, stored exportPosition
	// checkedCursor is the cursor at the last check of the partitions, which was at checkedAt.
	checkedCursor int64
	checkedAt     time.Time
	chunk         []byte
	compressor    *compressor
	// storeChunk stores a chunk durably; at is the position after it.
	storeChunk func(packed []byte, stored exportPosition) error
	// toWrite passes chunks to the writer, and reusable returns their memory. writerDone is closed
	// when the writer has ended, with writeErr.
	toWrite    chan filledChunk
	reusable   chan []byte
	writerDone chan struct{}
	writeErr   error
}

// filledChunk is a chunk and the position after it.
type filledChunk struct {
	chunk []byte
	exportPosition
}

func newExport(ctx context.Context, e ExportParams, at exportPosition) (*export, error) {
	p, err := newCompressor(e.Compression)
	if err != nil {
		return nil, err
	}
	known, err := events.RegisterSources(ctx, e.Pool, nil)
	e.ChunkBytes = cmp.Or(e.ChunkBytes, chunkBytes)
	x := &export{ExportParams: e, sources: known, stored: at, progress: at, checkedCursor: at.Cursor, compressor: p,
		toWrite:  make(chan filledChunk),
		reusable: make(chan []byte, 1), writerDone: make(chan struct{})}
	x.reusable <- nil
	return x, err
}

// run exports the remaining events. A chunk that was passed to the writer is stored even if reading
// fails.
func (x *export) run(ctx context.Context) error {
	if x.compressor.zstd != nil {
		defer x.compressor.zstd.Close()
	}
	go x.write()
	err := x.read(ctx)
	close(x.toWrite)
	<-x.writerDone
	return cmp.Or(x.writeErr, err)
}

func (x *export) read(ctx context.Context) error {
	add := func(e *events.FullRecord) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return x.add(ctx, e)
	}
	if err := x.checkPartitions(ctx); err != nil { // partitions dropped before a continued export
		return err
	}
	for end := x.progress.Cursor; end < x.progress.Bound; x.progress.Cursor = end {
		var err error
		if end, err = events.Walk(ctx, x.Pool, &x.Filter, end, x.progress.Bound, add); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Since(x.checkedAt) < partitionCheckInterval {
			continue
		}
		x.progress.Cursor = end
		if err := x.checkPartitions(ctx); err != nil {
			return err
		}
	}
	return x.flush(ctx)
}

// checkPartitions returns ErrIncomplete if a partition that was to be read does not exist any more,
// and updates the remaining ones. It runs after the reading. It also returns the error for a
// partition that was dropped after it was read: no event is lost, but the check cannot know that.
func (x *export) checkPartitions(ctx context.Context) error {
	days, err := events.ListPartitions(ctx, x.Pool, &x.Filter, x.checkedCursor, x.progress.Bound)
	if err != nil {
		return err
	}
	present := make(map[string]bool, len(days))
	for _, d := range days {
		present[d.Name] = true
	}
	var missing []string
	for _, d := range x.progress.Days {
		if !present[d.Name] {
			missing = append(missing, d.Name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: %s were dropped from the log before all of their events were read, by retention or by "+
			"an operator; start again to export what the log has now", ErrIncomplete, strings.Join(missing, ", "))
	}
	x.progress.Days = slices.DeleteFunc(days, func(d events.Partition) bool { return d.End <= x.progress.Cursor+1 })
	x.checkedCursor, x.checkedAt = x.progress.Cursor, time.Now()
	return nil
}

// add appends an event to the chunk.
func (x *export) add(ctx context.Context, e *events.FullRecord) error {
	source, ok := x.sources.Name[e.Source]
	switch {
	case !ok:
		return fmt.Errorf("event %d: no source has number %d", e.ID, e.Source)
	case e.Body == nil:
		x.progress.Skipped++
	default:
		x.chunk = appendLine(x.chunk, e, source, x.sources.Provider[source])
		x.progress.Events++
	}
	x.progress.Cursor = e.ID
	if len(x.chunk) >= x.ChunkBytes {
		return x.flush(ctx)
	}
	return nil
}

// flush passes the filled chunk to the writer.
func (x *export) flush(ctx context.Context) error {
	if err := x.checkPartitions(ctx); err != nil {
		return err
	}
	select {
	case x.toWrite <- filledChunk{x.chunk, x.progress}:
	case <-x.writerDone:
		return x.writeErr
	}
	select {
	case x.chunk = <-x.reusable:
		return nil
	case <-x.writerDone:
		return x.writeErr
	}
}

// write stores chunks until there are no more, or one cannot be stored.
func (x *export) write() {
	defer close(x.writerDone)
	for g := range x.toWrite {
		var packed []byte
		if len(g.chunk) > 0 {
			if packed, x.writeErr = x.compressor.compress(g.chunk); x.writeErr != nil {
				return
			}
		}
		g.Bytes = x.stored.Bytes + int64(len(packed))
		if err := x.storeChunk(packed, g.exportPosition); err != nil {
			x.writeErr = fmt.Errorf("write a chunk: %w", err)
			return
		}
		x.stored = g.exportPosition
		x.reusable <- g.chunk[:0]
		if x.Progress != nil {
			x.Progress(x.stored.Events)
		}
	}
}
