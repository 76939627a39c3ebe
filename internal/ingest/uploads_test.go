package ingest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/postern-gateway/postern/internal/testkit"
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

func TestUploads_evict_oldestAfterOneSecond(t *testing.T) {
	t.Parallel()
	const unit = 8 << 10
	tests := []struct {
		name string
		// age is how long the two uploads that fill the capacity have lasted, and complete whether
		// they have arrived.
		age      time.Duration
		complete bool
		size     int64
		err      error
		evicted  int
	}{
		{"new, rejects the next", evictAfter, false, unit, errOverloaded, 0},
		{"old, evicts one for a small body", evictAfter + 1, false, unit, nil, 1},
		{"old, evicts all that a larger body needs", evictAfter + 1, false, 3 * unit, nil, 2},
		{"old but complete, rejects the next", evictAfter + 1, true, unit, errOverloaded, 0},
		{"old, evicts nothing for more than the capacity", evictAfter + 1, false, 5 * unit, errOverloaded, 2},
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
					testkit.Must(t, held[i].grow(2*unit))
					if tt.complete && held[i].complete() != nil {
						t.Fatal("an upload was evicted for nothing")
					}
				}
				time.Sleep(tt.age) // of the synctest bubble
				next := &upload{pool: pool, writer: httptest.NewRecorder()}
				if err := next.grow(tt.size); !errors.Is(err, tt.err) {
					t.Errorf("error %v, want %v", err, tt.err)
				}
				for i, u := range held {
					if want := i < tt.evicted; u.evicted != want || writers[i].deadlines > 0 != want ||
						errors.Is(u.grow(2*unit), errSlow) != want {
						t.Errorf("upload %d: evicted %t, interrupted %d times, want %t", i, u.evicted,
							writers[i].deadlines, want)
					}
				}
				for _, u := range append(held, next) {
					u.release()
					u.release()
				}
				if pool.used != 0 || pool.evictable.Len() != 0 {
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
	if err := large.grow(7*smallUpload + 2); !errors.Is(err, errOverloaded) {
		t.Errorf("a large body may use the reserve: %v", err)
	}
	if err := errors.Join(large.grow(7*smallUpload+1), small.grow(smallUpload)); err != nil {
		t.Error(err)
	}
}

// slowBody is the body of a client that cannot sign: it sends its bytes at once, and ends the body
// after hold, or never where hold is zero.
type slowBody struct {
	http.ResponseWriter
	bytes       int
	hold        time.Duration
	interrupted chan struct{}
	stop        <-chan struct{}
}

func (b *slowBody) Read(p []byte) (int, error) {
	if b.bytes > 0 {
		n := min(len(p), b.bytes)
		b.bytes -= n
		return n, nil
	}
	var end <-chan time.Time
	if b.hold > 0 {
		end = time.After(b.hold)
	}
	select {
	case <-end:
		return 0, io.EOF
	case <-b.interrupted:
		return 0, os.ErrDeadlineExceeded
	case <-b.stop:
		return 0, io.ErrUnexpectedEOF
	}
}

func (b *slowBody) Close() error { return nil }

func (b *slowBody) SetReadDeadline(time.Time) error {
	close(b.interrupted)
	return nil
}

// slowBodies is an attack by clients that cannot sign. All of them together send a number of bytes
// a second; a client whose body ended begins the next one.
type slowBodies struct {
	name          string
	clients, sent int
	hold          time.Duration
}

// run has all clients send until the context ends. Each announces that many bytes, or none if that
// is negative.
func (a slowBodies) run(ctx context.Context, pool *uploads, maxBody, announced, perSecond int64) {
	size := a.sent + 100 // including the headers
	line := rate.NewLimiter(rate.Limit(perSecond), size)
	var clients sync.WaitGroup
	for range a.clients {
		clients.Go(func() {
			for line.WaitN(ctx, size) == nil {
				body := &slowBody{bytes: a.sent, hold: a.hold, interrupted: make(chan struct{}), stop: ctx.Done()}
				u := &upload{pool: pool, writer: body}
				_, _ = readBody(&http.Request{Body: body, ContentLength: announced}, maxBody, u)
				u.release()
			}
		})
	}
	clients.Wait()
}

// The gateway has the capacity of the default settings, and the attacks send 10 MiB a second in
// simulated time. The short form has the same part of all.
func TestReadBody_concurrentSlowBodies_isNotRejected(t *testing.T) {
	t.Parallel()
	part, during := 1, 10*time.Second
	if testing.Short() {
		part, during = 4, 4*evictAfter
	}
	maxBody, perSecond := int64(4<<20/part), int64(10<<20/part)
	for _, a := range []slowBodies{
		{name: "66 after 512 KiB", clients: 66, sent: 512<<10/part + 1}, // the gateway has more capacity
		{name: "36 after 2 MiB", clients: 36, sent: 2<<20/part + 1},
		{name: "400 after 32 KiB", clients: 400 / part, sent: 32<<10 + 1},
		{name: "4200 after 4 KiB", clients: 4200 / part, sent: 4<<10 + 1},
		{name: "8000 after 4 KiB", clients: 8000 / part, sent: 4<<10 + 1},
		{name: "8000 after 16 KiB", clients: 8000 / part, sent: 16<<10 + 1},
		{name: "16000 that end after 513 bytes", clients: 16000 / part, sent: 513, hold: evictAfter * 9 / 10},
		{name: "16000 that end after 2049 bytes", clients: 16000 / part, sent: 2049, hold: evictAfter * 9 / 10},
	} {
		for encoding, announced := range map[string]int64{"announced": maxBody, "chunked": -1} {
			t.Run(a.name+"/"+encoding, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					pool := new(uploads)
					pool.setLimits(int64(256<<20/part), maxBody)
					ctx, stop := context.WithCancel(t.Context())
					var running sync.WaitGroup
					running.Go(func() { a.run(ctx, pool, maxBody, announced, perSecond) })
					var rejected, sent int
					var most int64
					for began := time.Now(); time.Since(began) < during; time.Sleep(20 * time.Millisecond) {
						most = max(most, pool.inUse())
						size := []int{2 << 10, 200 << 10}[sent%2]
						u := &upload{pool: pool, writer: new(slowBody)}
						body := io.NopCloser(bytes.NewReader(make([]byte, size)))
						if read, err := readBody(&http.Request{Body: body, ContentLength: int64(size)}, maxBody,
							u); err != nil || len(read) != size {
							rejected++
						}
						u.release()
						sent++
					}
					stop()
					running.Wait()
					t.Logf("%d of %d deliveries rejected; at most %d of %d KiB were held", rejected, sent, most>>10,
						pool.capacity>>10)
					if rejected > 0 {
						t.Errorf("%d of %d deliveries rejected", rejected, sent)
					}
					if pool.used != 0 {
						t.Errorf("%d bytes are held after all ended", pool.used)
					}
				})
			})
		}
	}
}
