package rebuild_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// What is made anew from the log of an untouched system is what the live events have made, bit for
// bit, and the swap then writes nothing; so it is where partitions were dropped, from the bases
// that are kept for them and the rest of the log.
func TestRebuiltMirrorEqualsTheLiveOne(t *testing.T) {
	t.Parallel()
	const live = `SELECT to_jsonb(o)::text FROM outcomes o WHERE run = 0 ORDER BY event_id`
	for name, options := range kinds {
		for _, drops := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, partitions dropped %t", name, drops), func(t *testing.T) {
				t.Parallel()
				b, old := aged(t, seeded(t, 1), options)
				left := len(b.ids)
				before := b.table(t, whole, "objects")
				if drops {
					b.drop(t, old)
					left -= len(old)
				}
				outcomes, changes := b.rows(t, live), b.number(t, `SELECT count(*) FROM outbox`)
				b.start(t, "one", nil, quick())
				run := b.ask(t, rebuild.Order{Source: b.source})
				b.until(t, run, staged)
				equal(t, "live and staged", b.table(t, object, "objects"), b.table(t, object, "staged"))
				if counts, items := b.compared(t, run); len(items) > 0 || int(counts[rebuild.Same]) != len(before) {
					t.Errorf("%v, %+v", counts, items)
				}
				must(t, rebuild.Swap(t.Context(), b.operator, run))
				ended := b.until(t, run, done)
				if int(ended.Counts[rebuild.Processed]) != left || ended.Counts[rebuild.Swapped] != 0 {
					t.Errorf("%d events: %v", left, ended.Counts)
				}
				equal(t, "objects", before, b.table(t, whole, "objects"))
				equal(t, "live outcomes", outcomes, b.rows(t, live))
				b.counts(t, changes, `SELECT count(*) FROM outbox`)
			})
		}
	}
}

// otherwise reads the same events under another rule: half of the objects are of another type, some are not read at all, and every state has a
// field more.
type otherwise struct{ sim.Provider }

func (otherwise) Observe(src *provider.Source, e *provider.Stored) (provider.Observation, error) {
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

// After a rule has changed a rebuild ends as if it had always been so; revisions never fall, and each that grew leaves one change.
func TestRebuildUnderAnotherRule(t *testing.T) {
	t.Parallel()
	for name, options := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := seeded(t, 2)
			b := setup(t)
			b.live(t, r, b.append(t, r, b.source, sim.Generate(r, options).Events))
			before := b.revisions(t)
			b.exec(t, `TRUNCATE outbox`)
			want := b.fold(t, otherwise{}, 1000)
			b.start(t, "one", otherwise{}, quick())
			run := b.ask(t, rebuild.Order{Source: b.source})
			b.until(t, run, staged)
			counts, items := b.compared(t, run)
			if len(items) == 0 || counts[rebuild.OnlyLive] == 0 || counts[rebuild.OnlyStaged] == 0 {
				t.Errorf("%v", counts)
			}
			for _, d := range items {
				if len(d.Why) == 0 || d.Kind == rebuild.Differing && len(d.What) == 0 {
					t.Errorf("nothing is said of %+v", d)
				}
			}
			must(t, rebuild.Swap(t.Context(), b.operator, run))
			ended := b.until(t, run, done)
			b.shows(t, want)
			b.grew(t, before, ended)
			if again := b.rebuilt(t, b.source); again.Counts[rebuild.Swapped] != 0 {
				t.Errorf("a second rebuild writes: %v", again.Counts)
			}
		})
	}
}

// shows fails unless the mirror has these objects and else only rows of which nothing is known.
func (b *testBundle) shows(t *testing.T, want []string) {
	t.Helper()
	got := b.rows(t, `SELECT `+object+` FROM objects o WHERE NOT (version_at = -9223372036854775808 AND look_after = 0) ORDER BY source, account, object_type, object_id`)
	equal(t, "objects", want, got)
}

// revision is an object's, with what readers see of it.
type revision struct {
	n    int64
	seen string
}

func (b *testBundle) revisions(t *testing.T) map[string]revision {
	t.Helper()
	rows, err := b.db.Pool.Query(t.Context(), `SELECT object_type || ' ' || object_id, revision, CASE WHEN version_at = -9223372036854775808 THEN 'none'
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

// grew fails unless exactly the objects that readers see otherwise than before have a revision more, and one change each.
func (b *testBundle) grew(t *testing.T, before map[string]revision, ended *runs.Run) {
	t.Helper()
	told := map[string]int{}
	for _, name := range b.rows(t, `SELECT t || ' ' || i FROM outbox x, unnest(x.types, x.ids) AS u(t, i)`) {
		told[name]++
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
		if now.n != want || told[name] != int(want-was.n) {
			t.Errorf("%s: %d changes, revision %d → %d\n%s\n%s", name, told[name], was.n, now.n, was.seen, now.seen)
		}
		delete(before, name)
	}
	if len(before) > 0 {
		t.Errorf("objects are gone: %v", before)
	}
	if ended.Counts[rebuild.Grown] != grown {
		t.Errorf("%d grew: %v", grown, ended.Counts)
	}
}

// A rebuild of one type leaves the others alone.
func TestRebuildOfOneType(t *testing.T) {
	t.Parallel()
	r := seeded(t, 3)
	b := setup(t)
	b.live(t, r, b.append(t, r, b.source, sim.Generate(r, kinds["event time"]).Events))
	things := `SELECT ` + whole + ` FROM objects o WHERE object_type = 'thing' ORDER BY object_id`
	before := b.rows(t, things)
	want := b.fold(t, otherwise{}, 1000)
	b.start(t, "one", otherwise{}, quick())
	ended := b.until(t, b.ask(t, rebuild.Order{Source: b.source, Type: "other", Swap: true}), done)
	equal(t, "things", before, b.rows(t, things))
	var others []string
	for _, row := range want {
		if strings.Contains(row, `"object_type": "other"`) {
			others = append(others, row)
		}
	}
	if diff := cmp.Diff(others, b.rows(t, `SELECT `+object+` FROM objects o WHERE object_type = 'other' ORDER BY object_id`)); diff != "" || len(others) == 0 {
		t.Errorf("%d others: %s", len(others), diff)
	}
	b.counts(t, 0, `SELECT count(*) FROM outcomes WHERE run = $1 AND object_type = 'thing'`, ended.Run)
	b.start(t, "tidy", nil, quick())
	b.until(t, b.ask(t, rebuild.Order{Source: b.source, Type: "thing", Swap: true}), done) // otherwise read by half, so it may be either's
	b.counts(t, len(others), `SELECT count(*) FROM objects WHERE object_type = 'other'`)
}

// A damaged mirror is mended, whatever was done to it, and only where it was.
func TestRebuildMendsTheMirror(t *testing.T) {
	t.Parallel()
	r := seeded(t, 4)
	b := setup(t)
	b.live(t, r, b.append(t, r, b.source, sim.Generate(r, kinds["ids reused"]).Events))
	want := b.table(t, object, "objects")
	b.exec(t, `DELETE FROM objects WHERE object_id = 'obj_1'`)
	b.exec(t, `UPDATE objects SET state = '{"by": "hand"}' WHERE object_id = 'obj_2'`)
	b.exec(t, `UPDATE objects SET rule_version = 0 WHERE object_id = 'obj_3'`)
	b.exec(t, `UPDATE objects SET version_at = version_at + 1 WHERE object_id = 'obj_4'`)
	b.exec(t, `UPDATE objects SET ambiguous = NOT ambiguous WHERE object_id = 'obj_6'`)
	b.exec(t, `INSERT INTO objects SELECT source, account, object_type, 'obj_0', version_final, version_at, version_seen, version_rank, tie_set, overflow, window_lo, window_hi, look_after,
		ambiguous, deleted, state_hash, exact_hash, state, repaired, last_event_id, 7, rule_version, created_at, updated_at FROM objects WHERE object_id = 'obj_5'`)
	before := b.revisions(t)
	b.exec(t, `TRUNCATE outbox`)
	b.start(t, "one", nil, quick())
	run := b.ask(t, rebuild.Order{Source: b.source})
	b.until(t, run, staged)
	counts, items := b.compared(t, run)
	if counts[rebuild.OnlyStaged] != 1 || counts[rebuild.OnlyLive] != 1 || counts[rebuild.Differing] != 4 || len(items) != 6 {
		t.Errorf("%v %+v", counts, items)
	}
	must(t, rebuild.Swap(t.Context(), b.operator, run))
	ended := b.until(t, run, done)
	b.shows(t, want)
	b.grew(t, before, ended)
	if all, due := b.number(t, `SELECT count(*) FROM outbox`), b.number(t, `SELECT count(*) FROM outbox WHERE made_at BETWEEN clock_now() - interval '10 minutes' AND clock_now() - interval '30 seconds'`); all == 0 || due != all {
		t.Errorf("%d of %d changes are due and no older than they need to be", due, all)
	}
	if ended.Counts[rebuild.Swapped] != 5 || ended.Counts[rebuild.Emptied] != 1 { // obj_3 got its number before
		t.Errorf("%v", ended.Counts)
	}
}

// Of one source there is one open rebuild, and its number is told; others' go on beside it.
func TestOneRebuildOfASource(t *testing.T) {
	t.Parallel()
	r := seeded(t, 5)
	b := setup(t)
	other := b.add(t, "second")
	for _, source := range []int32{b.source, other} {
		b.live(t, r, b.append(t, r, source, sim.Generate(r, kinds["event time"]).Events))
	}
	first := b.ask(t, rebuild.Order{Source: b.source})
	if _, err := rebuild.Ask(t.Context(), b.operator, &rebuild.Order{Source: b.source, Type: "x"}, "", "", 0); !errors.Is(err, events.ErrInvalid) || !strings.Contains(err.Error(), "run 1 is an open rebuild") {
		t.Errorf("a second: %v", err)
	}
	second := b.ask(t, rebuild.Order{Source: other})
	b.start(t, "one", nil, quick())
	b.until(t, first, staged)
	b.until(t, second, staged)
	must(t, rebuild.Discard(t.Context(), b.operator, first))
	if err := rebuild.Swap(t.Context(), b.operator, first); !errors.Is(err, events.ErrInvalid) {
		t.Errorf("what is discarded is swapped: %v", err)
	}
	if err := rebuild.Swap(t.Context(), b.operator, second+1); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("no run: %v", err)
	}
	b.rebuilt(t, b.source)
	if counts, items := b.compared(t, second); len(items) > 0 || counts[rebuild.Same] == 0 {
		t.Errorf("the other's rows: %v %+v", counts, items)
	}
}

// failing reads no event.
type failing struct{ sim.Provider }

var errUnread = errors.New("cannot be read")

func (failing) Observe(*provider.Source, *provider.Stored) (provider.Observation, error) {
	return provider.Observation{}, errUnread
}

// What fails live too does not stand in the way of a rebuild.
func TestFailedLiveEventsStayFailed(t *testing.T) {
	t.Parallel()
	r := seeded(t, 7)
	b := setup(t)
	ids := b.append(t, r, b.source, sim.Generate(r, kinds["event time"]).Events)
	must(t, errOf(b.processor(t, failing{}).ApplyStored(t.Context(), processor.Target{}, ids, false)))
	b.start(t, "one", failing{}, quick())
	if ended := b.rebuilt(t, b.source); ended.Counts[string(versioning.Failed)] != int64(len(ids)) {
		t.Errorf("%v", ended.Counts)
	}
}

// What an ended rebuild has staged is cleared, and what an open one has is not.
func TestTidy(t *testing.T) {
	t.Parallel()
	r := seeded(t, 8)
	b := setup(t)
	other := b.add(t, "second")
	for _, source := range []int32{b.source, other} {
		b.live(t, r, b.append(t, r, source, sim.Generate(r, kinds["event time"]).Events))
	}
	b.start(t, "one", nil, quick())
	open := b.ask(t, rebuild.Order{Source: other})
	b.until(t, open, staged)
	b.rebuilt(t, b.source)
	must(t, rebuild.TidyOnce(t.Context(), b.pool))
	if n, kept := b.number(t, `SELECT count(*) FROM staged WHERE source = $1`, b.source), b.number(t, `SELECT count(*) FROM staged WHERE source = $1`, other); n != 0 || kept == 0 {
		t.Errorf("%d rows are left, %d kept", n, kept)
	}
}
