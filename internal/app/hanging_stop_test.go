package app_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

// told is an answer that came while a gateway stopped.
type told struct {
	status int
	retry  string
	body   string
	err    error
}

// sent sends a delivery and does not wait for the answer.
func (b *testBundle) sent(t *testing.T, d *provider.Delivery) <-chan told {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+b.app.Addr()+"/webhooks/stripe", strings.NewReader(string(d.Body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = d.Header
	answers := make(chan told, 1)
	go func() {
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			answers <- told{err: err}
			return
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		answers <- told{res.StatusCode, res.Header.Get("Retry-After"), string(body), err}
	}()
	return answers
}

// hanging starts a process whose way to PostgreSQL and JetStream can be stopped; who uses it stops it.
func (b *testBundle) hanging(t *testing.T, o app.Options) (postgres, nats *testkit.FaultProxy) {
	t.Helper()
	postgres, nats = testkit.Proxy(t, b.db.URL), testkit.Proxy(t, b.nats.URL)
	cfg := *b.cfg
	cfg.Database.URL, cfg.NATS.URL = config.URL(postgres.URL), config.URL(nats.URL)
	o.Config, o.Logger = &cfg, slog.New(slog.DiscardHandler)
	o.Tune = func(tuning *app.Tuning) {
		patient(tuning)
		tuning.Ingest.StallAfter = time.Second
	}
	a, err := app.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	b.app = a
	a.Start()
	return postgres, nats
}

// events waits for so many in the log.
func (b *testBundle) events(t *testing.T, want int) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		var n int
		if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events`).Scan(&n); err != nil || n != want {
			return fmt.Errorf("%d events, want %d, %v", n, want, err)
		}
		return nil
	})
}

// A gateway that stops while PostgreSQL stands still ends in order, and whoever waits for an append is told the truth: nothing was stored, or it is in the spool, from where it comes to the log.
func TestGatewayStopsWhilePostgreSQLHangs(t *testing.T) {
	t.Parallel()
	for _, spooled := range []bool{false, true} {
		t.Run(fmt.Sprintf("spool=%t", spooled), func(t *testing.T) {
			t.Parallel()
			b := configured(t, nil)
			if spooled {
				b.cfg.Ingest.Spool.Dir = t.TempDir()
			}
			postgres, _ := b.hanging(t, app.Options{Gateway: true})
			b.mustPost(t, "stripe", b.sign(t, "stripe", "invoice.paid", 1, time.Now()))
			postgres.Stall()
			hangs := b.sign(t, "stripe", "invoice.paid", 2, time.Now())
			answers := b.sent(t, hangs)
			testkit.Eventually(t, time.Minute, func() error {
				if scrape(t, b.app)["postern_held_bytes"].GetMetric()[0].GetGauge().GetValue() == 0 && len(answers) == 0 {
					return errors.New("the delivery has not come")
				}
				return nil
			})
			took := stop(t, b.app)
			t.Logf("stopped after %s", took)
			switch a := <-answers; {
			case a.err != nil:
				t.Errorf("stopped after %s without an answer: %v", took, a.err)
			case spooled && (a.status != http.StatusOK || !strings.Contains(a.body, `"spooled":true`)), !spooled && (a.status != http.StatusServiceUnavailable || a.retry == ""):
				t.Errorf("%d (Retry-After %q): %s", a.status, a.retry, a.body)
			}
			postgres.Restore()
			b.app = b.start(t, app.Options{Gateway: true})
			if !spooled {
				b.mustPost(t, "stripe", hangs)
			}
			b.events(t, 2)
		})
	}
}

// Nor is a processor held up by a PostgreSQL that stands still, nor by a commit that waits; what it had in hand is applied by the next.
func TestProcessorStopsWhilePostgreSQLHangs(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"stands still", "commit waits"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			b := configured(t, nil)
			gateway := b.start(t, app.Options{Gateway: true})
			postgres, _ := b.hanging(t, app.Options{Processor: true})
			processor := b.app
			b.app = gateway
			ids := []string{b.mustPost(t, "stripe", b.sign(t, "stripe", "invoice.paid", 1, time.Now())).ID}
			b.allApplied(t, ids)
			release := func() {}
			if how == "stands still" {
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

// Nor by a PostgreSQL that stands still or has gone while another side answers the call of an effect: whether that was done is in doubt then.
func TestProcessorStopsWhileAnEffectCannotBeRecorded(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"stands still", "has gone"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			b := configured(t, nil)
			came, answer := make(chan struct{}, 1), make(chan struct{})
			other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { came <- struct{}{}; <-answer }))
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
			if err != nil {
				t.Fatal(err)
			}
			b.cfg.Destinations, b.cfg.Effects = with.Destinations, with.Effects
			gateway := b.start(t, app.Options{Gateway: true})
			postgres, _ := b.hanging(t, app.Options{Processor: true})
			processor := b.app
			b.app = gateway
			b.mustPost(t, "stripe", b.sign(t, "stripe", "invoice.paid", 1, time.Now()))
			<-came
			if how == "stands still" {
				postgres.Stall()
			} else {
				postgres.Cut()
			}
			close(answer)
			t.Logf("stopped after %s", stop(t, processor))
			postgres.Restore()
			if got := b.db.Rows(t, `SELECT e.state || ' ' || s.state FROM effects e JOIN effect_steps s USING (effect)`); len(got) != 1 || got[0] != "running reserved" {
				t.Errorf("the next process finds %q", got)
			}
		})
	}
}

// holdCommits has what writes objects wait at its commit until it is let go.
func (b *testBundle) holdCommits(t *testing.T) (release func()) {
	t.Helper()
	b.db.Exec(t, `CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(8); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER wait AFTER INSERT OR UPDATE ON objects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()`)
	conn, err := b.db.Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	let := func(statement string) {
		if _, err := conn.Exec(context.Background(), statement); err != nil {
			t.Error(err)
		}
	}
	let(`SELECT pg_advisory_lock(8)`)
	return func() { let(`SELECT pg_advisory_unlock(8)`); conn.Release() }
}

func (b *testBundle) commitWaits(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		var waits int
		if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory' AND query ILIKE 'commit%'`).Scan(&waits); err != nil || waits == 0 {
			return fmt.Errorf("%d commits wait, %v", waits, err)
		}
		return nil
	})
}

// JetStream that stands still holds up neither: what is not published then the auditor publishes.
func TestStopWhileJetStreamHangs(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	_, nats := b.hanging(t, app.Options{Gateway: true, Processor: true})
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
