package apply_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// For any order, repetition and batching, and several processors at once, the mirror equals the
// result of the pure versioning rule.
func TestApply_anyOrder_endsInSameObjects(t *testing.T) {
	t.Parallel()
	for name, options := range applied.ProviderKinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(6) {
				b := setup(t)
				h := sim.Generate(rand.New(rand.NewPCG(seed, 1)), options)
				b.applyShuffled(t, h, rand.New(rand.NewPCG(seed, 2)))
				b.checkObjects(t, h, fmt.Sprint("seed ", seed))
			}
		})
	}
}

// applyShuffled applies a history in random order, every event once or several times, in batches,
// with three processors.
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
		p := b.Applier(t, nil)
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

func (b *testBundle) checkObjects(t *testing.T, h *sim.History, label string) {
	t.Helper()
	for _, id := range h.ObjectIDs() {
		want := versioning.NewRow()
		for i, e := range h.Events {
			if e.Object != id {
				continue
			}
			m := applied.Message(i, e)
			obs, err := (sim.Provider{}).Observe(nil, &m.StoredEvent)
			must(t, err)
			in, err := versioning.InputFromObservation(obs, m.ReceivedAt)
			must(t, err)
			versioning.Apply(&want, in)
		}
		got := b.Object(t, id)
		if diff := applied.RowDifference(want, got.Row); diff != "" {
			t.Errorf("%s: object %s (-pure rule +database):\n%s", label, id, diff)
		}
		if !want.Ambiguous && want.RefetchAfter == 0 && want.State.Hash != h.FinalState(id).Hash &&
			!lastChangeIsPartial(h, id) {
			t.Errorf("%s: object %s is wrong, is not ambiguous, and has no pending refetch", label, id)
		}
	}
	var outcomes, revisions, changes int
	b.Scan(t, `SELECT count(*) FROM outcomes`, &outcomes)
	if outcomes != len(h.Events) {
		t.Errorf("%s: %d outcomes of %d events", label, outcomes, len(h.Events))
	}
	b.Scan(t, `SELECT coalesce(sum(revision), 0) FROM objects`, &revisions)
	b.Scan(t, `SELECT coalesce(sum(cardinality(ids)), 0) FROM outbox`, &changes)
	if revisions != changes {
		t.Errorf("%s: revisions grew %d times, but the outbox has %d changes", label, revisions, changes)
	}
}

// lastChangeIsPartial reports whether the object's last event carries no state.
func lastChangeIsPartial(h *sim.History, id string) bool {
	evs := h.EventsOf(id)
	return evs[len(evs)-1].Partial
}

// SQL and Go order versions in the same way.
func TestVersion_compareInSQLAndGo_agree(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := rand.New(rand.NewPCG(7, 7))
	pick := func() versioning.Version {
		at := []int64{-1 << 63, -5, 0, 1, 1_700_000_000_000_000, 1<<63 - 1}
		return versioning.Version{Final: r.IntN(2) == 0, At: at[r.IntN(len(at))], Seen: at[2+r.IntN(4)],
			Rank: int16(r.IntN(3))}
	}
	for range 500 {
		v, w := pick(), pick()
		var less, equal bool
		err := b.DB.Pool.QueryRow(t.Context(), `SELECT ($1::bool, $2::bigint, $3::bigint, $4::smallint) < ($5::bool,
			$6::bigint, $7::bigint, $8::smallint),
			($1::bool, $2::bigint, $3::bigint, $4::smallint) = ($5::bool, $6::bigint, $7::bigint, $8::smallint)`,
			v.Final, v.At, v.Seen, v.Rank, w.Final, w.At, w.Seen, w.Rank).Scan(&less, &equal)
		if c := v.Compare(w); err != nil || less != (c < 0) || equal != (c == 0) {
			t.Fatalf("%+v and %+v: Go says %d, SQL less=%v equal=%v (%v)", v, w, c, less, equal, err)
		}
	}
}

func (b *testBundle) saveObjects(t *testing.T, objs ...*versioning.Object) error {
	t.Helper()
	return pgx.BeginFunc(t.Context(), b.DB.Pool, func(tx pgx.Tx) error {
		return versioning.Save(t.Context(), tx, versioning.Mirror, objs)
	})
}

// The statement that writes rows checks the rule again: a stale write by a session that lost its
// lock changes nothing.
func TestSave_olderVersion_fails(t *testing.T) {
	t.Parallel()
	b := setup(t)
	applyBatch(t, b.Applier(t, nil), []stream.Event{applied.ThingEvent(0, "1")})
	for name, change := range map[string]func(*versioning.Object){
		"a lower version":    func(o *versioning.Object) { o.Version.At-- },
		"an older revision":  func(o *versioning.Object) { o.Revision -= 2 },
		"a skipped revision": func(o *versioning.Object) { o.Revision++ },
	} {
		o := b.Object(t, "obj_1")
		change(o)
		if b.saveObjects(t, o) == nil {
			t.Errorf("%s was written", name)
		}
	}
}

// If two sessions read the same row, only the first may write it, even if its write changes neither
// version nor revision. Otherwise a change of the tied states or of the pending refetch would be
// lost.
func TestSave_rowChangedSinceRead_fails(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, write := range map[string]func(*versioning.Object){
		"added a tied state": func(o *versioning.Object) {
			o.TiedStates = append(o.TiedStates, versioning.TiedState{State: o.State, TimeFrom: o.TimeFrom - 1,
				TimeTo: o.TimeTo + 1, FromRefetch: true})
		},
		"advanced the pending refetch": func(o *versioning.Object) { o.RefetchAfter += 1_000_000 },
		"changed nothing":              func(*versioning.Object) {},
	} {
		t.Run(name, func(t *testing.T) {
			e := applied.ThingEvent(len(name), name)
			id := "obj_" + name
			must(t, b.Applier(t, nil).Apply(t.Context(), events.LiveRun, []stream.Event{e}))
			first, second := b.Object(t, id), b.Object(t, id)
			write(first)
			must(t, b.saveObjects(t, first))
			if now := b.Object(t, id); now.Revision != second.Revision || now.Version != second.Version {
				t.Fatalf("the first write changed the row from %d %+v to %d %+v", second.Revision, second.Version,
					now.Revision, now.Version)
			}
			second.Ambiguous = true
			if err := b.saveObjects(t, second); err == nil {
				t.Error("the second session overwrote a row that it had not read")
			}
			if err := b.saveObjects(t, b.Object(t, id)); err != nil {
				t.Errorf("write after a new read of the row: %v", err)
			}
		})
	}
}

// If two sessions found no row, only the first may insert it.
func TestSave_rowInsertedSinceRead_fails(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.Object(t, "obj_new"), b.Object(t, "obj_new")
	first.RefetchAfter, second.RefetchAfter = 1, 2
	must(t, b.saveObjects(t, first))
	if err := b.saveObjects(t, second); err == nil {
		t.Error("the second session inserted the row again")
	}
}

// Objects that are written together each keep their own state, whatever its length: null states
// between them, multi-byte characters, a text longer than a page.
func TestSave_manyObjects_keepsEachState(t *testing.T) {
	t.Parallel()
	b := setup(t)
	texts := []string{"", `{}`, `{"name": "Zoë 😀"}`, `{"long": "` + strings.Repeat("ü", 9000) + `"}`, "", `[1, 2]`,
		`"é"`, "", `{"a": null}`}
	rand.Shuffle(len(texts), func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
	objs := make([]*versioning.Object, len(texts))
	want := map[string]string{}
	for i, text := range texts {
		id := fmt.Sprintf("obj_%d", i)
		objs[i] = b.Object(t, id)
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
	must(t, b.saveObjects(t, objs...))
	got := map[string]string{}
	for id := range want {
		got[id] = string(b.Object(t, id).State.JSON)
	}
	equal(t, "states", want, got)
}

// fixedVersionProvider returns the body as the state, always with the same version and a time range
// that extends to the receipt.
type fixedVersionProvider struct{ sim.Provider }

func (fixedVersionProvider) Observe(_ *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	state, err := canonical.Parse(e.Body)
	return provider.Observation{ObjectType: "thing", ObjectID: "one", State: state, At: 1_700_000_000_000_000,
		HasAt: true, Unit: 1, OwnVersion: true, MayNotAdvance: true, Rank: 1}, err
}

// An event that extends the time range of one content, within the range of all contents, is stored.
// The tied states grow in place, so the previous row must be a copy for the difference to be seen.
func TestApply_timeRangeInsideExistingOne_isStored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.Applier(t, fixedVersionProvider{})
	for i, e := range []struct {
		body     string
		received time.Duration
	}{{`{"a":1}`, 10 * time.Second}, {`{"a":2}`, time.Minute}, {`{"a":1}`, 30 * time.Second}} {
		at := time.UnixMicro(1_700_000_000_000_000).Add(e.received)
		ev := stream.Event{Source: "sim", StoredEvent: provider.StoredEvent{ID: int64(10 - i), Key: e.body,
			Type: "thing", ReceivedAt: at, Body: []byte(e.body)}}
		must(t, p.Apply(t.Context(), 0, []stream.Event{ev}))
	}
	widths := map[string]time.Duration{}
	o := b.Object(t, "one")
	for _, m := range o.TiedStates {
		widths[string(m.State.JSON)] = time.Duration(m.TimeTo-m.TimeFrom) * time.Microsecond
	}
	if len(o.TiedStates) != 2 || widths[`{"a": 1}`]+widths[`{"a":1}`] != 30*time.Second ||
		o.TimeTo-o.TimeFrom != time.Minute.Microseconds() {
		t.Errorf("time ranges %v of %+v", widths, o)
	}
}

// An event that gets a final outcome from another transaction while it is applied, for example by a
// redaction, changes no object.
func TestApply_outcomeRecordedByOther_appliesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.Applier(t, nil)
	event := func(n int64) stream.Event {
		return stream.Event{Source: "sim", StoredEvent: provider.StoredEvent{ID: n,
			ReceivedAt: time.UnixMicro(sim.Start), Body: fmt.Appendf(nil,
				`{"object_id": "a", "object": {"n": %d}, "rank": 1, "unit": 1, "time": 170000000000000%[1]d}`, n)}}
	}
	must(t, p.Apply(t.Context(), 0, []stream.Event{event(1)}))
	locked := testkit.OpenTx(t, b.DB.Pool, `SELECT FROM objects FOR UPDATE`)
	applied := make(chan error, 1)
	go func() {
		applied <- p.Apply(t.Context(), 0, []stream.Event{event(2)})
	}()
	// The outcome is read already, and the object cannot be written yet.
	b.AwaitAtLeast(t, 1,
		`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	b.DB.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason,
		attempts, at, rule_version)
		VALUES (2, 0, 1, 0, '', '', '', 'ignored', 'the event was redacted', 0, now(), 1)`)
	must(t, locked.Rollback(t.Context()))
	must(t, <-applied)
	var state, status string
	b.Scan(t, `SELECT state::text FROM objects`, &state)
	b.Scan(t, `SELECT status FROM outcomes WHERE event_id = 2`, &status)
	if state != `{"n": 1}` || status != "ignored" {
		t.Errorf("the object is %s, and the event %s", state, status)
	}
}

// partialProvider reads some events as partial ones.
type partialProvider struct {
	sim.Provider
	ids map[int64]bool
}

func (p partialProvider) Observe(src *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	o, err := p.Provider.Observe(src, e)
	if p.ids[e.ID] {
		o.Partial = "only the id"
	}
	return o, err
}

// An old partial event that is applied again requests no refetch that a later event has made
// unnecessary. A later event with a state does not clear a pending refetch. If the row was lost and
// created again, these events count again.
func TestApply_replayOfAppliedEvents_keepsPendingRefetch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	h := sim.Generate(rand.New(rand.NewPCG(7, 3)), sim.Options{Objects: 1, Changes: 40, Contents: 5, Unit: 1, Gap: 20})
	n := len(h.Events)
	at := func(i int) stream.Event { return applied.Message(i, h.Events[i]) }
	full, partial, last, late := at(0), at(n/3), at(2*n/3), at(n-1)
	id := h.ObjectIDs()[0]
	p := b.Applier(t, partialProvider{ids: map[int64]bool{partial.ID: true, late.ID: true}})
	apply := func(run int64, evs ...stream.Event) {
		t.Helper()
		for _, e := range evs {
			must(t, p.Apply(t.Context(), run, []stream.Event{e}))
		}
	}
	apply(0, full, partial)
	if o := b.Object(t, id); o.RefetchAfter == 0 {
		t.Fatalf("%+v", o)
	}
	apply(0, last)
	withoutRefetch := b.Object(t, id)
	if withoutRefetch.RefetchAfter != 0 {
		t.Fatalf("%+v", withoutRefetch)
	}
	apply(1, full, last, partial)
	equal(t, "without a pending refetch", withoutRefetch.Row, b.Object(t, id).Row)
	apply(0, late)
	withRefetch := b.Object(t, id)
	if withRefetch.RefetchAfter == 0 {
		t.Fatal("no refetch is pending")
	}
	apply(2, late, partial, last)
	equal(t, "with a pending refetch", withRefetch.Row, b.Object(t, id).Row)
	b.DB.Exec(t, `DELETE FROM objects`)
	apply(3, last, late, partial)
	if got := b.Object(t, id); got.RefetchAfter != withRefetch.RefetchAfter ||
		got.State.ExactHash != withRefetch.State.ExactHash {
		t.Errorf("created again: %+v, want %+v", got.Row, withRefetch.Row)
	}
}
