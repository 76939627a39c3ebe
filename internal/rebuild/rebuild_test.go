package rebuild_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// A rebuild of an untouched system gives the same objects as the live events, bit for bit, and the
// swap writes nothing. The same holds after partitions were dropped: the rebuild uses the retained
// objects and the rest of the log.
func TestRebuild_untouchedMirror_changesNothing(t *testing.T) {
	t.Parallel()
	const live = `SELECT to_jsonb(o)::text FROM outcomes o WHERE run = 0 ORDER BY event_id`
	for name, options := range providerKinds {
		for _, drops := range []bool{false, true} {
			if testing.Short() && !drops {
				continue // other tests rebuild whole logs
			}
			t.Run(fmt.Sprintf("%s, partitions dropped %t", name, drops), func(t *testing.T) {
				t.Parallel()
				b, old := logWithOldDays(t, newRand(t, 1), options)
				left := len(b.ids)
				before := b.tableRows(t, allColumns, "objects")
				if drops {
					b.retainAndDrop(t, old)
					left -= len(old)
				}
				outcomes, changes := b.rows(t, live), b.number(t, `SELECT count(*) FROM outbox`)
				b.start(t, "one", nil, quickSettings())
				run := b.stage(t)
				equal(t, "live and staged", b.tableRows(t, objectColumns, "objects"),
					b.tableRows(t, objectColumns, "staged_objects"))
				if counts, items := b.allDifferences(t, run); len(items) > 0 ||
					int(counts[rebuild.Same]) != len(before) {
					t.Errorf("%v, %+v", counts, items)
				}
				ended := b.swap(t, run)
				if int(ended.Counts[rebuild.Processed]) != left || ended.Counts[rebuild.Swapped] != 0 {
					t.Errorf("%d events: %v", left, ended.Counts)
				}
				equal(t, "objects", before, b.tableRows(t, allColumns, "objects"))
				equal(t, "live outcomes", outcomes, b.rows(t, live))
				b.checkCount(t, changes, `SELECT count(*) FROM outbox`)
			})
		}
	}
}

// changedProvider reads the events with another configuration: some objects are of another type,
// some events are ignored, and most states have an additional field.
type changedProvider struct{ sim.Provider }

func (changedProvider) Observe(src *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	o, err := sim.Provider{}.Observe(src, e)
	switch {
	case err != nil:
	case strings.HasSuffix(o.ObjectID, "1"):
		return provider.Observation{Ignored: "no object any more"}, nil
	case strings.HasSuffix(o.ObjectID, "2"):
		o.ObjectType = "other"
	case strings.HasSuffix(o.ObjectID, "3"):
	case o.State.Kind() == canonical.Object:
		o.State, err = canonical.Parse([]byte(`{"was": ` + string(o.State.Raw()) + `}`))
	}
	return o, err
}

// After a change of the configuration, a rebuild ends as if the configuration had always been the
// new one. Revisions never decrease, and each one that grew leaves one change.
func TestRebuild_changedConfiguration_endsAsTheLog(t *testing.T) {
	t.Parallel()
	for name, options := range kindsOf("partial events", "integers", "steps") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, _ := setupApplied(t, 2, options)
			before := b.revisions(t)
			b.exec(t, `TRUNCATE outbox`)
			want := b.mirrorFromLog(t, changedProvider{}, 1000)
			b.start(t, "one", changedProvider{}, quickSettings())
			run := b.stage(t)
			counts, items := b.allDifferences(t, run)
			if len(items) == 0 || counts[rebuild.OnlyLive] == 0 || counts[rebuild.OnlyStaged] == 0 {
				t.Errorf("%v", counts)
			}
			for _, d := range items {
				if len(d.Reasons) == 0 || d.Kind == rebuild.Differing && len(d.Parts) == 0 {
					t.Errorf("no difference is described: %+v", d)
				}
			}
			ended := b.swap(t, run)
			b.checkMirror(t, want)
			b.checkRevisions(t, before, ended)
			if again := b.rebuildAndSwap(t, b.source); again.Counts[rebuild.Swapped] != 0 {
				t.Errorf("a second rebuild writes: %v", again.Counts)
			}
		})
	}
}

// checkMirror fails unless the mirror has these objects, and otherwise only rows without a version.
func (b *testBundle) checkMirror(t *testing.T, want []string) {
	t.Helper()
	got := b.rows(t, `SELECT `+objectColumns+` FROM objects o WHERE NOT (version_at = -9223372036854775808
		AND refetch_after = 0)
		ORDER BY source, account, object_type, object_id`)
	equal(t, "objects", want, got)
}

// revision is an object's revision, with the part that readers see.
type revision struct {
	n    int64
	seen string
}

func (b *testBundle) revisions(t *testing.T) map[string]revision {
	t.Helper()
	rows, err := b.db.Pool.Query(t.Context(), `SELECT object_type || ' ' || object_id, revision, CASE
		WHEN version_at = -9223372036854775808 THEN 'none'
		ELSE concat(deleted, ambiguous, state) END FROM objects`)
	must(t, err)
	defer rows.Close()
	found := map[string]revision{}
	for rows.Next() {
		var name string
		var r revision
		must(t, rows.Scan(&name, &r.n, &r.seen))
		found[name] = r
	}
	return found
}

// checkRevisions fails unless exactly the objects with a visible difference have the next revision,
// and one change each.
func (b *testBundle) checkRevisions(t *testing.T, before map[string]revision, ended *runs.Run) {
	t.Helper()
	announced := map[string]int{}
	for _, name := range b.rows(t, `SELECT t || ' ' || i FROM outbox x, unnest(x.types, x.ids) AS u(t, i)`) {
		announced[name]++
	}
	grown := int64(0)
	for name, now := range b.revisions(t) {
		was, ok := before[name]
		if !ok {
			was.seen = "none"
		}
		want := was.n
		if now.seen != was.seen {
			want++
			grown++
		}
		if now.n != want || announced[name] != int(want-was.n) {
			t.Errorf("%s: %d changes, revision %d → %d\n%s\n%s", name, announced[name], was.n, now.n, was.seen,
				now.seen)
		}
		delete(before, name)
	}
	if len(before) > 0 {
		t.Errorf("objects were removed: %v", before)
	}
	if ended.Counts[rebuild.RevisionsGrown] != grown {
		t.Errorf("%d revisions grew: %v", grown, ended.Counts)
	}
}

// A rebuild of one type does not change objects of other types.
func TestRebuild_oneType_leavesOthers(t *testing.T) {
	t.Parallel()
	b, _ := setupApplied(t, 3, providerKinds["event time"])
	things := `SELECT ` + allColumns + ` FROM objects o WHERE object_type = 'thing' ORDER BY object_id`
	before := b.rows(t, things)
	want := b.mirrorFromLog(t, changedProvider{}, 1000)
	b.start(t, "one", changedProvider{}, quickSettings())
	ended := b.awaitRun(t, b.request(t, rebuild.Params{Source: b.source, Type: "other", Swap: true}), done)
	equal(t, "things", before, b.rows(t, things))
	var others []string
	for _, row := range want {
		if strings.Contains(row, `"object_type": "other"`) {
			others = append(others, row)
		}
	}
	if diff := cmp.Diff(others, b.rows(t, `SELECT `+objectColumns+` FROM objects o WHERE object_type = 'other'
		ORDER BY object_id`)); diff != "" || len(others) == 0 {
		t.Errorf("%d others: %s", len(others), diff)
	}
	b.checkCount(t, 0, `SELECT count(*) FROM outcomes WHERE run = $1 AND object_type = 'thing'`, ended.ID)
	b.start(t, "tidy", nil, quickSettings())
	// the old configuration was used for some objects, so either may remain
	b.awaitRun(t, b.request(t, rebuild.Params{Source: b.source, Type: "thing", Swap: true}), done)
	b.checkCount(t, len(others), `SELECT count(*) FROM objects WHERE object_type = 'other'`)
}

// A rebuild repairs any damage to the mirror and changes nothing else.
func TestRebuild_damagedMirror_isRepaired(t *testing.T) {
	t.Parallel()
	b, _ := setupApplied(t, 4, providerKinds["ids reused"])
	want := b.tableRows(t, objectColumns, "objects")
	b.exec(t, `DELETE FROM objects WHERE object_id = 'obj_1'`)
	b.exec(t, `UPDATE objects SET state = '{"by": "hand"}' WHERE object_id = 'obj_2'`)
	b.exec(t, `UPDATE objects SET rule_version = 0 WHERE object_id = 'obj_3'`)
	b.exec(t, `UPDATE objects SET version_at = version_at + 1 WHERE object_id = 'obj_4'`)
	b.exec(t, `UPDATE objects SET ambiguous = NOT ambiguous WHERE object_id = 'obj_6'`)
	b.exec(t, `INSERT INTO objects SELECT source, account, object_type, 'obj_0', version_final, version_at,
		version_seen, version_rank, tied_states, overflow, time_from, time_to, refetch_after,
		ambiguous, deleted, state_hash, exact_hash, state, sanitized, last_event_id, 7, rule_version, created_at,
			updated_at FROM objects WHERE object_id = 'obj_5'`)
	before := b.revisions(t)
	b.exec(t, `TRUNCATE outbox`)
	b.start(t, "one", nil, quickSettings())
	run := b.stage(t)
	counts, items := b.allDifferences(t, run)
	if counts[rebuild.OnlyStaged] != 1 || counts[rebuild.OnlyLive] != 1 || counts[rebuild.Differing] != 4 ||
		len(items) != 6 {
		t.Errorf("%v %+v", counts, items)
	}
	ended := b.swap(t, run)
	b.checkMirror(t, want)
	b.checkRevisions(t, before, ended)
	all := b.number(t, `SELECT count(*) FROM outbox`)
	due := b.number(t, `SELECT count(*) FROM outbox
		WHERE created_at BETWEEN clock_now() - interval '10 minutes' AND clock_now() - interval '30 seconds'`)
	if all == 0 || due != all {
		t.Errorf("%d of %d changes are due and not older than necessary", due, all)
	}
	if ended.Counts[rebuild.Swapped] != 5 || ended.Counts[rebuild.Emptied] != 1 { // obj_3 got its rule version before
		t.Errorf("%v", ended.Counts)
	}
}

// A source has at most one open rebuild, and the error names its number. Rebuilds of other sources
// run at the same time.
func TestRequest_secondOfSource_fails(t *testing.T) {
	t.Parallel()
	r := newRand(t, 5)
	b := setup(t)
	other := b.add(t, "second")
	for _, source := range []int32{b.source, other} {
		b.applyLiveShuffled(t, r, b.append(t, r, source, sim.Generate(r, providerKinds["event time"]).Events))
	}
	first := b.request(t, rebuild.Params{Source: b.source})
	if _, err := rebuild.Request(t.Context(), b.operator, &rebuild.Params{Source: b.source, Type: "x"}, "", "",
		0); !errors.Is(err, events.ErrInvalid) || !strings.Contains(err.Error(), "run 1 is an open rebuild") {
		t.Errorf("a second rebuild: %v", err)
	}
	second := b.request(t, rebuild.Params{Source: other})
	b.start(t, "one", nil, quickSettings())
	b.awaitRun(t, first, staged)
	b.awaitRun(t, second, staged)
	must(t, rebuild.Discard(t.Context(), b.operator, first))
	if err := rebuild.Swap(t.Context(), b.operator, first); !errors.Is(err, events.ErrInvalid) {
		t.Errorf("a discarded rebuild is swapped: %v", err)
	}
	if err := rebuild.Swap(t.Context(), b.operator, second+1); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("no run: %v", err)
	}
	b.rebuildAndSwap(t, b.source)
	if counts, items := b.allDifferences(t, second); len(items) > 0 || counts[rebuild.Same] == 0 {
		t.Errorf("rows of the other source: %v %+v", counts, items)
	}
}

// failingProvider reads no event.
type failingProvider struct{ sim.Provider }

var errUnreadable = errors.New("cannot be read")

func (failingProvider) Observe(*provider.Source, *provider.StoredEvent) (provider.Observation, error) {
	return provider.Observation{}, errUnreadable
}

// The staged rows of an ended rebuild are cleared, those of an open one are not.
func TestClearAbandoned_endedRebuilds_areCleared(t *testing.T) {
	t.Parallel()
	r := newRand(t, 8)
	b := setup(t)
	other := b.add(t, "second")
	for _, source := range []int32{b.source, other} {
		b.applyLiveShuffled(t, r, b.append(t, r, source, sim.Generate(r, providerKinds["event time"]).Events))
	}
	b.start(t, "one", nil, quickSettings())
	open := b.request(t, rebuild.Params{Source: other})
	b.awaitRun(t, open, staged)
	b.rebuildAndSwap(t, b.source)
	must(t, rebuild.ClearAbandonedOnce(t.Context(), b.pool))
	if n, kept := b.number(t, `SELECT count(*) FROM staged_objects WHERE source = $1`, b.source),
		b.number(t, `SELECT count(*) FROM staged_objects WHERE source = $1`, other); n != 0 || kept == 0 {
		t.Errorf("%d rows remain, %d of the open rebuild", n, kept)
	}
}
