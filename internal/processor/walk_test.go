package processor_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/processor"
)

// windows chooses the even ids, ten ids at a time and nothing between 21 and 40, and fails above a limit. It tells when it was asked.
func windows(limit int64, asked chan<- int64) processor.Walk {
	return processor.Walk{After: 0, Bound: 64, Chunk: 3, Unread: true,
		Match: func(_ context.Context, _ *pgxpool.Pool, after, bound int64) (ids []int64, end int64, err error) {
			if asked <- after; after >= limit {
				return nil, after, errors.New("no more")
			}
			for id := after + 1; id <= min(after+10, bound); id++ {
				if id%2 == 0 && (id < 21 || id > 40) {
					ids = append(ids, id)
				}
			}
			return ids, min(after+10, bound), nil
		}}
}

// walked says what a walk gave, and the error it ended with.
func walked(ctx context.Context, w processor.Walk, until int) (got []string) {
	for c, err := range new(processor.Processor).Ahead(ctx, w) {
		if err != nil {
			return append(got, err.Error())
		}
		if got = append(got, fmt.Sprint(c.From, c.IDs, c.End)); len(got) == until {
			return got
		}
	}
	return got
}

// Every chosen event is in one chunk, in order, and the checkpoint that may be set behind each passes over nothing.
func TestAheadGivesEveryEventOnce(t *testing.T) {
	t.Parallel()
	want := []string{"0 [2 4 6] 6", "0 [8 10] 10", "10 [12 14 16] 16", "10 [18 20] 20", "20 [] 30", "30 [] 40", "40 [42 44 46] 46", "40 [48 50] 50",
		"50 [52 54 56] 56", "50 [58 60] 60", "60 [62 64] 64"}
	if diff := cmp.Diff(want, walked(t.Context(), windows(64, make(chan int64, 100)), 0)); diff != "" {
		t.Error(diff)
	}
}

// What was read before trouble is given out before it.
func TestAheadEndsWithTrouble(t *testing.T) {
	t.Parallel()
	want := []string{"0 [2 4 6] 6", "0 [8 10] 10", "10 [12 14 16] 16", "10 [18 20] 20", "no more"}
	if diff := cmp.Diff(want, walked(t.Context(), windows(20, make(chan int64, 100)), 0)); diff != "" {
		t.Error(diff)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("stopped"))
	got := walked(ctx, windows(64, make(chan int64, 100)), 0)
	if len(got) == 0 || got[len(got)-1] != "stopped" {
		t.Errorf("a walk that was stopped gave %q", got)
	}
}

// It reads one chunk ahead and no more, and nothing any more once the caller has left.
func TestAheadReadsOneChunk(t *testing.T) {
	t.Parallel()
	asked := make(chan int64, 100)
	if got := walked(t.Context(), windows(64, asked), 3); len(got) != 3 {
		t.Fatal(got)
	}
	close(asked) // a reader that goes on would panic
	if n := len(asked); n > 2 {
		t.Errorf("matched %d times for chunks of the first two windows", n)
	}
}
