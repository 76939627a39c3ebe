package processor_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// says is event number n: that an object had a state, or was deleted where it is "", in a second after the simulation's start.
func says(n int, object, state string, second int64) stream.Event {
	at := sim.Start + second*1_000_000
	content := fmt.Sprintf(`"object":{"id":%q,"state":%q}`, object, state)
	if state == "" {
		content = `"deleted":true`
	}
	body := fmt.Appendf(nil, `{"id":"k%d","object_id":%q,"type":"thing.updated","unit":1000000,"rank":1,"time":%d,%s}`, n, object, at, content)
	return stream.Event{Source: "sim", Stored: provider.Stored{ID: int64(n), Key: fmt.Sprint("k", n), Type: "thing", Origin: events.OriginWebhook, ReceivedAt: time.UnixMicro(at).Add(time.Hour).UTC(), Body: body}}
}

const (
	// provenUntilSQL proves a type until so many seconds after the simulation's start, as a sweep does.
	provenUntilSQL = `INSERT INTO watermarks (source, account, what, since, until, run, at) VALUES ($1, '', $2, to_timestamp(0), provider_time($3), 1, now())`
	// sweepingSQL is a sweep under way that began so.
	sweepingSQL = `WITH r AS (INSERT INTO runs (job, asked, who, reason, status, detail, counts, made_at, updated_at, ended_at)
		VALUES ('reconcile', '{}', 'test', '', CASE WHEN $3 THEN 'failed' ELSE 'running' END, '', '{}', now(), now(), CASE WHEN $3 THEN now() END) RETURNING run)
		INSERT INTO sweeps (run, source, account, object_type, began, updated_at) SELECT r.run, $1, '', 'thing', provider_time($2), now() FROM r`
)

// A state that was proven gives way to an event that came late only until the object is looked at; what happened since, what changes nothing and what loses owes no look.
func TestALateEventOwesALook(t *testing.T) {
	t.Parallel()
	at := func(second int64) int64 { return sim.Start + second*1_000_000 }
	for name, c := range map[string]struct {
		proves string // the watermark until 100; "sweep": a sweep that began then, "ended": of a run that has ended
		then   []stream.Event
		apart  bool // in a batch each
		blind  bool
		// located: the API reads the type by what is known of the object.
		located bool
		want    int
	}{
		"late":                          {proves: "type thing", then: []stream.Event{says(2, "obj_1", "B", 10)}, want: 1},
		"late after changes":            {proves: "changes thing", then: []stream.Event{says(2, "obj_1", "B", 10)}, want: 1},
		"late during a sweep":           {proves: "sweep", then: []stream.Event{says(2, "obj_1", "B", 10)}, want: 1},
		"late after a run without end":  {proves: "ended", then: []stream.Event{says(2, "obj_1", "B", 10)}},
		"of another type":               {proves: "type other", then: []stream.Event{says(2, "obj_1", "B", 10)}},
		"the events":                    {proves: "events", then: []stream.Event{says(2, "obj_1", "B", 10)}},
		"in the second of the proof":    {proves: "type thing", then: []stream.Event{says(2, "obj_1", "B", 100)}, want: 1},
		"since":                         {proves: "type thing", then: []stream.Event{says(2, "obj_1", "B", 101)}},
		"stale":                         {proves: "type thing", then: []stream.Event{says(2, "obj_1", "B", 3)}},
		"unchanged":                     {proves: "type thing", then: []stream.Event{says(2, "obj_1", "A", 10)}},
		"overtaken in its batch":        {proves: "type thing", then: []stream.Event{says(2, "obj_1", "B", 10), says(3, "obj_1", "C", 200)}},
		"there and back":                {proves: "type thing", then: []stream.Event{says(2, "obj_1", "B", 10), says(3, "obj_1", "A", 20)}},
		"there, and back later":         {proves: "type thing", then: []stream.Event{says(2, "obj_1", "B", 10), says(3, "obj_1", "A", 20)}, apart: true, want: 1},
		"there, on, and back":           {proves: "type thing", then: []stream.Event{says(2, "obj_1", "B", 10), says(3, "obj_1", "C", 15), says(4, "obj_1", "A", 20)}, apart: true, want: 1},
		"in doubt":                      {proves: "type thing", then: []stream.Event{says(2, "obj_1", "B", 10), says(3, "obj_1", "C", 10)}, want: 1},
		"there and on":                  {proves: "type thing", then: []stream.Event{says(2, "obj_1", "B", 10), says(3, "obj_1", "C", 15)}, apart: true, want: 1},
		"deleted":                       {proves: "type thing", then: []stream.Event{says(2, "obj_1", "", 10)}, want: 1},
		"new, which was not listed":     {proves: "type thing", then: []stream.Event{says(2, "obj_2", "B", 10)}, want: 1},
		"made and gone":                 {proves: "type thing", then: []stream.Event{says(2, "obj_2", "B", 10), says(3, "obj_2", "", 20)}},
		"made, and gone later":          {proves: "type thing", then: []stream.Event{says(2, "obj_2", "B", 10), says(3, "obj_2", "", 20)}, apart: true, want: 1},
		"located, not read by its name": {proves: "type thing", then: []stream.Event{says(2, "obj_3", "B", 10)}, located: true, want: 1},
		"an object that nobody reads":   {proves: "type thing", then: []stream.Event{says(2, "obj_3", "B", 10)}},
		"of a source that nobody reads": {proves: "type thing", then: []stream.Event{says(2, "obj_1", "B", 10)}, blind: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			p := b.processor(t, sim.Provider{}, nil)
			if !c.blind {
				p.Replace(map[string]processor.Source{"sim": {Number: b.source, Config: &provider.Source{Name: "sim"}, Provider: sim.Provider{}, Stragglers: time.Minute,
					Reads: func(_, _, id string) bool { return id != "obj_3" }, Locates: func(_, objectType string) bool { return c.located && objectType == "thing" }}})
			}
			apply(t, p, []stream.Event{says(1, "obj_1", "A", 5)})
			switch c.proves {
			case "sweep", "ended":
				b.db.Exec(t, sweepingSQL, b.source, at(100), c.proves == "ended")
			default:
				b.db.Exec(t, provenUntilSQL, b.source, c.proves, at(100)+500_000)
			}
			for some := range slices.Chunk(c.then, map[bool]int{false: 9, true: 1}[c.apart]) {
				apply(t, p, some)
			}
			got := b.db.Rows(t, `SELECT object_id || ' ' || reason || ' ' || (due - made_at)::text FROM hints`)
			if len(got) != c.want || c.want == 1 && got[0][5:] != " an event came late 00:01:00" {
				t.Errorf("hints %q, want %d", got, c.want)
			}
			if c.want == 0 {
				return
			}
			// A look from then on ends it, and what comes still later loses to it.
			for i, o := range []string{"obj_1", "obj_2", "obj_3"} {
				apply(t, p, []stream.Event{seenAt(t, 50+i, o, "A", 110)})
				apply(t, p, []stream.Event{says(60+i, o, "Z", 30)})
			}
			if left := b.db.Rows(t, `SELECT object_id FROM hints`); len(left) > 0 {
				t.Errorf("after a look %q are left", left)
			}
		})
	}
}

// seenAt is a look, event number n, that found a state in a second after the simulation's start.
func seenAt(t *testing.T, n int, object, state string, second int64) stream.Event {
	t.Helper()
	l := provider.Look{Snapshot: provider.Snapshot{ObjectType: "thing", ObjectID: object, Body: fmt.Appendf(nil, `{"unit":1000000,"object":{"id":%q,"state":%q}}`, object, state)},
		Date: time.UnixMicro(sim.Start + second*1_000_000).UTC()}
	body, err := l.Encode()
	must(t, err)
	return stream.Event{Source: "sim", Stored: provider.Stored{ID: int64(n), Key: fmt.Sprint("look", n), Type: provider.LookType, Origin: events.OriginReconcile, ReceivedAt: l.Date, Body: body}}
}

// owned is event number n, which tells a state of an object under a version of the object's own.
type owned struct {
	n             int
	version       int64
	before, state string
	// still: the version may stand still. happened is the event's own time, and received when it came, in seconds after the simulation's start.
	still              bool
	happened, received int64
}

func (o owned) event(object string) stream.Event {
	ev := says(o.n, object, o.state, o.received)
	before := ""
	if o.before != "" {
		before = fmt.Sprintf(`"previous":{"state":%q},`, o.before)
	}
	content := fmt.Sprintf(`"object":{"id":%q,"state":%q}`, object, o.state)
	if o.state == "" {
		content = `"deleted":true`
	}
	ev.Body = fmt.Appendf(nil, `{"id":"k%d","object_id":%q,"type":"thing.updated","unit":1,"own":true,"still":%t,"rank":1,"time":%d,%s%s}`, o.n, object, o.still, o.version, before, content)
	ev.ReceivedAt = time.UnixMicro(sim.Start + o.received*1_000_000).UTC()
	if o.happened != 0 {
		ev.OccurredAt = time.UnixMicro(sim.Start + o.happened*1_000_000).UTC()
	}
	return ev
}

// What has a version of its own is late by that where it is a time, and by the event's time where it counts changes: nobody's normal events are.
func TestAnOwnVersionIsLateByItsTime(t *testing.T) {
	t.Parallel()
	at := func(second int64) int64 { return sim.Start + second*1_000_000 }
	for name, c := range map[string]struct {
		first, then owned
		want        int
	}{
		"counter, new":                     {then: owned{version: 3, state: "B", received: 5000}},
		"counter, told to be late":         {then: owned{version: 3, state: "B", happened: 10, received: 5000}, want: 1},
		"counter, told not to be":          {then: owned{version: 3, state: "B", happened: 4000, received: 5000}},
		"counter, from before":             {then: owned{version: 3, state: "B", received: 50}, want: 1},
		"counter, changed":                 {first: owned{version: 3, state: "A", received: 5}, then: owned{version: 4, state: "B", received: 5000}},
		"time, new":                        {then: owned{version: at(10), state: "B", received: 5000}, want: 1},
		"time, new since":                  {then: owned{version: at(4000), state: "B", received: 5000}},
		"time, which may stand still, new": {then: owned{version: at(10), state: "B", still: true, received: 5000}, want: 1},
		"time, after a delete":             {first: owned{version: at(5), received: 5}, then: owned{version: at(10), state: "B", received: 5000}, want: 1},
		"time, changed since":              {first: owned{version: at(5), state: "A", received: 5}, then: owned{version: at(4000), state: "B", received: 5000}},
		"time that stood still":            {first: owned{version: at(5), before: "Z", state: "A", still: true, received: 5}, then: owned{version: at(5), before: "A", state: "B", still: true, received: 5000}, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			p := b.refetching(t, anyID)
			if c.first.version != 0 {
				c.first.n = 1
				apply(t, p, []stream.Event{c.first.event("obj_1")})
			}
			b.db.Exec(t, provenUntilSQL, b.source, "type thing", at(100))
			c.then.n = 2
			apply(t, p, []stream.Event{c.then.event("obj_1")})
			if got := b.db.Rows(t, `SELECT o.state ->> 'state' FROM objects o`); !slices.Equal(got, []string{"B"}) {
				t.Errorf("the object is %q", got)
			}
			if got := b.db.Rows(t, `SELECT object_id || ' ' || reason FROM hints`); len(got) != c.want {
				t.Errorf("hints %q, want %d", got, c.want)
			}
		})
	}
}

// lateSource applies events of a source whose API reads all; an object has had a state, and its type is proven since.
func (b *testBundle) lateSource(t *testing.T) *processor.Processor {
	t.Helper()
	p := b.refetching(t, anyID)
	apply(t, p, []stream.Event{says(1, "obj_1", "A", 5)})
	b.db.Exec(t, provenUntilSQL, b.source, "type thing", sim.Start+100*1_000_000)
	return p
}

// A late tie owes a look for doubt; a late event that ends the doubt does not end what came late.
func TestDoubtHidesNoLateEvent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.lateSource(t)
	apply(t, p, []stream.Event{says(2, "obj_1", "B", 10), says(3, "obj_1", "C", 10)})
	shown := b.db.Rows(t, `SELECT state ->> 'state' FROM objects WHERE look_after <> 0`)
	if len(shown) != 1 {
		t.Fatal("no look is owed")
	}
	apply(t, p, []stream.Event{says(4, "obj_1", shown[0], 12)})
	if owed := b.db.Rows(t, `SELECT object_id FROM objects WHERE look_after <> 0`); len(owed) > 0 {
		t.Fatalf("%q are in doubt", owed)
	}
	if hints := b.db.Rows(t, `SELECT reason FROM hints WHERE gaps IS NOT NULL`); !slices.Equal(hints, []string{"an event came late"}) {
		t.Errorf("hints %q", hints)
	}
}

// A hint that was parked is due again where an event came late since, and says why.
func TestALateEventWakesAParkedHint(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.lateSource(t)
	b.db.Exec(t, `INSERT INTO hints (source, account, object_type, object_id, reason, made_at, due, after, error) SELECT source, account, object_type, object_id, 'a change does not fit', now(), 'infinity', 0, 'not whole' FROM objects`)
	apply(t, p, []stream.Event{says(2, "obj_1", "B", 10)})
	if hints := b.db.Rows(t, `SELECT reason FROM hints WHERE gaps IS NOT NULL AND due < 'infinity'`); !slices.Equal(hints, []string{"an event came late"}) {
		t.Errorf("hints %q", hints)
	}
}

// lively has objects that change several times a second, each change told with what was before, and received up to a second late.
var lively = sim.Options{Objects: 1000, Changes: 8, Contents: 1000, Unit: 1000, Gap: 700_000, ChangeSets: 100, Late: 1_000_000}

// waiting is a processor whose source's API reads all objects but one.
func (b *testBundle) waiting(t *testing.T) *processor.Processor {
	t.Helper()
	return b.refetching(t, func(id string) bool { return id != "obj_1000" })
}

// received are the events of a history in the order in which they were received.
func received(h *sim.History) []stream.Event {
	all := messages(h)
	slices.SortStableFunc(all, func(a, b stream.Event) int { return a.ReceivedAt.Compare(b.ReceivedAt) })
	return all
}

// apply applies events in their order, in batches.
func apply(t *testing.T, p *processor.Processor, all []stream.Event) {
	t.Helper()
	for some := range slices.Chunk(all, 37) {
		must(t, p.Apply(t.Context(), events.LiveRun, some))
	}
}

// What comes in another order and is not lost leaves hardly a reason to look.
func TestReorderedIsNotLost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	all := received(sim.Generate(rand.New(rand.NewPCG(1, 41)), lively))
	apply(t, b.waiting(t), all)
	var late, hints int
	b.scan(t, `SELECT count(*) FROM outcomes WHERE status = 'stale'`, &late)
	b.scan(t, `SELECT count(*) FROM hints`, &hints)
	if t.Logf("%d events of 1000 objects, %d of them behind a newer one: %d hints are left", len(all), late, hints); late < 500 || hints > 10 {
		t.Errorf("%d late, %d hints", late, hints)
	}
}

// What is lost leaves a reason to look, where the API reads the object, and a look ends it.
func TestLostLeavesAHint(t *testing.T) {
	t.Parallel()
	b := setup(t)
	h := sim.Generate(rand.New(rand.NewPCG(2, 41)), lively)
	lost, gone := map[string]bool{}, map[int64]bool{} // objects and events
	for i, e := range h.Events {
		of := h.Of(e.Object)
		if middle := len(of) / 2; len(of) >= 3 && of[middle].Key == e.Key && (len(lost) < 100 || e.Object == "obj_1000") {
			lost[e.Object], gone[message(i, e).ID] = true, true
		}
	}
	p := b.waiting(t)
	apply(t, p, slices.DeleteFunc(received(h), func(e stream.Event) bool { return gone[e.ID] }))
	waiting := b.db.Rows(t, `SELECT object_id FROM hints WHERE gaps IS NOT NULL AND reason = 'a change does not fit' AND due > made_at + interval '30 seconds' AND after = 0`)
	found := 0
	for _, id := range waiting {
		if lost[id] {
			found++
		}
	}
	t.Logf("%d objects lost an event, %d hints for them, %d for others", len(lost), found, len(waiting)-found)
	if found < 90 || len(waiting)-found > 10 || slices.Contains(waiting, "obj_1000") {
		t.Errorf("%d hints for %d objects that lost an event, %d in all", found, len(lost), len(waiting))
	}
	for i, id := range waiting {
		must(t, p.Apply(t.Context(), events.LiveRun, []stream.Event{lookAt(t, h, id, time.Minute, 10_000+i)}))
	}
	if left := b.db.Rows(t, `SELECT object_id FROM hints`); len(left) > 0 {
		t.Errorf("after looks %d hints are left", len(left))
	}
}

// at is an event whose body says another time of change.
func at(e stream.Event, micros int64) stream.Event {
	e.Body = []byte(fmt.Sprintf(`{"id":%q,"type":"thing.updated","object_id":"obj_%s","unit":1,"rank":1,"time":%d,"object":{"id":"obj_%s","name":"later"}}`,
		e.Key, e.Key, micros, e.Key))
	return e
}

// found are the statuses of an object's outcomes, newest first, as whoever asks by object sees them.
func (b *testBundle) found(t *testing.T, id string) (statuses []string) {
	t.Helper()
	page, err := processor.ListOutcomes(t.Context(), b.db.Pool, processor.OutcomeFilter{Objects: []int64{versioning.ObjectKey(b.source, "", "thing", id)}}, "", 10)
	must(t, err)
	for _, o := range page.Items {
		statuses = append(statuses, o.Status)
	}
	return statuses
}

// What came too far ahead is dead for itself, found by its object, and the object owes a look; nothing else of the object moves.
func TestTooFarAheadOwesALook(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, sim.Provider{}, nil)
	for name, first := range map[string]bool{"known": true, "new": false} {
		id := "obj_" + name
		want := []string{"dead"}
		if first {
			e := thing(0, name)
			want = append(want, "applied")
			must(t, p.Apply(t.Context(), events.LiveRun, []stream.Event{e}))
		}
		before := b.object(t, id)
		ahead := at(thing(len(name), name), time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
		must(t, p.Apply(t.Context(), events.LiveRun, []stream.Event{ahead}))
		after := b.object(t, id)
		if got := b.found(t, id); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s object: outcomes found by it %v, want %v", name, got, want)
		}
		if after.LookAfter != ahead.ReceivedAt.UnixMicro() || !after.Exists {
			t.Errorf("%s object: a look is owed after %d, want %d", name, after.LookAfter, ahead.ReceivedAt.UnixMicro())
		}
		if after.Version != before.Version || after.Revision != before.Revision || after.LastEvent != before.LastEvent || after.State.Exact != before.State.Exact {
			t.Errorf("%s object moved from %+v to %+v", name, before, after)
		}
	}
}

// An event that failed or died after its object was known is found by the object.
func TestTroubleIsFoundByObject(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Exec(t, `ALTER TABLE objects ADD CONSTRAINT refused CHECK (object_id <> 'obj_refused')`)
	p := b.processor(t, sim.Provider{}, nil)
	must(t, p.Apply(t.Context(), events.LiveRun, []stream.Event{thing(0, "refused"), thing(1, "good")}))
	if got := b.found(t, "obj_refused"); fmt.Sprint(got) != "[failed]" {
		t.Errorf("outcomes of the refused object: %v", got)
	}
	impossible := at(thing(2, "good"), math.MinInt64)
	must(t, p.Apply(t.Context(), events.LiveRun, []stream.Event{impossible}))
	if got := b.found(t, "obj_good"); fmt.Sprint(got) != "[dead applied]" {
		t.Errorf("outcomes of the good object: %v", got)
	}
	if o := b.object(t, "obj_good"); o.LookAfter != 0 {
		t.Errorf("a version that says nothing owes a look after %d", o.LookAfter)
	}
}
