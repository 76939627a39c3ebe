package ingest_test

import (
	"bytes"
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

// drainingGateway is a gateway that drains the spool of an earlier process, one delivery at a time.
// After each commit it waits until the test continues.
type drainingGateway struct {
	*testBundle
	drained       chan struct{}
	continueDrain chan struct{}
	// continueAll continues all.
	continueAll func()
}

// setupDraining spools deliveries in a folder. between may change the folder before the gateway
// starts.
func setupDraining(t *testing.T, db *testkit.DB, deliveries int, between func(dir string),
	tune func(*ingest.Options)) *drainingGateway {
	t.Helper()
	dir := t.TempDir()
	start := func(t *testing.T, tune func(*ingest.Options)) *testBundle {
		return setupOn(t, db, func(o *ingest.Options) {
			o.Spool, o.SpoolName, o.SpoolLocation = openSpool(t, dir, 1<<30), "mine", "here:/spool"
			tune(o)
		})
	}
	t.Run("spooled", func(t *testing.T) {
		b := start(t, func(o *ingest.Options) { o.DatabaseUnchecked = true })
		for i := range deliveries {
			b.postSpooled(t, "many", fmt.Sprint(i))
		}
	})
	between(dir)
	d := &drainingGateway{drained: make(chan struct{}, deliveries), continueDrain: make(chan struct{})}
	d.continueAll = sync.OnceFunc(func() { close(d.continueDrain) })
	d.testBundle = start(t, func(o *ingest.Options) {
		o.Settings.BatchMax = 1
		o.Publish = func(...stream.Event) {
			d.drained <- struct{}{}
			<-d.continueDrain
		}
		tune(o)
	})
	t.Cleanup(d.continueAll)
	d.waitDrained(t)
	return d
}

// waitDrained waits until the next delivery is committed.
func (d *drainingGateway) waitDrained(t *testing.T) {
	t.Helper()
	select {
	case <-d.drained:
	case <-time.After(time.Minute):
		t.Fatal("nothing is drained")
	}
}

// drainNext continues, and waits for the next commit.
func (d *drainingGateway) drainNext(t *testing.T) {
	t.Helper()
	d.continueDrain <- struct{}{}
	d.waitDrained(t)
}

// waitReported waits until the gateway has reported that number of records recently (by the
// database's clock), with the age of the oldest.
func (d *drainingGateway) waitReported(t *testing.T, remaining int, within time.Duration) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() error {
		if n := d.count(t, `SELECT count(*) FROM spools WHERE spool = 'mine' AND deliveries = $1
			AND drained_at = '-infinity' AND reported_at > clock_now() - interval '1 minute'
			AND reported_at - oldest_at BETWEEN '1 microsecond' AND $2`, remaining, within); n != 1 {
			return fmt.Errorf("%d records are not reported, but %v", remaining,
				d.db.QueryStrings(t, `SELECT s::text FROM spools s`))
		}
		return nil
	})
}

// While a spool is drained, however long that takes, its gateway reports the remaining records and
// the oldest, and counts as running.
func TestSpoolStatus_draining_isReported(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	began := time.Now()
	// the gateway's clock is behind, which must not make records older
	db.ReplaceClock(t, `clock_timestamp() + interval '1 minute'`)
	b := setupDraining(t, db, 4, func(string) {}, func(*ingest.Options) {})
	b.waitReported(t, 4, time.Since(began)+time.Second) // before anything is drained
	b.drainNext(t)
	b.waitReported(t, 3, time.Since(began)+time.Minute/2)
	db.ReplaceClock(t, `clock_timestamp() + interval '7 minutes'`)
	b.waitReported(t, 3, time.Since(began)+time.Minute/2) // however long one batch takes
	if _, err := redaction.RemoveSpool(t.Context(), db.Role(t, "operator"), "mine", false); !errors.Is(err,
		events.ErrInvalid) || !strings.Contains(err.Error(), "was reported at") {
		t.Errorf("a spool that is being drained was removed: %v", err)
	}
	b.drainNext(t)
	b.waitReported(t, 2, time.Since(began)+time.Minute/2)
	b.continueAll()
	b.waitRows(t, 1, `spools WHERE deliveries = 0 AND bytes = 0 AND drained_at = reported_at AND oldest_at IS NULL`)
	b.wantRows(t, 4, `events`)
}

// A report that fails or waits while a spool is drained does not stop or delay the draining; it is
// repeated later.
func TestSpoolStatus_reportFails_drainContinues(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	log, tune := captureLog(slog.LevelDebug)
	b := setupDraining(t, db, 5, func(string) {}, tune)
	db.Exec(t, `REVOKE UPDATE ON spools FROM postern_gateway`)
	testkit.Eventually(t, 30*time.Second, func() error {
		if len(log.withMessage(t, "the status of the spool could not be reported while it is drained")) == 0 {
			return errors.New("the status is still reported")
		}
		return nil
	})
	b.drainNext(t)
	db.Exec(t, `GRANT UPDATE ON spools TO postern_gateway`)
	b.waitReported(t, 4, time.Minute)
	lock := testkit.OpenTx(t, db.Pool, `SELECT 1 FROM spools FOR UPDATE`)
	b.waitRows(t, 1, blocked+` AND query LIKE '%INTO spools%'`)
	b.drainNext(t)
	b.drainNext(t)
	testkit.Must(t, lock.Rollback(t.Context()))
	b.waitReported(t, 2, time.Minute)
}

// Records behind a damaged header are drained although they were not counted: the spool is not
// reported empty before they are in the log.
func TestSpoolStatus_damagedHeader_isNotEmptyUntilDrained(t *testing.T) {
	t.Parallel()
	b := setupDraining(t, testkit.Database(t), 3, func(dir string) {
		files, err := filepath.Glob(filepath.Join(dir, "*.spool"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%v, %v", files, err)
		}
		data, err := os.ReadFile(files[0])
		testkit.Must(t, err)
		const head = 48
		frame := data[head-4 : head] // each starts with the end of the file's header
		second := head + len(frame) + bytes.Index(data[head+len(frame):], frame)
		data[second] ^= 1
		testkit.Must(t, os.WriteFile(files[0], data, 0o600))
	}, func(*ingest.Options) {})
	b.waitReported(t, 1, time.Minute)
	b.drainNext(t)
	b.waitRows(t, 1, `spools WHERE deliveries = 0`)
	b.wantRows(t, 1, `spools WHERE drained_at = '-infinity'`)
	b.continueAll()
	b.waitRows(t, 2, `spools, events WHERE drained_at > '-infinity'`)
}

// setupUncheckedDatabase returns a gateway that started without its database: it has no source
// numbers, and does not run yet. confirm confirms the database.
func setupUncheckedDatabase(t *testing.T) (b *testBundle, confirm func()) {
	t.Helper()
	numbered := map[string]ingest.Endpoint{}
	b = setupIdle(t, testkit.Database(t), func(o *ingest.Options) {
		maps.Copy(numbered, o.Endpoints)
		changeEndpoint(o, "", func(ep *ingest.Endpoint) { ep.Number = 0 })
		o.SpoolName = "mine"
		o.Spool, o.DatabaseUnchecked = openSpool(t, t.TempDir(), 1<<30), true
	})
	return b, func() {
		b.server.Replace(numbered)
		if err := b.server.ConfirmDatabase(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// A delivery that starts before the database is confirmed, and ends after that, is stored under its
// source's number.
func TestConfirmDatabase_requestInProgress_isStored(t *testing.T) {
	t.Parallel()
	b, confirm := setupUncheckedDatabase(t)
	b.run(t)
	d := b.line(t, "many", "between")
	body, sender := io.Pipe()
	req := httptest.NewRequest(http.MethodPost, "/webhooks/many", body)
	req.Header = d.Header.Clone()
	res, done := httptest.NewRecorder(), make(chan struct{})
	go func() {
		b.server.Handler().ServeHTTP(res, req)
		close(done)
	}()
	if _, err := sender.Write(d.Body[:1]); err != nil { // it is read now, so the request is in progress
		t.Fatal(err)
	}
	confirm()
	if _, err := sender.Write(d.Body[1:]); err != nil {
		t.Fatal(err)
	}
	testkit.Must(t, sender.Close())
	<-done
	if res.Code != http.StatusOK {
		t.Errorf("status %d: %s", res.Code, res.Body)
	}
	b.waitRows(t, 1, `events`)
	b.wantRows(t, 1, `events e JOIN sources s ON s.number = e.source WHERE s.name = 'many'`)
}

// Rejections before the database is confirmed wait, and are stored under their source's number.
func TestConfirmDatabase_rejections_areStoredLater(t *testing.T) {
	t.Parallel()
	b, confirm := setupUncheckedDatabase(t)
	b.forge(t, "stripe", 1, 2)
	confirm()
	b.run(t)
	b.waitRows(t, 1, `rejections`)
	b.wantRows(t, 1, `rejections r JOIN sources s ON s.number = r.source WHERE s.name = 'stripe'`)
}

// If a gateway ends before the database is confirmed, it stores no rejections, and it does not
// delete the spool's status.
func TestConfirmDatabase_neverCalled_changesNoTable(t *testing.T) {
	t.Parallel()
	b, _ := setupUncheckedDatabase(t)
	b.db.Exec(t, `INSERT INTO spools (spool, location, drained_at) VALUES ('mine', 'here', '-infinity')`)
	b.forge(t, "stripe", 1, 2)
	t.Run("ends before", func(t *testing.T) { b.run(t) })
	b.wantRows(t, 0, `rejections`)
	b.wantCounter(t, 1, "postern_rejections_dropped_total", "source=stripe")
	b.wantRows(t, 1, `spools`)
}
