package faults_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/testkit"
)

// during does something again and again until end is called.
func during(every time.Duration, do func()) (end func()) {
	stop := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			do()
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	})
	return func() { close(stop); group.Wait() }
}

// database is a statement about the site's database, whose name stands for %s.
func (s *site) database(t *testing.T, statement string) {
	t.Helper()
	var name string
	must(t, s.db.Pool.QueryRow(t.Context(), `SELECT current_database()`).Scan(&name))
	s.db.Exec(t, fmt.Sprintf(statement, name))
}

// terminate ends all sessions of the daemons.
func (s *site) terminate(t *testing.T) {
	t.Helper()
	s.db.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1`, s.login)
}

// failing makes each event's insert, or with deferred its commit, do something.
func (s *site) failing(t *testing.T, deferred bool, do string) (end func()) {
	t.Helper()
	kind := `TRIGGER fault BEFORE INSERT ON event_keys FOR EACH ROW`
	if deferred {
		kind = `CONSTRAINT TRIGGER fault AFTER INSERT ON event_keys DEFERRABLE INITIALLY DEFERRED FOR EACH ROW`
	}
	s.db.Exec(t, `CREATE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN `+do+`; RETURN NEW; END $$`)
	s.db.Exec(t, `CREATE `+kind+` EXECUTE FUNCTION fault()`)
	return func() { s.db.Exec(t, `DROP TRIGGER fault ON event_keys`) }
}

// storeFaults are what can become of PostgreSQL, each until its end.
var storeFaults = map[string]func(*testing.T, *site) (end func()){
	"refused": func(_ *testing.T, s *site) func() { s.store.Cut(); return s.store.Restore },
	"hanging": func(_ *testing.T, s *site) func() { s.store.Stall(); return s.store.Restore },
	"silent":  func(_ *testing.T, s *site) func() { s.store.StallResponses(); return s.store.Restore },
	itself:    func(_ *testing.T, s *site) func() { s.store.StallOpenConnections(); return func() {} },
	"flapping": func(_ *testing.T, s *site) func() {
		n := 0
		end := during(150*time.Millisecond, func() {
			if n++; n%2 == 1 {
				s.store.Cut()
			} else {
				s.store.Restore()
			}
		})
		return func() { end(); s.store.Restore() }
	},
	"too many connections": func(t *testing.T, s *site) func() {
		s.db.Exec(t, "ALTER ROLE "+s.login+" CONNECTION LIMIT 0")
		s.terminate(t)
		return func() { s.db.Exec(t, "ALTER ROLE "+s.login+" CONNECTION LIMIT -1") }
	},
	"login refused": func(t *testing.T, s *site) func() {
		s.db.Exec(t, "ALTER ROLE "+s.login+" NOLOGIN")
		s.terminate(t)
		return func() { s.db.Exec(t, "ALTER ROLE "+s.login+" LOGIN") }
	},
	"sessions ended": func(t *testing.T, s *site) func() {
		return during(100*time.Millisecond, func() { s.terminate(t) })
	},
	"read-only": func(t *testing.T, s *site) func() {
		s.database(t, "ALTER DATABASE %s SET default_transaction_read_only = on")
		s.terminate(t)
		// the sessions of meanwhile stay
		return func() { s.database(t, "ALTER DATABASE %s RESET default_transaction_read_only") }
	},
	"disk full": func(t *testing.T, s *site) func() {
		return s.failing(t, false, `RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'`)
	},
	"slow commits": func(t *testing.T, s *site) func() {
		return s.failing(t, true, `IF set_config('fault.of', pg_current_xact_id()::text, true) <> coalesce(nullif(current_setting('fault.slept', true), ''), '0') THEN
			PERFORM set_config('fault.slept', pg_current_xact_id()::text, true), pg_sleep(2); END IF`)
	},
	"locked": func(t *testing.T, s *site) func() {
		tx, err := s.db.Pool.Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), `LOCK TABLE event_keys IN ACCESS EXCLUSIVE MODE`)
		}
		must(t, err)
		return func() { _ = tx.Rollback(context.Background()) } // which is what unlocks
	},
	"right taken": func(t *testing.T, s *site) func() {
		s.db.Exec(t, `REVOKE INSERT ON events FROM postern_gateway`)
		return func() { s.db.Exec(t, `GRANT INSERT ON events TO postern_gateway`) }
	},
	"no day can be made": func(t *testing.T, s *site) func() {
		s.db.Exec(t, `REVOKE EXECUTE ON FUNCTION ensure_partitions FROM postern_gateway, postern_processor,
			postern_maintenance`)
		s.clock(t, "40 days")
		return func() {
			s.db.Exec(t, `GRANT EXECUTE ON FUNCTION ensure_partitions TO postern_gateway, postern_processor,
				postern_maintenance`)
		}
	},
	"another schema": func(t *testing.T, s *site) func() {
		s.db.Exec(t, `ALTER TABLE event_keys RENAME COLUMN fingerprint TO other`)
		return func() { s.db.Exec(t, `ALTER TABLE event_keys RENAME COLUMN other TO fingerprint`) }
	},
}

// Whatever becomes of PostgreSQL, deliveries are acknowledged, or, where the sender wants our id,
// refused and told when to come again; nobody waits for it; and when it is back, all that was
// acknowledged is in the log, once, and applied.
func TestPostgreSQL(t *testing.T) {
	t.Parallel()
	for name, fault := range storeFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := build(t)
			// what was in hand comes again after it
			s.start(t, func(tune *app.Tuning) { tune.Limits.AckWait = 5 * time.Second })
			l := s.send(t)
			l.await(t, 20, "stored", stored)
			end := fault(t, s)
			least := 30
			if name == itself {
				least = 3
			}
			l.await(t, least, "spooled", spooled)
			end()
			l.await(t, 10, "stored again", storedKept)
			l.await(t, 1, "stored again, with the id that is wanted", storedFinal)
			l.stop()
			s.settled(t)
			l.check(t, s, false)
			if said := strings.Count(s.log.String(),
				"PostgreSQL is unavailable: deliveries go to the spool"); said > 20 {
				t.Errorf("said %d times that PostgreSQL is unavailable", said)
			}
			if said := strings.Count(s.log.String(), "the spool cannot be drained: fix the cause"); (said > 0) != needPerson[name] || said > 3 {
				t.Errorf("said %d times that an operator must fix the cause", said)
			}
		})
	}
}

// itself is the fault that ends by itself.
const itself = "old connections hang for good"

// needPerson are the faults that go on until a person has mended something: that is said, once in a
// row.
var needPerson = map[string]bool{"login refused": true, "right taken": true, "no day can be made": true,
	"another schema": true}

// The first delivery that meets the fault, with nothing beside it, is acknowledged as well.
func TestPostgreSQLWhileIdle(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"refused", "hanging", "silent", "login refused", "locked", "right taken"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := build(t)
			s.start(t, nil)
			l := s.alone(t)
			l.one(t, "kept", 1, "taken", func(a *answer) bool { return a.status == 200 }) // a busy machine may spool it
			testkit.Eventually(t, patience, func() error {
				if n := s.metric(t, "postern_spool_deliveries", ""); n > 0 {
					return fmt.Errorf("%v deliveries are in the spool still", n)
				}
				return nil
			})
			end := storeFaults[name](t, s)
			for n := range 3 {
				l.one(t, "kept", 2+n, "spooled", spooled)
			}
			end()
			s.settled(t)
			l.check(t, s, false)
		})
	}
}
