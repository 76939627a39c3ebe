package processor_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// kinds are providers of different habits.
var kinds = map[string]sim.Options{
	"event time":  {Objects: 6, Changes: 8, Contents: 4, Unit: 1_000_000, Gap: 700_000, ChangeSets: 60, Partial: 5, Twins: 20, Late: 5_000_000},
	"own version": {Objects: 6, Changes: 8, Contents: 4, Unit: 1_000_000, Gap: 900_000, Own: true, Deletes: 15, Final: true, Timeless: true, Twins: 10, Late: 5_000_000, Noise: true},
	"integers":    {Objects: 6, Changes: 8, Contents: 3, Unit: 1_000_000, Gap: 500_000, Own: true, Integer: true, Twins: 10},
	"ids reused":  {Objects: 6, Changes: 10, Contents: 3, Unit: 1_000_000, Gap: 900_000, Deletes: 30, ChangeSets: 40, Twins: 20},
	"steps":       {Objects: 6, Changes: 8, Contents: 4, Unit: 1_000_000, Gap: 300_000, Frozen: true, Steps: true, ChangeSets: 50, Deletes: 10, Final: true, Skew: 400_000},
}

// Whatever the order, doubling and batching, and however many processors at once, the mirror is what the pure rule makes of the events.
func TestAnyOrderEndsInTheSameObjects(t *testing.T) {
	t.Parallel()
	for name, options := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(6) {
				b := setup(t)
				h := sim.Generate(rand.New(rand.NewPCG(seed, 1)), options)
				b.applyShuffled(t, h, rand.New(rand.NewPCG(seed, 2)))
				b.compare(t, h, fmt.Sprint("seed ", seed))
			}
		})
	}
}

// applyShuffled applies a history in any order, every event once or several times, in batches by three processors.
func (b *testBundle) applyShuffled(t *testing.T, h *sim.History, r *rand.Rand) {
	t.Helper()
	all := messages(h)
	for _, e := range messages(h) {
		if r.IntN(2) == 0 {
			all = append(all, e)
		}
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	work := make(chan []stream.Event, len(all))
	for len(all) > 0 {
		n := min(1+r.IntN(12), len(all))
		work <- all[:n:n]
		all = all[n:]
	}
	close(work)
	var wg sync.WaitGroup
	for range 3 {
		p := b.processor(t, sim.Provider{}, nil)
		wg.Go(func() {
			for batch := range work {
				if err := p.Apply(t.Context(), events.LiveRun, batch); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// same are the parts of a row that may not depend on arrival.
var same = cmp.Options{
	cmpopts.IgnoreFields(versioning.Row{}, "LookAfter"),
	cmpopts.IgnoreFields(versioning.State{}, "JSON"), // jsonb writes it its own way; Exact covers it
}

func (b *testBundle) compare(t *testing.T, h *sim.History, label string) {
	t.Helper()
	for _, id := range h.ObjectIDs() {
		want := versioning.NewRow()
		for i, e := range h.Events {
			if e.Object != id {
				continue
			}
			m := message(i, e)
			obs, err := (sim.Provider{}).Observe(nil, &m.Stored)
			must(t, err)
			in, err := versioning.FromObservation(obs, m.ReceivedAt)
			must(t, err)
			versioning.Apply(&want, in)
		}
		got := b.object(t, id)
		if diff := cmp.Diff(want, got.Row, same); diff != "" {
			t.Errorf("%s: object %s (-pure rule +database):\n%s", label, id, diff)
		}
		if !want.Ambiguous && want.LookAfter == 0 && want.State.Hash != h.Truth(id).Hash && !allPartial(h, id) {
			t.Errorf("%s: object %s is wrong and nothing says so", label, id)
		}
	}
	var without, objects, changes int
	b.scan(t, `SELECT count(*) FROM outcomes`, &without)
	if without != len(h.Events) {
		t.Errorf("%s: %d outcomes of %d events", label, without, len(h.Events))
	}
	b.scan(t, `SELECT coalesce(sum(revision), 0) FROM objects`, &objects)
	b.scan(t, `SELECT coalesce(sum(cardinality(ids)), 0) FROM outbox`, &changes)
	if objects != changes {
		t.Errorf("%s: revisions grew %d times and left %d changes", label, objects, changes)
	}
}

// allPartial: nothing but hints came of the object's last change.
func allPartial(h *sim.History, id string) bool {
	evs := h.Of(id)
	return evs[len(evs)-1].Partial
}

// Versions compare in SQL as they do in Go.
func TestVersionOrderIsOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := rand.New(rand.NewPCG(7, 7))
	pick := func() versioning.Version {
		at := []int64{-1 << 63, -5, 0, 1, 1_700_000_000_000_000, 1<<63 - 1}
		return versioning.Version{Final: r.IntN(2) == 0, At: at[r.IntN(len(at))], Seen: at[2+r.IntN(4)], Rank: int16(r.IntN(3))}
	}
	for range 500 {
		v, w := pick(), pick()
		var less, equal bool
		err := b.db.Pool.QueryRow(t.Context(), `SELECT ($1::bool, $2::bigint, $3::bigint, $4::smallint) < ($5::bool, $6::bigint, $7::bigint, $8::smallint),
			($1::bool, $2::bigint, $3::bigint, $4::smallint) = ($5::bool, $6::bigint, $7::bigint, $8::smallint)`,
			v.Final, v.At, v.Seen, v.Rank, w.Final, w.At, w.Seen, w.Rank).Scan(&less, &equal)
		if c := v.Compare(w); err != nil || less != (c < 0) || equal != (c == 0) {
			t.Fatalf("%+v and %+v: Go says %d, SQL less=%v equal=%v (%v)", v, w, c, less, equal, err)
		}
	}
}

// moody is a provider whose events panic, fail or die by their key.
type moody struct{ sim.Provider }

func (moody) Observe(src *provider.Source, e *provider.Stored) (provider.Observation, error) {
	switch e.Key {
	case "panics":
		panic("no such luck")
	case "fails":
		return provider.Observation{}, fmt.Errorf("not today")
	case "dead":
		return provider.Observation{}, &provider.Dead{Reason: "cannot be read"}
	case "ignored":
		return provider.Observation{Ignored: "a notice"}, nil
	case "longid":
		o, err := sim.Provider{}.Observe(src, e)
		o.ObjectID = string(make([]byte, 600))
		return o, err
	}
	return sim.Provider{}.Observe(src, e)
}

func (b *testBundle) save(t *testing.T, objs ...*versioning.Object) error {
	t.Helper()
	return pgx.BeginFunc(t.Context(), b.db.Pool, func(tx pgx.Tx) error {
		return versioning.Save(t.Context(), tx, versioning.Mirror, objs)
	})
}

// The statement that writes enforces the rule again: a stale write from a reader that lost its lock changes nothing.
func TestSaveRefusesToGoBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	apply(t, b.processor(t, sim.Provider{}, nil), []stream.Event{thing(0, "1")})
	for name, change := range map[string]func(*versioning.Object){
		"a lower version":    func(o *versioning.Object) { o.Version.At-- },
		"an older revision":  func(o *versioning.Object) { o.Revision -= 2 },
		"a skipped revision": func(o *versioning.Object) { o.Revision++ },
	} {
		o := b.object(t, "obj_1")
		change(o)
		if b.save(t, o) == nil {
			t.Errorf("%s was written", name)
		}
	}
}

// Of two that read the same row only the first may write it, also where its write left version and revision as they were: what
// only the tie set or look_after knows would be lost.
func TestSaveRefusesARowReadBefore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, write := range map[string]func(*versioning.Object){
		"joined the tie set": func(o *versioning.Object) {
			o.Set = append(o.Set, versioning.Member{State: o.State, Lo: o.Lo - 1, Hi: o.Hi + 1, Look: true})
		},
		"raised look_after": func(o *versioning.Object) { o.LookAfter += 1_000_000 },
		"changed nothing":   func(*versioning.Object) {},
	} {
		t.Run(name, func(t *testing.T) {
			e := thing(len(name), name)
			id := "obj_" + name
			must(t, b.processor(t, sim.Provider{}, nil).Apply(t.Context(), events.LiveRun, []stream.Event{e}))
			first, second := b.object(t, id), b.object(t, id)
			write(first)
			must(t, b.save(t, first))
			if now := b.object(t, id); now.Revision != second.Revision || now.Version != second.Version {
				t.Fatalf("the first write moved the row from %d %+v to %d %+v", second.Revision, second.Version, now.Revision, now.Version)
			}
			second.Ambiguous = true
			if err := b.save(t, second); err == nil {
				t.Error("the second was written over what it had not read")
			}
			if err := b.save(t, b.object(t, id)); err != nil {
				t.Errorf("whoever reads the row as it is may write: %v", err)
			}
		})
	}
}

// Of two that both found no row only the first may make it.
func TestSaveRefusesASecondFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.object(t, "obj_new"), b.object(t, "obj_new")
	first.LookAfter, second.LookAfter = 1, 2
	must(t, b.save(t, first))
	if err := b.save(t, second); err == nil {
		t.Error("the second made the row again")
	}
}

// Many objects that are written at once each get their own state, whatever the lengths: null ones between, text of several bytes
// a letter, one longer than a page.
func TestSaveGivesEachObjectItsState(t *testing.T) {
	t.Parallel()
	b := setup(t)
	texts := []string{"", `{}`, `{"name": "Zoë 😀"}`, `{"long": "` + strings.Repeat("ü", 9000) + `"}`, "", `[1, 2]`, `"é"`, "", `{"a": null}`}
	rand.Shuffle(len(texts), func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
	objs := make([]*versioning.Object, len(texts))
	want := map[string]string{}
	for i, text := range texts {
		id := fmt.Sprintf("obj_%d", i)
		objs[i] = b.object(t, id)
		var v *canonical.Value
		if text != "" {
			var err error
			if v, err = canonical.Parse([]byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		objs[i].Version, objs[i].State = versioning.Version{At: 1, Rank: 1}, versioning.NewState(v, text == "", nil)
		want[id] = text
	}
	must(t, b.save(t, objs...))
	got := map[string]string{}
	for id := range want {
		got[id] = string(b.object(t, id).State.JSON)
	}
	equal(t, "states", want, got)
}

// still says whatever the body is, at one version whose window reaches to the receipt.
type still struct{ sim.Provider }

func (still) Observe(_ *provider.Source, e *provider.Stored) (provider.Observation, error) {
	state, err := canonical.Parse(e.Body)
	return provider.Observation{ObjectType: "thing", ObjectID: "one", State: state, At: 1_700_000_000_000_000, HasAt: true, Unit: 1, Own: true, Still: true, Rank: 1}, err
}

// An event that only widens the window of a content, inside of what the windows of all contents cover, is stored: in memory the set grows in place, so
// the row of before must be a copy to be told from it.
func TestWindowInsideTheHullIsStored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, still{}, nil)
	for i, e := range []struct {
		body     string
		received time.Duration
	}{{`{"a":1}`, 10 * time.Second}, {`{"a":2}`, time.Minute}, {`{"a":1}`, 30 * time.Second}} {
		at := time.UnixMicro(1_700_000_000_000_000).Add(e.received)
		ev := stream.Event{Source: "sim", Stored: provider.Stored{ID: int64(10 - i), Key: e.body, Type: "thing", ReceivedAt: at, Body: []byte(e.body)}}
		must(t, p.Apply(t.Context(), 0, []stream.Event{ev}))
	}
	widest := map[string]time.Duration{}
	o := b.object(t, "one")
	for _, m := range o.Set {
		widest[string(m.State.JSON)] = time.Duration(m.Hi-m.Lo) * time.Microsecond
	}
	if len(o.Set) != 2 || widest[`{"a": 1}`]+widest[`{"a":1}`] != 30*time.Second || o.Hi-o.Lo != time.Minute.Microseconds() {
		t.Errorf("windows %v of %+v", widest, o)
	}
}

// An event that gets a final outcome from elsewhere while it is being applied, as one does that is redacted, is not applied after all.
func TestRecordedMeanwhile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, sim.Provider{}, nil)
	event := func(id int64, body string) stream.Event {
		return stream.Event{Source: "sim", Stored: provider.Stored{ID: id, ReceivedAt: time.UnixMicro(sim.Start), Body: []byte(body)}}
	}
	must(t,
		p.Apply(t.Context(), 0, []stream.Event{event(1,
			`{"object_id": "a", "object": {"n": 1}, "rank": 1, "unit": 1, "time": 1700000000000001}`)}))
	held := hold(t, b.db.Pool, `SELECT FROM objects FOR UPDATE`)
	applied := make(chan error, 1)
	go func() {
		applied <- p.Apply(t.Context(), 0, []stream.Event{event(2, `{"object_id": "a", "object": {"n": 2}, "rank": 1, "unit": 1, "time": 1700000000000002}`)})
	}()
	// Its outcome is read, and its object cannot be written.
	b.atLeast(t, 1,
		`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	b.db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, at, rule_version)
		VALUES (2, 0, 1, 0, '', '', '', 'ignored', 'the event was redacted', 0, now(), 1)`)
	must(t, held.Rollback(t.Context()))
	must(t, <-applied)
	var state, status string
	b.scan(t, `SELECT state::text FROM objects`, &state)
	b.scan(t, `SELECT status FROM outcomes WHERE event_id = 2`, &status)
	if state != `{"n": 1}` || status != "ignored" {
		t.Errorf("the object is %s, and the event %s", state, status)
	}
}

// inPart reads some events as partial ones.
type inPart struct {
	sim.Provider
	ids map[int64]bool
}

func (p inPart) Observe(src *provider.Source, e *provider.Stored) (provider.Observation, error) {
	o, err := p.Provider.Observe(src, e)
	if p.ids[e.ID] {
		o.Partial = "only the id"
	}
	return o, err
}

// An old partial event that is applied again owes no look that a later event had made needless, and a later whole one does not clear what is owed; but where the row was
// lost and made again, what they say is new.
func TestReplayLeavesLooksAsTheyAre(t *testing.T) {
	t.Parallel()
	b := setup(t)
	h := sim.Generate(rand.New(rand.NewPCG(7, 3)), sim.Options{Objects: 1, Changes: 40, Contents: 5, Unit: 1, Gap: 20})
	n := len(h.Events)
	at := func(i int) stream.Event { return message(i, h.Events[i]) }
	whole, part, last, late := at(0), at(n/3), at(2*n/3), at(n-1)
	id := h.ObjectIDs()[0]
	p := b.processor(t, inPart{ids: map[int64]bool{part.ID: true, late.ID: true}}, nil)
	apply := func(run int64, evs ...stream.Event) {
		t.Helper()
		for _, e := range evs {
			must(t, p.Apply(t.Context(), run, []stream.Event{e}))
		}
	}
	apply(0, whole, part)
	if o := b.object(t, id); o.LookAfter == 0 {
		t.Fatalf("%+v", o)
	}
	apply(0, last)
	settled := b.object(t, id)
	if settled.LookAfter != 0 {
		t.Fatalf("%+v", settled)
	}
	apply(1, whole, last, part)
	equal(t, "settled", settled.Row, b.object(t, id).Row)
	apply(0, late)
	owed := b.object(t, id)
	if owed.LookAfter == 0 {
		t.Fatal("no look is owed")
	}
	apply(2, late, part, last)
	equal(t, "owed", owed.Row, b.object(t, id).Row)
	b.db.Exec(t, `DELETE FROM objects`)
	apply(3, last, late, part)
	if got := b.object(t, id); got.LookAfter != owed.LookAfter || got.State.Exact != owed.State.Exact {
		t.Errorf("made again: %+v, want %+v", got.Row, owed.Row)
	}
}
