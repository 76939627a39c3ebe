package rebuild_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// setClock shifts the database's clock by an interval.
func (b *testBundle) setClock(t *testing.T, off string) {
	t.Helper()
	b.db.ReplaceClock(t, "clock_timestamp() + interval '"+off+"'")
}

// logWithOldDays returns a log whose first events are three days old and whose others are new. All
// are applied live.
func logWithOldDays(t *testing.T, r *rand.Rand, options sim.Options) (b *testBundle, old []int64) {
	t.Helper()
	b = setup(t)
	evs := sim.Generate(r, options).Events
	r.Shuffle(len(evs), func(i, j int) { evs[i], evs[j] = evs[j], evs[i] })
	// The floor of ids is not raised yet, so that ids of the past are possible.
	b.setClock(t, "-3 days")
	must(t, events.EnsurePartitions(t.Context(), b.db.Pool, time.Hour))
	old = b.append(t, r, b.source, evs[:len(evs)/2])
	b.setClock(t, "0 days")
	b.applyLiveShuffled(t, r, append(b.append(t, r, b.source, evs[len(evs)/2:]), old...))
	return b, old
}

// retain reduces events into the retained objects.
func (b *testBundle) retain(t *testing.T, ids []int64) {
	t.Helper()
	must(t, errOf(b.applier(t, nil).ApplyStored(t.Context(), apply.Target{Run: 500,
		Staging: &apply.Staging{Table: versioning.RetainedObjects}}, ids, false)))
}

// retainAndDrop retains the events of the oldest partition and drops it.
func (b *testBundle) retainAndDrop(t *testing.T, old []int64) {
	t.Helper()
	b.retain(t, old)
	oldest, err := events.OldestID(t.Context(), b.pool)
	must(t, err)
	name := b.rows(t, `SELECT 'events_' || to_char(to_timestamp(($1::bigint >> 20) / 1000) AT TIME ZONE 'UTC',
		'YYYYMMDD')`, oldest)[0]
	b.exec(t, `ALTER TABLE events DETACH PARTITION `+name)
	b.exec(t, `DROP TABLE `+name)
	if now, err := events.OldestID(t.Context(), b.pool); err != nil || now <= oldest {
		t.Fatalf("the oldest partition begins at %d, before at %d: %v", now, oldest, err)
	}
}

// If a partition is dropped before the rebuild has read it, the rebuild fails.
func TestRebuild_unreadPartitionDropped_fails(t *testing.T) {
	t.Parallel()
	r := newRand(t, 22)
	b, old := logWithOldDays(t, r, providerKinds["event time"])
	run := b.request(t, rebuild.Params{Source: b.source, Swap: true})
	h := takeRun(t, b.pool, "dead", time.Millisecond, rebuild.Job)
	oldest, err := events.OldestID(t.Context(), b.pool)
	must(t, err)
	// it has begun, and has not copied the retained objects yet
	if _, err := h.Advance(t.Context(), oldest-1); err != nil {
		t.Fatal(err)
	}
	before := b.tableRows(t, allColumns, "objects")
	b.retainAndDrop(t, old)
	b.start(t, "one", nil, quickSettings())
	b.awaitFailure(t, run, "partitions of the log were dropped")
	if again := b.rebuildAndSwap(t, b.source); again.Counts[rebuild.Swapped] != 0 {
		t.Errorf("%v", again.Counts)
	}
	equal(t, "", before, b.tableRows(t, allColumns, "objects"))
}

// A partition that a rebuild has read may be dropped before the swap.
func TestRebuild_readPartitionDropped_swaps(t *testing.T) {
	t.Parallel()
	b, old := logWithOldDays(t, newRand(t, 23), providerKinds["event time"])
	before := b.tableRows(t, allColumns, "objects")
	b.start(t, "one", nil, quickSettings())
	run := b.stage(t)
	b.retainAndDrop(t, old)
	b.swap(t, run)
	equal(t, "", before, b.tableRows(t, allColumns, "objects"))
}

// If a partition above the cursor of a paused rebuild is dropped, the swap fails. A rebuild that
// begins afterwards finds its events in the retained objects.
func TestSwap_partitionDroppedAboveCursor_fails(t *testing.T) {
	t.Parallel()
	r := newRand(t, 25)
	b := setup(t)
	evs := sim.Generate(r, providerKinds["event time"]).Events
	stored := func(off string, part []sim.Event) []int64 {
		b.setClock(t, off)
		must(t, events.EnsurePartitions(t.Context(), b.db.Pool, time.Hour))
		ids := b.append(t, r, b.source, part)
		b.applyLiveShuffled(t, r, ids)
		return ids
	}
	third := len(evs) / 3
	stored("-6 days", evs[:third])
	b.start(t, "one", nil, quickSettings())
	run := b.stage(t)
	middle := stored("-3 days", evs[third:2*third])
	stored("0 days", evs[2*third:])
	before := b.tableRows(t, allColumns, "objects")
	b.retain(t, middle)
	name := b.rows(t, `SELECT 'events_' || to_char(clock_now() - interval '3 days', 'YYYYMMDD')`)[0]
	b.exec(t, `INSERT INTO dropped_partitions (name, id_from, id_to, retained_to, events, bytes, run, ready_at,
		dropped_at, updated_at)
		SELECT $1, id_from, id_from + (86400000::bigint << 20), $2, $3, 0, 0, clock_now(), clock_now(), clock_now()
		FROM (SELECT (extract(epoch FROM to_date(substr($1, 8), 'YYYYMMDD')) * 1000)::bigint << 20 AS id_from) l`, name,
		middle[len(middle)-1], len(middle))
	b.exec(t, `ALTER TABLE events DETACH PARTITION `+name)
	b.exec(t, `DROP TABLE `+name)
	must(t, rebuild.Swap(t.Context(), b.operator, run))
	b.awaitFailure(t, run, "partitions of the log were dropped")
	if again := b.rebuildAndSwap(t, b.source); again.Counts[rebuild.Swapped] != 0 {
		t.Errorf("%v", again.Counts)
	}
	equal(t, "", before, b.tableRows(t, allColumns, "objects"))
}

// dead makes every event dead.
type dead struct{ sim.Provider }

func (dead) Observe(*provider.Source, *provider.StoredEvent) (provider.Observation, error) {
	return provider.Observation{}, &provider.Dead{Reason: "for a test"}
}

// Events that a rebuild has only staged are not part of the retained objects. After the swap they
// are.
func TestReduce_stagedEvents_retainedOnlyAfterSwap(t *testing.T) {
	t.Parallel()
	r := newRand(t, 24)
	b := setup(t)
	ids := b.append(t, r, b.source, sim.Generate(r, providerKinds["steps"]).Events)
	must(t, errOf(b.applier(t, dead{}).ApplyStored(t.Context(), apply.Target{}, ids, false)))
	b.start(t, "one", nil, quickSettings())
	run := b.stage(t)
	retained := func() int {
		must(t, errOf(b.applier(t, nil).Reduce(t.Context(), ids)))
		return b.number(t, `SELECT count(*) FROM retained_objects`)
	}
	if n := retained(); n != 0 {
		t.Errorf("%d retained objects from events that are only staged", n)
	}
	b.swap(t, run)
	if n := retained(); n == 0 {
		t.Error("no retained objects from swapped events")
	}
}
