package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/testkit"
)

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
			testkit.Eventually(t, time.Minute, func() error {
				if n := b.count(t, `SELECT count(*) FROM spools, events WHERE empty_at > '-infinity'`); n != 1 {
					return errors.New("it is not emptied")
				}
				return nil
			})
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
		testkit.Eventually(t, time.Minute, func() error {
			if n := b.count(t, `SELECT count(*) FROM spools WHERE spool = 'mine' AND place = 'here:/spool' AND empty_at > $1 AND told_at = empty_at AND deliveries = 0 AND bytes = 0`, since); n != 1 {
				return fmt.Errorf("not told since %s", since)
			}
			return nil
		})
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
		testkit.Eventually(t, time.Minute, func() error {
			if n := b.count(t, `SELECT count(*) FROM spools WHERE empty_at = '-infinity' AND deliveries = 3 AND bytes > 3 AND told_at > known_at - interval '1 h'`); n != 1 {
				return fmt.Errorf("not told what is in it")
			}
			return nil
		})
	})
	if count(); left != 1 {
		t.Errorf("%d spools are waited for after a gateway ended that could not append what it had kept", left)
	}
	db.Exec(t, `GRANT INSERT ON events TO postern_gateway`)
	t.Run("with nothing kept", func(t *testing.T) {
		b := start(t)
		told(t, b, kept)
		if n := b.count(t, `SELECT count(*) FROM events`); n != 3 {
			t.Errorf("it says that it was empty, and %d events are in the log", n)
		}
	})
	kept = now()
	if count(); left != 0 {
		t.Errorf("%d spools are waited for after a gateway ended whose spool was empty", left)
	}
}
