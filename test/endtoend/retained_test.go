package endtoend_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit"
)

// clock sets the database's clock back.
func (b *testBundle) clock(t *testing.T, by time.Duration) {
	t.Helper()
	sql := fmt.Sprintf(`CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp() - interval ''%d seconds'''`, int(by.Seconds()))
	if _, err := b.db.Pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// Retention whose processors are killed one after the other, between any two of its steps, drops what is old once, and keeps of it what the mirror is made of:
// bases and the rest of the log make the mirror as it is. Deliveries go on meanwhile.
func TestKilledProcessorsRetain(t *testing.T) {
	t.Parallel()
	seed := testkit.Seed(t)
	old, meanwhile := mix(t, seed, 1, 40), mix(t, seed+1, 41, 20)
	b := prepare(t, nil)
	now := time.Now().UTC()
	b.clock(t, now.Sub(now.Truncate(24*time.Hour).Add(-60*time.Hour))) // to a noon, so that all is of one day
	b.start(t, "gateway")
	b.start(t, "processor")
	feed, end := b.feeding(t, len(old.all)+len(meanwhile.all))
	feed(old.all)
	b.after(t, nil, len(old.all))
	b.everyEventHasAnOutcome(t)
	b.clock(t, 0)
	events := b.number(t, `SELECT count(*) FROM events`)
	b.until(t, "the auditor has passed the old days", `SELECT cursor >= (SELECT max(id) FROM events) FROM checkpoints WHERE job = 'auditor'`)

	parts := slices.Collect(slices.Chunk(meanwhile.all, len(meanwhile.all)/5+1))
	const note = `SELECT true FROM retired ORDER BY name LIMIT 1 FOR UPDATE`
	fold, reader := b.gate(t, "while it folds", `INSERT INTO bases SELECT *`+latest, "invoice"), b.gate(t, "while it detaches", `SELECT count(*) FROM events`)
	retained := b.postern(t, "retention", "run", "--bodies", "1", "--yes")
	feed(parts[0])
	for i, g := range []gate{fold, reader} {
		g.reached(t, b)
		next := b.gate(t, "with what it has done not noted", note)
		b.passed(t, g)
		feed(parts[i+1])
		next.reached(t, b)
		b.passed(t, next)
	}
	feed(slices.Concat(parts[3:]...))
	t.Log(retained())
	if left, dropped := b.number(t, `SELECT count(*) FROM events e WHERE e.id < (extract(epoch FROM now() - interval '1 day') * 1000)::bigint << 20`),
		b.number(t, `SELECT sum(events) FROM retired WHERE dropped_at IS NOT NULL`); left != 0 || dropped != events {
		t.Errorf("%d old events are left, and %d of %d were dropped", left, dropped, events)
	}
	end()
	b.nats.Wipe(t)
	b.everyEventHasAnOutcome(t)
	for source := range doors {
		b.postern(t, "rebuild", "--source", source, "--compare", "--check")()
	}
}
