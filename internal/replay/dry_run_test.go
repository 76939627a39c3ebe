package replay_test

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

func (b *testBundle) newDryRun(t *testing.T, p provider.Provider) *apply.DryRun {
	t.Helper()
	known, err := events.RegisterSources(t.Context(), b.operator, nil)
	must(t, err)
	dryRun, err := apply.NewDryRun(b.operator, map[string]apply.Source{"sim": {Number: b.source,
		Config: &provider.Source{Name: "sim"}, Provider: p}}, known)
	must(t, err)
	return dryRun
}

func (b *testBundle) allRows(t *testing.T) []string {
	t.Helper()
	return slices.Concat(b.mirror(t), b.rows(t, `SELECT to_jsonb(o)::text FROM outcomes o ORDER BY event_id, run`),
		b.rows(t, `SELECT to_jsonb(r)::text FROM runs r`),
		b.rows(t, `SELECT to_jsonb(c)::text FROM checkpoints c ORDER BY job, run`),
		b.rows(t, `SELECT to_jsonb(f)::text FROM log_floor f`))
}

// object is the part of an object that the test compares.
type object struct {
	Version   json.RawMessage
	Deleted   bool
	Ambiguous bool
	State     string
}

const objectsSQL = `SELECT jsonb_build_object('id', object_id, 'Version', jsonb_build_object('final', version_final,
	'at', version_at, 'seen', version_seen, 'rank', version_rank),
  'Deleted', deleted, 'Ambiguous', ambiguous, 'State', coalesce(state, 'null')::text)::text FROM objects`

func (b *testBundle) objects(t *testing.T) map[string]object {
	t.Helper()
	all := map[string]object{}
	for _, text := range b.rows(t, objectsSQL) {
		var o struct {
			ID string
			object
		}
		must(t, json.Unmarshal([]byte(text), &o))
		all[o.ID] = o.object
	}
	return all
}

// A dry run predicts the effect of the run on each object and its counts, and writes nothing.
func TestDryRun_anyMirror_predictsTheRun(t *testing.T) {
	t.Parallel()
	seed := testkit.Seed(t)
	b := setup(t, seed, 120)
	b.db.Exec(t, `DELETE FROM objects WHERE hashtext(object_id) % 3 = 0`)
	// Others get an older version with another content.
	b.db.Exec(t, `UPDATE objects SET version_final = false, version_at = 1, tied_states = '[{}]', ambiguous = false,
		deleted = false, state_hash = sha256('x'),
  exact_hash = sha256('x'), state = '{"old": true}', time_from = 1, time_to = 1, refetch_after = 0
  	WHERE hashtext(object_id) % 3 = 1`)
	before, rows := b.objects(t), b.allRows(t)
	dryRun := b.newDryRun(t, sim.Provider{})
	calls := 0
	counts, err := replay.DryRun(t.Context(), b.operator, dryRun, &replay.Params{}, 0,
		func(map[string]int64) { calls++ })
	if err != nil || calls == 0 {
		t.Fatal(calls, err)
	}
	differences := map[string]apply.Difference{}
	must(t, dryRun.Differences(100, func(d apply.Difference) error { differences[d.ObjectID] = d; return nil }))
	equal(t, "a dry run wrote", rows, b.allRows(t))
	b.start(t, "one", sim.Provider{}, 170)
	ended := b.replay(t, replay.Params{})
	equal(t, "counts", ended.Counts, counts)
	after := b.objects(t)
	for id, now := range after {
		was, stored := before[id]
		d, predicted := differences[id]
		if predicted != (!stored || !cmp.Equal(was, now)) || predicted && d.New == stored {
			t.Errorf("%s: stored %t, predicted %t: %+v -> %+v", id, stored, predicted, was, now)
		}
		for _, c := range d.Changes {
			if c.Path == "deleted" && string(c.After) != string(mustJSON(json.Marshal(now.Deleted))) ||
				c.Path == "state" && !sameJSON(c.After, now.State) || cmp.Equal(c.Before, c.After) {
				t.Errorf("%s: %s %s -> %s, and it is %+v", id, c.Path, c.Before, c.After, now)
			}
		}
	}
	if len(differences) == 0 || len(differences) == len(after) || !slices.Equal(slices.Sorted(maps.Keys(b.objects(t))),
		slices.Sorted(maps.Keys(after))) {
		t.Errorf("%d of %d objects change", len(differences), len(after))
	}
}

func mustJSON(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func sameJSON(a []byte, b string) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal([]byte(b), &y) == nil && cmp.Equal(x, y)
}

// A dry run on a correct mirror changes nothing. A dry run beyond its limits returns an error.
func TestDryRun_tooMuch_fails(t *testing.T) {
	t.Parallel()
	b := setup(t, 19, 20)
	dryRun := b.newDryRun(t, sim.Provider{})
	counts, err := replay.DryRun(t.Context(), b.operator, dryRun, &replay.Params{}, int64(len(b.ids)),
		func(map[string]int64) {})
	if err != nil || int(counts[replay.Processed]) != len(b.ids) {
		t.Fatal(counts, err)
	}
	must(t, dryRun.Differences(1, func(d apply.Difference) error { t.Errorf("%+v", d); return nil }))
	if _, err := replay.DryRun(t.Context(), b.operator, b.newDryRun(t, sim.Provider{}), &replay.Params{},
		int64(len(b.ids))-1, func(map[string]int64) {}); !errors.Is(err, replay.ErrTooMany) {
		t.Error(err)
	}
	b.db.Exec(t, `DELETE FROM objects`)
	for _, bound := range []func(*apply.DryRun){func(t *apply.DryRun) { t.Objects = 19 },
		func(t *apply.DryRun) { t.Bytes = 4000 }} {
		dryRun := b.newDryRun(t, sim.Provider{})
		bound(dryRun)
		if _, err := replay.DryRun(t.Context(), b.operator, dryRun, &replay.Params{}, 0,
			func(map[string]int64) {}); !errors.Is(err, apply.ErrTooManyChanges) {
			t.Error(err)
		}
	}
	counts, err = replay.DryRun(t.Context(), b.operator, b.newDryRun(t, failingProvider{}), &replay.Params{}, 0,
		func(map[string]int64) {})
	if err != nil || int(counts["failed"]) != len(b.ids) {
		t.Error(counts, err)
	}
}
