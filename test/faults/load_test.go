package faults_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

// answer is the response that a sender got.
type answer struct {
	source, key    string
	status         int
	spooled, retry bool
	problem        string
	took           time.Duration
}

// load has the senders and their responses. Each sender sends a delivery every pace at most.
type load struct {
	url string
	// first is the number of the first delivery.
	first   int
	client  *http.Client
	sources map[string]config.Endpoint
	end     chan struct{}
	group   sync.WaitGroup

	mu      sync.Mutex
	answers []answer
}

const pace = 100 * time.Millisecond

// newLoad returns a load that sends only on request.
func (s *site) newLoad(t *testing.T) *load {
	t.Helper()
	s.loads++
	l := &load{url: "http://" + s.app.Addr() + "/webhooks/", end: make(chan struct{}),
		first: s.loads * 10_000_000, sources: map[string]config.Endpoint{},
		client: &http.Client{Timeout: 3 * deadline, Transport: &http.Transport{MaxIdleConnsPerHost: 8}}}
	for _, e := range s.cfg.Endpoints() {
		l.sources[e.Source.Name] = e
	}
	t.Cleanup(l.stop)
	return l
}

// one sends the n-th delivery to a source and checks its response.
func (l *load) one(t *testing.T, source string, n int, what string, holds func(*answer) bool) {
	t.Helper()
	a, err := l.deliver(l.sources[source], n)
	testkit.Must(t, err)
	if l.answers = append(l.answers, a); !holds(&a) {
		t.Errorf("delivery %d is not %s: %+v", n, what, a)
	}
}

// send starts three senders to the source whose deliveries may be spooled, and one to the source
// that requires a commit.
func (s *site) send(t *testing.T) *load {
	t.Helper()
	l := s.newLoad(t)
	for n, name := range []string{"kept", "kept", "kept", "final"} {
		l.group.Go(func() { l.sender(t, n, l.sources[name]) })
	}
	return l
}

// stop stops the senders and waits for all responses.
func (l *load) stop() {
	l.mu.Lock()
	select {
	case <-l.end:
	default:
		close(l.end)
	}
	l.mu.Unlock()
	l.group.Wait()
	l.client.CloseIdleConnections()
}

func (l *load) sender(t *testing.T, number int, to config.Endpoint) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for n := number * 1_000_000; ; n++ {
		a, err := l.deliver(to, n)
		if err != nil {
			t.Error(err)
			return
		}
		l.mu.Lock()
		l.answers = append(l.answers, a)
		l.mu.Unlock()
		select {
		case <-tick.C:
		case <-l.end:
			return
		}
	}
}

// types are the event types by provider.
var types = map[string]string{"stripe": "product.updated", "github": "issues.opened"}

// deliver sends the n-th delivery to a source. Each is about another object.
func (l *load) deliver(to config.Endpoint, n int) (a answer, err error) {
	for _, sample := range to.Provider.Samples() {
		if sample.Type != types[to.Provider.Name()] {
			continue
		}
		varied, err := to.Provider.MakeVariant(sample, l.first+n, time.Now(), true)
		if err != nil {
			return a, err
		}
		d, err := to.Provider.Sign(to.Source, varied, time.Now())
		if err != nil {
			return a, err
		}
		return l.post(to.Source.Name, d), nil
	}
	return a, fmt.Errorf("no sample for %s", to.Source.Name)
}

func (l *load) post(source string, d *provider.Delivery) (a answer) {
	a.source = source
	began := time.Now()
	defer func() { a.took = time.Since(began) }()
	req, err := http.NewRequest(http.MethodPost, l.url+source, bytes.NewReader(d.Body))
	if err != nil {
		a.problem = err.Error()
		return a
	}
	req.Header = d.Header
	res, err := l.client.Do(req)
	if err != nil {
		a.problem = err.Error()
		return a
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	var receipt struct {
		EventID string `json:"event_id"`
		ID      string
		Spooled bool
	}
	a.status, a.retry = res.StatusCode, res.Header.Get("Retry-After") != ""
	if err != nil || json.Unmarshal(body, &receipt) != nil || a.status == http.StatusOK &&
		(receipt.EventID == "" || receipt.Spooled == (receipt.ID != "")) {
		a.problem = fmt.Sprintf("status %d: %s, %v", a.status, body, err)
	}
	a.key, a.spooled = receipt.EventID, receipt.Spooled
	return a
}

// count counts the responses that fulfil a condition, beginning with number from.
func (l *load) count(from int, holds func(*answer) bool) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := from; i < len(l.answers); i++ {
		if holds(&l.answers[i]) {
			n++
		}
	}
	return n
}

func every(*answer) bool         { return true }
func spooled(a *answer) bool     { return a.spooled }
func stored(a *answer) bool      { return a.status == http.StatusOK && !a.spooled }
func storedKept(a *answer) bool  { return stored(a) && a.source == "kept" }
func storedFinal(a *answer) bool { return stored(a) && a.source == "final" }

// await waits for n more responses that fulfil a condition.
func (l *load) await(t *testing.T, n int, what string, holds func(*answer) bool) {
	t.Helper()
	from := l.count(0, every)
	testkit.Eventually(t, patience, func() error {
		if got := l.count(from, holds); got < n {
			return fmt.Errorf("%d of %d answers are %s", got, n, what)
		}
		return nil
	})
}

// finish stops the senders, waits until all events are applied, and checks the responses.
func (l *load) finish(t *testing.T, s *site) {
	t.Helper()
	l.stop()
	s.waitUntilApplied(t)
	l.check(t, s)
}

// check checks all responses. Each acknowledged event is stored once. The only other allowed
// response is 503 with Retry-After, for deliveries that may not be spooled.
func (l *load) check(t *testing.T, s *site) {
	t.Helper()
	var keys []string
	var longest time.Duration
	counts := map[string]int{}
	wrong := func(format string, args ...any) {
		if counts["wrong"]++; counts["wrong"] <= 5 {
			t.Errorf(format, args...)
		}
	}
	for _, a := range l.answers {
		counts["answers"]++
		switch {
		case a.problem != "":
			wrong("%s after %s: %s", a.source, a.took, a.problem)
		case a.status == http.StatusOK:
			keys = append(keys, a.source+" "+a.key)
			if a.spooled {
				counts["spooled"]++
			}
			if a.spooled && a.source == "final" {
				wrong("a receipt without an id for a source that requires a commit")
			}
		case a.status == http.StatusServiceUnavailable && a.retry && a.source == "final":
			counts["refused"]++
		default:
			wrong("%s got status %d after %s, Retry-After %t", a.source, a.status, a.took, a.retry)
		}
		if a.source == "kept" {
			longest = max(longest, a.took)
		}
	}
	t.Logf("%v; the longest took %s", counts, longest.Round(time.Millisecond))
	if longest > deadline/2 {
		t.Errorf("a delivery that may be spooled was answered after %s", longest)
	}
	var kept, twice int
	if err := s.db.Pool.QueryRow(t.Context(), `SELECT (SELECT count(DISTINCT s.name || ' ' || e.event_id) FROM events e
		JOIN sources s ON s.number = e.source WHERE s.name || ' ' || e.event_id = ANY($1)),
		(SELECT count(*) - count(DISTINCT (source, event_id)) FROM events)`, keys).Scan(&kept, &twice); err != nil {
		t.Fatal(err)
	}
	if kept != len(keys) || twice != 0 {
		t.Errorf("of %d acknowledged events %d are stored, %d of them twice", len(keys), kept, twice)
	}
}
