package retention_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// some are n events, each of an object of its own.
func some(n int) []sim.Event {
	return sim.Generate(rand.New(rand.NewPCG(99, 1)), sim.Options{Objects: n, Changes: 1, Contents: 2, Unit: 1, Gap: 10}).Events
}

// A clock that goes back days has the days made again that retention has dropped meanwhile. They are empty, since ids stand still until the clock has caught up, and go like they came, also where a run ends in
// the middle; what is known of their first drop stays.
func TestADroppedDayIsMadeAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, 11, 5, 3)
	b.folder = t.TempDir()
	policy := retention.Policy{Bodies: 2}
	order := func() []string {
		return b.rows(t, `SELECT to_jsonb(r)::text FROM retired r ORDER BY name`)
	}
	b.do(t, policy)
	if _, err := events.FreezeBound(t.Context(), b.pool); err != nil { // as each pass of the auditor does
		t.Fatal(err)
	}
	dropped, bases := order(), b.rows(t, same("bases"))
	if len(dropped) != 2 {
		t.Fatalf("%d days are dropped", len(dropped))
	}
	b.clock(t, 5)
	again := func() {
		t.Helper()
		b.exec(t, `SELECT ensure_partitions(min(lo) >> 20, (max(hi) >> 20) - 1) FROM retired`)
		b.says(t, "2",
			`SELECT count(*)::text FROM pg_class c JOIN retired r ON r.name = c.relname JOIN pg_inherits i ON i.inhrelid = c.oid`)
	}
	again()
	late := b.append(t, some(1))
	b.apply(t, late)
	b.audited(t, late[0])
	b.do(t, retention.Policy{Bodies: 1}) // by the clock that has gone back nothing of the log is old
	b.clock(t, 0)
	b.do(t, policy)
	for crash := 1; ; crash++ {
		again()
		b.ask(t, policy)
		r, n := b.runner(), 0
		r.AtStep(func(string) error {
			if n++; n == crash {
				return errCrash
			}
			return nil
		})
		status, err := b.carry(t, r)
		over := err == nil && status == runs.Done
		if !over {
			status, err = b.carry(t, b.runner())
		}
		if err != nil || status != runs.Done {
			t.Fatalf("ended before step %d: %s, %v", crash, status, err)
		}
		if left := b.rows(t, `SELECT relname::text FROM pg_class c JOIN retired r ON r.name = c.relname`); len(left) != 0 {
			t.Errorf("ended before step %d: left are %v", crash, left)
		}
		if over {
			break
		}
	}
	equal(t, "", [][]string{dropped, bases}, [][]string{order(), b.rows(t, same("bases"))})
}

// Where a dropped day that was made again holds events after all, nothing of it goes, and it is said why and what to do; done, it goes like any other.
func TestADroppedDayThatIsFilledAgainStays(t *testing.T) {
	t.Parallel()
	b := setup(t, 12, 5, 3)
	policy := retention.Policy{Bodies: 2}
	b.do(t, policy)
	b.exec(t, `UPDATE log_floor SET ms = 0`) // nobody does
	b.clock(t, 4)
	late := b.append(t, some(3))
	b.apply(t, late)
	b.clock(t, 0)
	for range 2 {
		b.ask(t, policy)
		if status, err := b.carry(t, b.runner()); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("retention dropped this day before, and %d events have come into it since", len(late))) {
			t.Fatalf("%s, %v", status, err)
		}
		b.exec(t, `UPDATE runs SET status = 'failed', ended_at = now() WHERE ended_at IS NULL`)
	}
	if left := b.stored(t); left[0] != late[0] {
		t.Errorf("the first event of the log is %d, want %d", left[0], late[0])
	}
	preview, err := retention.Now(t.Context(), b.operator, policy)
	must(t, err)
	view, err := retention.Show(t.Context(), b.operator, preview)
	if err != nil || !strings.Contains(view.Partitions[0].Kept, "DELETE FROM postern.retired") {
		t.Errorf("it shows %+v, %v", view.Partitions, err)
	}
	b.exec(t, `DELETE FROM retired WHERE name = $1`, view.Partitions[0].Name)
	b.do(t, policy)
	if left := b.stored(t); left[0] == late[0] {
		t.Error("it has not gone")
	}
	b.remakes(t, 1000)
}

// A dropped day that somebody restores as a table of its own is not dropped under them, though nobody sees its rows yet.
func TestADroppedDayThatIsBeingRestoredStays(t *testing.T) {
	t.Parallel()
	b := setup(t, 13, 5, 3)
	policy := retention.Policy{Bodies: 2}
	b.do(t, policy)
	name := b.rows(t, `SELECT name FROM retired ORDER BY name`)[0]
	b.exec(t, `CREATE TABLE `+name+` (LIKE events)`)
	b.exec(t, `ALTER TABLE `+name+` OWNER TO `+b.rows(t, `SELECT relowner::regrole::text FROM pg_class WHERE oid = 'events'::regclass`)[0])
	restoring := hold(t, b.db.Pool, `INSERT INTO `+name+` SELECT * FROM events LIMIT 3`)
	b.ask(t, policy)
	h, ended := b.carrying(t.Context(), t)
	b.awaitSome(t, `SELECT count(*)::text FROM pg_locks WHERE relation = $1::regclass AND NOT granted`, name)
	must(t, restoring.Commit(t.Context()))
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "this table is no part of the log and holds 3 events") {
		t.Error(err)
	}
	must(t, h.Release(t.Context()))
	b.says(t, name, `SELECT coalesce(to_regclass($1)::text, 'gone')`, name)
	b.exec(t, `DELETE FROM `+name)
	b.exec(t, `UPDATE runs SET status = 'failed', ended_at = now() WHERE ended_at IS NULL`)
	b.do(t, policy)
	b.says(t, "gone", `SELECT coalesce(to_regclass($1)::text, 'gone')`, name)
}
