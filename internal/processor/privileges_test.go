package processor_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// privilegesSQL lists the processor's privileges on whole tables.
const privilegesSQL = `SELECT privilege_type || ' ON ' || table_name FROM information_schema.role_table_grants
	WHERE grantee = 'postern_processor' AND table_schema = 'postern' ORDER BY 1`

// A revoked privilege that applying needs is a failure of the database: no event gets an outcome
// for it, none loses an attempt, and the probe fails too, so that nothing is pulled until the
// privilege is granted again.
func TestApply_privilegeRevoked_countsNoAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, nil, nil)
	n, needed := 0, map[string]bool{}
	batch := func() []stream.Event {
		n += 2
		return []stream.Event{applied.ThingEvent(n, fmt.Sprint("k", n)), applied.ThingEvent(n+1, fmt.Sprint("k", n+1))}
	}
	must(t, errors.Join(p.Apply(t.Context(), events.LiveRun, batch()), p.Probe(t.Context())))
	for _, privilege := range b.DB.QueryStrings(t, privilegesSQL) {
		b.DB.Exec(t, `REVOKE `+privilege+` FROM postern_processor`)
		evs := batch()
		batchErr := p.Apply(t.Context(), events.LiveRun, evs)
		singleErr := p.ApplySingle(t.Context(), events.LiveRun, batch()[0])
		probe := p.Probe(t.Context())
		b.DB.Exec(t, `GRANT `+privilege+` TO postern_processor`)
		if batchErr == nil {
			continue
		}
		needed[privilege] = true
		for _, err := range []error{batchErr, singleErr} {
			if !errors.Is(err, events.ErrUnavailable) || postgres.Code(err) != "42501" {
				t.Errorf("without %s: %v", privilege, err)
			}
		}
		if postgres.Code(probe) != "42501" {
			t.Errorf("without %s the probe returns %v", privilege, probe)
		}
		var attempts int
		if b.Scan(t, `SELECT coalesce(sum(attempts), 0) FROM outcomes WHERE status IN ('failed', 'dead')`,
			&attempts); attempts != 0 {
			t.Errorf("without %s: %d attempts were lost", privilege, attempts)
		}
		if err := p.Apply(t.Context(), events.LiveRun, evs); err != nil {
			t.Errorf("with %s again: %v", privilege, err)
		}
		if status, reason, attempts := b.OutcomeOf(t, evs[1].ID); status != "applied" || attempts != 1 {
			t.Errorf("with %s again: %s after %d attempts: %s", privilege, status, attempts, reason)
		}
	}
	for _, privilege := range []string{"INSERT ON objects", "SELECT ON objects", "UPDATE ON outcomes",
		"INSERT ON outbox"} {
		if !needed[privilege] {
			t.Errorf("applying does not need %s, so the test revokes nothing useful; it needs %v", privilege, needed)
		}
	}
}

// The same holds for rules, and for missed changes that are recorded and closed.
func TestApply_privilegeForRulesOrRefetchesRevoked_countsNoAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, nil, nil)
	p.Replace(b.RefetchingSources(func(string) bool { return true }))
	superseding := applied.RuleOnChanges(t)
	// its keys are the keys of the other rule
	superseding.Name, superseding.Supersede, superseding.Version = "newest", true, 2
	p.ReplaceRules(effects.NewRules([]*rules.Rule{applied.RuleOnChanges(t), superseding}))
	n, needed := 0, map[string]bool{}
	histories := 0
	history := func() (before, after []stream.Event) { // of objects that no other history has
		var all []stream.Event
		histories++
		for _, o := range []sim.Options{{Objects: 2, Changes: 6, Contents: 1000, Unit: 1000, Gap: 700_000,
			ChangeSets: 100}, {Objects: 20, Changes: 8, Contents: 4, Unit: 1_000_000, Gap: 300_000, ChangeSets: 60,
			DuplicateEvents: 20}} {
			for _, e := range sim.Generate(rand.New(rand.NewPCG(1, 41)), o).Events {
				n++
				m := applied.Message(n, e)
				m.Key = fmt.Sprint(n)
				m.Body = []byte(strings.ReplaceAll(string(m.Body), "obj_",
					fmt.Sprintf("obj_%d_%d_", histories, o.Objects)))
				all = append(all, m)
			}
		}
		for i, m := range all { // every second event comes first
			if i%2 == 0 {
				before = append(before, m)
			} else {
				after = append(after, m)
			}
		}
		return before, after
	}
	for _, privilege := range b.DB.QueryStrings(t, privilegesSQL) {
		before, after := history()
		must(t, p.Apply(t.Context(), events.LiveRun, before))
		b.DB.Exec(t, `REVOKE `+privilege+` FROM postern_processor`)
		err, probe := p.Apply(t.Context(), events.LiveRun, after), p.Probe(t.Context())
		b.DB.Exec(t, `GRANT `+privilege+` TO postern_processor`)
		if err == nil {
			continue
		}
		needed[privilege] = true
		if !errors.Is(err, events.ErrUnavailable) || postgres.Code(err) != "42501" || postgres.Code(probe) != "42501" {
			t.Errorf("without %s: %v; the probe returns %v", privilege, err, probe)
		}
		if err := p.Apply(t.Context(), events.LiveRun, after); err != nil {
			t.Errorf("with %s again: %v", privilege, err)
		}
	}
	var attempts int
	if b.Scan(t, `SELECT max(attempts) FROM outcomes`, &attempts); attempts != 1 {
		t.Errorf("an event has %d attempts", attempts)
	}
	for _, privilege := range []string{"INSERT ON refetch_requests",
		"UPDATE ON refetch_requests", "DELETE ON refetch_requests",
		"INSERT ON effects", "UPDATE ON effects", "SELECT ON effect_steps", "INSERT ON effect_baselines",
		"DELETE ON effect_baselines"} {
		if !needed[privilege] {
			t.Errorf("applying does not need %s, so the test revokes nothing useful; it needs %v", privilege, needed)
		}
	}
}

// If a permission error occurs only for some batches and the probe succeeds, the processor waits
// longer after each one, until applying has succeeded for a while. Only a successful probe ends the
// error.
func TestWorkers_repeatedDatabaseErrors_waitLonger(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, nil, nil)
	l := p.NewIdleWorkers()
	denied := &pgconn.PgError{Code: "42501", Message: "permission denied"}
	outage := func(err error, least time.Duration) {
		t.Helper()
		l.Failed(err)
		l.Committed() // a batch that was in progress
		if readyErr := p.Ready(t.Context()); errors.Is(err, denied) != (readyErr != nil) {
			t.Errorf("while it waits after %v: %v", err, readyErr)
		}
		if waited := l.Await(t.Context()); waited < least {
			t.Errorf("after %v it waited %s, want at least %s", err, waited, least)
		}
		if err := p.Ready(t.Context()); err != nil {
			t.Errorf("after the probe: %v", err)
		}
		l.Committed()
	}
	for n := range 4 {
		outage(denied, 100*time.Millisecond<<n)
	}
	l.EndRecovery()
	l.Committed()
	if again := l.Outages(); again != 0 {
		t.Errorf("%d outages are counted after the recovery", again)
	}
	outage(events.ErrUnavailable, 0)
	if again := l.Outages(); again != 0 {
		t.Errorf("%d outages are counted after a failure that is over", again)
	}
}

// writeFaults make a database answer queries and reject writes, until the returned function is
// called.
var writeFaults = map[string]func(t *testing.T, admin *pgxpool.Conn) (repair func()){
	// As after a failed failover. The sessions start again, because each keeps the setting with
	// which it began.
	"read-only": func(t *testing.T, admin *pgxpool.Conn) func() {
		set := func(on bool) {
			var name string
			must(t, admin.QueryRow(t.Context(), `SELECT current_database()`).Scan(&name))
			execSQL(t, admin, fmt.Sprintf(`ALTER DATABASE %s SET default_transaction_read_only = %t`, name, on))
			execSQL(t, admin, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		}
		set(true)
		return func() { set(false) }
	},
	"privilege revoked": func(t *testing.T, admin *pgxpool.Conn) func() {
		execSQL(t, admin, `REVOKE INSERT ON objects FROM postern_processor`)
		return func() { execSQL(t, admin, `GRANT INSERT ON objects TO postern_processor`) }
	},
}

// While the database answers queries and rejects writes, messages are not redelivered continuously:
// none becomes suspicious, none loses an attempt, and afterwards they are applied in batches. If an
// operator must correct the cause, the process is not ready.
func TestProcessor_databaseRejectsWrites_losesNoAttempt(t *testing.T) {
	t.Parallel()
	for name, fault := range writeFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			const total = 400
			evs := w.append(t, w.newObjects(total)...)
			admin, err := w.DB.Pool.Acquire(t.Context())
			must(t, err)
			defer admin.Release()
			s := w.traceQueries(t)
			repair := fault(t, admin)
			p := w.start(t, processorOptions{tune: func(s *processor.Settings) { noBackgroundWork(s); s.Batch = 50 }})
			must(t, p.Ready(t.Context())) // before anything is applied
			w.publish(t, evs...)
			consumer, err := w.jetStream(t).Consumer(t.Context(), stream.EventsStream, stream.ProcessorConsumer)
			must(t, err)
			delivered := uint64(0)
			testkit.Eventually(t, maxWait, func() error {
				info, err := consumer.Info(t.Context())
				if err != nil {
					return err
				}
				delivered = info.Delivered.Consumer
				// Five probes take 3 s and more. A requeued message is redelivered in that time.
				if n, _ := s.count(probes); n < 5 && delivered <= 2*total {
					return fmt.Errorf("%d probes", n)
				}
				return nil
			})
			requeued := p.metric(t, "postern_messages_requeued_total", "")
			if delivered > 2*total || requeued == 0 || requeued > 2*total {
				t.Errorf("%d messages were delivered %d times and %v were requeued", total, delivered, requeued)
			}
			readyErr := p.Ready(t.Context())
			if name == "privilege revoked" &&
				(readyErr == nil || !strings.Contains(readyErr.Error(), "denied for table objects")) {
				t.Errorf("Ready returns %v", readyErr)
			}
			repair()
			var outcomes, transactions int
			testkit.Eventually(t, maxWait, func() error {
				err := admin.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT xmin::text) FROM outcomes
					WHERE status = 'applied' AND attempts = 1`).Scan(&outcomes, &transactions)
				if err == nil && outcomes < total {
					err = fmt.Errorf("%d of %d applied at the first attempt", outcomes, total)
				}
				return errors.Join(err, p.Ready(t.Context()))
			})
			if transactions > total/4 {
				t.Errorf("%d events were applied in %d transactions", total, transactions)
			}
		})
	}
}
