package ingest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/testkit"
)

// spooling is a gateway with a spool, whose way to PostgreSQL can fail.
type spooling struct {
	*testBundle
	dir   string
	store *testkit.FaultProxy
	spool *spool.Spool
}

func setupSpool(t *testing.T, tune func(*ingest.Options)) *spooling {
	t.Helper()
	db := testkit.Database(t)
	b := &spooling{dir: t.TempDir()}
	proxy, connect := through(t, db)
	b.store = proxy
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
	disk, err := spool.Folder(dir)
	if err != nil {
		t.Fatal(err)
	}
	s, err := spool.Open(disk, spool.Options{MaxBytes: most, SegmentBytes: 1 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// kept fails unless an answer acknowledges what is in the spool.
func (a answer) kept(t *testing.T, key string) {
	t.Helper()
	var r struct {
		EventID string `json:"event_id"`
		Spooled bool   `json:"spooled"`
		ID      string `json:"id"`
	}
	if err := json.Unmarshal(a.body, &r); err != nil || a.status != 200 || !r.Spooled || r.EventID != key || r.ID != "" {
		t.Errorf("%d %s, want a spooled receipt of %q", a.status, a.body, key)
	}
}

func line(key string) provider.Sample { return provider.Sample{Body: []byte(key)} }

// TestDeliveriesAreKeptWhileTheStoreIsAway: refused and hanging connections alike, what is sent meanwhile is acknowledged within a second and a half, and is in the log, once, when the store is back.
func TestDeliveriesAreKeptWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"refused", "hanging"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			b := setupSpool(t, nil)
			b.post(t, "many", b.sign(t, "many", line("before"))).receipt(t)
			if how == "refused" {
				b.store.Cut()
			} else {
				b.store.Stall()
			}
			var wg sync.WaitGroup
			for i := range 40 {
				wg.Go(func() {
					key := fmt.Sprint("during ", i)
					a, err := b.try(t.Context(), "many", b.sign(t, "many", line(key)))
					if err != nil {
						t.Error(err)
						return
					}
					a.kept(t, key)
					if a.took > 5*time.Second {
						t.Errorf("%s took %s", key, a.took)
					}
				})
			}
			wg.Wait()
			b.post(t, "many", b.sign(t, "many", line("during 3"))).kept(t, "during 3") // nobody can know
			b.store.Restore()
			b.waitEmpty(t, 41)
			b.wantRows(t, 41, `events WHERE origin = 'webhook' AND verification <> '{}' AND body IS NOT NULL`)
			b.publishes(t, 41)
			b.stored(t, "after")
			b.setApart(t, 0)
		})
	}
}

// TestSpoolOutlivesTheProcess: what one gateway kept, the next one on that disk appends.
func TestSpoolOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	dir := t.TempDir()
	t.Run("first", func(t *testing.T) {
		proxy, connect := through(t, db)
		b := setupOn(t, db, func(o *ingest.Options) { connect(o); o.Spool = openSpool(t, dir, 1<<30) })
		proxy.Cut()
		for i := range 5 {
			key := fmt.Sprint(i)
			b.post(t, "many", b.sign(t, "many", line(key))).kept(t, key)
		}
		odd := "\xff is no \xfe UTF-8"
		if a := b.post(t, "many", b.sign(t, "many", line(odd))); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
	b := setupOn(t, db, func(o *ingest.Options) { o.Spool = openSpool(t, dir, 1<<30) })
	b.waitRows(t, 6, `events`)
	if r := b.post(t, "many", b.sign(t, "many", line("\xff is no \xfe UTF-8"))).receipt(t); !r.Duplicate {
		t.Errorf("its key was changed in the spool: %+v", r)
	}
}

// TestSpoolRefuses: a full spool, one that is not there for a source, and none at all are a 503 at once.
func TestSpoolRefuses(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	proxy, connect := through(t, db)
	b := setupOn(t, db, func(o *ingest.Options) {
		connect(o)
		o.Spool = openSpool(t, t.TempDir(), 2048)
		final := o.Endpoints["polite"]
		final.FinalReceipts = true
		o.Endpoints["polite"] = final
	})
	proxy.Cut()
	b.post(t, "many", b.sign(t, "many", line("small"))).kept(t, "small")
	a := b.post(t, "many", b.sign(t, "many", line(strings.Repeat("x", 5000))))
	a.refused(t, 503, "unavailable")
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	b.post(t, "polite", b.sign(t, "polite", line("final"))).refused(t, 503, "unavailable")
}

// The spool sets apart what the log never takes: an event that a constraint rejects, and one of a source whose name has another
// provider by now. All else that it keeps goes to the log.
func TestWhatTheLogNeverTakesIsSetApart(t *testing.T) {
	t.Parallel()
	b := setupSpool(t, nil)
	b.db.Exec(t, `ALTER TABLE events ADD CONSTRAINT trouble CHECK (event_id <> 'bad') NOT VALID`)
	b.store.Cut()
	for key, source := range map[string]string{"one": "polite", "bad": "polite", "two": "polite", "of another": "many"} {
		b.post(t, source, b.sign(t, source, line(key))).kept(t, key)
	}
	b.db.Exec(t, `UPDATE sources SET provider = 'other' WHERE name = 'many'`)
	b.store.Restore()
	b.waitEmpty(t, 2)
	texts := b.setApart(t, 2)
	if !strings.Contains(texts, "bad") || !strings.Contains(texts, "of another") {
		t.Errorf("set apart: %q", texts)
	}
	b.stored(t, "three")
}

// setApart wants so many files set apart, and returns their texts.
func (b *spooling) setApart(t *testing.T, want int) (texts string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(b.dir, "*.refused"))
	if err != nil || len(files) != want {
		t.Fatalf("%d files are set apart, want %d: %v", len(files), want, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts += string(text)
	}
	return texts
}

// TestSpoolThatCannotBeEmptied: where the database answers, and refuses only what is kept, deliveries that come now are appended.
func TestSpoolThatCannotBeEmptied(t *testing.T) {
	t.Parallel()
	b := setupSpool(t, nil)
	b.db.Exec(t, `CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF new.event_id = 'bad' THEN RAISE 'trouble'; END IF; RETURN new; END $$`)
	b.db.Exec(t, `CREATE TRIGGER trouble BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION trouble()`)
	b.store.Cut()
	b.post(t, "many", b.sign(t, "many", line("bad"))).kept(t, "bad")
	b.store.Restore()
	b.stored(t, "good")
	b.db.Exec(t, `DROP TRIGGER trouble ON events`)
	b.waitEmpty(t, 2)
}

// stored fails unless deliveries come to be appended at once.
func (b *spooling) stored(t *testing.T, key string) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() error {
		if a := b.post(t, "polite", b.sign(t, "polite", line(key))); !strings.Contains(string(a.body), `"id"`) {
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
	on *hangingDisk
}

func (d *hangingDisk) Create(name string) (spool.File, error) {
	f, err := d.Disk.Create(name)
	return hangingFile{f, d}, err
}

func (f hangingFile) Sync() error {
	f.on.RLock()
	defer f.on.RUnlock()
	return f.File.Sync()
}

// While PostgreSQL and the spool's disk hang, deliveries are answered 503 soon. All that was acknowledged before and after is in
// the log once both are back.
func TestStoreAndDiskAway(t *testing.T) {
	t.Parallel()
	disk := &hangingDisk{}
	b := setupSpool(t, func(o *ingest.Options) {
		var err error
		if disk.Disk, err = spool.Folder(t.TempDir()); err != nil {
			t.Fatal(err)
		}
		if o.Spool, err = spool.Open(disk, spool.Options{MaxBytes: 1 << 30, SegmentBytes: 1 << 20,
			StallAfter: 500 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}); err != nil {
			t.Fatal(err)
		}
		o.Settings.Deadline = 3 * time.Second
	})
	b.post(t, "many", b.sign(t, "many", line("before"))).receipt(t)
	b.store.Cut()
	for n := range 5 {
		key := fmt.Sprint("kept ", n)
		b.post(t, "many", b.sign(t, "many", line(key))).kept(t, key)
	}
	disk.Lock()
	for n := range 20 {
		a := b.post(t, "many", b.sign(t, "many", line("again")))
		a.refused(t, 503, "unavailable")
		if n > 2 && a.took > 2*time.Second { // the first of them found out
			t.Errorf("a refusal took %s", a.took)
		}
	}
	if b.server.Ready(t.Context()) == nil {
		t.Error("it says that it is ready")
	}
	disk.Unlock()
	b.waitAnswer(t, "many", b.sign(t, "many", line("again")), 200)
	b.store.Restore()
	b.waitEmpty(t, 7)
	b.wantRows(t, 7, `events WHERE event_id = convert_from(body, 'UTF8')`)
}

// What an earlier process has kept is told of before it is drained, and before the gateway writes anything else: a redaction that begins meanwhile waits for it. The earlier process had no time to say so,
// or had taken its row away when it held nothing yet.
func TestSpoolsAreToldOfBeforeTheyAreDrained(t *testing.T) {
	t.Parallel()
	for _, unproven := range []bool{false, true} {
		t.Run(fmt.Sprint("unproven ", unproven), func(t *testing.T) {
			t.Parallel()
			db, dir := testkit.Database(t), t.TempDir()
			start := func(t *testing.T, unproven bool) *testBundle {
				return setupOn(t, db, func(o *ingest.Options) {
					o.Spool, o.SpoolName, o.SpoolPlace, o.Unproven = openSpool(t, dir, 1<<30), "mine", "here:/spool", unproven
				})
			}
			t.Run("kept", func(t *testing.T) {
				b := start(t, true)
				b.post(t, "many", b.sign(t, "many", line("one"))).kept(t, "one")
			})
			held, err := db.Pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			release := sync.OnceFunc(func() { _ = held.Rollback(context.WithoutCancel(t.Context())) })
			if _, err := held.Exec(t.Context(), `LOCK TABLE events IN ACCESS EXCLUSIVE MODE`); err != nil {
				t.Fatal(err)
			}
			b := start(t, unproven)
			t.Cleanup(release)
			known := func() error {
				if n := b.count(t, `SELECT count(*) FROM spools WHERE spool = 'mine' AND empty_at = '-infinity'`); n != 1 {
					return fmt.Errorf("%d spools are waited for", n)
				}
				return nil
			}
			if unproven {
				if err := errors.Join(b.server.Proven(t.Context()), known()); err != nil {
					t.Fatal(err)
				}
			}
			testkit.Eventually(t, 30*time.Second, known)
			release()
			b.waitRows(t, 1, `spools, events WHERE empty_at > '-infinity'`)
		})
	}
}

// The database knows of a spool whether all that was acknowledged by some time is in the log: while the gateway runs, after it ended well, and after it ended with something kept.
func TestSpoolsAreToldOf(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	proxy, connect := through(t, db)
	dir := t.TempDir()
	start := func(t *testing.T) *testBundle {
		return setupOn(t, db, func(o *ingest.Options) {
			connect(o)
			o.Spool, o.SpoolName, o.SpoolPlace = openSpool(t, dir, 1<<30), "mine", "here:/spool"
		})
	}
	told := func(t *testing.T, b *testBundle, since time.Time) {
		t.Helper()
		b.waitRows(t, 1, `spools WHERE spool = 'mine' AND place = 'here:/spool' AND empty_at > $1 AND told_at = empty_at AND deliveries = 0 AND bytes = 0`, since)
	}
	now := func() (at time.Time) {
		if err := db.Pool.QueryRow(t.Context(), `SELECT clock_now()`).Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	var kept time.Time
	t.Run("with something kept", func(t *testing.T) {
		b := start(t)
		told(t, b, time.Unix(0, 0))
		proxy.Cut()
		for i := range 3 {
			b.post(t, "many", b.sign(t, "many", line(fmt.Sprint(i)))).kept(t, fmt.Sprint(i))
		}
		kept = now()
	})
	var left int
	count := func() {
		t.Helper()
		if err := db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM spools WHERE empty_at < $1`, kept).Scan(&left); err != nil {
			t.Fatal(err)
		}
	}
	if count(); left != 1 {
		t.Errorf("%d spools are waited for after a gateway ended that had kept something", left)
	}
	db.Exec(t, `DELETE FROM spools`)
	db.Exec(t, `REVOKE INSERT ON events FROM postern_gateway`)
	proxy.Restore()
	t.Run("with something that cannot be appended", func(t *testing.T) {
		b := start(t)
		b.waitRows(t, 1, `spools WHERE empty_at = '-infinity' AND deliveries = 3 AND bytes > 3 AND told_at > known_at - interval '1 h'`)
	})
	if count(); left != 1 {
		t.Errorf("%d spools are waited for after a gateway ended that could not append what it had kept", left)
	}
	db.Exec(t, `GRANT INSERT ON events TO postern_gateway`)
	t.Run("with nothing kept", func(t *testing.T) {
		b := start(t)
		told(t, b, kept)
		b.wantRows(t, 3, `events`)
	})
	kept = now()
	if count(); left != 0 {
		t.Errorf("%d spools are waited for after a gateway ended whose spool was empty", left)
	}
}
