// Package faults_test injects faults of PostgreSQL, JetStream, disks and clocks, one at a time,
// while deliveries arrive. docs/reference/faults.md lists them.
package faults_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/verify"
)

// parallelSites is how many sites are tested in parallel. They spend most of their time waiting.
const parallelSites = "8"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", parallelSites); err != nil {
		panic(err) // the testing package defines this flag
	}
	testkit.Main(m)
}

// patience is how long a test waits for an expected condition. It never measures speed.
const patience = 3 * time.Minute

// deadline is ingest.deadline. It is so long that a response at the deadline differs from a
// delivery that was spooled early.
const deadline = 30 * time.Second

// site is a gateway and a processor with a spool, whose connections to PostgreSQL and JetStream can
// fail.
type site struct {
	db    *testkit.DB
	login string
	// store and stream are the proxies to PostgreSQL and JetStream.
	store, stream *testkit.FaultProxy
	nats          *testkit.Server
	spool         string
	cfg           *config.Config
	app           *app.App
	log           *journal
	// loads counts the loads, so that each has its own deliveries.
	loads int
}

const settings = `
database: {url: %q, max_connections: 8}
nats: {url: %q}
ingest: {listen: "127.0.0.1:0", deadline: %s, spool: {dir: %q, unsafe_dir: true}}
admin: {listen: "127.0.0.1:0"}
processor:
  republisher: {every: 100ms, min_age: 500ms, lease: 2s}
  changes: {publish_after: 1s}
sources:
  kept: {provider: stripe, secrets: [{name: main, value: whsec_secret_of_the_faults}]}
  hub: {provider: github, secrets: [{name: main, value: secret_of_the_faults}]}
  final: {provider: stripe, require_commit: true, secrets: [{name: main, value: whsec_secret_of_the_faults}]}
`

// build prepares a site on the shared cluster. The daemons' login is no superuser, so that the
// server can reject it.
func build(t *testing.T) *site {
	t.Helper()
	return buildWith(t, testkit.JetStream(t))
}

// buildWith is build with an existing JetStream.
func buildWith(t *testing.T, js *testkit.Server) *site {
	t.Helper()
	db := testkit.Database(t)
	s := &site{db: db, nats: js, login: "faults_" + strings.ToLower(rand.Text())}
	db.Exec(t, fmt.Sprintf(`CREATE ROLE %s LOGIN IN ROLE postern_gateway, postern_processor, postern_maintenance,
		postern_operator`, s.login))
	t.Cleanup(func() {
		if _, err := db.Pool.Exec(context.Background(), "DROP ROLE "+s.login); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(db.URL)
	testkit.Must(t, err)
	q := u.Query()
	q.Set("user", s.login)
	u.RawQuery = q.Encode()
	s.store, s.spool, s.log = testkit.Proxy(t, u.String()), filepath.Join(t.TempDir(), "spool"), &journal{}
	s.stream = testkit.Proxy(t, s.nats.URL)
	cfg, err := config.Parse(fmt.Appendf(nil, settings, s.store.URL, s.stream.URL, deadline, s.spool),
		func(string) string { return "" })
	testkit.Must(t, err)
	s.cfg = cfg
	return s
}

// patientTuning prevents that a slow PostgreSQL on a busy machine counts as unavailable, in tests
// of other faults.
func patientTuning(tune *app.Tuning) {
	tune.Ingest.StallAfter, tune.Ingest.AcquireTimeout = deadline, deadline
	tune.Limits.AckWait = 5 * time.Second // messages in progress are delivered again after it
}

// pool has sites for faults that take turns: starting a site takes longer than most faults.
type pool struct {
	t    *testing.T
	tune func(*app.Tuning)
	// free has the sites that no fault uses; nil is one that is not started yet.
	free chan *site
}

// newPool returns a pool for the subtests of t.
func newPool(t *testing.T, size int, tune func(*app.Tuning)) *pool {
	p := &pool{t, tune, make(chan *site, size)}
	for range size {
		p.free <- nil
	}
	return p
}

// take waits for a site, which returns to the pool at the end of a test that succeeds.
func (p *pool) take(t *testing.T) (s *site) {
	t.Helper()
	if s = <-p.free; s == nil {
		s = build(p.t)
		s.start(p.t, p.tune)
	}
	s.log.clear()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", s.log)
			s = nil
		}
		p.free <- s
	})
	return s
}

// start runs gateway and processor until the test ends.
func (s *site) start(t *testing.T, tune func(*app.Tuning)) {
	t.Helper()
	s.app = s.run(t, app.Options{Gateway: true, Processor: true, Tune: tune})
}

func (s *site) run(t *testing.T, o app.Options) *app.App {
	t.Helper()
	tune := o.Tune
	o.Tune = func(tuning *app.Tuning) {
		tuning.SpoolStallAfter = deadline // the disk of a busy machine
		if tune != nil {
			tune(tuning)
		}
	}
	o.Config, o.Logger = s.cfg, slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	a, err := app.New(t.Context(), o)
	testkit.Must(t, err)
	a.Start()
	t.Cleanup(func() {
		for _, way := range []*testkit.FaultProxy{s.store, s.stream} {
			way.Cut() // a stalled connection would delay the stop
			way.Restore()
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", s.log)
		}
	})
	return a
}

// journal keeps the end of the log.
type journal struct {
	mu   sync.Mutex
	text []byte
}

func (j *journal) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	const most = 16 << 10
	j.text = append(j.text, line...)
	j.text = j.text[max(0, len(j.text)-most):]
	return len(line), nil
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return string(j.text)
}

// waitForLog waits until the log contains a text.
func (s *site) waitForLog(t *testing.T, text string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if !strings.Contains(s.log.String(), text) {
			return fmt.Errorf("no log message contains %q: %s", text, s.log)
		}
		return nil
	})
}

func (j *journal) clear() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.text = nil
}

// metric sums a metric over the series whose labels contain a text.
func (s *site) metric(t *testing.T, name, labels string) (sum float64) {
	t.Helper()
	res, err := http.Get("http://" + s.app.AdminAddr() + "/metrics")
	testkit.Must(t, err)
	defer res.Body.Close()
	page, err := io.ReadAll(res.Body)
	testkit.Must(t, err)
	lines := regexp.MustCompile(`(?m)^`+name+`(\{.*\})? (\S+)$`).FindAllSubmatch(page, -1)
	if lines == nil {
		t.Fatalf("no metric %s", name)
	}
	for _, line := range lines {
		n, err := strconv.ParseFloat(string(line[2]), 64)
		testkit.Must(t, err)
		if bytes.Contains(line[1], []byte(labels)) {
			sum += n
		}
	}
	return sum
}

// waitUntilApplied waits until the spool is empty and every event has its outcome. Then it verifies
// all stored data.
func (s *site) waitUntilApplied(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if n := s.metric(t, "postern_spool_deliveries", ""); n > 0 {
			return fmt.Errorf("%v deliveries are still in the spool", n)
		}
		var open int
		if err := s.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events e WHERE NOT EXISTS (SELECT
			FROM outcomes o WHERE o.event_id = e.id AND o.run = 0 AND o.status <> 'failed')`).Scan(&open); err != nil ||
			open > 0 {
			return fmt.Errorf("%d events have no outcome, %v", open, err)
		}
		return nil
	})
	if n := s.metric(t, "postern_spool_quarantined_total", "") + s.metric(t, "postern_spool_damaged_files", ""); n > 0 {
		t.Errorf("%v spool files were quarantined", n)
	}
	operator := s.db.Role(t, "operator")
	known, err := events.RegisterSources(t.Context(), operator, nil)
	testkit.Must(t, err)
	report, err := verify.Verify(t.Context(), verify.Options{Pool: operator, Known: known,
		Sources: operations.ConfiguredSources(s.cfg.Endpoints(), known), Signatures: true, MaxItems: 5})
	testkit.Must(t, err)
	for _, f := range report.Findings {
		t.Errorf("%s: %d, %+v", f.Kind, f.Count, f.Items)
	}
}
