package ingest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
)

// The test checks when a batch starts while other commits are in progress.
func TestAppenderNextBatch_commitInProgress_waitsForLargerBatch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// inProgress are the sizes of the other writers' commits; batchMax bounds a batch.
		inProgress []int
		batchMax   int
		// waiting deliveries are queued at once, later more follow after 500 µs. commitEnds is when
		// the first commit ends, 0 for never.
		waiting, later int
		commitEnds     time.Duration
		want           int
		wantAfter      time.Duration
	}{
		"no commit in progress, no wait": {batchMax: 256, waiting: 1, want: 1},
		"small commit in progress, one delivery waits a moment": {
			inProgress: []int{1}, batchMax: 256, waiting: 1, want: 1, wantAfter: time.Millisecond},
		"small commit in progress, later deliveries join": {
			inProgress: []int{1}, batchMax: 256, waiting: 1, later: 3, want: 4, wantAfter: time.Millisecond},
		"small commit in progress, sixteen do not wait": {inProgress: []int{1}, batchMax: 256, waiting: 16, want: 16},
		"the sixteenth ends the wait": {
			inProgress: []int{1}, batchMax: 256, waiting: 15, later: 1, want: 16, wantAfter: 500 * time.Microsecond},
		"large commit in progress, fewer deliveries wait": {
			inProgress: []int{40}, batchMax: 256, waiting: 39, want: 39, wantAfter: 20 * time.Millisecond},
		"large commit in progress, as many deliveries do not wait": {
			inProgress: []int{40}, batchMax: 256, waiting: 40, want: 40},
		"end of a commit ends the wait": {
			inProgress: []int{40}, batchMax: 256, waiting: 3, commitEnds: 7 * time.Millisecond, want: 3,
			wantAfter: 7 * time.Millisecond},
		"two commits in progress, their mean size counts": {
			inProgress: []int{200, 200}, batchMax: 256, waiting: 200, want: 200},
		"batchMax is enough": {inProgress: []int{200}, batchMax: 8, waiting: 8, want: 8},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := ingest.NewBatchQueue(len(c.inProgress)+1, 256)
				for writer, n := range c.inProgress {
					b.Push(n)
					if got := b.Next(t.Context(), writer); got != n {
						// as many as the commits before, so that it starts at once
						t.Fatalf("writer %d got %d, want %d", writer, got, n)
					}
				}
				b.Limit(c.batchMax)
				started := time.Now()
				b.Push(c.waiting)
				if c.later > 0 {
					time.AfterFunc(500*time.Microsecond, func() { b.Push(c.later) })
				}
				if c.commitEnds > 0 {
					time.AfterFunc(c.commitEnds, func() { b.EndCommit(0, c.inProgress[0]) })
				}
				if got := b.Next(t.Context(), len(c.inProgress)); got != c.want {
					t.Errorf("got %d deliveries, want %d", got, c.want)
				}
				if elapsed := time.Since(started); elapsed != c.wantAfter {
					t.Errorf("got a batch after %s, want %s", elapsed, c.wantAfter)
				}
			})
		})
	}
}

// After ctx has ended, a writer takes the remaining deliveries, whatever is in progress, and then
// an empty batch.
func TestAppenderNextBatch_contextEnded_takesTheRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := ingest.NewBatchQueue(2, 256)
		b.Push(40)
		b.Next(t.Context(), 0)
		ctx, cancel := context.WithCancel(t.Context())
		b.Push(2)
		time.AfterFunc(time.Millisecond, cancel)
		began := time.Now()
		if n, elapsed := b.Next(ctx, 1), time.Since(began); n != 2 || elapsed != time.Millisecond {
			t.Errorf("got %d deliveries after %s, want 2 after 1 ms", n, elapsed)
		}
		if n := b.Next(ctx, 1); n != 0 {
			t.Errorf("got %d deliveries from an empty queue", n)
		}
	})
}

// A stalled append says nothing about the speed of the other writers. Only the others count in the
// estimate.
func TestQueuePush_stalledWriter_isIgnoredInEstimate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		commitTime time.Duration
		want       int
	}{
		"fast commits": {want: 100},
		// five commits of one writer, of 1.5 s on average, and two more
		"slow commits": {commitTime: 3 * time.Second, want: 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := ingest.NewBatchQueue(2, 4)
				b.Push(1)
				b.Next(t.Context(), 0)
				<-time.After(16 * time.Second)
				b.ObserveCommit(c.commitTime)
				if n := b.PushUntilFull(100); n != c.want {
					t.Errorf("%d deliveries fit, want %d", n, c.want)
				}
			})
		})
	}
}
