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

// ErrShort: days of the log went while they were exported, so that not all that was there is in the file.
var ErrShort = errors.New("the export is not whole")

// checkEvery is how long an export that stores nothing goes on before it looks again whether the days that it is to read are there.
const checkEvery = time.Second

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
// before, whoever appends meanwhile. Where retention takes out of the log what was to be read still, that is ErrShort.
func Stream(ctx context.Context, e Exporting, w io.Writer) (Exported, error) {
	at, err := begin(ctx, &e)
	if err != nil {
		return Exported{}, err
	}
	x, err := newExport(ctx, e, at)
	if err != nil {
		return Exported{}, err
	}
	x.store = func(packed []byte, _ place) error {
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
	// Days are the partitions of the log that hold what is still to be read.
	Days []events.Day `json:"days"`
}

// begin is the place of an export that has done nothing: what it will read, up to a bound that it freezes.
func begin(ctx context.Context, e *Exporting) (at place, err error) {
	if at.Bound, err = events.FreezeBound(ctx, e.Pool); err != nil {
		return at, err
	}
	at.Days, err = events.Days(ctx, e.Pool, &e.Filter, 0, at.Bound)
	return at, err
}

// export is one under way. While a chunk is compressed, written and synced, the next is read.
type export struct {
	Exporting
	known events.Sources
	// now is how far the chunk goes that is gathered, at what is stored; at belongs to the writer as long as that runs.
	now, at place
	// checked is where the cursor was when the days of the log were looked at last, which was at checkedAt.
	checked   int64
	checkedAt time.Time
	chunk     []byte
	packer    *packer
	// store keeps a chunk for good; at is how far the export is then.
	store func(packed []byte, at place) error
	// full are chunks for the writer, free those that it is done with. quit is closed when it has ended, with err.
	full chan gathered
	free chan []byte
	quit chan struct{}
	err  error
}

// gathered is a chunk and how far it goes.
type gathered struct {
	chunk []byte
	place
}

func newExport(ctx context.Context, e Exporting, at place) (*export, error) {
	p, err := newPacker(e.Compression)
	if err != nil {
		return nil, err
	}
	known, err := events.RegisterSources(ctx, e.Pool, nil)
	e.ChunkBytes = cmp.Or(e.ChunkBytes, chunkBytes)
	x := &export{Exporting: e, known: known, at: at, now: at, checked: at.Cursor, packer: p, full: make(chan gathered), free: make(chan []byte, 1), quit: make(chan struct{})}
	x.free <- nil
	return x, err
}

// run exports what is left. What was handed to the writer is stored, whatever ends the reading.
func (x *export) run(ctx context.Context) error {
	if x.packer.zstd != nil {
		defer x.packer.zstd.Close()
	}
	go x.write()
	err := x.read(ctx)
	close(x.full)
	<-x.quit
	return cmp.Or(x.err, err)
}

func (x *export) read(ctx context.Context) error {
	take := func(e *events.Whole) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return x.take(ctx, e)
	}
	if err := x.check(ctx); err != nil { // what went before an export goes on
		return err
	}
	for end := x.now.Cursor; end < x.now.Bound; x.now.Cursor = end {
		var err error
		if end, err = events.Walk(ctx, x.Pool, &x.Filter, end, x.now.Bound, take); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Since(x.checkedAt) < checkEvery {
			continue
		}
		x.now.Cursor = end
		if err := x.check(ctx); err != nil {
			return err
		}
	}
	return x.flush(ctx)
}

// check looks, behind a reading, whether all days were there that it was to read, and notes those that are left. They are looked at after they were read:
// whatever goes between the two was read, and is taken for gone all the same, which errs on the safe side.
func (x *export) check(ctx context.Context) error {
	days, err := events.Days(ctx, x.Pool, &x.Filter, x.checked, x.now.Bound)
	if err != nil {
		return err
	}
	there := make(map[string]bool, len(days))
	for _, d := range days {
		there[d.Name] = true
	}
	var gone []string
	for _, d := range x.now.Days {
		if !there[d.Name] {
			gone = append(gone, d.Name)
		}
	}
	if len(gone) > 0 {
		return fmt.Errorf("%w: %s went out of the log before all of it was read, by retention or by hand; begin again, for what the log has now", ErrShort, strings.Join(gone, ", "))
	}
	x.now.Days = slices.DeleteFunc(days, func(d events.Day) bool { return d.End <= x.now.Cursor+1 })
	x.checked, x.checkedAt = x.now.Cursor, time.Now()
	return nil
}

// take writes an event.
func (x *export) take(ctx context.Context, e *events.Whole) error {
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
		return x.flush(ctx)
	}
	return nil
}

// flush hands what is gathered to the writer.
func (x *export) flush(ctx context.Context) error {
	if err := x.check(ctx); err != nil {
		return err
	}
	select {
	case x.full <- gathered{x.chunk, x.now}:
	case <-x.quit:
		return x.err
	}
	select {
	case x.chunk = <-x.free:
		return nil
	case <-x.quit:
		return x.err
	}
}

// write stores chunks until there are no more, or one cannot be stored.
func (x *export) write() {
	defer close(x.quit)
	for g := range x.full {
		var packed []byte
		if len(g.chunk) > 0 {
			if packed, x.err = x.packer.pack(g.chunk); x.err != nil {
				return
			}
		}
		g.Bytes = x.at.Bytes + int64(len(packed))
		if err := x.store(packed, g.place); err != nil {
			x.err = fmt.Errorf("write a chunk: %w", err)
			return
		}
		x.at = g.place
		x.free <- g.chunk[:0]
		if x.Progress != nil {
			x.Progress(x.at.Events)
		}
	}
}
