package app_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/testkit"
)

// impatient makes the republisher work immediately and often.
func impatient(tuning *app.Tuning) {
	tuning.Notify.Every = 50 * time.Millisecond
	tuning.Processor.RepublishInterval, tuning.Processor.RepublishMinAge = 50*time.Millisecond, time.Millisecond
}

// Without JetStream at the start, deliveries are acknowledged and stored, and applied once it is
// available. Outages during operation: test/faults.
func TestApp_jetStreamUnavailableAtStart_appliesLater(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	b.nats.Stop(t)
	b.app = b.start(t, app.Options{Gateway: true, Processor: true, Tune: impatient})
	var ids []string
	for n := range 5 {
		ids = append(ids, b.mustPost(t, "stripe", b.sign(t, "stripe", "customer.updated", 1+n, time.Now())).ID)
	}
	b.db.WantRows(t, 5, `events e WHERE NOT EXISTS (SELECT FROM outcomes o WHERE o.event_id = e.id)`)
	b.nats.Restart(t)
	b.allApplied(t, ids)
}

// allApplied waits until each event has a final outcome without an error.
func (b *testBundle) allApplied(t *testing.T, ids []string) {
	t.Helper()
	b.waitRows(t, len(ids), `outcomes WHERE run = 0 AND event_id = ANY($1::text[]::bigint[])
		AND status NOT IN ('failed', 'dead')`, ids)
}

// load posts from several clients until it is stopped, and records the ids of acknowledged events.
type load struct {
	group sync.WaitGroup
	end   atomic.Bool
	mu    sync.Mutex
	ids   []string
}

func (b *testBundle) load(t *testing.T, clients int) *load {
	t.Helper()
	l := &load{}
	now := time.Now()
	for client := range clients {
		l.group.Go(func() {
			for n := 0; !l.end.Load(); n++ {
				d := b.sign(t, "stripe", "customer.updated", client*1_000_000+n+1, now)
				a, err := b.try(t, http.DefaultClient, "stripe", d)
				var r receipt
				if err != nil || a.status != http.StatusOK || json.Unmarshal(a.body, &r) != nil {
					continue // during a stop, senders see errors and closed connections
				}
				l.mu.Lock()
				l.ids = append(l.ids, r.ID)
				l.mu.Unlock()
			}
		})
	}
	return l
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ids)
}

// A stop under load ends in time and loses no acknowledged delivery. The next process applies the
// remaining events.
func TestStop_underLoad_losesNothing(t *testing.T) {
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
	if took > app.StopTimeout {
		t.Errorf("stopped after %s", took)
	}
	b.db.WantRows(t, len(l.ids), `events WHERE id = ANY($1::text[]::bigint[])`, l.ids)
	if again := stop(t, b.app); again > 3*time.Second {
		t.Errorf("a second stop took %s", again)
	}
	b.app = b.start(t, app.Options{Gateway: true, Processor: true, Tune: impatient})
	b.allApplied(t, l.ids)
	t.Logf("%d acknowledged, stopped within %s", len(l.ids), took)
}

// A failed start releases everything, so that the same process can start immediately afterwards.
func TestNew_fails_releasesEverything(t *testing.T) {
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
	cfg.Database.URL = settings.URL("postgres:///nothing?host=/nowhere")
	if _, err := app.New(t.Context(), app.Options{Config: &cfg, Logger: o.Logger,
		Gateway: true}); !postgres.IsUnavailable(err) {
		t.Errorf("without a database: %v", err)
	}
}
