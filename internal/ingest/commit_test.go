package ingest_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

// A commit that fails is acknowledged to nobody, and one delivery's fault is not its neighbours'.
func TestFailingCommitIsNotAcknowledged(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *ingest.Options) { o.Settings.Writers = 1 })
	// The statement itself succeeds and returns its rows; only the commit does not.
	if _, err := b.db.Pool.Exec(t.Context(), `
		CREATE TABLE trouble AS SELECT '53100' AS code;
		CREATE FUNCTION fail_commit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		DECLARE code text := (SELECT t.code FROM postern.trouble t);
		BEGIN
		  IF code <> '' AND EXISTS (SELECT FROM postern.events WHERE id = NEW.id AND event_id LIKE 'bad%') THEN
		    RAISE EXCEPTION 'the test fails this commit' USING ERRCODE = code;
		  END IF;
		  RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER fail_commit AFTER INSERT ON event_keys DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail_commit()`); err != nil {
		t.Fatal(err)
	}
	bad := b.sign(t, "many", provider.Sample{Body: []byte("bad")})
	b.post(t, "many", bad).refused(t, 503, "unavailable") // the disk is full
	b.trouble(t, "XX001")                                 // no trouble that goes away
	testkit.Eventually(t, 10*time.Second, func() error {  // a full disk is believed for a moment
		a, err := b.try(t.Context(), "many", bad)
		if err != nil || a.status != 500 {
			return fmt.Errorf("status %d %v", a.status, err)
		}
		a.refused(t, 500, "internal")
		return nil
	})
	if n := b.count(t, `SELECT count(*) FROM events`) + b.count(t, `SELECT count(*) FROM event_keys`); n != 0 || len(b.published) != 0 {
		t.Errorf("%d rows of failed commits, %d published", n, len(b.published))
	}
	b.amongNeighbours(t)
	b.trouble(t, "")
	if r := b.post(t, "many", bad).receipt(t); r.Duplicate {
		t.Errorf("after the trouble: %+v", r)
	}
}

// trouble is the SQLSTATE that commits of bad events fail with from now on; "" ends it.
func (b *testBundle) trouble(t *testing.T, code string) {
	t.Helper()
	if _, err := b.db.Pool.Exec(t.Context(), `UPDATE trouble SET code = $1`, code); err != nil {
		t.Fatal(err)
	}
}

// amongNeighbours sends good and bad deliveries together, so that batches hold both.
func (b *testBundle) amongNeighbours(t *testing.T) {
	t.Helper()
	const clients, each = 16, 10
	var group sync.WaitGroup
	for client := range clients {
		group.Go(func() {
			for i := range each {
				key, want := fmt.Sprintf("good %d %d", client, i), 200
				if i%5 == 4 {
					key, want = fmt.Sprintf("bad %d %d", client, i), 500
				}
				a, err := b.try(t.Context(), "many", b.sign(t, "many", provider.Sample{Body: []byte(key)}))
				if err != nil || a.status != want {
					t.Errorf("%s: status %d, want %d, %v", key, a.status, want, err)
				}
			}
		})
	}
	group.Wait()
	if n := b.count(t, `SELECT count(*) FROM events`); n != clients*each*4/5 {
		t.Errorf("%d events stored, want the %d good ones", n, clients*each*4/5)
	}
}
