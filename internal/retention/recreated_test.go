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

// newObjects returns n events, each of a new object.
func newObjects(n int) []sim.Event {
	return sim.Generate(rand.New(rand.NewPCG(99, 1)), sim.Options{Objects: n, Changes: 1, Contents: 2, Unit: 1,
		Gap: 10}).Events
}

// If the clock goes back by days, days that retention has dropped are created again. They are
// empty, because ids do not advance until the clock has caught up. They are dropped again, even if
// a run is interrupted. The record of their first drop stays.
func TestRetention_emptyDayRecreated_isDroppedAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, 11, 5, 3)
	b.folder = t.TempDir()
	policy := retention.Policy{Bodies: 2}
	dropRecords := func() []string {
		return b.rows(t, `SELECT to_jsonb(r)::text FROM dropped_partitions r ORDER BY name`)
	}
	b.runPolicy(t, policy)
	if _, err := events.FreezeBound(t.Context(), b.pool); err != nil { // as each pass of the republisher does
		t.Fatal(err)
	}
	dropped, retained := dropRecords(), b.rows(t, sharedColumnsSQL("retained_objects"))
	if len(dropped) != 2 {
		t.Fatalf("%d days are dropped", len(dropped))
	}
	b.setClock(t, 5)
	recreate := func() {
		t.Helper()
		b.exec(t, `SELECT ensure_partitions(min(id_from) >> 20, (max(id_to) >> 20) - 1) FROM dropped_partitions`)
		b.checkText(t, "2",
			`SELECT count(*)::text FROM pg_class c JOIN dropped_partitions r ON r.name = c.relname
				JOIN pg_inherits i ON i.inhrelid = c.oid`)
	}
	recreate()
	late := b.append(t, newObjects(1))
	b.apply(t, late)
	b.moveRepublisher(t, late[0])
	b.runPolicy(t, retention.Policy{Bodies: 1}) // by the clock that went back, no event of the log is old
	b.setClock(t, 0)
	b.runPolicy(t, policy)
	for crash := 1; ; crash++ {
		recreate()
		b.requestRun(t, policy)
		r, n := b.runner(), 0
		r.OnStep(func(string) error {
			if n++; n == crash {
				return errCrash
			}
			return nil
		})
		status, err := b.executeOpenRun(t, r)
		finished := err == nil && status == runs.Done
		if !finished {
			status, err = b.executeOpenRun(t, b.runner())
		}
		if err != nil || status != runs.Done {
			t.Fatalf("ended before step %d: %s, %v", crash, status, err)
		}
		left := b.rows(t, `SELECT relname::text FROM pg_class c
			JOIN dropped_partitions r ON r.name = c.relname`)
		if len(left) != 0 {
			t.Errorf("ended before step %d: %v remain", crash, left)
		}
		if finished {
			break
		}
	}
	equal(t, "", [][]string{dropped, retained},
		[][]string{dropRecords(), b.rows(t, sharedColumnsSQL("retained_objects"))})
}

// If a recreated day contains events nevertheless, it is not dropped, and the reason and the remedy
// are shown. After the remedy it is dropped like any other.
func TestRetention_recreatedDayHasEvents_stays(t *testing.T) {
	t.Parallel()
	b := setup(t, 12, 5, 3)
	policy := retention.Policy{Bodies: 2}
	b.runPolicy(t, policy)
	b.exec(t, `UPDATE log_floor SET ms = 0`) // only the test does this
	b.setClock(t, 4)
	late := b.append(t, newObjects(3))
	b.apply(t, late)
	b.setClock(t, 0)
	for range 2 {
		b.requestRun(t, policy)
		if status, err := b.executeOpenRun(t, b.runner()); err == nil || !strings.Contains(err.Error(),
			fmt.Sprintf("retention dropped this day before, and %d events were added since", len(late))) {
			t.Fatalf("%s, %v", status, err)
		}
		b.exec(t, `UPDATE runs SET status = 'failed', ended_at = now() WHERE ended_at IS NULL`)
	}
	if left := b.stored(t); left[0] != late[0] {
		t.Errorf("the first event of the log is %d, want %d", left[0], late[0])
	}
	preview, err := retention.NewParams(t.Context(), b.operator, policy)
	must(t, err)
	view, err := retention.Show(t.Context(), b.operator, preview)
	if err != nil || !strings.Contains(view.Partitions[0].KeptReason, "postern.dropped_partitions WHERE name = ") {
		t.Errorf("it shows %+v, %v", view.Partitions, err)
	}
	b.exec(t, `DELETE FROM dropped_partitions WHERE name = $1`, view.Partitions[0].Name)
	b.runPolicy(t, policy)
	if left := b.stored(t); left[0] == late[0] {
		t.Error("the day is not dropped")
	}
	b.checkRebuild(t, 1000)
}

// If an operator restores a dropped day as a separate table, retention does not drop it, although
// other sessions do not see its rows yet.
func TestRetention_droppedDayBeingRestored_stays(t *testing.T) {
	t.Parallel()
	b := setup(t, 13, 5, 3)
	policy := retention.Policy{Bodies: 2}
	b.runPolicy(t, policy)
	name := b.rows(t, `SELECT name FROM dropped_partitions ORDER BY name`)[0]
	b.exec(t, `CREATE TABLE `+name+` (LIKE events)`)
	b.exec(t, `ALTER TABLE `+name+` OWNER TO `+b.rows(t, `SELECT relowner::regrole::text FROM pg_class
		WHERE oid = 'events'::regclass`)[0])
	restoring := openTx(t, b.db.Pool, `INSERT INTO `+name+` SELECT * FROM events LIMIT 3`)
	b.requestRun(t, policy)
	h, ended := b.startExecution(t.Context(), t)
	b.awaitNonZero(t, `SELECT count(*)::text FROM pg_locks WHERE relation = $1::regclass AND NOT granted`, name)
	must(t, restoring.Commit(t.Context()))
	if err := <-ended; err == nil ||
		!strings.Contains(err.Error(), "this table is not part of the log and contains 3 events") {
		t.Error(err)
	}
	must(t, h.Release(t.Context()))
	b.checkText(t, name, `SELECT coalesce(to_regclass($1)::text, 'gone')`, name)
	b.exec(t, `DELETE FROM `+name)
	b.exec(t, `UPDATE runs SET status = 'failed', ended_at = now() WHERE ended_at IS NULL`)
	b.runPolicy(t, policy)
	b.checkText(t, "gone", `SELECT coalesce(to_regclass($1)::text, 'gone')`, name)
}
