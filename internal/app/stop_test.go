package app_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/testkit"
)

// sendHalf sends the header of a delivery and the beginning of its body. The server then waits for
// the rest.
func (b *testBundle) sendHalf(t *testing.T) {
	t.Helper()
	conn := b.dial(t)
	// The server sends 100 Continue when it begins to read.
	if _, err := io.WriteString(conn, "POST /webhooks/stripe HTTP/1.1\r\nHost: postern\r\nExpect: "+
		"100-continue\r\nContent-Length: 100\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatalf("the server does not wait for the body: %q, %v", line, err)
	}
	if _, err := io.WriteString(conn, `{"id": "evt_`); err != nil {
		t.Fatal(err)
	}
}

// Senders that do not finish do not delay a stop: acknowledged deliveries are stored and published
// before the end.
func TestStop_incompleteBodies_areCut(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	gateway := b.launch(t, app.Options{Gateway: true})
	b.app = gateway
	for range 3 {
		b.sendHalf(t)
	}
	var ids []string
	for n := range 20 {
		ids = append(ids, b.mustPost(t, "stripe", b.sign(t, "stripe", "customer.updated", 1+n, time.Now())).ID)
	}
	stop(t, gateway)
	// A processor without republishing can apply only what was published.
	b.app = b.start(t, app.Options{Processor: true, Tune: func(tuning *app.Tuning) {
		tuning.Processor.RepublishInterval, tuning.Processor.RepublishMinAge = time.Hour, time.Hour
	}})
	b.allApplied(t, ids)
}

// health requests the gateway's health over a connection and reads the response.
func health(conn net.Conn, answers *bufio.Reader) (status int, err error) {
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: postern\r\n\r\n"); err != nil {
		return 0, err
	}
	res, err := http.ReadResponse(answers, nil)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, err
}

// A connection beyond the limit waits, and is served when another closes. A gateway opens the
// connections to PostgreSQL that it needs under load in advance: over a slow network, opening one
// takes as long as a stalled append.
func TestGateway_maxConnections_nextOneWaits(t *testing.T) {
	t.Parallel()
	b := configured(t, func(c *config.Config) { c.Ingest.MaxConnections = 2 })
	b.app = b.start(t, app.Options{Gateway: true})
	var open []net.Conn
	for range 2 {
		conn := b.dial(t)
		if status, err := health(conn, bufio.NewReader(conn)); status != http.StatusOK {
			t.Fatalf("status %d, %v", status, err)
		}
		open = append(open, conn)
	}
	waiting := b.dial(t)
	answers := bufio.NewReader(waiting)
	testkit.Must(t, waiting.SetDeadline(time.Now().Add(500*time.Millisecond)))
	if status, err := health(waiting, answers); !os.IsTimeout(err) {
		t.Errorf("a connection beyond the limit is served: %d, %v", status, err)
	}
	testkit.Must(t, waiting.SetDeadline(time.Now().Add(30*time.Second)))
	testkit.Must(t, open[0].Close())
	res, err := http.ReadResponse(answers, nil)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("the connection that waited is not served: %v", err)
	}
	_ = res.Body.Close()
	b.waitTrue(t, `SELECT count(*) >= $1::int FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'postern_gateway'`, b.cfg.Ingest.Writers+2)
}

// A gateway that stops first reports that it is not ready. It continues to accept deliveries, and
// closes each connection afterwards, until load balancers had time to notice.
func TestStop_gateway_drainsFirst(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	b.cfg.Ingest.DrainDelay = 10 * time.Second
	gateway, err := app.New(t.Context(), app.Options{Config: b.cfg, Logger: slog.New(slog.DiscardHandler),
		Gateway: true, Tune: patient})
	testkit.Must(t, err)
	b.app = gateway
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- gateway.Run(ctx) }()
	idle := b.dial(t)
	answers := bufio.NewReader(idle)
	testkit.Eventually(t, 30*time.Second, func() error { return b.readyz(http.StatusOK) })
	if status, err := health(idle, answers); status != http.StatusOK {
		t.Fatalf("status %d, %v", status, err)
	}
	asked := time.Now()
	stop()
	testkit.Eventually(t, 30*time.Second, func() error { return b.readyz(http.StatusServiceUnavailable) })
	if b.mustPost(t, "stripe", b.sign(t, "stripe", "customer.updated", 1, time.Now())).ID == "" {
		t.Error("a delivery is rejected while the gateway drains")
	}
	if _, err := io.WriteString(idle, "GET /healthz HTTP/1.1\r\nHost: postern\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(answers, nil)
	if err != nil {
		t.Fatalf("a connection that was open is not served while the gateway drains: %v", err)
	}
	_ = res.Body.Close()
	if !res.Close {
		t.Error("the response has no Connection: close")
	}
	if err := <-ended; err != nil {
		t.Errorf("the stop: %v", err)
	}
	if took := time.Since(asked); took < b.cfg.Ingest.DrainDelay {
		t.Errorf("the gateway stopped after %s, before balancers had %s", took, b.cfg.Ingest.DrainDelay)
	}
}

// readyz waits for a status of the gateway's readiness.
func (b *testBundle) readyz(want int) error {
	res, err := http.Get("http://" + b.app.Addr() + "/readyz")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != want {
		return fmt.Errorf("/readyz responds with %d, want %d", res.StatusCode, want)
	}
	return nil
}

// A processor that is stopped while it waits for PostgreSQL exits without an error. One that is not
// stopped fails.
func TestDaemon_stoppedBeforeReady_exitsWithoutError(t *testing.T) {
	t.Parallel()
	proxy := testkit.Proxy(t, testkit.Database(t).URL)
	proxy.Stall()
	file := filepath.Join(t.TempDir(), "postern.yaml")
	text := fmt.Sprintf("database: {url: %q}\nnats: {url: 'nats://127.0.0.1:1'}\nadmin: {listen: "+
		"'127.0.0.1:0'}\nsources: {stripe: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}]}}\n",
		proxy.URL)
	testkit.Must(t, os.WriteFile(file, []byte(text), 0o600))
	run := func(ctx context.Context) error {
		return app.LoadAndRun(ctx, app.Options{Processor: true, AdminListen: "127.0.0.1:0",
			Loader: config.NewLoader(file, config.ForProcessor, nil)}, io.Discard)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := run(ctx); err != nil {
		t.Errorf("stopped early: %v", err)
	}
	if err := run(t.Context()); err == nil {
		t.Error("a processor without PostgreSQL starts")
	}
}

// startWithProxies starts a process that uses proxies to PostgreSQL and JetStream, which the test
// can stall. The caller stops the process.
func (b *testBundle) startWithProxies(t *testing.T, o app.Options) (postgres, nats *testkit.FaultProxy) {
	t.Helper()
	postgres, nats = testkit.Proxy(t, b.db.URL), testkit.Proxy(t, b.nats.URL)
	cfg := *b.cfg
	cfg.Database.URL, cfg.NATS.URL = settings.URL(postgres.URL), settings.URL(nats.URL)
	o.Config, o.Tune = &cfg, func(tuning *app.Tuning) { tuning.Ingest.StallAfter = time.Second }
	b.app = b.launch(t, o)
	return postgres, nats
}

// A gateway that stops while PostgreSQL stalls ends in order. Senders that wait for an append get a
// correct response: nothing was stored, or the delivery is in the spool and is appended later.
func TestStop_gatewayWithStalledPostgreSQL_endsInOrder(t *testing.T) {
	t.Parallel()
	for _, spooled := range []bool{false, true} {
		t.Run(fmt.Sprintf("spool=%t", spooled), func(t *testing.T) {
			t.Parallel()
			b := configured(t, nil)
			if spooled {
				b.cfg.Ingest.Spool.Dir = t.TempDir()
			}
			postgres, _ := b.startWithProxies(t, app.Options{Gateway: true})
			b.mustPost(t, "stripe", b.sign(t, "stripe", "invoice.paid", 1, time.Now()))
			postgres.Stall()
			waiting := b.sign(t, "stripe", "invoice.paid", 2, time.Now())
			type result struct {
				answer
				err error
			}
			answers := make(chan result, 1)
			go func() {
				a, err := b.try(t, http.DefaultClient, "stripe", waiting)
				answers <- result{a, err}
			}()
			testkit.Eventually(t, time.Minute, func() error {
				if scrape(t, b.app)["postern_body_memory_bytes"].GetMetric()[0].GetGauge().GetValue() == 0 &&
					len(answers) == 0 {
					return errors.New("the gateway has not read the delivery")
				}
				return nil
			})
			took := stop(t, b.app)
			t.Logf("stopped after %s", took)
			switch a := <-answers; {
			case a.err != nil:
				t.Errorf("stopped after %s without a response: %v", took, a.err)
			case spooled && (a.status != http.StatusOK || !bytes.Contains(a.body, []byte(`"spooled":true`))),
				!spooled && (a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == ""):
				t.Errorf("%d %v: %s", a.status, a.header, a.body)
			}
			postgres.Restore()
			b.app = b.start(t, app.Options{Gateway: true})
			if !spooled {
				b.mustPost(t, "stripe", waiting)
			}
			b.waitRows(t, 2, `events`)
		})
	}
}

// A stalled PostgreSQL or a waiting commit does not delay a processor's stop either. The next
// processor applies what was in progress.
func TestStop_processorWithStalledPostgreSQL_endsInOrder(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"PostgreSQL stalls", "commit waits"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			b := configured(t, nil)
			gateway := b.start(t, app.Options{Gateway: true})
			postgres, _ := b.startWithProxies(t, app.Options{Processor: true})
			processor := b.app
			b.app = gateway
			ids := []string{b.mustPost(t, "stripe", b.sign(t, "stripe", "invoice.paid", 1, time.Now())).ID}
			b.allApplied(t, ids)
			release := func() {}
			if how == "PostgreSQL stalls" {
				postgres.Stall()
			} else {
				release = b.holdCommits(t)
			}
			for n := range 20 {
				ids = append(ids, b.mustPost(t, "stripe", b.sign(t, "stripe", "invoice.paid", 2+n, time.Now())).ID)
			}
			if how == "commit waits" {
				b.commitWaits(t)
			}
			t.Logf("stopped after %s", stop(t, processor))
			release()
			postgres.Restore()
			b.start(t, app.Options{Processor: true, Tune: impatient})
			b.allApplied(t, ids)
		})
	}
}

// A processor stops in time if PostgreSQL stalls or fails while a destination responds to an
// effect's request. The outcome of the step is then unknown.
func TestStop_effectOutcomeNotRecorded_isUnknown(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"PostgreSQL stalls", "PostgreSQL fails"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			b := configured(t, nil)
			requested, respond := make(chan struct{}, 1), make(chan struct{})
			other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				requested <- struct{}{}
				<-respond
			}))
			t.Cleanup(other.Close)
			with, err := config.Parse(fmt.Appendf(nil, `
database: {url: postgres://x/y}
sources:
  stripe: {provider: stripe, secrets: [{name: a, value: whsec_secret_of_the_tests}]}
destinations:
  sink: {url: %q, allow: [127.0.0.1]}
effects:
  follow: {source: stripe, type: invoice, key: "follow:{{ object.id }}", steps: [{name: tell, to: sink, path: "/tell"}]}
`, other.URL), func(string) string { return "" })
			testkit.Must(t, err)
			b.cfg.Destinations, b.cfg.Effects = with.Destinations, with.Effects
			gateway := b.start(t, app.Options{Gateway: true})
			postgres, _ := b.startWithProxies(t, app.Options{Processor: true})
			processor := b.app
			b.app = gateway
			b.mustPost(t, "stripe", b.sign(t, "stripe", "invoice.paid", 1, time.Now()))
			<-requested
			if how == "PostgreSQL stalls" {
				postgres.Stall()
			} else {
				postgres.Cut()
			}
			close(respond)
			t.Logf("stopped after %s", stop(t, processor))
			postgres.Restore()
			if got := b.db.QueryStrings(t, `SELECT e.state || ' ' || s.state FROM effects e
				JOIN effect_steps s USING (effect)`); len(got) != 1 || got[0] != "running reserved" {
				t.Errorf("the next process finds %q", got)
			}
		})
	}
}

// holdCommits makes transactions that write objects wait at their commit until it is released.
func (b *testBundle) holdCommits(t *testing.T) (release func()) {
	t.Helper()
	b.db.Exec(t, `CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN PERFORM pg_advisory_xact_lock_shared(8); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER wait AFTER INSERT OR UPDATE ON objects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
			EXECUTE FUNCTION wait()`)
	conn, err := b.db.Pool.Acquire(t.Context())
	testkit.Must(t, err)
	exec := func(statement string) {
		if _, err := conn.Exec(context.Background(), statement); err != nil {
			t.Error(err)
		}
	}
	exec(`SELECT pg_advisory_lock(8)`)
	return func() { exec(`SELECT pg_advisory_unlock(8)`); conn.Release() }
}

// commitWaits waits until a commit is blocked by holdCommits.
func (b *testBundle) commitWaits(t *testing.T) {
	t.Helper()
	b.waitTrue(t, `SELECT count(*) > 0 FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event = 'advisory' AND query ILIKE 'commit%'`)
}

// A stalled JetStream does not delay the stop of gateway and processor. The republisher later
// publishes the events that were not published.
func TestStop_stalledJetStream_republishesLater(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	_, nats := b.startWithProxies(t, app.Options{Gateway: true, Processor: true})
	ids := []string{b.mustPost(t, "stripe", b.sign(t, "stripe", "invoice.paid", 1, time.Now())).ID}
	b.allApplied(t, ids)
	nats.Stall()
	for n := range 20 {
		ids = append(ids, b.mustPost(t, "stripe", b.sign(t, "stripe", "invoice.paid", 2+n, time.Now())).ID)
	}
	t.Logf("stopped after %s", stop(t, b.app))
	nats.Restore()
	b.app = b.start(t, app.Options{Gateway: true, Processor: true, Tune: impatient})
	b.allApplied(t, ids)
}
