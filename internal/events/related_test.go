package events_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/testkit"
)

// insertDecided inserts an outcome of event n of firstDay, decided a second after the event was
// stored. object is the hash of its object. version and by are the numbers of versions; 0: none.
func (b *testBundle) insertDecided(t *testing.T, n int, run, object int64, status string, version, by int) {
	t.Helper()
	b.db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason,
		version, decided_by, attempts, at, rule_version)
		SELECT $1::bigint, $2, 1, $6, '', 'order', '1', $3, '', CASE WHEN $4 > 0 THEN
			jsonb_build_object('at', $4::int) END, CASE WHEN $5 > 0 THEN jsonb_build_object('at', $5::int) END, 1,
			event_time($1::bigint) + interval '1 second', 1`,
		eventID(n), run, status, version, by, object)
}

// eventID returns the id of event n of firstDay; 0 for none.
func eventID(n int) int64 {
	if n == 0 {
		return 0
	}
	return events.FirstID(firstDay.Add(time.Duration(n) * time.Second))
}

func TestShow_decidedByEvent_isWinner(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.insertEvents(t, firstDay, 30)
	id := eventID
	b.insertDecided(t, 1, 0, 77, "applied", 10, 10)
	b.insertDecided(t, 2, 0, 77, "applied", 20, 20)
	b.insertDecided(t, 3, 0, 77, "stale", 15, 20)
	b.insertDecided(t, 4, 0, 77, "unchanged", 20, 20) // the state of event 2 again
	b.insertDecided(t, 5, 0, 77, "stale", 15, 20)
	b.insertDecided(t, 6, 0, 77, "unchanged", 30, 30) // a new version of the same state
	b.insertDecided(t, 7, 0, 77, "stale", 25, 30)
	b.insertDecided(t, 8, 0, 77, "stale", 25, 99) // by a version that no event made
	b.insertDecided(t, 9, 0, 77, "ambiguous", 0, 30)
	b.insertDecided(t, 10, 0, 77, "ignored", 0, 0)
	b.insertDecided(t, 11, 0, 77, "applied", 40, 40)
	b.insertDecided(t, 12, 0, 77, "applied", 20, 20) // made after the decision about event 3
	b.insertDecided(t, 3, 9, 77, "stale", 15, 40)    // a replay soon after: event 11 is 8 s away
	b.db.Exec(t, `UPDATE outcomes SET at = at + interval '20 s' WHERE run = 9`)
	b.db.Exec(t, `INSERT INTO outcomes SELECT event_id + 1, 0, 2, object, account, object_type, object_id,
		'applied', '', '{"at": 99}', NULL, 1, NULL, at, 1 FROM outcomes WHERE event_id = $1 AND run = 0`,
		id(2)) // an equal hash
	operator := b.db.Role(t, "operator")
	for event, want := range map[int][]int64{1: {0}, 2: {0}, 3: {id(2), id(11)}, 4: {id(2)}, 5: {id(2)}, 6: {0},
		7: {id(6)}, 8: {0}, 9: {id(6)}, 10: {0}} {
		found, err := events.Show(t.Context(), operator, fmt.Sprint(id(event)), 0)
		testkit.Must(t, err)
		var got []int64
		for _, o := range found.Outcomes {
			got = append(got, o.DecidedByEvent)
		}
		testkit.Equal(t, fmt.Sprint("what decided event ", event), want, got)
		if event > 3 && (found.PreviousEvent != id(event-1) || found.NextEvent != id(event+1)) {
			t.Errorf("event %d: between %d and %d", event, found.PreviousEvent, found.NextEvent)
		}
	}
	ends := []int64{}
	for _, event := range []int{1, 12, 20} {
		found, err := events.Show(t.Context(), operator, fmt.Sprint(id(event)), 0)
		testkit.Must(t, err)
		ends = append(ends, found.PreviousEvent, found.NextEvent)
	}
	testkit.Equal(t, "before the first, after the last, without an outcome", []int64{0, id(2), id(11), 0, 0, 0}, ends)
}

func TestShow_delivery_hasOtherEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	all := b.append(t, b.delivery("x", "a1"), b.delivery("y", "b1", "b2", "b3"), b.delivery("z", "c1"))
	for i, want := range [][]string{{"b2", "b3"}, {"b1", "b3"}, {"b1", "b2"}} {
		found, err := events.Show(t.Context(), b.operator, fmt.Sprint(all[1][i].ID), 0)
		testkit.Must(t, err)
		var keys []string
		for _, e := range found.Delivery {
			keys = append(keys, e.EventID)
		}
		if diff := cmp.Diff(want, keys); diff != "" {
			t.Errorf("event %d of the delivery: %s", i, diff)
		}
	}
	single, err := events.Show(t.Context(), b.operator, "a1", 0)
	if diff := cmp.Diff([]events.DeliveryMember{}, single.Delivery, cmpopts.EquateEmpty()); err != nil || diff != "" {
		t.Errorf("a delivery of one event: %v, %s", err, diff)
	}
}

// An object with many events costs what the walk may read, whatever the plan.
func TestShow_objectWithManyEvents_readsBoundedRows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const outcomes = 30_000
	b.insertEvents(t, firstDay, 10)
	b.db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason,
		version, decided_by, attempts, at, rule_version)
		SELECT $1::bigint + g, 0, 1, 77, '', 'order', '1', 'stale', '', '{"at": 1}', '{"at": 2}', 1,
			event_time($1::bigint) + interval '5 s', 1 FROM generate_series(1, $2::int) g`, events.FirstID(firstDay),
		outcomes)
	b.insertDecided(t, 5, 0, 77, "stale", 1, 2)
	id := eventID(5)
	statements := testkit.Statements("internal/events")
	b.db.WithEachPlan(t, func(name string, tx pgx.Tx) {
		readRows := func() (n int) {
			testkit.Must(t, tx.QueryRow(t.Context(), `SELECT sum(seq_tup_read + idx_tup_fetch)::int
				FROM pg_stat_xact_user_tables WHERE relname = 'outcomes' OR relname LIKE 'events%'`).Scan(&n))
			return n
		}
		before := readRows()
		for statement, args := range map[string][]any{"decidedBySQL": {id}, "neighborsSQL": {id},
			"deliveryMembersSQL": {id, id, id + 1<<20, id, 100}} {
			if _, err := tx.Exec(t.Context(), statements[statement], args...); err != nil {
				t.Fatal(statement, err)
			}
		}
		if read := readRows() - before; read < 1000 || read > 1100 {
			t.Errorf("%s: %d rows of outcomes were read", name, read)
		}
	})
	if !strings.Contains(statements["decidedBySQL"], "LIMIT 1000") {
		t.Error("the limit of the test is not that of the statement")
	}
}
