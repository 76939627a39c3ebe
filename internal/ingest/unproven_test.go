package ingest_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/testkit"
)

// setupUnproven is a gateway that started without its database: it knows no numbers of sources, and runs when the test says. prove is what it does once the database answers.
func setupUnproven(t *testing.T) (b *testBundle, prove func()) {
	t.Helper()
	numbered := map[string]ingest.Endpoint{}
	b = setupIdle(t, testkit.Database(t), func(o *ingest.Options) {
		maps.Copy(numbered, o.Endpoints)
		for name, ep := range o.Endpoints {
			ep.Number = 0
			o.Endpoints[name] = ep
		}
		o.SpoolName = "mine"
		o.Spool, o.Unproven = openSpool(t, t.TempDir(), 1<<30), true
	})
	return b, func() {
		b.server.Replace(numbered)
		if err := b.server.Proven(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// A delivery that began before the database was proven, and ends after, is stored under its source's number.
func TestDeliveryThatBeganBeforeTheProof(t *testing.T) {
	t.Parallel()
	b, prove := setupUnproven(t)
	b.run(t)
	d := b.sign(t, "many", line("between"))
	body, sender := io.Pipe()
	req := httptest.NewRequest(http.MethodPost, "/webhooks/many", body)
	req.Header = d.Header.Clone()
	res, done := httptest.NewRecorder(), make(chan struct{})
	go func() {
		b.server.Handler().ServeHTTP(res, req)
		close(done)
	}()
	if _, err := sender.Write(d.Body[:1]); err != nil { // which is read: the request is under way
		t.Fatal(err)
	}
	prove()
	if _, err := sender.Write(d.Body[1:]); err != nil {
		t.Fatal(err)
	}
	if err := sender.Close(); err != nil {
		t.Fatal(err)
	}
	<-done
	if res.Code != http.StatusOK {
		t.Errorf("status %d: %s", res.Code, res.Body)
	}
	testkit.Eventually(t, time.Minute, func() error {
		if n := b.count(t, `SELECT count(*) FROM events`); n != 1 {
			return fmt.Errorf("%d events", n)
		}
		return nil
	})
	if n := b.count(t, `SELECT count(*) FROM events e JOIN sources s ON s.number = e.source WHERE s.name = 'many'`); n != 1 {
		t.Errorf("stored under source %d", b.count(t, `SELECT min(source) FROM events`))
	}
}

// What is refused before the database is proven waits, is kept under its source's number, and is not written where the gateway ends before.
func TestRejectionsWaitForTheProof(t *testing.T) {
	t.Parallel()
	forged := func(b *testBundle) {
		d := b.invoice(t, 1)
		d.Header.Del("Stripe-Signature")
		b.post(t, "stripe", d).refused(t, 401, "unauthenticated")
	}
	b, _ := setupUnproven(t)
	forged(b)
	t.Run("ends before", func(t *testing.T) { b.run(t) })
	if n := b.count(t, `SELECT count(*) FROM rejections`); n != 0 {
		t.Errorf("%d rejections in a database that nobody has proven", n)
	}
	if n := b.counter(t, "postern_rejections_dropped_total", "source=stripe"); n != 1 {
		t.Errorf("%v counted as dropped", n)
	}
	var prove func()
	b, prove = setupUnproven(t)
	forged(b)
	prove()
	b.run(t)
	testkit.Eventually(t, 30*time.Second, func() error {
		if n := b.count(t, `SELECT count(*) FROM rejections`); n != 1 {
			return fmt.Errorf("%d rejections", n)
		}
		return nil
	})
	if n := b.count(t, `SELECT count(*) FROM rejections r JOIN sources s ON s.number = r.source WHERE s.name = 'stripe'`); n != 1 {
		t.Errorf("kept under source %d", b.count(t, `SELECT min(source) FROM rejections`))
	}
}

// A gateway that ends before the database is proven leaves there what it was told of the spool.
func TestUnprovenDatabaseIsNotUntold(t *testing.T) {
	t.Parallel()
	b, _ := setupUnproven(t)
	b.db.Exec(t, `INSERT INTO spools (spool, place, empty_at) VALUES ('mine', 'here', '-infinity')`)
	t.Run("ends before", func(t *testing.T) { b.run(t) })
	if n := b.count(t, `SELECT count(*) FROM spools`); n != 1 {
		t.Errorf("%d spools", n)
	}
}
