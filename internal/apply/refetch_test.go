package apply_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// refetchAt is a stored refetch that was started some time after all changes of the object.
func refetchAt(t *testing.T, h *sim.History, id string, after time.Duration, n int) stream.Event {
	t.Helper()
	body, err := h.StoredRefetch(id, sim.Refetch{Began: h.LastChangeAt(id) + after.Microseconds(),
		Elapsed: 200_000}).Encode()
	must(t, err)
	return stream.Event{Source: "sim", StoredEvent: provider.StoredEvent{ID: int64(n), Key: "refetch",
		Type: provider.RefetchType, Origin: events.OriginReconcile,
		ReceivedAt: time.UnixMicro(h.LastChangeAt(id)).Add(time.Hour), Body: body}}
}

// A refetch after all changes leaves the true state in the mirror and no ambiguity, whatever the
// order of the refetch and the events.
func TestApply_refetch_endsAmbiguity(t *testing.T) {
	t.Parallel()
	for name, options := range applied.ProviderKinds {
		// skewed clocks need several refetches; a counter has no version for a missing object
		if options.Skew > 0 || options.VersionIsCounter {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ambiguous := 0
			for seed := range uint64(8) {
				b := setup(t)
				h := sim.Generate(rand.New(rand.NewPCG(seed, 21)), options)
				all := messages(h)
				for i, id := range h.ObjectIDs() {
					all = append(all, refetchAt(t, h, id, 10*time.Second, 1000+i))
				}
				r := rand.New(rand.NewPCG(seed, 22))
				r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				inBatches(t, b.Applier(t, nil), all, r)
				for _, id := range h.ObjectIDs() {
					o, truth := b.Object(t, id), h.FinalState(id)
					if o.State.Hash != truth.Hash || o.Ambiguous {
						t.Errorf("seed %d: %s shows %s (deleted %v, ambiguous %v), want %s (deleted %v)", seed, id,
							o.State.JSON, o.State.Deleted, o.Ambiguous, truth.JSON, truth.Deleted)
					}
				}
				var n int
				b.Scan(t, `SELECT count(*) FROM outcomes WHERE status = 'ambiguous'`, &n)
				ambiguous += n
			}
			if ambiguous == 0 && !options.ObjectVersions {
				t.Error("no history left an ambiguity: the refetches had nothing to end")
			}
		})
	}
}

// Only Postern itself makes refetches: an event of a sender with the type and body of a refetch
// changes nothing.
func TestApply_refetchFromSender_isIgnored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	h := sim.Generate(rand.New(rand.NewPCG(1, 21)), applied.ProviderKinds["event time"])
	forged := refetchAt(t, h, "obj_1", time.Minute, 1)
	forged.Origin = events.OriginWebhook
	p := b.Applier(t, nil)
	must(t, p.Apply(t.Context(), events.LiveRun, []stream.Event{forged}))
	if o := b.Object(t, "obj_1"); o.Exists && o.Version != versioning.NoVersion {
		t.Errorf("a forged refetch made version %s", o.Version)
	}
	genuine := forged
	genuine.ID, genuine.Origin = 2, events.OriginReconcile
	must(t, p.Apply(t.Context(), events.LiveRun, []stream.Event{genuine}))
	if o := b.Object(t, "obj_1"); !o.Exists || o.Version.Seen == 0 {
		t.Errorf("a refetch made version %s", o.Version)
	}
}

// An event that was received after an operator's overwrite counts, also in the same batch.
func TestApply_overwriteWithLaterEvent_keepsEvent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.Applier(t, nil)
	applyBatch(t, p, []stream.Event{stateEvent(1, "obj_1", "A", 5)})
	began := time.UnixMicro(sim.Start + 110_000_000).UTC()
	response := []byte(`{"unit":1000000,"object":{"id":"obj_1","state":"B"}}`)
	refetch := provider.Refetch{Snapshot: provider.Snapshot{ObjectType: "thing", ObjectID: "obj_1", Body: response},
		Date: began, Overwrite: &provider.Overwrite{Before: began, Actor: "ada", Reason: "the webhooks were wrong"}}
	body, err := refetch.Encode()
	must(t, err)
	overwrite := stream.Event{Source: "sim", StoredEvent: provider.StoredEvent{ID: 2, Key: "overwrite",
		Type: provider.RefetchType, Origin: events.OriginReconcile, ReceivedAt: began.Add(time.Second), Body: body}}
	applyBatch(t, p, []stream.Event{stateEvent(3, "obj_1", "C", 300), overwrite})
	equal(t, "the object has the state of the later event", []string{"C"},
		b.DB.QueryStrings(t, `SELECT state ->> 'state' FROM objects`))
}
