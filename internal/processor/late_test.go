package processor_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
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
	if err != nil {
		t.Fatal(err)
	}
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
			p := b.processor(t, sim.Provider{}, nil)
			p.Replace(map[string]processor.Source{"sim": {Number: b.source, Config: &provider.Source{Name: "sim"}, Provider: sim.Provider{}, Stragglers: time.Minute,
				Reads: func(string, string, string) bool { return true }}})
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
	p := b.processor(t, sim.Provider{}, nil)
	p.Replace(map[string]processor.Source{"sim": {Number: b.source, Config: &provider.Source{Name: "sim"}, Provider: sim.Provider{}, Stragglers: time.Minute,
		Reads: func(string, string, string) bool { return true }}})
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
