package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// impatient lets the auditor look at once and often.
func impatient(tuning *app.Tuning) {
	tuning.Notify.Every = 50 * time.Millisecond
	tuning.Processor.AuditEvery, tuning.Processor.AuditAge = 50*time.Millisecond, time.Millisecond
}

// Without JetStream, from the start or in between, deliveries are acknowledged and stored, and applied once it is there.
func TestJetStreamAway(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	b.nats.Stop(t)
	b.app = b.start(t, app.Options{Gateway: true, Processor: true, Tune: impatient})
	now := time.Now()
	var ids []string
	send := func(n int) {
		for range 5 {
			ids = append(ids, b.mustPost(t, "stripe", b.sign(t, "stripe", "customer.updated", len(ids)+n, now)).ID)
		}
	}
	send(1)
	b.withoutOutcome(t, 5)
	b.nats.Restart(t)
	b.allApplied(t, ids)
	send(100)
	b.nats.Stop(t)
	send(200)
	var open int
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events`).Scan(&open); err != nil || open != len(ids) {
		t.Errorf("%d events stored of %d acknowledged, %v", open, len(ids), err)
	}
	b.nats.Restart(t)
	b.allApplied(t, ids)
}

func (b *testBundle) withoutOutcome(t *testing.T, want int) {
	t.Helper()
	var open int
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events e WHERE NOT EXISTS (SELECT FROM outcomes o WHERE o.event_id = e.id)`).Scan(&open); err != nil || open != want {
		t.Errorf("%d events without an outcome, want %d, %v", open, want, err)
	}
}

// allApplied waits until each event has a final outcome that is no failure.
func (b *testBundle) allApplied(t *testing.T, ids []string) {
	t.Helper()
	testkit.Eventually(t, 60*time.Second, func() error {
		var done int
		err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM outcomes WHERE run = 0 AND event_id = ANY($1::text[]::bigint[]) AND status NOT IN ('failed', 'dead')`, ids).Scan(&done)
		if err != nil || done != len(ids) {
			return fmt.Errorf("%d of %d events have an outcome, %v", done, len(ids), err)
		}
		return nil
	})
}

// stop stops a process as Run does and tells how long it took.
func stop(t *testing.T, a *app.App) time.Duration {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), app.StopWithin)
	defer cancel()
	if err := a.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
	return time.Since(began)
}

// load posts from several clients until told to stop; what was acknowledged is counted with its id.
type load struct {
	group sync.WaitGroup
	end   atomic.Bool
	mu    sync.Mutex
	ids   []string
}

func (b *testBundle) load(t *testing.T, clients int) *load {
	t.Helper()
	l := &load{}
	url := "http://" + b.app.Addr() + "/webhooks/stripe"
	now := time.Now()
	for client := range clients {
		l.group.Go(func() {
			for n := 0; !l.end.Load(); n++ {
				d := b.sign(t, "stripe", "customer.updated", client*1_000_000+n+1, now)
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(d.Body))
				if err != nil {
					t.Error(err)
					return
				}
				req.Header = d.Header
				l.acknowledged(req)
			}
		})
	}
	return l
}

// acknowledged sends a request; a connection that is refused or cut is what a stop looks like from outside.
func (l *load) acknowledged(req *http.Request) {
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	var r receipt
	if err != nil || res.StatusCode != http.StatusOK || json.Unmarshal(body, &r) != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids = append(l.ids, r.ID)
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ids)
}

// A stop under load ends in time, keeps all that was acknowledged, and what it left is applied by the next process.
func TestStopUnderLoad(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	l := b.load(t, 8)
	testkit.Eventually(t, time.Minute, func() error {
		if n := l.count(); n < 200 {
			return fmt.Errorf("%d acknowledged", n)
		}
		return nil
	})
	took := stop(t, b.app)
	l.end.Store(true)
	l.group.Wait()
	if took > app.StopWithin {
		t.Errorf("stopped after %s", took)
	}
	var kept int
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events WHERE id = ANY($1::text[]::bigint[])`, l.ids).Scan(&kept); err != nil || kept != len(l.ids) {
		t.Errorf("%d of %d acknowledged events are stored, %v", kept, len(l.ids), err)
	}
	if again := stop(t, b.app); again > 3*time.Second {
		t.Errorf("a second stop took %s", again)
	}
	b.app = b.start(t, app.Options{Gateway: true, Processor: true, Tune: impatient})
	b.allApplied(t, l.ids)
	t.Logf("%d acknowledged, stopped within %s", len(l.ids), took)
}

// What cannot start leaves nothing behind: the same can start a moment later.
func TestStartThatFailsIsUndone(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	b.app = b.start(t, app.Options{Gateway: true, Processor: true})
	b.cfg.Ingest.Listen = b.app.Addr()
	o := app.Options{Config: b.cfg, Logger: slog.New(slog.DiscardHandler), Gateway: true, Processor: true}
	if _, err := app.New(t.Context(), o); err == nil {
		t.Fatal("two processes listen on one address")
	}
	stop(t, b.app)
	b.app = b.start(t, app.Options{Gateway: true, Processor: true})
	b.mustPost(t, "stripe", b.sign(t, "stripe", "invoice.paid", 1, time.Now()))
	cfg := *b.cfg
	cfg.Database.URL = config.URL("postgres:///nothing?host=/nowhere")
	if _, err := app.New(t.Context(), app.Options{Config: &cfg, Logger: o.Logger, Gateway: true}); !postgres.IsUnavailable(err) {
		t.Errorf("without a database: %v", err)
	}
}

// Each part works as its own role, and the gateway's may not change what is stored.
func TestDaemonsActAsTheirRoles(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	if _, err := b.db.Pool.Exec(t.Context(), `
		CREATE TABLE actors (place text, who text);
		GRANT INSERT ON actors TO PUBLIC;
		CREATE FUNCTION note_actor() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO postern.actors VALUES (TG_ARGV[0], current_user); RETURN NULL; END $$;
		CREATE TRIGGER note_actor AFTER INSERT ON events FOR EACH ROW EXECUTE FUNCTION note_actor('events');
		CREATE TRIGGER note_actor AFTER INSERT ON objects FOR EACH ROW EXECUTE FUNCTION note_actor('objects')`); err != nil {
		t.Fatal(err)
	}
	b.app = b.start(t, app.Options{Gateway: true, Processor: true})
	id := b.mustPost(t, "stripe", b.sign(t, "stripe", "invoice.paid", 1, time.Now())).ID
	b.outcome(t, id)
	var actors string
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT string_agg(place || ': ' || who, ', ' ORDER BY place) FROM actors`).Scan(&actors); err != nil || actors != "events: postern_gateway, objects: postern_processor" {
		t.Errorf("%s, %v", actors, err)
	}
	for _, role := range []string{"gateway", "processor", "operator"} {
		pool := b.db.Role(t, role)
		for _, statement := range []string{`UPDATE events SET body = ''`, `DELETE FROM events`, `TRUNCATE events`, `DROP TABLE events`, `DELETE FROM event_keys`} {
			if _, err := pool.Exec(t.Context(), statement); postgres.Code(err) != "42501" && postgres.Code(err) != "2BP01" {
				t.Errorf("%s may %s: %v", role, statement, err)
			}
		}
	}
}

// A store that hangs does not hold up a stop, and nobody is told that his event is stored.
func TestStopWhileTheStoreHangs(t *testing.T) {
	t.Parallel()
	b := configured(t, func(c *config.Config) { c.Ingest.Deadline = time.Second })
	a, err := app.New(t.Context(), app.Options{Config: b.cfg, Logger: slog.New(slog.DiscardHandler), Gateway: true})
	if err != nil {
		t.Fatal(err)
	}
	b.app = a
	a.Start()
	tx, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `LOCK TABLE event_keys`); err != nil {
		t.Fatal(err)
	}
	if status, body := b.post(t, "stripe", b.sign(t, "stripe", "invoice.paid", 1, time.Now())); status != http.StatusServiceUnavailable {
		t.Errorf("status %d: %s", status, body)
	}
	t.Logf("stopped after %s", stop(t, a))
}
