package replay_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// Replays of any parts of the log, side by side and any number of times, leave every object as it is, down to when it was written, though each step of theirs fails now
// and then: what applies, what moves the checkpoint, and what notes that a run begins or ends. Each event has its outcome in each run, and is counted once.
func TestFaultsBetweenTheStepsOfReplays(t *testing.T) {
	t.Parallel()
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 5))
	b := setupOf(t, seed, sim.Options{Objects: 12, Changes: 10, Contents: 4, Unit: 3, Gap: 4, ChangeSets: 60, Twins: 20, Deletes: 10, Partial: 20})
	before, live := b.mirror(t), b.rows(t, `SELECT to_jsonb(o)::text FROM outcomes o WHERE run = 0 ORDER BY event_id`)
	b.flaky(t, "checkpoints", "UPDATE")
	b.flaky(t, "outcomes", "INSERT")
	var asked []int64
	var sizes []int
	for range 4 {
		ids := []int64{}
		chosen := map[int64]bool{}
		for range 1 + r.IntN(len(b.ids)) {
			id := b.ids[r.IntN(len(b.ids))]
			ids, chosen[id] = append(ids, id), true
		}
		asked, sizes = append(asked, b.ask(t, replay.Order{Filter: events.Filter{IDs: ids}})), append(sizes, len(chosen))
	}
	for _, id := range []string{"one", "two"} {
		b.start(t, id, sim.Provider{}, 13)
	}
	for i, run := range asked {
		b.counted(t, b.until(t, run, done), sizes[i])
	}
	if diff := cmp.Diff(before, b.mirror(t)); diff != "" {
		t.Errorf("objects: %s", diff)
	}
	if diff := cmp.Diff(live, b.rows(t, `SELECT to_jsonb(o)::text FROM outcomes o WHERE run = 0 ORDER BY event_id`)); diff != "" {
		t.Errorf("live outcomes: %s", diff)
	}
}

// While sixteen writers append, a replay passes over nothing that is at or below its bound.
func TestReplayBesideWriters(t *testing.T) {
	t.Parallel()
	b := setup(t, 29, 5)
	b.start(t, "one", sim.Provider{}, 50)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for n := range 100 {
				select {
				case <-stop:
					return
				default:
				}
				body := fmt.Appendf(nil, "no thing %d %d", w, n)
				var batch []events.Delivery
				for i := range 1 + n%3 {
					batch = append(batch, events.Delivery{Source: b.source, ReceivedAt: time.Now(), Origin: events.OriginWebhook, Headers: []byte(`{}`), Verification: []byte(`{}`), Body: body,
						Events: []provider.Event{{Key: fmt.Sprint("w", w, " ", n, " ", i), Type: "thing", Fingerprint: provider.BodyFingerprint(body)}}})
				}
				if _, err := events.Append(t.Context(), b.db.Pool, batch); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var asked []int64
	for range 4 {
		run := b.ask(t, replay.Order{})
		b.until(t, run, func(r *runs.Run) bool { return r.Bound > 0 })
		asked = append(asked, run)
	}
	var ended []*runs.Run
	for _, run := range asked {
		ended = append(ended, b.until(t, run, done))
	}
	close(stop)
	wg.Wait()
	for _, r := range ended {
		missed := b.rows(t, `SELECT e.id::text FROM events e WHERE e.id <= $2 AND NOT EXISTS (SELECT FROM outcomes o WHERE o.event_id = e.id AND o.run = $1)`, r.Run, r.Bound)
		beyond := b.rows(t, `SELECT event_id::text FROM outcomes WHERE run = $1 AND event_id > $2`, r.Run, r.Bound)
		if len(missed) > 0 || len(beyond) > 0 || int(r.Counts[replay.Processed]) < len(b.ids) {
			t.Errorf("run %d of %d events: %d missed, %d beyond the bound", r.Run, r.Counts[replay.Processed], len(missed), len(beyond))
		}
	}
	if n := len(b.rows(t, `SELECT id::text FROM events WHERE id > $1`, ended[0].Bound)); n == 0 {
		t.Error("nothing was appended meanwhile")
	}
}
