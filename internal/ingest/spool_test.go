package ingest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/testkit"
)

// spoolBundle is a gateway with a spool, whose connection to PostgreSQL can fail.
type spoolBundle struct {
	*testBundle
	dir   string
	proxy *testkit.FaultProxy
	spool *spool.Spool
}

func setupSpool(t *testing.T, tune func(*ingest.Options)) *spoolBundle {
	t.Helper()
	db := testkit.Database(t)
	b := &spoolBundle{dir: t.TempDir()}
	proxy, connect := proxiedPool(t, db)
	b.proxy = proxy
	b.testBundle = setupOn(t, db, func(o *ingest.Options) {
		connect(o)
		o.Settings.StallAfter = 500 * time.Millisecond
		o.Spool = openSpool(t, b.dir, 1<<30)
		if tune != nil {
			tune(o)
		}
		b.spool = o.Spool
	})
	return b
}

func openSpool(t *testing.T, dir string, most int64) *spool.Spool {
	t.Helper()
	disk, err := spool.OpenFolder(dir)
	testkit.Must(t, err)
	s, err := spool.Open(disk, spool.Options{MaxBytes: most, SegmentBytes: 1 << 20,
		Logger: slog.New(slog.DiscardHandler)})
	testkit.Must(t, err)
	return s
}

// wantSpooled checks that the response acknowledges a spooled delivery.
func (a response) wantSpooled(t *testing.T, key string) {
	t.Helper()
	var r struct {
		EventID string `json:"event_id"`
		Spooled bool   `json:"spooled"`
		ID      string `json:"id"`
	}
	if err := json.Unmarshal(a.body, &r); err != nil || a.status != 200 || !r.Spooled || r.EventID != key ||
		r.ID != "" {
		t.Errorf("%d %s, want a spooled receipt of %q", a.status, a.body, key)
	}
}

// postSpooled posts a delivery of one event, which must be spooled.
func (b *testBundle) postSpooled(t *testing.T, source, key string) {
	t.Helper()
	b.postLine(t, source, key).wantSpooled(t, key)
}

// spoolConcurrently sends deliveries "during 0" and so on, which must be spooled within a time. The
// function wait waits for the responses.
func (b *testBundle) spoolConcurrently(t *testing.T, count int, within time.Duration) (wait func()) {
	t.Helper()
	var group sync.WaitGroup
	for n := range count {
		group.Go(func() {
			key := fmt.Sprint("during ", n)
			a, err := b.try(t.Context(), "many", b.line(t, "many", key))
			if err != nil {
				t.Error(err)
				return
			}
			a.wantSpooled(t, key)
			if a.duration > within {
				t.Errorf("%s took %s", key, a.duration)
			}
		})
	}
	return group.Wait
}

// waitEmpty waits until the spool is empty and the log has that many events.
func (b *spoolBundle) waitEmpty(t *testing.T, events int) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if n := b.count(t, `SELECT count(*) FROM events`); n != events || b.spool.Stats().Records != 0 {
			return fmt.Errorf("%d events, want %d, and the spool has %+v", n, events, b.spool.Stats())
		}
		return nil
	})
}

// If connections are refused or stall, deliveries are acknowledged within 5 s. They are in the log
// once when the database is available again.
func TestSpool_databaseUnavailable_acknowledgesAndAppendsLater(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"refused", "stalled"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			b := setupSpool(t, nil)
			b.postLine(t, "many", "before").receipt(t)
			if how == "refused" {
				b.proxy.Cut()
			} else {
				b.proxy.Stall()
			}
			b.spoolConcurrently(t, 40, 5*time.Second)()
			// it is unknown whether it was stored
			b.postSpooled(t, "many", "during 3")
			b.proxy.Restore()
			b.waitEmpty(t, 41)
			b.wantRows(t, 41, `events WHERE origin = 'webhook' AND verification <> '{}' AND body IS NOT NULL`)
			b.wantPublished(t, 41)
			b.wantAppended(t, "after")
			b.wantQuarantined(t, 0)
		})
	}
}

// A full spool, a source that must not use it, and no spool at all are a 503 at once.
func TestSpool_fullOrNotAllowed_is503(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	proxy, connect := proxiedPool(t, db)
	b := setupOn(t, db, func(o *ingest.Options) {
		connect(o)
		o.Spool = openSpool(t, t.TempDir(), 2048)
		changeEndpoint(o, "polite", func(ep *ingest.Endpoint) { ep.RequireCommit = true })
	})
	proxy.Cut()
	b.postSpooled(t, "many", "small")
	b.postLine(t, "many", strings.Repeat("x", 5000)).wantProblem(t, 503, "unavailable")
	b.postLine(t, "polite", "final").wantProblem(t, 503, "unavailable")
}

// Records that the log rejects are quarantined: an event that violates a constraint, and one of a
// source whose name now has another provider. All other records are appended.
func TestSpool_recordRejectedByLog_isQuarantined(t *testing.T) {
	t.Parallel()
	b := setupSpool(t, nil)
	b.db.Exec(t, `ALTER TABLE events ADD CONSTRAINT trouble CHECK (event_id <> 'bad') NOT VALID`)
	b.proxy.Cut()
	for key, source := range map[string]string{"one": "polite", "bad": "polite", "two": "polite",
		"of another": "many"} {
		b.postSpooled(t, source, key)
	}
	b.db.Exec(t, `UPDATE sources SET provider = 'other' WHERE name = 'many'`)
	b.proxy.Restore()
	b.waitEmpty(t, 2)
	texts := b.wantQuarantined(t, 2)
	if !strings.Contains(texts, "bad") || !strings.Contains(texts, "of another") {
		t.Errorf("quarantined: %q", texts)
	}
	b.wantAppended(t, "three")
}

// wantQuarantined checks the number of quarantined files, and returns their contents.
func (b *spoolBundle) wantQuarantined(t *testing.T, want int) (texts string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(b.dir, "*.quarantined"))
	if err != nil || len(files) != want {
		t.Fatalf("%d files are quarantined, want %d: %v", len(files), want, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		testkit.Must(t, err)
		texts += string(text)
	}
	return texts
}

// If the database responds and rejects only the spooled records, new deliveries are appended.
func TestSpool_drainFails_newDeliveriesAreAppended(t *testing.T) {
	t.Parallel()
	b := setupSpool(t, nil)
	b.db.Exec(t, `CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF new.event_id = 'bad' THEN
		RAISE 'trouble'; END IF; RETURN new; END $$`)
	b.db.Exec(t, `CREATE TRIGGER trouble BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION trouble()`)
	b.proxy.Cut()
	b.postSpooled(t, "many", "bad")
	b.proxy.Restore()
	b.wantAppended(t, "good")
	b.db.Exec(t, `DROP TRIGGER trouble ON events`)
	b.waitEmpty(t, 2)
}

// wantAppended waits until deliveries are appended at once.
func (b *spoolBundle) wantAppended(t *testing.T, key string) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() error {
		if a := b.postLine(t, "polite", key); !strings.Contains(string(a.body), `"id"`) {
			return fmt.Errorf("%d %s", a.status, a.body)
		}
		return nil
	})
}

// hangingDisk is a real folder whose files do not become durable while it is locked.
type hangingDisk struct {
	spool.Disk
	sync.RWMutex
}

type hangingFile struct {
	spool.File
	disk *hangingDisk
}

func (d *hangingDisk) Create(name string) (spool.File, error) {
	f, err := d.Disk.Create(name)
	return hangingFile{f, d}, err
}

func (f hangingFile) Sync() error {
	f.disk.RLock()
	defer f.disk.RUnlock()
	return f.File.Sync()
}

// While PostgreSQL and the spool's disk stall, deliveries get a 503 soon. Everything that was
// acknowledged before and after is in the log once both are available.
func TestSpool_databaseAndDiskStall_is503(t *testing.T) {
	t.Parallel()
	disk := &hangingDisk{}
	b := setupSpool(t, func(o *ingest.Options) {
		var err error
		if disk.Disk, err = spool.OpenFolder(t.TempDir()); err != nil {
			t.Fatal(err)
		}
		if o.Spool, err = spool.Open(disk, spool.Options{MaxBytes: 1 << 30, SegmentBytes: 1 << 20,
			StallAfter: 500 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}); err != nil {
			t.Fatal(err)
		}
		o.Settings.Deadline = 3 * time.Second
	})
	b.postLine(t, "many", "before").receipt(t)
	b.proxy.Cut()
	for n := range 5 {
		b.postSpooled(t, "many", fmt.Sprint("kept ", n))
	}
	disk.Lock()
	for n := range 20 {
		a := b.postLine(t, "many", "again")
		a.wantProblem(t, 503, "unavailable")
		if n > 2 && a.duration > 2*time.Second { // the first of them finds out
			t.Errorf("a rejection took %s", a.duration)
		}
	}
	if b.server.Ready(t.Context()) == nil {
		t.Error("it is ready")
	}
	disk.Unlock()
	b.waitStatus(t, "many", b.line(t, "many", "again"), 200)
	b.proxy.Restore()
	b.waitEmpty(t, 7)
	b.wantRows(t, 7, `events WHERE event_id = convert_from(body, 'UTF8')`)
}

// Records of an earlier process are reported before they are drained, and before the gateway writes
// anything else: a redaction that starts meanwhile waits for them. The earlier process had no time
// to report them, or had deleted its row when its spool was empty.
func TestSpoolStatus_recordsOfEarlierProcess_isReportedBeforeDrain(t *testing.T) {
	t.Parallel()
	for _, unchecked := range []bool{false, true} {
		t.Run(fmt.Sprint("unchecked ", unchecked), func(t *testing.T) {
			t.Parallel()
			db, dir := testkit.Database(t), t.TempDir()
			start := func(t *testing.T, unchecked bool) *testBundle {
				return setupOn(t, db, func(o *ingest.Options) {
					o.Spool, o.SpoolName, o.SpoolLocation, o.DatabaseUnchecked = openSpool(t, dir, 1<<30), "mine",
						"here:/spool", unchecked
				})
			}
			t.Run("spooled", func(t *testing.T) {
				b := start(t, true)
				b.postSpooled(t, "many", "one")
			})
			held := testkit.OpenTx(t, db.Pool, `LOCK TABLE events IN ACCESS EXCLUSIVE MODE`)
			release := func() { _ = held.Rollback(context.Background()) }
			b := start(t, unchecked)
			t.Cleanup(release)
			const registered = `spools WHERE spool = 'mine' AND drained_at = '-infinity'`
			if unchecked {
				testkit.Must(t, b.server.ConfirmDatabase(t.Context()))
				b.wantRows(t, 1, registered)
			}
			b.waitRows(t, 1, registered)
			release()
			b.waitRows(t, 1, `spools, events WHERE drained_at > '-infinity'`)
		})
	}
}

// The next gateway on the same disk appends what an earlier one spooled. The database knows whether
// all deliveries acknowledged by some time are in the log: while the gateway runs, after it ended
// with an empty spool, and after it ended with records in it.
func TestSpoolStatus_gatewayEnds_isDeletedOnlyIfEmpty(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	proxy, connect := proxiedPool(t, db)
	dir, invalidUTF8 := t.TempDir(), "\xff is no \xfe UTF-8"
	start := func(t *testing.T) *testBundle {
		return setupOn(t, db, func(o *ingest.Options) {
			connect(o)
			o.Spool, o.SpoolName, o.SpoolLocation = openSpool(t, dir, 1<<30), "mine", "here:/spool"
		})
	}
	waitReportedEmpty := func(t *testing.T, b *testBundle, since time.Time) {
		t.Helper()
		b.waitRows(t, 1, `spools WHERE spool = 'mine' AND location = 'here:/spool' AND drained_at > $1
			AND reported_at = drained_at AND deliveries = 0 AND bytes = 0`, since)
	}
	var spooledAt time.Time
	now := func() { testkit.Must(t, db.Pool.QueryRow(t.Context(), `SELECT clock_now()`).Scan(&spooledAt)) }
	t.Run("with records", func(t *testing.T) {
		b := start(t)
		waitReportedEmpty(t, b, time.Unix(0, 0))
		proxy.Cut()
		for i := range 2 {
			b.postSpooled(t, "many", fmt.Sprint(i))
		}
		if a := b.postLine(t, "many", invalidUTF8); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
		now()
	})
	const waiting = `spools WHERE drained_at < $1` // a redaction waits for these
	db.WantRows(t, 1, waiting, spooledAt)
	db.Exec(t, `DELETE FROM spools`)
	db.Exec(t, `REVOKE INSERT ON events FROM postern_gateway`)
	proxy.Restore()
	t.Run("with a record that cannot be appended", func(t *testing.T) {
		b := start(t)
		b.waitRows(t, 1, `spools WHERE drained_at = '-infinity' AND deliveries = 3 AND bytes > 3
			AND reported_at > registered_at - interval '1 h'`)
	})
	db.WantRows(t, 1, waiting, spooledAt)
	db.Exec(t, `GRANT INSERT ON events TO postern_gateway`)
	t.Run("with an empty spool", func(t *testing.T) {
		b := start(t)
		waitReportedEmpty(t, b, spooledAt)
		b.wantRows(t, 3, `events`)
		if r := b.postLine(t, "many", invalidUTF8).receipt(t); !r.Duplicate {
			t.Errorf("its key was changed in the spool: %+v", r)
		}
	})
	now()
	db.WantRows(t, 0, waiting, spooledAt)
	t.Run("with an empty spool, without the database", func(t *testing.T) {
		waitReportedEmpty(t, start(t), spooledAt)
		proxy.Cut()
	})
	db.WantRows(t, 1, `spools`)
}
