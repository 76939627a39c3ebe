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

// during calls do repeatedly until end is called.
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

// flap cuts and restores the connections through a proxy, in turn.
func flap(proxy *testkit.FaultProxy, every time.Duration) (end func()) {
	up := true
	stop := during(every, func() {
		if up = !up; up {
			proxy.Restore()
		} else {
			proxy.Cut()
		}
	})
	return func() { stop(); proxy.Restore() }
}

// database executes a statement about the site's database. %s stands for the database's name.
func (s *site) database(t *testing.T, statement string) {
	t.Helper()
	var name string
	testkit.Must(t, s.db.Pool.QueryRow(t.Context(), `SELECT current_database()`).Scan(&name))
	s.db.Exec(t, fmt.Sprintf(statement, name))
}

// terminate ends all sessions of the daemons.
func (s *site) terminate(t *testing.T) {
	t.Helper()
	s.db.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1`, s.login)
}

// failing executes a statement at each insert of an event or, if deferred, at its commit.
func (s *site) failing(t *testing.T, deferred bool, do string) (end func()) {
	t.Helper()
	kind := `TRIGGER fault BEFORE INSERT ON event_keys FOR EACH ROW`
	if deferred {
		kind = `CONSTRAINT TRIGGER fault AFTER INSERT ON event_keys DEFERRABLE INITIALLY DEFERRED FOR EACH ROW`
	}
	s.db.Exec(t, `CREATE OR REPLACE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN `+do+
		`; RETURN NEW; END $$`)
	s.db.Exec(t, `CREATE `+kind+` EXECUTE FUNCTION fault()`)
	return func() { s.db.Exec(t, `DROP TRIGGER fault ON event_keys`) }
}

// storeFaults are the faults of PostgreSQL. Each returns the function that ends it.
var storeFaults = map[string]func(*testing.T, *site) (end func()){
	"refused":  func(_ *testing.T, s *site) func() { s.store.Cut(); return s.store.Restore },
	"hanging":  func(_ *testing.T, s *site) func() { s.store.Stall(); return s.store.Restore },
	"silent":   func(_ *testing.T, s *site) func() { s.store.StallResponses(); return s.store.Restore },
	selfEnding: func(_ *testing.T, s *site) func() { s.store.StallOpenConnections(); return func() {} },
	"flapping": func(_ *testing.T, s *site) func() { return flap(s.store, 150*time.Millisecond) },
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
		// sessions that were opened meanwhile stay read-only
		return func() { s.database(t, "ALTER DATABASE %s RESET default_transaction_read_only") }
	},
	"disk full": func(t *testing.T, s *site) func() {
		return s.failing(t, false, `RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'`)
	},
	"slow commits": func(t *testing.T, s *site) func() {
		return s.failing(t, true, `IF set_config('fault.of', pg_current_xact_id()::text, true) <>
			coalesce(nullif(current_setting('fault.slept', true), ''), '0') THEN
			PERFORM set_config('fault.slept', pg_current_xact_id()::text, true), pg_sleep(2); END IF`)
	},
	"locked": func(t *testing.T, s *site) func() {
		tx, err := s.db.Pool.Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), `LOCK TABLE event_keys IN ACCESS EXCLUSIVE MODE`)
		}
		testkit.Must(t, err)
		return func() { _ = tx.Rollback(context.Background()) } // the rollback releases the lock
	},
	"privilege revoked": func(t *testing.T, s *site) func() {
		s.db.Exec(t, `REVOKE INSERT ON events FROM postern_gateway`)
		return func() { s.db.Exec(t, `GRANT INSERT ON events TO postern_gateway`) }
	},
	"no partition can be created": func(t *testing.T, s *site) func() {
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

// During any fault of PostgreSQL, deliveries are spooled and acknowledged, also the first one when
// nothing else arrives. Those to a source that requires a commit get 503 with Retry-After. No
// sender waits for PostgreSQL. After the fault every acknowledged event is in the log once, and
// applied.
func TestGateway_databaseFails_spoolsAndAppliesLater(t *testing.T) {
	t.Parallel()
	tune := func(tune *app.Tuning) { // messages in progress are delivered again after AckWait
		tune.Limits.AckWait, tune.MaxSilence = 5*time.Second, 15*time.Second
	}
	sites := newPool(t, 3, tune)
	for name, fault := range storeFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == selfEnding {
				s := build(t)
				s.start(t, func(to *app.Tuning) { // only this limit ends the fault
					tune(to)
					to.MaxSilence = 4 * time.Second
				})
				s.survives(t, name, fault, 3)
				return
			}
			s := sites.take(t)
			if idle[name] {
				s.spoolsWhileIdle(t, fault)
			}
			s.survives(t, name, fault, 30)
		})
	}
}

// survives injects a fault under load, until the given number of deliveries is spooled.
func (s *site) survives(t *testing.T, name string, fault func(*testing.T, *site) func(), spools int) {
	t.Helper()
	s.log.clear()
	l := s.send(t)
	l.await(t, 20, "stored", stored)
	end := fault(t, s)
	l.await(t, spools, "spooled", spooled)
	end()
	l.await(t, 10, "stored again", storedKept)
	l.await(t, 1, "stored again, with an id", storedFinal)
	l.finish(t, s)
	if said := strings.Count(s.log.String(), "PostgreSQL is unavailable: deliveries go to the spool"); said > 20 {
		t.Errorf("logged %d times that PostgreSQL is unavailable", said)
	}
	if said := strings.Count(s.log.String(), "the spool cannot be drained: fix the "+
		"cause"); (said > 0) != needsOperator[name] || said > 3 {
		t.Errorf("logged %d times that an operator must fix the cause", said)
	}
}

// selfEnding is a fault that needs no end.
const selfEnding = "open connections stall for ever"

// needsOperator are the faults that last until an operator corrects the cause. The log says so once
// in a row.
var needsOperator = map[string]bool{"login refused": true, "privilege revoked": true,
	"no partition can be created": true,
	"another schema":              true}

// idle are the faults that also begin while no delivery is open: one of each kind.
var idle = map[string]bool{"refused": true, "hanging": true, "silent": true, "login refused": true, "locked": true,
	"privilege revoked": true}

// spoolsWhileIdle injects a fault between two single deliveries.
func (s *site) spoolsWhileIdle(t *testing.T, fault func(*testing.T, *site) func()) {
	t.Helper()
	l := s.newLoad(t)
	// a busy machine may spool it
	l.one(t, "kept", 1, "accepted", func(a *answer) bool { return a.status == 200 })
	testkit.Eventually(t, patience, func() error {
		if n := s.metric(t, "postern_spool_deliveries", ""); n > 0 {
			return fmt.Errorf("%v deliveries are still in the spool", n)
		}
		return nil
	})
	end := fault(t, s)
	for n := range 3 {
		l.one(t, "kept", 2+n, "spooled", spooled)
	}
	end()
	s.waitUntilApplied(t)
	l.check(t, s)
}
