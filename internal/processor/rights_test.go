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
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// rightsSQL lists the processor's rights to whole tables.
const rightsSQL = `SELECT privilege_type || ' ON ' || table_name FROM information_schema.role_table_grants WHERE grantee = 'postern_processor' AND table_schema = 'postern' ORDER BY 1`

// A right that is lost is trouble of the database, whichever applying needs: no event has an outcome for it, none loses an attempt, and the probe meets it too, so that nothing is pulled until it is back.
func TestARightThatIsLostCostsNoAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, sim.Provider{}, nil)
	n, needed := 0, map[string]bool{}
	batch := func() []stream.Event {
		n += 2
		return []stream.Event{thing(n, fmt.Sprint("k", n)), thing(n+1, fmt.Sprint("k", n+1))}
	}
	must(t, errors.Join(p.Apply(t.Context(), events.LiveRun, batch()), p.Probe(t.Context())))
	for _, right := range b.db.Rows(t, rightsSQL) {
		b.db.Exec(t, `REVOKE `+right+` FROM postern_processor`)
		evs := batch()
		together := p.Apply(t.Context(), events.LiveRun, evs)
		alone := p.ApplyAlone(t.Context(), events.LiveRun, batch()[0])
		probe := p.Probe(t.Context())
		b.db.Exec(t, `GRANT `+right+` TO postern_processor`)
		if together == nil {
			continue
		}
		needed[right] = true
		for _, err := range []error{together, alone} {
			if !errors.Is(err, events.ErrUnavailable) || postgres.Code(err) != "42501" {
				t.Errorf("without %s: %v", right, err)
			}
		}
		if postgres.Code(probe) != "42501" {
			t.Errorf("without %s the probe says %v", right, probe)
		}
		var attempts int
		if b.scan(t, `SELECT coalesce(sum(attempts), 0) FROM outcomes WHERE status IN ('failed', 'dead')`, &attempts); attempts != 0 {
			t.Errorf("without %s: %d attempts were lost", right, attempts)
		}
		if err := p.Apply(t.Context(), events.LiveRun, evs); err != nil {
			t.Errorf("with %s again: %v", right, err)
		}
		if status, reason, attempts := b.status(t, evs[1].ID); status != "applied" || attempts != 1 {
			t.Errorf("with %s again: %s after %d attempts: %s", right, status, attempts, reason)
		}
	}
	for _, right := range []string{"INSERT ON objects", "SELECT ON objects", "UPDATE ON outcomes", "INSERT ON outbox"} {
		if !needed[right] {
			t.Errorf("applying does not need %s: the test takes nothing away; it needs %v", right, needed)
		}
	}
}

// So it is with rules, and with gaps that open and close.
func TestARightThatRulesOrGapsNeedCostsNoAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.waiting(t)
	superseding := everyChange(t)
	superseding.Name, superseding.Supersede, superseding.Version = "newest", true, 2 // its keys are the other's
	p.ReplaceRules(effects.NewRules([]*rules.Rule{everyChange(t), superseding}))
	n, needed := 0, map[string]bool{}
	histories := 0
	history := func() (before, after []stream.Event) { // of objects that are known to no other
		var all []stream.Event
		histories++
		for _, o := range []sim.Options{{Objects: 2, Changes: 6, Contents: 1000, Unit: 1000, Gap: 700_000, ChangeSets: 100}, {Objects: 20, Changes: 8, Contents: 4, Unit: 1_000_000, Gap: 300_000, ChangeSets: 60, Twins: 20}} {
			for _, e := range sim.Generate(rand.New(rand.NewPCG(1, 41)), o).Events {
				n++
				m := message(n, e)
				m.Key = fmt.Sprint(n)
				m.Body = []byte(strings.ReplaceAll(string(m.Body), "obj_", fmt.Sprintf("obj_%d_%d_", histories, o.Objects)))
				all = append(all, m)
			}
		}
		for i, m := range all { // each second one comes first
			if i%2 == 0 {
				before = append(before, m)
			} else {
				after = append(after, m)
			}
		}
		return before, after
	}
	for _, right := range b.db.Rows(t, rightsSQL) {
		before, after := history()
		must(t, p.Apply(t.Context(), events.LiveRun, before))
		b.db.Exec(t, `REVOKE `+right+` FROM postern_processor`)
		err, probe := p.Apply(t.Context(), events.LiveRun, after), p.Probe(t.Context())
		b.db.Exec(t, `GRANT `+right+` TO postern_processor`)
		if err == nil {
			continue
		}
		needed[right] = true
		if !errors.Is(err, events.ErrUnavailable) || postgres.Code(err) != "42501" || postgres.Code(probe) != "42501" {
			t.Errorf("without %s: %v; the probe says %v", right, err, probe)
		}
		if err := p.Apply(t.Context(), events.LiveRun, after); err != nil {
			t.Errorf("with %s again: %v", right, err)
		}
	}
	var attempts int
	if b.scan(t, `SELECT max(attempts) FROM outcomes`, &attempts); attempts != 1 {
		t.Errorf("an event has %d attempts", attempts)
	}
	for _, right := range []string{"INSERT ON hints", "UPDATE ON hints", "DELETE ON hints", "INSERT ON effects", "UPDATE ON effects", "SELECT ON effect_steps", "INSERT ON effect_holds", "DELETE ON effect_holds"} {
		if !needed[right] {
			t.Errorf("applying does not need %s: the test takes nothing away; it needs %v", right, needed)
		}
	}
}

// A refusal that the probe does not meet, of some batches while others are committed, has the processor wait longer each time, until it has gone well for a while; only a probe says that the refusal is over.
func TestRefusalsOfSomeBecomeRarer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, sim.Provider{}, nil)
	l := p.Idle()
	refused := &pgconn.PgError{Code: "42501", Message: "permission denied"}
	spell := func(err error, least time.Duration) {
		t.Helper()
		l.Failed(err)
		l.Committed() // what was in hand
		if said := p.Ready(t.Context()); errors.Is(err, refused) != (said != nil) {
			t.Errorf("while it waits after %v: %v", err, said)
		}
		if waited := l.Await(t.Context()); waited < least {
			t.Errorf("after %v it waited %s, want %s and more", err, waited, least)
		}
		if err := p.Ready(t.Context()); err != nil {
			t.Errorf("after the probe: %v", err)
		}
		l.Committed()
	}
	for n := range 4 {
		spell(refused, 100*time.Millisecond<<n)
	}
	l.Trial()
	l.Committed()
	if again := l.Spells(); again != 0 {
		t.Errorf("%d spells are counted after it went well", again)
	}
	spell(events.ErrUnavailable, 0)
	if again := l.Spells(); again != 0 {
		t.Errorf("%d spells are counted after a failure that is over", again)
	}
}

// writeFaults have a database answer and take no write, until the returned function is called.
var writeFaults = map[string]func(t *testing.T, admin *pgxpool.Conn) (mend func()){
	// As after a failover that went wrong. Sessions start anew, since each keeps what it began
	// with.
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
	"right taken": func(t *testing.T, admin *pgxpool.Conn) func() {
		execSQL(t, admin, `REVOKE INSERT ON objects FROM postern_processor`)
		return func() { execSQL(t, admin, `GRANT INSERT ON objects TO postern_processor`) }
	},
}

// While the database answers but takes no write, messages are not delivered again and again: none
// becomes suspicious, none loses an attempt, and afterwards they are applied in batches. Where a
// person must mend it the process is not ready.
func TestProcessor_databaseTakesNoWrite_losesNoAttempt(t *testing.T) {
	t.Parallel()
	for name, fault := range writeFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			const total = 400
			evs := w.append(t, w.simple(total)...)
			admin, err := w.db.Pool.Acquire(t.Context())
			must(t, err)
			defer admin.Release()
			s := w.traced(t)
			mend := fault(t, admin)
			p := w.start(t, setting{tune: func(s *processor.Settings) { idle(s); s.Batch = 50 }})
			must(t, p.Ready(t.Context())) // before anything is applied
			w.publish(t, evs...)
			consumer, err := w.jetStream(t).Consumer(t.Context(), stream.EventsStream, stream.ProcessorConsumer)
			must(t, err)
			delivered := uint64(0)
			testkit.Eventually(t, patience, func() error {
				info, err := consumer.Info(t.Context())
				if err != nil {
					return err
				}
				delivered = info.Delivered.Consumer
				// Five probes take 3 s and more, in which a message handed back comes again.
				if n, _ := s.of(probes); n < 5 && delivered <= 2*total {
					return fmt.Errorf("%d probes", n)
				}
				return nil
			})
			back := p.metric(t, "postern_messages_handed_back_total", "")
			if delivered > 2*total || back == 0 || back > 2*total {
				t.Errorf("%d messages were delivered %d times and %v were handed back", total, delivered, back)
			}
			said := p.Ready(t.Context())
			if name == "right taken" && (said == nil || !strings.Contains(said.Error(), "denied for table objects")) {
				t.Errorf("ready says %v", said)
			}
			mend()
			var outcomes, transactions int
			testkit.Eventually(t, patience, func() error {
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
