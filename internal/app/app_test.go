package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
	"github.com/postern-gateway/postern/internal/testkit"
)

type testBundle struct {
	db   *testkit.DB
	nats *testkit.Server
	app  *app.App
	cfg  *config.Config
}

// setup starts gateway and processor on a database and a stream of their own.
func setup(t *testing.T, tune func(*app.Tuning)) *testBundle {
	t.Helper()
	b := &testBundle{db: testkit.Database(t), nats: testkit.JetStream(t)}
	b.cfg = config.Default()
	b.cfg.Sources = config.DemoSources()
	b.cfg.Database.URL, b.cfg.NATS.URL = config.URL(b.db.URL), config.URL(b.nats.URL)
	b.cfg.Ingest.Listen, b.cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	b.app = b.start(t, app.Options{Gateway: true, Processor: true, Tune: tune})
	return b
}

// patient keeps a busy machine from being taken for a database that is away.
func patient(tuning *app.Tuning) {
	in := &tuning.Ingest
	in.Deadline, in.StallAfter, in.AcquireWithin = 30*time.Second, 30*time.Second, 30*time.Second
}

func (b *testBundle) start(t *testing.T, o app.Options) *app.App {
	t.Helper()
	o.Config, o.Logger = b.cfg, slog.New(slog.DiscardHandler)
	tune := o.Tune
	o.Tune = func(tuning *app.Tuning) {
		patient(tuning)
		if tune != nil {
			tune(tuning)
		}
	}
	a, err := app.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	a.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return a
}

// sign makes a signed delivery of a sample, varied so that it is event n of its object.
func (b *testBundle) sign(t *testing.T, source, eventType string, n int, at time.Time) *provider.Delivery {
	t.Helper()
	p, _ := all.Named(b.cfg.Sources[source].Provider)
	var src *provider.Source
	for _, e := range b.cfg.Endpoints() {
		if e.Source.Name == source {
			src = e.Source
		}
	}
	for _, s := range p.Samples() {
		if s.Type != eventType {
			continue
		}
		varied, err := p.Vary(s, n, at, false)
		if err != nil {
			t.Fatal(err)
		}
		d, err := p.Sign(src, varied, at)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	t.Fatalf("provider %s has no sample %s", source, eventType)
	return nil
}

type receipt struct {
	EventID    string `json:"event_id"`
	ID         string `json:"id"`
	Duplicate  bool   `json:"duplicate"`
	ReceivedAt string `json:"received_at"`
	Conflict   bool   `json:"conflict"`
}

func (b *testBundle) post(t *testing.T, source string, d *provider.Delivery) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+b.app.Addr()+"/webhooks/"+source, bytes.NewReader(d.Body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = d.Header
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, body
}

func (b *testBundle) mustPost(t *testing.T, source string, d *provider.Delivery) receipt {
	t.Helper()
	status, body := b.post(t, source, d)
	var r receipt
	if err := json.Unmarshal(body, &r); status != http.StatusOK || err != nil {
		t.Fatalf("status %d, %s (%v)", status, body, err)
	}
	return r
}

// outcome waits for an event's outcome.
func (b *testBundle) outcome(t *testing.T, id string) (status string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		return b.db.Pool.QueryRow(t.Context(), `SELECT status FROM outcomes WHERE event_id = $1::bigint AND run = 0`, id).Scan(&status)
	})
	return status
}

func TestFromPostToObject(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	now := time.Now()
	d := b.sign(t, "stripe", "invoice.paid", 1, now)
	first := b.mustPost(t, "stripe", d)
	again := b.mustPost(t, "stripe", d)
	if first.Duplicate || !again.Duplicate || first.ID != again.ID || first.ReceivedAt != again.ReceivedAt {
		t.Errorf("receipts %+v and %+v", first, again)
	}
	if status := b.outcome(t, first.ID); status != "applied" {
		t.Errorf("outcome %s", status)
	}
	var objectType, paid string
	var revision int
	err := b.db.Pool.QueryRow(t.Context(), `SELECT object_type, state->>'status', revision FROM mirror.objects`).Scan(&objectType, &paid, &revision)
	if err != nil || objectType != "invoice" || paid != "paid" || revision != 1 {
		t.Errorf("object %s %s revision %d, %v", objectType, paid, revision, err)
	}
	// A change is announced.
	testkit.Eventually(t, time.Minute, func() error {
		var sent int
		if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox WHERE sent_at IS NOT NULL`).Scan(&sent); err != nil || sent != 1 {
			return fmt.Errorf("%d changes sent, %v", sent, err)
		}
		return nil
	})
	shop := b.mustPost(t, "shopify", b.sign(t, "shopify", "orders/create", 1, now))
	if status := b.outcome(t, shop.ID); status != "applied" {
		t.Errorf("outcome %s", status)
	}
}
