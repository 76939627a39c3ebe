package ingest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// draining is a gateway that found deliveries of an earlier process in its spool and drains them one at a time: each is held behind its commit until the test lets it go on.
type draining struct {
	*testBundle
	held chan struct{}
	gate chan struct{}
	// open lets all go on.
	open func()
}

// setupDraining has so many deliveries kept in a folder, in which between may change something before the gateway finds them.
func setupDraining(t *testing.T, db *testkit.DB, deliveries int, between func(dir string), tune func(*ingest.Options)) *draining {
	t.Helper()
	dir := t.TempDir()
	start := func(t *testing.T, tune func(*ingest.Options)) *testBundle {
		return setupOn(t, db, func(o *ingest.Options) {
			o.Spool, o.SpoolName, o.SpoolPlace = openSpool(t, dir, 1<<30), "mine", "here:/spool"
			tune(o)
		})
	}
	t.Run("kept", func(t *testing.T) {
		b := start(t, func(o *ingest.Options) { o.Unproven = true })
		for i := range deliveries {
			b.post(t, "many", b.sign(t, "many", line(fmt.Sprint(i)))).kept(t, fmt.Sprint(i))
		}
	})
	between(dir)
	d := &draining{held: make(chan struct{}, deliveries), gate: make(chan struct{})}
	d.open = sync.OnceFunc(func() { close(d.gate) })
	d.testBundle = start(t, func(o *ingest.Options) {
		o.Settings.BatchMax = 1
		o.Publish = func(...stream.Event) {
			d.held <- struct{}{}
			<-d.gate
		}
		tune(o)
	})
	t.Cleanup(d.open)
	d.holds(t)
	return d
}

// holds waits until the next delivery is held.
func (d *draining) holds(t *testing.T) {
	t.Helper()
	select {
	case <-d.held:
	case <-time.After(time.Minute):
		t.Fatal("nothing is drained")
	}
}

// next lets the delivery in hand go on, and waits for the one behind it.
func (d *draining) next(t *testing.T) {
	t.Helper()
	d.gate <- struct{}{}
	d.holds(t)
}

// tells waits until the gateway has told that so many are left, lately by the database's clock, with the age of the oldest.
func (d *draining) tells(t *testing.T, left int, within time.Duration) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() error {
		if n := d.count(t, `SELECT count(*) FROM spools WHERE spool = 'mine' AND deliveries = $1 AND empty_at = '-infinity' AND told_at > clock_now() - interval '1 minute'
			AND told_at - oldest_at BETWEEN '1 microsecond' AND $2`, left, within); n != 1 {
			var row string
			if err := d.db.Pool.QueryRow(t.Context(), `SELECT coalesce(string_agg(s::text, ' '), '') FROM spools s`).Scan(&row); err != nil {
				return err
			}
			return fmt.Errorf("%d left are not told of, but %s", left, row)
		}
		return nil
	})
}

// While a spool is drained, however long that takes, its gateway tells what is left in it and since when, and is taken for one that runs.
func TestSpoolsAreToldOfWhileTheyAreDrained(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	clock := func(ahead string) {
		db.Exec(t, `CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$SELECT clock_timestamp() + interval '`+ahead+`'$$`)
	}
	began := time.Now()
	clock("1 minute") // the gateway's clock is behind, and that makes nothing older
	b := setupDraining(t, db, 4, func(string) {}, func(*ingest.Options) {})
	b.tells(t, 4, time.Since(began)+time.Second) // before anything is drained
	b.next(t)
	b.tells(t, 3, time.Since(began)+time.Minute/2)
	clock("7 minutes")
	b.tells(t, 3, time.Since(began)+time.Minute/2) // however long one batch takes
	if _, err := redaction.ForgetSpool(t.Context(), db.Role(t, "operator"), "mine", false); !errors.Is(err, events.ErrInvalid) || !strings.Contains(err.Error(), "was told of at") {
		t.Errorf("a spool that is drained is forgotten: %v", err)
	}
	b.next(t)
	b.tells(t, 2, time.Since(began)+time.Minute/2)
	b.open()
	b.waitRows(t, 1, `spools WHERE deliveries = 0 AND bytes = 0 AND empty_at = told_at AND oldest_at IS NULL`)
	b.wantRows(t, 4, `events`)
}

// What cannot be told while a spool is drained, or not at once, neither ends the drain nor keeps it waiting, and is told later.
func TestASpoolIsDrainedThoughItCannotBeToldOf(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	log, tune := logging(slog.LevelDebug)
	b := setupDraining(t, db, 5, func(string) {}, tune)
	db.Exec(t, `REVOKE UPDATE ON spools FROM postern_gateway`)
	testkit.Eventually(t, 30*time.Second, func() error {
		if len(log.take(t, "the spool is drained and not told of")) == 0 {
			return errors.New("it is told of all the same")
		}
		return nil
	})
	b.next(t)
	db.Exec(t, `GRANT UPDATE ON spools TO postern_gateway`)
	b.tells(t, 4, time.Minute)
	lock, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release := sync.OnceFunc(func() { _ = lock.Rollback(context.WithoutCancel(t.Context())) })
	t.Cleanup(release)
	if _, err := lock.Exec(t.Context(), `SELECT 1 FROM spools FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		if n := b.count(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%INTO spools%'`); n == 0 {
			return errors.New("nobody waits to tell")
		}
		return nil
	})
	b.next(t)
	b.next(t)
	release()
	b.tells(t, 2, time.Minute)
}

// What stands behind a damaged head is drained though it was not counted: until it is in the log nobody says that the spool is empty.
func TestASpoolIsNotEmptyBeforeItIsDrained(t *testing.T) {
	t.Parallel()
	b := setupDraining(t, testkit.Database(t), 3, func(dir string) {
		files, err := filepath.Glob(filepath.Join(dir, "*.spool"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%v, %v", files, err)
		}
		data, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		const head = 48
		frame := data[head-4 : head] // each begins as the file's head ends
		second := head + len(frame) + bytes.Index(data[head+len(frame):], frame)
		data[second] ^= 1
		if err := os.WriteFile(files[0], data, 0o600); err != nil {
			t.Fatal(err)
		}
	}, func(*ingest.Options) {})
	b.tells(t, 1, time.Minute)
	b.next(t)
	b.waitRows(t, 1, `spools WHERE deliveries = 0`)
	b.wantRows(t, 1, `spools WHERE empty_at = '-infinity'`)
	b.open()
	b.waitRows(t, 2, `spools, events WHERE empty_at > '-infinity'`)
}

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
	b.waitRows(t, 1, `events`)
	b.wantRows(t, 1, `events e JOIN sources s ON s.number = e.source WHERE s.name = 'many'`)
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
	b.wantRows(t, 0, `rejections`)
	b.wantCounter(t, 1, "postern_rejections_dropped_total", "source=stripe")
	var prove func()
	b, prove = setupUnproven(t)
	forged(b)
	prove()
	b.run(t)
	b.waitRows(t, 1, `rejections`)
	b.wantRows(t, 1, `rejections r JOIN sources s ON s.number = r.source WHERE s.name = 'stripe'`)
}

// A gateway that ends before the database is proven leaves there what it was told of the spool.
func TestUnprovenDatabaseIsNotUntold(t *testing.T) {
	t.Parallel()
	b, _ := setupUnproven(t)
	b.db.Exec(t, `INSERT INTO spools (spool, place, empty_at) VALUES ('mine', 'here', '-infinity')`)
	t.Run("ends before", func(t *testing.T) { b.run(t) })
	b.wantRows(t, 1, `spools`)
}
