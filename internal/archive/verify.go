package archive

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

// ErrMismatch: a file differs from the log.
var ErrMismatch = errors.New("the file differs from the log")

// Verify reads an export and compares it, byte for byte, with the filter's events in the log up to
// a bound. It returns their number. Events without a body are in neither. It writes nothing, and
// its memory does not grow. Errors: ErrMismatch.
func Verify(ctx context.Context, pool *pgxpool.Pool, path string, f *events.Filter, bound int64) (n int64, err error) {
	in, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = in.Close() }() // it was only read
	unpacked, err := decompress(in)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	defer func() { _ = unpacked.Close() }()
	sources, err := events.RegisterSources(ctx, pool, nil)
	if err != nil {
		return 0, err
	}
	v := verifier{from: bufio.NewReaderSize(unpacked, readBufferSize), sources: sources}
	for end := int64(0); end < bound; {
		if end, err = events.Walk(ctx, pool, f, end, bound, v.compareEvent); err != nil {
			return v.matched, fmt.Errorf("verify %s: %w", path, err)
		}
		if err := ctx.Err(); err != nil {
			return v.matched, err
		}
	}
	if _, err := v.from.ReadByte(); !errors.Is(err, io.EOF) {
		return v.matched, fmt.Errorf("verify %s: %w: it continues after event %d", path, ErrMismatch, v.last)
	}
	return v.matched, nil
}

// verifier compares line by line.
type verifier struct {
	from             *bufio.Reader
	sources          events.Sources
	expected, actual []byte
	matched, last    int64
}

func (v *verifier) compareEvent(e *events.FullRecord) error {
	if e.Body == nil {
		return nil
	}
	source := v.sources.Name[e.Source]
	v.expected = appendLine(v.expected[:0], e, source, v.sources.Provider[source])
	if cap(v.actual) < len(v.expected) {
		v.actual = make([]byte, cap(v.expected))
	}
	have := v.actual[:len(v.expected)]
	if _, err := io.ReadFull(v.from, have); err != nil || !bytes.Equal(have, v.expected) {
		return fmt.Errorf("%w: it differs, or ends, at event %d", ErrMismatch, e.ID)
	}
	v.matched, v.last = v.matched+1, e.ID
	return nil
}
