package rebuild_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// clock sets the database's clock off by an interval.
func (b *testBundle) clock(t *testing.T, off string) {
	t.Helper()
	b.exec(t, `CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp() + interval ''`+off+`'''`)
}

// aged is a log whose first events are of three days ago and whose others are of now, all of them applied live.
func aged(t *testing.T, r *rand.Rand, options sim.Options) (b *testBundle, old []int64) {
	t.Helper()
	b = setup(t)
	evs := sim.Generate(r, options).Events
	r.Shuffle(len(evs), func(i, j int) { evs[i], evs[j] = evs[j], evs[i] })
	// The floor has not been raised yet, so that ids can be made in the past.
	b.clock(t, "-3 days")
	must(t, events.EnsurePartitions(t.Context(), b.db.Pool, time.Hour))
	old = b.append(t, r, b.source, evs[:len(evs)/2])
	b.clock(t, "0 days")
	b.live(t, r, append(b.append(t, r, b.source, evs[len(evs)/2:]), old...))
	return b, old
}

// drop folds what a partition holds into the bases, and drops it.
func (b *testBundle) drop(t *testing.T, old []int64) {
	t.Helper()
	must(t,
		errOf(b.processor(t, nil).ApplyStored(t.Context(), processor.Target{Run: 500, Into: versioning.Bases}, old,
			false)))
	b.dropped(t)
}

func (b *testBundle) dropped(t *testing.T) {
	t.Helper()
	oldest, err := events.Oldest(t.Context(), b.pool)
	must(t, err)
	name := b.rows(t, `SELECT 'events_' || to_char(to_timestamp(($1::bigint >> 20) / 1000) AT TIME ZONE 'UTC', 'YYYYMMDD')`, oldest)[0]
	b.exec(t, `ALTER TABLE events DETACH PARTITION `+name)
	b.exec(t, `DROP TABLE `+name)
	if now, err := events.Oldest(t.Context(), b.pool); err != nil || now <= oldest {
		t.Fatalf("the oldest partition begins at %d, before at %d: %v", now, oldest, err)
	}
}

// A partition that is dropped before the rebuild has read it ends the rebuild; one that it has read may go.
func TestPartitionsDroppedUnderARebuild(t *testing.T) {
	t.Parallel()
	r := seeded(t, 22)
	b, old := aged(t, r, kinds["event time"])
	run := b.ask(t, rebuild.Order{Source: b.source, Swap: true})
	h := taken(t, b.pool, "dead", time.Millisecond, rebuild.Job)
	oldest, err := events.Oldest(t.Context(), b.pool)
	must(t, err)
	if _, err := h.Advance(t.Context(), oldest-1); err != nil { // it has begun, and copied no base yet
		t.Fatal(err)
	}
	before := b.table(t, whole, "objects")
	b.drop(t, old)
	b.start(t, "one", nil, quick())
	ended := b.until(t, run, func(r *runs.Run) bool { return r.Status.Final() })
	if ended.Status != runs.Failed || !strings.Contains(ended.Detail, "partitions of the log were dropped") {
		t.Errorf("%+v", ended)
	}
	if again := b.rebuilt(t, b.source); again.Counts[rebuild.Swapped] != 0 {
		t.Errorf("%v", again.Counts)
	}
	equal(t, "", before, b.table(t, whole, "objects"))
}

// A partition that a rebuild has read may go before the swap.
func TestPartitionsDroppedBehindARebuild(t *testing.T) {
	t.Parallel()
	r := seeded(t, 23)
	b, old := aged(t, r, kinds["event time"])
	before := b.table(t, whole, "objects")
	b.start(t, "one", nil, quick())
	run := b.ask(t, rebuild.Order{Source: b.source})
	b.until(t, run, staged)
	b.drop(t, old)
	must(t, rebuild.Swap(t.Context(), b.operator, run))
	b.until(t, run, done)
	equal(t, "", before, b.table(t, whole, "objects"))
}

// Should a partition go that lies above a resting rebuild and below what is left of the log, the swap refuses, whoever dropped it for retention.
// A rebuild that begins afterwards finds its events in the bases.
func TestPartitionsDroppedInTheMiddle(t *testing.T) {
	t.Parallel()
	r := seeded(t, 25)
	b := setup(t)
	evs := sim.Generate(r, kinds["event time"]).Events
	stored := func(off string, part []sim.Event) []int64 {
		b.clock(t, off)
		must(t, events.EnsurePartitions(t.Context(), b.db.Pool, time.Hour))
		ids := b.append(t, r, b.source, part)
		b.live(t, r, ids)
		return ids
	}
	third := len(evs) / 3
	stored("-6 days", evs[:third])
	b.start(t, "one", nil, quick())
	run := b.ask(t, rebuild.Order{Source: b.source})
	b.until(t, run, staged)
	middle := stored("-3 days", evs[third:2*third])
	stored("0 days", evs[2*third:])
	before := b.table(t, whole, "objects")
	must(t,
		errOf(b.processor(t, nil).ApplyStored(t.Context(), processor.Target{Run: 500, Into: versioning.Bases}, middle,
			false)))
	name := b.rows(t, `SELECT 'events_' || to_char(clock_now() - interval '3 days', 'YYYYMMDD')`)[0]
	b.exec(t, `INSERT INTO retired (name, lo, hi, folded_to, events, bytes, run, ready_at, dropped_at, updated_at)
		SELECT $1, lo, lo + (86400000::bigint << 20), $2, $3, 0, 0, clock_now(), clock_now(), clock_now()
		FROM (SELECT (extract(epoch FROM to_date(substr($1, 8), 'YYYYMMDD')) * 1000)::bigint << 20 AS lo) l`, name, middle[len(middle)-1], len(middle))
	b.exec(t, `ALTER TABLE events DETACH PARTITION `+name)
	b.exec(t, `DROP TABLE `+name)
	must(t, rebuild.Swap(t.Context(), b.operator, run))
	ended := b.until(t, run, func(r *runs.Run) bool { return r.Status.Final() })
	if ended.Status != runs.Failed || !strings.Contains(ended.Detail, "partitions of the log were dropped") {
		t.Errorf("%s: %s", ended.Status, ended.Detail)
	}
	if again := b.rebuilt(t, b.source); again.Counts[rebuild.Swapped] != 0 {
		t.Errorf("%v", again.Counts)
	}
	equal(t, "", before, b.table(t, whole, "objects"))
}

// dead finds every event dead.
type dead struct{ sim.Provider }

func (dead) Observe(*provider.Source, *provider.Stored) (provider.Observation, error) {
	return provider.Observation{}, &provider.Dead{Reason: "for a test"}
}

// What a rebuild has staged has not entered the mirror, so it is no part of the bases, unless it was swapped.
func TestOnlySwappedEventsBecomeBases(t *testing.T) {
	t.Parallel()
	r := seeded(t, 24)
	b := setup(t)
	ids := b.append(t, r, b.source, sim.Generate(r, kinds["steps"]).Events)
	must(t, errOf(b.processor(t, dead{}).ApplyStored(t.Context(), processor.Target{}, ids, false)))
	b.start(t, "one", nil, quick())
	run := b.ask(t, rebuild.Order{Source: b.source})
	b.until(t, run, staged)
	folded := func() int {
		must(t, errOf(b.processor(t, nil).Fold(t.Context(), ids)))
		return b.number(t, `SELECT count(*) FROM bases`)
	}
	if n := folded(); n != 0 {
		t.Errorf("%d bases of what is only staged", n)
	}
	must(t, rebuild.Swap(t.Context(), b.operator, run))
	b.until(t, run, done)
	if n := folded(); n == 0 {
		t.Error("no bases of what was swapped")
	}
}
