package ingest

import (
	"errors"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// interrupted is a response writer that counts the read deadlines that were set.
type interrupted struct {
	*httptest.ResponseRecorder
	deadlines int
}

func (w *interrupted) SetReadDeadline(time.Time) error {
	w.deadlines++
	return nil
}

func TestUploads_evict_theOldestThatLastsASecond(t *testing.T) {
	t.Parallel()
	const unit = 8 << 10
	tests := []struct {
		name string
		// age is how long the two uploads that fill the capacity have lasted, and complete whether they have arrived.
		age      time.Duration
		complete bool
		size     int64
		err      error
		evicted  int
	}{
		{"young, refuses the next", evictAfter, false, unit, errFull, 0},
		{"old, evicts one for a small body", evictAfter + 1, false, unit, nil, 1},
		{"old, evicts all that a larger body needs", evictAfter + 1, false, 3 * unit, nil, 2},
		{"old but complete, refuses the next", evictAfter + 1, true, unit, errFull, 0},
		{"old, evicts nothing for more than the capacity", evictAfter + 1, false, 5 * unit, errFull, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				pool := &uploads{capacity: 4 * unit}
				held := make([]*upload, 2)
				writers := make([]*interrupted, 2)
				for i := range held {
					writers[i] = &interrupted{httptest.NewRecorder(), 0}
					held[i] = &upload{pool: pool, writer: writers[i]}
					if err := held[i].grow(2 * unit); err != nil {
						t.Fatal(err)
					}
					if tt.complete && held[i].complete() != nil {
						t.Fatal("an upload that nothing evicted is evicted")
					}
				}
				time.Sleep(tt.age) // of the bubble
				next := &upload{pool: pool, writer: httptest.NewRecorder()}
				if err := next.grow(tt.size); !errors.Is(err, tt.err) {
					t.Errorf("error %v, want %v", err, tt.err)
				}
				for i, u := range held {
					if want := i < tt.evicted; u.evicted != want || writers[i].deadlines > 0 != want || errors.Is(u.grow(2*unit), errSlow) != want {
						t.Errorf("upload %d: evicted %t, interrupted %d times, want %t", i, u.evicted, writers[i].deadlines, want)
					}
				}
				for _, u := range append(held, next) {
					u.release()
					u.release()
				}
				if pool.used != 0 || pool.oldest != nil || pool.newest != nil {
					t.Errorf("%d bytes are used after all uploads ended", pool.used)
				}
			})
		})
	}
}

func TestUploads_largeBodies_leaveTheReserveToSmallOnes(t *testing.T) {
	t.Parallel()
	pool := new(uploads)
	pool.setLimits(16*smallUpload, 4*smallUpload) // 8 of them and a byte, of which one is the reserve
	large, small := &upload{pool: pool}, &upload{pool: pool}
	if err := large.grow(7*smallUpload + 2); !errors.Is(err, errFull) {
		t.Errorf("a large body may take the reserve: %v", err)
	}
	if err := errors.Join(large.grow(7*smallUpload+1), small.grow(smallUpload)); err != nil {
		t.Error(err)
	}
}
