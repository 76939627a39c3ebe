package replay_test

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

func (b *testBundle) trial(t *testing.T, p provider.Provider) *processor.Trial {
	t.Helper()
	known, err := events.RegisterSources(t.Context(), b.operator, nil)
	must(t, err)
	trial, err := processor.NewTrial(b.operator, map[string]processor.Source{"sim": {Number: b.source, Config: &provider.Source{Name: "sim"}, Provider: p}}, known)
	must(t, err)
	return trial
}

func (b *testBundle) everything(t *testing.T) []string {
	t.Helper()
	return slices.Concat(b.mirror(t), b.rows(t, `SELECT to_jsonb(o)::text FROM outcomes o ORDER BY event_id, run`), b.rows(t, `SELECT to_jsonb(r)::text FROM runs r`),
		b.rows(t, `SELECT to_jsonb(c)::text FROM checkpoints c ORDER BY job, run`), b.rows(t, `SELECT to_jsonb(f)::text FROM log_floor f`))
}

// object is what the test compares of one.
type object struct {
	Version   json.RawMessage
	Deleted   bool
	Ambiguous bool
	State     string
}

const objectsSQL = `SELECT jsonb_build_object('id', object_id, 'Version', jsonb_build_object('final', version_final, 'at', version_at, 'seen', version_seen, 'rank', version_rank),
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

// A dry run says what the run then does, of each object and in numbers, and writes nothing.
func TestDryRunSaysWhatTheRunDoes(t *testing.T) {
	t.Parallel()
	seed := testkit.Seed(t)
	b := setup(t, seed, 120)
	b.db.Exec(t, `DELETE FROM objects WHERE hashtext(object_id) % 3 = 0`)
	// An older version of some others, whose content it is no longer.
	b.db.Exec(t, `UPDATE objects SET version_final = false, version_at = 1, tie_set = '[{}]', ambiguous = false, deleted = false, state_hash = sha256('x'),
  exact_hash = sha256('x'), state = '{"old": true}', window_lo = 1, window_hi = 1, look_after = 0 WHERE hashtext(object_id) % 3 = 1`)
	before, rows := b.objects(t), b.everything(t)
	trial := b.trial(t, sim.Provider{})
	told := 0
	counts, err := replay.Try(t.Context(), b.operator, trial, &replay.Order{}, 0, func(map[string]int64) { told++ })
	if err != nil || told == 0 {
		t.Fatal(told, err)
	}
	differences := map[string]processor.Difference{}
	must(t, trial.Differences(100, func(d processor.Difference) error { differences[d.ObjectID] = d; return nil }))
	equal(t, "a dry run wrote", rows, b.everything(t))
	b.start(t, "one", sim.Provider{}, 170)
	ended := b.until(t, b.ask(t, replay.Order{}), done)
	equal(t, "counts", ended.Counts, counts)
	after := b.objects(t)
	for id, now := range after {
		was, stored := before[id]
		d, told := differences[id]
		if told != (!stored || !cmp.Equal(was, now)) || told && d.New == stored {
			t.Errorf("%s: stored %t, told %t: %+v -> %+v", id, stored, told, was, now)
		}
		for _, c := range d.Changes {
			if c.Path == "deleted" && string(c.After) != string(mustJSON(json.Marshal(now.Deleted))) ||
				c.Path == "state" && !sameJSON(c.After, now.State) || cmp.Equal(c.Before, c.After) {
				t.Errorf("%s: %s %s -> %s, and it is %+v", id, c.Path, c.Before, c.After, now)
			}
		}
	}
	if len(differences) == 0 || len(differences) == len(after) || !slices.Equal(slices.Sorted(maps.Keys(b.objects(t))), slices.Sorted(maps.Keys(after))) {
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

// A dry run of what is right changes nothing; one of too much says so.
func TestDryRunIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, 19, 20)
	trial := b.trial(t, sim.Provider{})
	counts, err := replay.Try(t.Context(), b.operator, trial, &replay.Order{}, int64(len(b.ids)), func(map[string]int64) {})
	if err != nil || int(counts[replay.Processed]) != len(b.ids) {
		t.Fatal(counts, err)
	}
	must(t, trial.Differences(1, func(d processor.Difference) error { t.Errorf("%+v", d); return nil }))
	if _, err := replay.Try(t.Context(), b.operator, b.trial(t, sim.Provider{}), &replay.Order{}, int64(len(b.ids))-1, func(map[string]int64) {}); !errors.Is(err, replay.ErrTooMany) {
		t.Error(err)
	}
	b.db.Exec(t, `DELETE FROM objects`)
	for _, bound := range []func(*processor.Trial){func(t *processor.Trial) { t.Objects = 19 }, func(t *processor.Trial) { t.Bytes = 4000 }} {
		trial := b.trial(t, sim.Provider{})
		bound(trial)
		if _, err := replay.Try(t.Context(), b.operator, trial, &replay.Order{}, 0, func(map[string]int64) {}); !errors.Is(err, processor.ErrTooMuch) {
			t.Error(err)
		}
	}
	counts, err = replay.Try(t.Context(), b.operator, b.trial(t, failing{}), &replay.Order{}, 0, func(map[string]int64) {})
	if err != nil || int(counts["failed"]) != len(b.ids) {
		t.Error(counts, err)
	}
}
