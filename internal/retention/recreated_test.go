package retention_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// newObjects returns n events, each of a new object.
func newObjects(n int) []sim.Event {
	return sim.Generate(rand.New(rand.NewPCG(99, 1)), sim.Options{Objects: n, Changes: 1, Contents: 2, Unit: 1,
		Gap: 10}).Events
}

// If a day that retention has dropped exists again, retention leaves it: a partition that was
// created when the clock went back by days, with or without events, and a table that an operator
// restores. The record of the first drop stays.
func TestRetention_droppedDayExistsAgain_stays(t *testing.T) {
	t.Parallel()
	b := setup(t, 12, 5, 3)
	policy := retention.Policy{Bodies: 2}
	dropRecords := func() []string {
		return b.rows(t, `SELECT to_jsonb(r)::text FROM dropped_partitions r ORDER BY name`)
	}
	b.runPolicy(t, policy)
	dropped := dropRecords()
	names := b.rows(t, `SELECT name FROM dropped_partitions ORDER BY name`)
	if len(names) != 2 {
		t.Fatalf("%v are dropped", names)
	}
	b.exec(t, `SELECT ensure_partitions(min(id_from) >> 20, (max(id_to) >> 20) - 1) FROM dropped_partitions`)
	b.exec(t, `ALTER TABLE events DETACH PARTITION `+names[1])
	b.exec(t, `UPDATE log_floor SET ms = 0`) // only the test does this
	b.setClock(t, 4)
	late := b.append(t, newObjects(3))
	b.apply(t, late)
	b.setClock(t, 0)
	b.runPolicy(t, policy)
	if left := b.stored(t); left[0] != late[0] {
		t.Errorf("the first event of the log is %d, want %d", left[0], late[0])
	}
	for _, name := range names {
		b.checkText(t, name, `SELECT coalesce(to_regclass($1)::text, 'gone')`, name)
	}
	equal(t, "", dropped, dropRecords())
	preview, err := retention.NewParams(t.Context(), b.operator, policy)
	must(t, err)
	view, err := retention.Show(t.Context(), b.operator, preview)
	if err != nil || !strings.Contains(view.Partitions[0].DropNote, "retention has dropped this day before") {
		t.Errorf("it shows %+v, %v", view.Partitions, err)
	}
	b.checkRebuild(t, 1000)
}
