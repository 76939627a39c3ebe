package load_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/bench/load"
)

// serve starts a server for the duration of a test and gives its address.
func serve(t *testing.T, handle http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(handle)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func some(count int) *load.Deliveries {
	return load.Make(load.Supply{Run: "test", Count: count, BodySize: 500, Sources: []string{"a"}, Objects: 10,
		Secret: []byte("whsec")})
}

// stalling responds immediately, except for one second in which it does not respond at all.
func stalling() http.HandlerFunc {
	var once sync.Once
	var stalled sync.RWMutex
	began := time.Now()
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if time.Since(began) > 500*time.Millisecond {
			once.Do(func() {
				stalled.Lock()
				defer stalled.Unlock()
				<-time.After(time.Second)
			})
		}
		stalled.RLock()
		defer stalled.RUnlock()
		w.WriteHeader(http.StatusOK)
	}
}

// An open loop measures from the moment at which a delivery was due. A server that stalls for a
// second shows it in many latencies, and not only in those of the few open requests.
func TestRun_serverStallsInOpenLoop_raisesManyLatencies(t *testing.T) {
	t.Parallel()
	const rate = 200
	r, err := load.Run(t.Context(), some(3*rate), 0, load.Options{Address: serve(t, stalling()), Connections: 2,
		Rate: rate, For: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if r.Answered != 3*rate {
		t.Fatalf("%d answered: %v", r.Answered, r.Errors)
	}
	if p99 := time.Duration(r.Latency.ValueAtQuantile(99)) * time.Microsecond; p99 < 800*time.Millisecond {
		t.Errorf("p99 is %s", p99)
	}
	if p80 := time.Duration(r.Latency.ValueAtQuantile(80)) * time.Microsecond; p80 < 200*time.Millisecond {
		t.Errorf("p80 is %s though a third of the deliveries fell into the stall", p80)
	}
	if least := 2900 * time.Millisecond; r.Took < least {
		t.Errorf("the load was sent faster than the rate: %s", r.Took)
	}
}

// Every delivery is sent once. A second run continues where the first ended.
func TestRun_secondRun_continuesAfterFirst(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := map[string]int{}
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		id, _, _ := strings.Cut(string(body), ",")
		mu.Lock()
		defer mu.Unlock()
		seen[id]++
	})
	d := some(2000)
	first, err := load.Run(t.Context(), d, 0, load.Options{Address: address, Connections: 8, Rate: 10_000,
		For: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if first.Next == 0 || first.Next == d.Len() {
		t.Fatalf("the first run ended at %d", first.Next)
	}
	second, err := load.Run(t.Context(), d, first.Next, load.Options{Address: address, Connections: 8,
		For: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if n := first.Answered + second.Answered; n != int64(d.Len()) || len(seen) != d.Len() {
		t.Errorf("%d answered, %d different, of %d", n, len(seen), d.Len())
	}
}

// Responses are counted by status. A server that rejects a large body without reading it, and
// closes, has responded too.
func TestRun_rejectedDeliveries_countedByStatus(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1)%4 == 0 {
			_, _ = io.Copy(io.Discard, r.Body)
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	d := load.Make(load.Supply{Run: "large", Count: 64, BodySize: 1 << 20, Sources: []string{"a"}, Objects: 1,
		Secret: []byte("whsec")})
	r, err := load.Run(t.Context(), d, 0, load.Options{Address: address, Connections: 4, For: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if r.Answered != 16 || r.Status[200] != 16 || r.Refused != 48 || r.Status[503] != 48 || r.Broken != 0 {
		t.Errorf("answered %d, refused %d, broken %d, by status %v: %v", r.Answered, r.Refused, r.Broken, r.Status,
			r.Errors)
	}
}

// Held connections stay open until the server closes them.
func TestHold_serverCloses_opensNone(t *testing.T) {
	t.Parallel()
	var bodies atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); bytes.HasPrefix(body, []byte(`{"id":"evt_test`)) {
			bodies.Add(1)
		}
	}))
	defer s.Close()
	address := strings.TrimPrefix(s.URL, "http://")
	h, err := load.Hold(t.Context(), address, 100, some(100))
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if n := h.Open(); n != 100 || bodies.Load() != 100 {
		t.Errorf("%d of 100 open, %d deliveries", n, bodies.Load())
	}
	s.CloseClientConnections()
	for began := time.Now(); h.Open() > 0; {
		if time.Since(began) > 30*time.Second {
			t.Fatalf("%d still count as open after the server closed them", h.Open())
		}
	}
}
