package endtoend_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/versioning"
)

// damageSQL makes a mirror that no rule of now has made, so that a rebuild has all to do that it can have: rows with another number of the rule, rows that
// differ, and rows that are missing. It returns nothing.
const damageSQL = `
UPDATE objects o SET rule_version = 0 FROM sources s WHERE s.number = o.source AND s.name = 'stripe';
UPDATE objects o SET state = '{"damaged": true}' FROM sources s WHERE s.number = o.source AND s.name = 'stripe' AND o.object_type = 'customer';
DELETE FROM objects o USING sources s WHERE s.number = o.source AND s.name = 'stripe' AND o.object_type = 'product';`

// latest is the object of a type that the newest of their events has made.
const latest = ` FROM objects WHERE source = (SELECT number FROM sources WHERE name = 'stripe') AND object_type = $1 ORDER BY last_event_id DESC LIMIT 1`

// gate has done, in a transaction that is open, what somebody else must wait for.
type gate struct {
	where string
	tx    pgx.Tx
}

func (b *testBundle) gate(t *testing.T, where, sql string, args ...any) gate {
	t.Helper()
	tx, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if done, err := tx.Exec(t.Context(), sql, args...); err != nil || done.RowsAffected() != 1 {
		t.Fatalf("%s: %s, %v", where, done, err)
	}
	return gate{where, tx}
}

// reached waits until somebody waits there.
func (g gate) reached(t *testing.T, b *testBundle) {
	t.Helper()
	b.until(t, "somebody waits "+g.where, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid)))`, g.tx.Conn().PgConn().PID())
}

func (b *testBundle) until(t *testing.T, what, sql string, args ...any) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		var is bool
		err := b.db.Pool.QueryRow(t.Context(), sql, args...).Scan(&is)
		if err == nil && !is {
			err = errors.New("not so: " + what)
		}
		return err
	})
}

// takeOver kills the processor and starts another, which need not wait until the lease of the killed one has run out.
func (b *testBundle) takeOver(t *testing.T) {
	t.Helper()
	b.kill(t, "processor")
	if _, err := b.db.Pool.Exec(t.Context(), `UPDATE checkpoints SET leased_until = clock_now() WHERE job = 'rebuild' OR job = 'retention'`); err != nil {
		t.Fatal(err)
	}
}

// passed kills the processor that waits at a gate, starts another, and opens the gate.
func (b *testBundle) passed(t *testing.T, g gate) {
	t.Helper()
	b.takeOver(t)
	if err := g.tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// postern starts a command and returns how to wait for its end, which must be a good one, and for what it says.
func (b *testBundle) postern(t *testing.T, args ...string) (end func() string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(b.bin, "postern"), append([]string{"--config", b.config}, args...)...)
	cmd.Env = environment()
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() string {
		if err := cmd.Wait(); err != nil {
			t.Errorf("postern %v: %v\n%s", args, err, said.String())
		}
		return said.String()
	}
}

// watch reads the mirror until it is told to stop: there are never fewer objects than before, nor an older revision of one.
func (b *testBundle) watch(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	reads, done := 0, make(chan struct{})
	go func() {
		defer close(done)
		highest := map[string]int64{}
		pause := time.NewTicker(20 * time.Millisecond) // a core of the machine is for what is tested
		defer pause.Stop()
		for ; ; reads++ {
			<-pause.C
			rows, _ := b.db.Pool.Query(ctx, `SELECT source || ' ' || object_type || ' ' || object_id, revision FROM objects`) // its error is told with the rows
			seen, name, revision := 0, "", int64(0)
			_, err := pgx.ForEachRow(rows, []any{&name, &revision}, func() error {
				if revision < highest[name] {
					t.Errorf("%s has revision %d after %d", name, revision, highest[name])
				}
				highest[name] = revision
				seen++
				return nil
			})
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				t.Error(err)
				return
			case seen < len(highest):
				t.Errorf("%d objects are seen, and before there were %d", seen, len(highest))
			}
		}
	}()
	return func() {
		cancel()
		<-done
		t.Logf("the mirror was read %d times", reads)
	}
}

// feeding has clients send what they are fed with, up to so many deliveries, until end is called, which waits until all are through.
func (b *testBundle) feeding(t *testing.T, most int) (feed func([]sent), end func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	b.clients.next = make(chan sent, most)
	done := make(chan struct{})
	go func() { defer close(done); b.clients.send(ctx, 12) }()
	feed = func(some []sent) {
		for _, s := range some {
			b.clients.next <- s
		}
	}
	return feed, func() {
		close(b.clients.next)
		<-done
		for _, w := range b.clients.wrong {
			t.Error(w)
		}
	}
}

// A rebuild whose processors are killed one after the other, wherever they are at it, ends in the mirror that the log makes; what is delivered meanwhile
// is in it too, no reader sees it go back, and each change is told.
func TestKilledProcessorsRebuild(t *testing.T) {
	t.Parallel()
	seed := testkit.Seed(t)
	history, meanwhile := mix(t, seed, 1, 150), mix(t, seed+1, 151, 40)
	b := setup(t, nil)
	feed, end := b.feeding(t, len(history.all)+len(meanwhile.all))
	feed(history.all)
	b.after(t, nil, len(history.all))
	b.everyEventHasAnOutcome(t)
	if _, err := b.db.Pool.Exec(t.Context(), damageSQL); err != nil {
		t.Fatal(err)
	}
	const untold = `SELECT sum(o.revision) - (SELECT sum(cardinality(x.ids)) FROM outbox x) FROM objects o`
	before := b.number(t, untold)
	b.gated(t, feed, meanwhile.all)
	if after := b.number(t, untold); before != after {
		t.Errorf("the growths of revisions exceed the changes that are left by %d", after-before)
	}
	end()
	b.nats.Wipe(t) // what killed processors had in hand would come again only after its AckWait; from the log it comes at once
	b.everyEventHasAnOutcome(t)
	testkit.Eventually(t, time.Minute, func() error {
		if n := b.number(t, `SELECT count(*) FROM outbox WHERE sent_at IS NULL`); n > 0 {
			return fmt.Errorf("%d batches of changes are not sent", n)
		}
		return nil
	})
	stored := b.readLog(t)
	b.checkPromises(t, stored)
	b.checkMirror(t, stored)
	b.postern(t, "rebuild", "--source", "stripe", "--compare", "--check")()
}

// gated carries the rebuild out and kills it at each of its gates, while some deliveries arrive.
func (b *testBundle) gated(t *testing.T, feed func([]sent), meanwhile []sent) {
	t.Helper()
	gates := []gate{
		b.gate(t, "while it stages", `INSERT INTO staged SELECT *`+latest, "invoice"),
		b.gate(t, "while it compares", `SELECT true`+latest+` FOR UPDATE`, "invoice"),
		b.gate(t, "for the lock of the swap", `SELECT pg_advisory_xact_lock_shared($1, number) FROM sources WHERE name = 'stripe'`, versioning.SourceLock),
		b.gate(t, "while it swaps", `SELECT true`+latest+` FOR UPDATE`, "customer"),
	}
	parts := slices.Collect(slices.Chunk(meanwhile, len(meanwhile)/(len(gates)+2)+1))
	stop := b.watch(t)
	rebuilt := b.postern(t, "rebuild", "--source", "stripe", "--yes")
	feed(parts[0])
	b.until(t, "some of the log is staged", `SELECT EXISTS (SELECT FROM outcomes WHERE run = 1)`)
	b.takeOver(t)
	for i, g := range gates {
		feed(parts[i+1])
		g.reached(t, b)
		b.passed(t, g)
	}
	feed(slices.Concat(parts[len(gates)+1:]...))
	b.until(t, "the rebuild is done", `SELECT status = 'done' FROM runs WHERE run = 1`)
	b.kill(t, "processor")
	t.Log(rebuilt())
	stop()
	if processed, outcomes := b.number(t, `SELECT counts->>'processed' FROM runs WHERE run = 1`), b.number(t, `SELECT count(*) FROM outcomes WHERE run = 1`); processed != outcomes {
		t.Errorf("%d events were processed, and %d have an outcome", processed, outcomes)
	}
}

func (b *testBundle) number(t *testing.T, sql string) (n int) {
	t.Helper()
	var text string
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT (`+sql+`)::text`).Scan(&text); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(text, &n); err != nil {
		t.Fatal(err)
	}
	return n
}
