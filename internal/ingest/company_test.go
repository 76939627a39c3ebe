package ingest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
)

// When a batch begins beside what is under way.
func TestCompany(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// underWay are the commits of the other writers; most bounds a batch.
		underWay []int
		most     int
		// waiting is there at once, later comes 500 µs after; ends is when the first commit ends, 0: never.
		waiting, later int
		ends           time.Duration
		want           int
		after          time.Duration
	}{
		"nothing under way, nobody waits":            {most: 256, waiting: 1, want: 1},
		"beside a small one a lone one waits a bit":  {underWay: []int{1}, most: 256, waiting: 1, want: 1, after: time.Millisecond},
		"beside a small one those who come in time":  {underWay: []int{1}, most: 256, waiting: 1, later: 3, want: 4, after: time.Millisecond},
		"beside a small one sixteen go at once":      {underWay: []int{1}, most: 256, waiting: 16, want: 16},
		"the sixteenth opens":                        {underWay: []int{1}, most: 256, waiting: 15, later: 1, want: 16, after: 500 * time.Microsecond},
		"beside a large one fewer wait":              {underWay: []int{40}, most: 256, waiting: 39, want: 39, after: 20 * time.Millisecond},
		"beside a large one as many go at once":      {underWay: []int{40}, most: 256, waiting: 40, want: 40},
		"when it ends whoever waits goes":            {underWay: []int{40}, most: 256, waiting: 3, ends: 7 * time.Millisecond, want: 3, after: 7 * time.Millisecond},
		"beside two it is the size of one":           {underWay: []int{200, 200}, most: 256, waiting: 200, want: 200},
		"no more are waited for than a batch may be": {underWay: []int{200}, most: 8, waiting: 8, want: 8},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := ingest.NewBatches(len(c.underWay)+1, 256)
				for writer, n := range c.underWay {
					b.Push(n)
					if got := b.Next(t.Context(), writer); got != n {
						// As many as those before, so that it begins at once.
						t.Fatalf("writer %d got %d, want %d", writer, got, n)
					}
				}
				b.Limit(c.most)
				began := time.Now()
				b.Push(c.waiting)
				if c.later > 0 {
					time.AfterFunc(500*time.Microsecond, func() { b.Push(c.later) })
				}
				if c.ends > 0 {
					time.AfterFunc(c.ends, func() { b.End(0, c.underWay[0]) })
				}
				if got := b.Next(t.Context(), len(c.underWay)); got != c.want {
					t.Errorf("%d deliveries, want %d", got, c.want)
				}
				if took := time.Since(began); took != c.after {
					t.Errorf("after %s, want %s", took, c.after)
				}
			})
		})
	}
}

// At the end a writer takes what is left, whatever is under way, and then nothing.
func TestNoCompanyAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := ingest.NewBatches(2, 256)
		b.Push(40)
		b.Next(t.Context(), 0)
		ctx, cancel := context.WithCancel(t.Context())
		b.Push(2)
		time.AfterFunc(time.Millisecond, cancel)
		began := time.Now()
		if n, took := b.Next(ctx, 1), time.Since(began); n != 2 || took != time.Millisecond {
			t.Errorf("%d deliveries after %s", n, took)
		}
		if n := b.Next(ctx, 1); n != 0 {
			t.Errorf("%d deliveries where none were left", n)
		}
	})
}

// An append that hangs says nothing of how fast the other writers are: those alone are what the queue moves with.
func TestQueueBesideAnAppendThatHangs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		took time.Duration
		want int
	}{
		"fast commits": {want: 100},
		"slow commits": {took: 3 * time.Second, want: 20}, // five rounds of one writer, of 1.5 s on average, and two more
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := ingest.NewBatches(2, 4)
				b.Push(1)
				b.Next(t.Context(), 0)
				<-time.After(16 * time.Second)
				b.Took(c.took)
				if n := b.Fit(100); n != c.want {
					t.Errorf("%d fit, want %d", n, c.want)
				}
			})
		})
	}
}
