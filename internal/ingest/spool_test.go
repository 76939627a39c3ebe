package ingest_test

import (
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
		b.spool = o.Spool
		if tune != nil {
			tune(o)
		}
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
			testkit.Eventually(t, time.Minute, func() error {
				if s := b.spool.Stats(); s.Records > 0 {
					return fmt.Errorf("still kept: %+v", s)
				}
				return nil
			})
			if n := b.count(t, `SELECT count(*) FROM events`); n != 41 {
				t.Errorf("%d events", n)
			}
			if n := b.count(t, `SELECT count(*) FROM events WHERE origin = 'webhook' AND verification <> '{}' AND body IS NOT NULL`); n != 41 {
				t.Errorf("%d events that are whole", n)
			}
			b.publishes(t, 41)
			testkit.Eventually(t, time.Minute, func() error {
				if a := b.post(t, "many", b.sign(t, "many", line("after"))); !strings.Contains(string(a.body), `"id"`) {
					return fmt.Errorf("%s", a.body)
				}
				return nil
			})
			files, _ := filepath.Glob(filepath.Join(b.dir, "*.refused"))
			if len(files) != 0 {
				t.Errorf("set apart: %v", files)
			}
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
	testkit.Eventually(t, time.Minute, func() error {
		if n := b.count(t, `SELECT count(*) FROM events`); n != 6 {
			return fmt.Errorf("%d events", n)
		}
		return nil
	})
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

// TestWhatTheLogNeverTakesIsSetApart: it keeps nothing behind it back, and nothing of it is lost.
func TestWhatTheLogNeverTakesIsSetApart(t *testing.T) {
	t.Parallel()
	b := setupSpool(t, nil)
	if _, err := b.db.Pool.Exec(t.Context(), `ALTER TABLE events ADD CONSTRAINT trouble CHECK (event_id <> 'bad') NOT VALID`); err != nil {
		t.Fatal(err)
	}
	b.store.Cut()
	for _, key := range []string{"one", "bad", "two"} {
		b.post(t, "many", b.sign(t, "many", line(key))).kept(t, key)
	}
	b.store.Restore()
	testkit.Eventually(t, time.Minute, func() error {
		if n := b.count(t, `SELECT count(*) FROM events`); n != 2 || b.spool.Stats().Records != 0 {
			return fmt.Errorf("%d events, kept %+v", n, b.spool.Stats())
		}
		return nil
	})
	files, _ := filepath.Glob(filepath.Join(b.dir, "*.refused"))
	if len(files) != 1 {
		t.Fatalf("set apart: %v", files)
	}
	if data, err := os.ReadFile(files[0]); err != nil || !strings.Contains(string(data), "bad") {
		t.Errorf("%q %v", data, err)
	}
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
	testkit.Eventually(t, time.Minute, func() error {
		if s := b.spool.Stats(); s.Records > 0 {
			return fmt.Errorf("still kept: %+v", s)
		}
		return nil
	})
}

// TestWhatIsOfAnotherProviderIsSetApart: a source's name that now has events of another provider keeps nothing behind it back.
func TestWhatIsOfAnotherProviderIsSetApart(t *testing.T) {
	t.Parallel()
	b := setupSpool(t, nil)
	b.store.Cut()
	b.post(t, "many", b.sign(t, "many", line("one"))).kept(t, "one")
	b.post(t, "polite", b.sign(t, "polite", line("two"))).kept(t, "two")
	b.db.Exec(t, `UPDATE sources SET provider = 'other' WHERE name = 'many'`)
	b.store.Restore()
	testkit.Eventually(t, time.Minute, func() error {
		if n := b.count(t, `SELECT count(*) FROM events`); n != 1 || b.spool.Stats().Records != 0 {
			return fmt.Errorf("%d events, kept %+v", n, b.spool.Stats())
		}
		return nil
	})
	if files, _ := filepath.Glob(filepath.Join(b.dir, "*.refused")); len(files) != 1 {
		t.Errorf("set apart: %v", files)
	}
	b.stored(t, "three")
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
