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

// ErrUnlike: a file is not what the log holds.
var ErrUnlike = errors.New("the file is not what the log holds")

// Verify reads an export back and compares it, byte for byte, with what the log holds of the filter's events up to a bound, and returns how many those are. Events without a
// body are in neither. It writes nothing, and memory stays flat. Errors: ErrUnlike.
func Verify(ctx context.Context, pool *pgxpool.Pool, path string, f *events.Filter, bound int64) (n int64, err error) {
	in, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = in.Close() }() // it was only read
	unpacked, err := unpack(in)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	defer func() { _ = unpacked.Close() }()
	known, err := events.RegisterSources(ctx, pool, nil)
	if err != nil {
		return 0, err
	}
	v := verifier{from: bufio.NewReaderSize(unpacked, readAhead), known: known}
	for end := int64(0); end < bound; {
		if end, err = events.Walk(ctx, pool, f, end, bound, v.take); err != nil {
			return v.n, fmt.Errorf("verify %s: %w", path, err)
		}
		if err := ctx.Err(); err != nil {
			return v.n, err
		}
	}
	if _, err := v.from.ReadByte(); !errors.Is(err, io.EOF) {
		return v.n, fmt.Errorf("verify %s: %w: it goes on after event %d", path, ErrUnlike, v.last)
	}
	return v.n, nil
}

// verifier compares line after line.
type verifier struct {
	from       *bufio.Reader
	known      events.Sources
	want, have []byte
	n, last    int64
}

func (v *verifier) take(e *events.Whole) error {
	if e.Body == nil {
		return nil
	}
	source := v.known.Name[e.Source]
	v.want = appendLine(v.want[:0], e, source, v.known.Provider[source])
	if cap(v.have) < len(v.want) {
		v.have = make([]byte, cap(v.want))
	}
	have := v.have[:len(v.want)]
	if _, err := io.ReadFull(v.from, have); err != nil || !bytes.Equal(have, v.want) {
		return fmt.Errorf("%w: it differs, or ends, at event %d", ErrUnlike, e.ID)
	}
	v.n, v.last = v.n+1, e.ID
	return nil
}
