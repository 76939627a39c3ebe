package verify_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/verify"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Every kind of damage to an object is found and named.
func TestVerify_damagedObjects_namesObject(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind         verify.Kind
		sql          string
		where, names string
	}{
		"state": {verify.ObjectDiffers, `UPDATE objects SET state = jsonb_set(state, '{name}', '"Eve"')`,
			`state IS NOT NULL`, "of its events: state"},
		"hash": {verify.ObjectDiffers, `UPDATE objects SET exact_hash = sha256('x')`, `state IS NOT NULL`,
			"hash of the state"},
		"version lowered": {verify.ObjectOlder, `UPDATE objects SET version_at = version_at - 1`,
			`version_at > 0 AND NOT version_final`, "the mirror has at"},
		"version raised": {verify.ObjectDiffers, `UPDATE objects SET version_at = version_at + 1`,
			`version_at > 0 AND NOT version_final`, "version"},
		"deleted": {verify.ObjectDiffers, `UPDATE objects SET deleted = true`,
			`NOT deleted AND version_at > 0`, "deleted"},
		"tombstone revived": {verify.TombstoneRevived, `UPDATE objects SET deleted = false, version_final = false,
			state = '{"id": "obj"}'`, `deleted AND version_final`, "final"},
		"ambiguity removed": {verify.ObjectDiffers, `UPDATE objects SET ambiguous = NOT ambiguous`, `version_at > 0`,
			"ambiguous"},
		"overwritten": {verify.ObjectDiffers, `UPDATE objects SET overwritten_at = 17`, `version_at > 0`,
			"time of the overwrite"},
		"observed times": {verify.ObjectDiffers, `UPDATE objects SET time_to = time_to + 1`, `version_at > 0`,
			"observed times"},
		"tied states": {verify.ObjectDiffers, `UPDATE objects SET tied_states = '[{"from_refetch": true}]'`,
			`version_at > 0`,
			"tied states"},
		"missing": {verify.ObjectMissing, `DELETE FROM objects`, `true`, "was applied to it"},
		"without event": {verify.ObjectDiffers, `INSERT INTO objects
			SELECT (jsonb_populate_record(o, '{"object_id": "nobody"}')).* FROM objects o`, `version_at > 0`,
			"the result is no version"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			id := b.db.QueryStrings(t, `SELECT min(object_id) FROM objects WHERE `+c.where)[0]
			b.damage(t, c.sql+` WHERE object_id = $1`, id)
			item := b.finds(t, c.kind, 1)
			if item.ObjectID != id && name != "without event" || item.Source != applied.SourceName ||
				!strings.Contains(item.Detail, c.names) || item.Repair != "postern rebuild --source sim --type thing" {
				t.Errorf("%s: %+v", id, item)
			}
		})
	}
}

// The result of an older rule is not a violation. It is counted, whether the current rule has the
// same result or not.
func TestVerify_objectsOfOlderRule_areNotes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `UPDATE objects SET rule_version = rule_version - 1`)
	n := b.db.QueryStrings(t, `SELECT count(*)::text FROM objects`)[0]
	if r := b.clean(t); len(r.Notes) != 1 ||
		!strings.HasPrefix(r.Notes[0], n+" objects were decided by an older rule") {
		t.Errorf("%v", r.Notes)
	}
	b.damage(t, `UPDATE objects SET state = '{}' WHERE object_id = 'obj_2'`)
	if r := b.clean(t); len(r.Notes) != 2 ||
		!strings.HasPrefix(r.Notes[0], "1 objects differ from the result of the current rule") {
		t.Errorf("%v", r.Notes)
	}
	b.exec(t, `UPDATE objects SET rule_version = rule_version + 1`)
	b.finds(t, verify.ObjectDiffers, 1)
	b.exec(t, `UPDATE outcomes SET rule_version = rule_version - 1`) // no object row records the older rule then
	b.clean(t)
}

// While a rebuild has replaced only a part of a source's objects, the others may differ from their
// events. That is no violation until a rebuild is done.
func TestVerify_rebuildPartlySwapped_isNote(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, source := range []int32{b.log.Source, b.log.Source + 1} {
		b.exec(t, `INSERT INTO runs (job, actor, reason, detail, params, status, counts, created_at, updated_at)
			VALUES ('rebuild', 'me', '', '', jsonb_build_object('source', $1::int, 'type', ''), 'paused',
				'{"swapped": 1}', now(), now())`, source)
	}
	b.damage(t, `UPDATE objects SET state = '{}' WHERE object_id = 'obj_2'`)
	b.damage(t, `DELETE FROM objects WHERE object_id = 'obj_3'`)
	if r := b.clean(t); len(r.Notes) == 0 || !strings.Contains(r.Notes[0], "because a rebuild was interrupted") {
		t.Errorf("%v", r.Notes)
	}
	for name, sql := range map[string]string{"of another type": `SET params = params || '{"type": "other"}'`,
		"is done": `SET status = 'done', ended_at = now(), params = params || '{"type": ""}'`} {
		b.exec(t, `UPDATE runs `+sql+` WHERE params ->> 'source' = $1::int::text`, b.log.Source)
		if r := b.verify(t); len(r.Findings) != 2 {
			t.Errorf("the rebuild %s: %+v", name, r.Findings)
		}
	}
}

// otherwise reads each event as one of another object.
type otherwise struct{ sim.Provider }

func (otherwise) Observe(src *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	o, err := sim.Provider{}.Observe(src, e)
	o.ObjectID += "x"
	return o, err
}

// Events that are read differently now than when they were applied are named.
func TestVerify_eventsReadDifferently_areNamed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	src := b.log.Sources[applied.SourceName]
	src.Provider = otherwise{}
	b.log.Sources[applied.SourceName] = src
	r := b.verify(t)
	if len(r.Findings) != 1 || !strings.Contains(r.Findings[0].Items[0].Detail,
		"is read as one of another object now: thing obj_") {
		t.Errorf("%+v", r)
	}
}

// Without the configuration of a source its events cannot be read. That is a note and no violation.
func TestVerify_unconfiguredSource_isNote(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.damage(t, `UPDATE objects SET state = '{}'`)
	r := b.verifyLog(t)
	if len(r.Findings) != 0 || len(r.Notes) != 2 ||
		!strings.Contains(r.Notes[0], fmt.Sprint(len(b.ids), " events of source sim")) {
		t.Errorf("%+v", r)
	}
}

// An object may have more events than one page.
func TestVerify_objectWithManyEvents_readsSeveralPages(t *testing.T) {
	t.Parallel()
	b := empty(t)
	var evs []sim.Event
	for i := range 2500 {
		evs = append(evs, at("busy", int64(i)), at(fmt.Sprint("calm", i%40), int64(i)))
	}
	ids := b.log.Append(t, b.log.Source, evs)
	slices.Sort(ids)
	applied.Apply(t, b.proc, events.LiveRun, ids)
	b.setCheckpoint(t, ids[len(ids)-1])
	if r := b.clean(t); r.Checked["objects"] != 41 || r.Checked["bodies"] != 5000 {
		t.Errorf("%+v", r.Checked)
	}
	b.damage(t, `UPDATE objects SET version_at = version_at - 1 WHERE object_id = 'busy'`)
	b.finds(t, verify.ObjectOlder, 1)
}

// A dead event was not applied, nor were events of a rebuild without a swap. A run that applies
// them later counts.
func TestVerify_eventsNotApplied_doNotCount(t *testing.T) {
	t.Parallel()
	b := empty(t)
	first := b.log.Append(t, b.log.Source, []sim.Event{at("obj_1", 1)})
	applied.Apply(t, b.proc, events.LiveRun, first)
	dead := b.log.Append(t, b.log.Source, []sim.Event{at("obj_1", 2)})
	b.exec(t, `INSERT INTO outcomes SELECT (jsonb_populate_record(o, jsonb_build_object('event_id', $2::bigint,
		'status', 'dead', 'version', NULL))).* FROM outcomes o WHERE event_id = $1`, first[0], dead[0])
	b.clean(t)
	b.exec(t, `INSERT INTO runs (run, job, params, actor, reason, status, detail, counts, created_at, ended_at,
		updated_at)
		OVERRIDING SYSTEM VALUE
		VALUES (600, 'rebuild', '{}', '', '', 'cancelled', '', '{}', now(), now(), now())`)
	staged := apply.Target{Run: 600, Staging: &apply.Staging{Table: versioning.Staged}}
	testkit.Must(t, errOf(b.proc.ApplyStored(t.Context(), staged, slices.Concat(first, dead), false)))
	b.clean(t)
	applied.Apply(t, b.proc, 601, dead)
	b.wantValue(t, "2", `SELECT state->>'n' FROM objects`)
	b.clean(t)
	b.damage(t, `DELETE FROM outcomes WHERE run = 601`)
	b.finds(t, verify.ObjectDiffers, 1)
}

// A refetch that overwrites an object counts wherever it is among several pages of events.
func TestVerify_overwrittenObjectWithManyEvents_matches(t *testing.T) {
	t.Parallel()
	b := empty(t)
	h := sim.Generate(rand.New(rand.NewPCG(1, 1)), sim.Options{Objects: 1, Changes: 1, Contents: 3, Unit: 1_000_000,
		Gap: 10})
	unmeant := sim.Event{Object: "obj_1", ReceivedAt: time.UnixMicro(sim.Start + 1_000_000).UTC(),
		Body: fmt.Appendf(nil,
			`{"object_id":"obj_1","type":"thing.deleted","deleted":true,"final":true,"unit":1,"rank":1,"time":%d}`,
			sim.Start+3_000_000_000)}
	var others []sim.Event
	for i := range int64(1100) {
		others = append(others, at("obj_1", 20_000_000+i))
	}
	for _, some := range [][]sim.Event{{unmeant}, {at("obj_1", 100_000_000)}, others} {
		applied.Apply(t, b.proc, events.LiveRun, b.log.Append(t, b.log.Source, some))
	}
	b.wantValue(t, "true", `SELECT deleted::text FROM objects`)
	b.clean(t)
	overwrite := b.appendRefetch(t, h, "obj_1", 1,
		sim.Refetch{Began: sim.Start + 5_000_000, Elapsed: 300_000, Overwrites: true})
	applied.Apply(t, b.proc, events.LiveRun, []int64{overwrite})
	b.wantValue(t, "100000000", `SELECT state->>'n' FROM objects WHERE overwritten_at <> 0`)
	b.clean(t)
}

// A sample is a random part of the data, also for tables that were never analysed.
func TestVerify_sample_isRandomPart(t *testing.T) {
	t.Parallel()
	b := empty(t)
	var evs []sim.Event
	for i := range 1000 {
		evs = append(evs, at(fmt.Sprint("obj_", i), 1))
	}
	applied.Apply(t, b.proc, events.LiveRun, b.log.Append(t, b.log.Source, evs))
	b.damage(t, `UPDATE objects SET state = '{}'`)
	o := b.options(t)
	o.Sample = 100
	found := map[string]bool{}
	for range 4 {
		r := run(t, o)
		n := r.Checked["objects"]
		if n < 30 || n > 300 || r.Findings[0].Count != n || r.Checked["bodies"] < 30 || r.Checked["bodies"] > 300 ||
			r.Checked["events"] != 1000 {
			t.Errorf("%+v", r)
		}
		found[r.Findings[0].Items[0].ObjectID] = true
	}
	if len(found) < 2 {
		t.Errorf("always the same: %v", found)
	}
}

// at returns an event of an object at a time.
func at(object string, time int64) sim.Event {
	s := fmt.Sprintf(`{"type":"thing.updated","object_id":%q,"object":{"id":%q,"n":%d},"rank":1,"time":%d,"unit":1}`,
		object, object, time, sim.Start+time)
	return sim.Event{Object: object, ReceivedAt: receipt, Body: []byte(s)}
}
