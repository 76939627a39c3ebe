package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider/all"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type testBundle struct {
	cfg *config.Config
	app *app.App
	js  jetstream.JetStream
}

// setup runs a gateway and a processor with their own database and stream.
func setup(t *testing.T) *testBundle {
	t.Helper()
	server := testkit.JetStream(t)
	b := &testBundle{cfg: config.Default()}
	b.cfg.Sources = config.DemoSources()
	b.cfg.Database.URL, b.cfg.NATS.URL = settings.URL(testkit.Database(t).URL), settings.URL(server.URL)
	b.cfg.Ingest.Listen, b.cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	var err error
	b.app, err = app.New(t.Context(), app.Options{Config: b.cfg, Logger: slog.New(slog.DiscardHandler), Gateway: true,
		Processor: true})
	if err != nil {
		t.Fatal(err)
	}
	b.app.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := b.app.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	nc, err := nats.Connect(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if b.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	return b
}

// post delivers a sample as Stripe does at a time, and fails the test if it is not accepted.
func (b *testBundle) post(t *testing.T, eventType string, n int, at time.Time) {
	t.Helper()
	stripe, _ := all.Named("stripe")
	for _, s := range stripe.Samples() {
		if s.Type != eventType {
			continue
		}
		varied, err := stripe.MakeVariant(s, n, at, false)
		if err != nil {
			t.Fatal(err)
		}
		d, err := stripe.Sign(b.cfg.Endpoints()[b.endpoint("stripe")].Source, varied, at)
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+b.app.Addr()+"/webhooks/stripe",
			bytes.NewReader(d.Body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = d.Header
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: status %d, %v", eventType, res.StatusCode, err)
		}
		return
	}
	t.Fatalf("no sample %s", eventType)
}

func (b *testBundle) endpoint(name string) int {
	for i, e := range b.cfg.Endpoints() {
		if e.Source.Name == name {
			return i
		}
	}
	return -1
}

// next waits for the next call of act and compares its change.
func next(t *testing.T, acted <-chan change, revision int64, status string) {
	t.Helper()
	select {
	case c := <-acted:
		want := change{Source: "stripe", ObjectID: "sub_1Postern0Team0001", Revision: revision}
		want.State.Status = status
		if diff := cmp.Diff(want, c); diff != "" {
			t.Fatalf("change passed to act (-want +got):\n%s", diff)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("act was not called with revision %d within 20 s", revision)
	}
}

func TestConsume_newerChange_actsOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, stop := context.WithCancel(t.Context())
	acted, ended := make(chan change, 10), make(chan error, 1)
	failOnce := true
	go func() {
		ended <- consume(ctx, b.js, func(c change) error {
			if c.Revision == 2 && failOnce {
				failOnce = false
				return errors.New("not now")
			}
			acted <- c
			return nil
		})
	}()
	began := time.Now()
	b.post(t, "customer.subscription.created", 1, began.Add(-3*time.Second))
	next(t, acted, 1, "incomplete")
	first := b.message(t, 1)

	b.post(t, "invoice.paid", 1, began) // not a subscription, so the consumer ignores it
	b.post(t, "customer.subscription.updated", 2, began.Add(-2*time.Second))
	next(t, acted, 2, "active") // act failed once, so it is delivered again

	// The feed delivers at least once: an old change may be delivered again, in any order.
	if _, err := b.js.PublishMsg(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	b.post(t, "customer.subscription.deleted", 3, began)
	next(t, acted, 3, "canceled")

	testkit.Eventually(t, 10*time.Second, func() error { return b.pending(t) })
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("consume ended with %v", err)
	}
}

// message returns a stored message of the feed, to publish it again.
func (b *testBundle) message(t *testing.T, sequence uint64) *nats.Msg {
	t.Helper()
	s, err := b.js.Stream(t.Context(), "POSTERN_CHANGES")
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.GetMsg(t.Context(), sequence)
	if err != nil {
		t.Fatal(err)
	}
	return &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}
}

// pending returns an error until the consumer has acknowledged all messages.
func (b *testBundle) pending(t *testing.T) error {
	t.Helper()
	c, err := b.js.Consumer(t.Context(), "POSTERN_CHANGES", "consume-go")
	if err != nil {
		return err
	}
	info, err := c.Info(t.Context())
	if err == nil && info.NumPending+uint64(info.NumAckPending) > 0 {
		err = errors.New("messages are not acknowledged")
	}
	return err
}
