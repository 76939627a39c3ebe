package verify_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// habits are simulated providers of different kinds.
var habits = map[string]sim.Options{
	"event time": {Objects: 8, Changes: 8, Contents: 4, Unit: 1_000_000, Gap: 700_000, ChangeSets: 60, Partial: 5,
		DuplicateEvents: 20, MaxDelay: 5_000_000},
	"own version": {Objects: 8, Changes: 8, Contents: 4, Unit: 1_000_000, Gap: 900_000, ObjectVersions: true,
		Deletes: 15, FinalDeletes: true, DeletesWithoutTime: true, DuplicateEvents: 10, MaxDelay: 5_000_000,
		Noise: true},
	"integers": {Objects: 8, Changes: 8, Contents: 3, Unit: 1_000_000, Gap: 500_000, ObjectVersions: true,
		VersionIsCounter: true, DuplicateEvents: 10},
	"ids reused": {Objects: 8, Changes: 10, Contents: 3, Unit: 1_000_000, Gap: 900_000, Deletes: 30, ChangeSets: 40,
		DuplicateEvents: 20},
	"steps": {Objects: 8, Changes: 8, Contents: 4, Unit: 1_000_000, Gap: 300_000, EventsHoldOwnState: true,
		StatusSteps: true, ChangeSets: 50, Deletes: 10, FinalDeletes: true, Skew: 400_000},
	"partial changes": {Objects: 8, Changes: 3, Contents: 3, Unit: 1_000_000, Gap: 300_000, Partial: 60},
}

// Correct operations in any order on any events cause no violation.
func TestVerify_randomOperations_noViolations(t *testing.T) {
	t.Parallel()
	for name, options := range habits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := testkit.Seed(t)
			r := rand.New(rand.NewPCG(seed, 1))
			b := empty(t)
			h := sim.Generate(r, options)
			evs := slices.Clone(h.Events)
			r.Shuffle(len(evs), func(i, j int) { evs[i], evs[j] = evs[j], evs[i] })
			const partitions = 4
			for day := range partitions {
				b.clock(t, partitions-1-day)
				some := evs[day*len(evs)/partitions : (day+1)*len(evs)/partitions]
				ids := slices.Concat(b.log.Append(t, b.log.Source, some), b.appendRefetches(t, r, h, day))
				b.ids = append(b.ids, ids...)
				b.applyLive(t, r, ids)
				b.clock(t, 0)
				b.setCheckpoint(t, slices.Max(b.ids))
				for range 3 {
					did := b.operate(t, r, partitions-day)
					b.exec(t, `DELETE FROM outbox`) // no process publishes changes in this test
					if b.clean(t); t.Failed() {
						t.Fatalf("seed %d, day %d, after %s", seed, day, did)
					}
				}
			}
		})
	}
}

// clock sets the database's clock back by some days.
func (b *testBundle) clock(t *testing.T, partitions int) {
	t.Helper()
	b.exec(t, fmt.Sprintf(`CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
		'SELECT clock_timestamp() - interval ''%d days'''`, partitions))
}

// applyLive applies events in a possible order of arrival, some of them twice.
func (b *testBundle) applyLive(t *testing.T, r *rand.Rand, ids []int64) {
	t.Helper()
	ids = append(slices.Clone(ids), ids[:len(ids)/3]...)
	r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	for len(ids) > 0 {
		n := min(len(ids), 1+r.IntN(20))
		applied.Apply(t, b.proc, events.LiveRun, ids[:n])
		ids = ids[n:]
	}
}

// appendRefetches appends refetches of some objects; some of them overwrite their object.
func (b *testBundle) appendRefetches(t *testing.T, r *rand.Rand, h *sim.History, day int) (ids []int64) {
	t.Helper()
	for _, id := range h.ObjectIDs() {
		if r.IntN(3) == 0 {
			ids = append(ids, b.appendRefetch(t, h, id, day, sim.Refetch{Began: sim.Start + r.Int64N(8_000_000),
				Elapsed: 300_000, Overwrites: r.IntN(2) == 0}))
		}
	}
	return ids
}

func (b *testBundle) appendRefetch(t *testing.T, h *sim.History, id string, day int, refetch sim.Refetch) int64 {
	t.Helper()
	l := h.StoredRefetch(id, refetch)
	body, err := l.Encode()
	testkit.Must(t, err)
	in := h.Refetch(id, refetch)
	if in.Partial != "" {
		in.State = versioning.NullState(false)
	}
	receipts, err := events.Append(t.Context(), b.db.Pool,
		[]events.Delivery{{Source: b.log.Source, ReceivedAt: time.UnixMicro(refetch.Began).UTC().Add(l.Elapsed),
			Origin: events.OriginReconcile, Headers: []byte(`{}`), Verification: []byte(`{}`), Body: body,
			Events: []provider.Event{{Key: fmt.Sprint("look", day, id), Type: provider.RefetchType, ObjectType: "thing",
				ObjectID: id, Fingerprint: [16]byte(in.State.ExactHash[:16])}}}})
	testkit.Must(t, err)
	return receipts[0][0].ID
}

// operate performs a random operation of an operator and names it. It keeps the last days, because
// more events of them follow.
func (b *testBundle) operate(t *testing.T, r *rand.Rand, keep int) string {
	t.Helper()
	some := func() []int64 {
		from := r.IntN(len(b.ids))
		return b.ids[from:min(len(b.ids), from+1+r.IntN(6))]
	}
	switch r.IntN(5) {
	case 0:
		applied.Apply(t, b.proc, 1000+r.Int64N(1_000_000), some())
		return "a replay"
	case 1:
		b.redact(t, redaction.Params{Events: some()[:1]})
		return "a redaction of an event"
	case 2:
		b.redact(t, redaction.Params{Source: b.log.Source, Objects: []redaction.Object{{Source: b.log.Source,
			Type: "thing", ID: fmt.Sprint("obj_", 1+r.IntN(8))}}})
		return "a redaction of an object"
	case 3:
		params, err := retention.NewParams(t.Context(), b.operator, retention.Policy{Bodies: keep + r.IntN(2)})
		testkit.Must(t, err)
		runner := &retention.Runner{Pool: b.log.Pool, MaintenancePool: b.db.Role(t, "maintenance"), Applier: b.proc,
			Chunk: 7}
		b.createAndExecute(t, runs.Request{Job: retention.Job, Params: params}, runner.Execute)
		return "retention"
	}
	// A refetch from before a final delete may arrive after it here, and is rejected.
	b.createAndExecute(t, runs.Request{Job: rebuild.Job, Actor: "me", Reason: "a test",
		Params: rebuild.Params{Source: b.log.Source, Swap: true, AcceptDead: true}},
		(&rebuild.Runner{Pool: b.log.Pool, Applier: b.proc, Settings: rebuild.DefaultSettings}).Execute)
	return "a rebuild"
}

func (b *testBundle) redact(t *testing.T, params redaction.Params) {
	t.Helper()
	b.createAndExecute(t, runs.Request{Job: redaction.Job, Params: params, Actor: "me", Reason: "a test"},
		(&redaction.Runner{Pool: b.log.Pool, Applier: b.proc}).Execute)
}

// createAndExecute creates a run and executes it.
func (b *testBundle) createAndExecute(t *testing.T, o runs.Request, execute runs.Executor) {
	t.Helper()
	testkit.Must(t, errOf(runs.Create(t.Context(), b.operator, o)))
	hold, err := runs.Acquire(t.Context(), b.log.Pool, "test", time.Minute, o.Job)
	if err != nil || hold == nil {
		t.Fatal(hold, err)
	}
	status, err := execute(t.Context(), hold, slog.New(slog.DiscardHandler))
	if err == nil && status == runs.Running {
		err = hold.End(t.Context(), runs.Done, "")
	}
	if err != nil {
		t.Fatalf("%s: %s, %v", o.Job, status, err)
	}
}
